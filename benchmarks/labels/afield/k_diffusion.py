"""k_diffusion: what is known of its custom function.

`_MatrixSquareRootEig` is covered by itself, with a covariance and with a batch, and by the distance that applies it
twice. Truth: float64 central differences. Double backward, strided inputs and cotangents, two backwards, checkpoints,
changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.afield import MATRIX, stand_in
from labels.blind import bare
from labels.last import derivative_of_backward_is_wrong

PACKAGE = Package(
    "k-diffusion", "0.1.1.post1", "diffusion models", ("tqdm==4.70.1", "Pillow==13.0.0", "safetensors==0.8.0")
)

METRIC = "a metric, with TF32 switched off: it is not computed under autocast, where eigh takes no half precision"
DOUBTFUL = {
    **dict.fromkeys(("PB101", "PB110"), MATRIX),
    **dict.fromkeys(("PB413", "PB119"), METRIC),
    "PB301": "the root of a singular matrix has no derivative",
    "PB303": "roots of small eigenvalues have lost digits",
}


def _evaluation():
    bare("k_diffusion")
    for name in ("clip", "cleanfid", "torchvision", "torchvision.transforms", "torchvision.transforms.functional"):
        stand_in(name)
    stand_in("cleanfid.inception_torchscript", InceptionV3W=None)
    from k_diffusion import evaluation

    torch.manual_seed(0)
    return evaluation


# First order right: differences.
def root_of_covariance():
    root = _evaluation().sqrtm_eig

    def function(x):
        covariance = torch.cov(x.T)
        return root(covariance + 1e-8 * torch.eye(len(covariance), dtype=x.dtype))

    return function, (torch.randn(9, 4),)


# First order right: differences.
def roots():
    root = _evaluation().sqrtm_eig
    return (lambda x: root(x @ x.mT)), (torch.randn(3, 3, 5),)


# First order right: differences.
def distance():
    return _evaluation().fid, (torch.randn(9, 4), torch.randn(9, 4))


CALLS = tuple(
    Call(
        make,
        bugs=(
            Bug(
                "eigenvalues and -vectors, saved in the forward, have no graph: the second derivative is silently wrong",
                ("PB401", "PB404"),
                partial(derivative_of_backward_is_wrong, make),
            ),
        ),
        doubtful=DOUBTFUL,
    )
    for make in (root_of_covariance, roots, distance)
)
