"""torchrdit: what is known of its custom function.

`EigComplex` is covered by what does not depend on the scale of the eigenvectors, as the scattering of a layer does
not: the eigenvalues, and a matrix function that is built of both, with complex and with real eigenvalues. Truth: the
function of the matrix itself in PyTorch, and float64 central differences of pairs of real numbers. Double backward,
expanded cotangents, two backwards, checkpoints, changes in place, float32, autocast.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import bare, stub
from labels.fresh import first_is_wrong, second_is_wrong

PACKAGE = Package("torchrdit", "0.2.0", "photonics")

BROADENED = "by design: divisions by differences of eigenvalues are broadened by 1e-6"
DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    "PB301": "eigenvalues that are equal",
    "PB303": BROADENED,
    "PB501": "pairs that are views of complex numbers lie next to each other",
}


def _eig():
    bare("torchrdit")
    stub("skimage")
    stub("skimage.draw")
    stub("torchrdit.materials", MaterialClass=object)
    from torchrdit.utils import EigComplex

    torch.manual_seed(0)
    return EigComplex.apply


def _complex(pairs):
    return torch.view_as_complex(pairs.contiguous())


# First order right: differences.
def eigenvalues():
    eig = _eig()
    return (lambda pairs: torch.view_as_real(eig(_complex(pairs))[0])), (torch.randn(4, 4, 2),)


def _exponential(eig, matrix):
    values, vectors = eig(matrix)
    return torch.view_as_real(vectors @ torch.diag_embed(values.exp()) @ torch.linalg.inv(vectors))


# Wrong.
def lossy():
    eig = _eig()
    return (lambda pairs: _exponential(eig, _complex(pairs))), (0.5 * torch.randn(4, 4, 2),)


# Right, but for the broadening: differences.
def lossless():
    eig = _eig()

    def function(pairs):
        matrix = _complex(pairs)
        return _exponential(eig, matrix + matrix.mH)

    return function, (0.5 * torch.randn(4, 4, 2),)


CALLS = (
    Call(
        eigenvalues,
        bugs=(
            Bug(
                "the second derivative goes through that of the eigenvectors, and is silently wrong where eigenvalues are complex",
                ("PB401",),
                partial(second_is_wrong, eigenvalues),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(
        lossy,
        bugs=(
            Bug(
                "one of the two eigenvalues of a difference is conjugated: where they are complex the gradient is silently wrong",
                ("PB101", "PB116"),
                partial(first_is_wrong, lossy, 0),
            ),
        ),
        doubtful=DOUBTFUL,
        judged={
            "PB401": (True, "differences of its gradient, at a fixed cotangent, are not what double backward gives")
        },
    ),
    Call(lossless, doubtful={**DOUBTFUL, **dict.fromkeys(("PB101", "PB401"), BROADENED)}),
)
