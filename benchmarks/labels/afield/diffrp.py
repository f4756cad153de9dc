"""diffrp: what is known of its custom functions.

`_SmallMatrixInverse` is covered with a camera's matrix, with a batch and with a single number. Left out:
`_EdgeGradient`, whose module needs a rasteriser for CUDA. Truth: float64 central differences. Double backward, strided
inputs and cotangents, two backwards, checkpoints, autocast, changes in place.
"""

import torch

from labels import Call, Package
from labels.blind import bare

PACKAGE = Package("diffrp", "0.2.7", "rendering", ("torch-redstone==0.0.6", "tqdm==4.70.1"))

NARROW = "NumPy inverts no half precision: the forward says so"
DOUBTFUL = {
    **dict.fromkeys(("PB119", "PB413", "PB105"), NARROW),
    "PB406": "the forward goes through NumPy, which takes no batch of torch.func",
}


def _inverse():
    bare("diffrp", "diffrp.utils")
    from diffrp.utils.shader_ops import small_matrix_inverse

    torch.manual_seed(0)
    return small_matrix_inverse


# Right, twice: differences.
def camera():
    return _inverse(), (torch.randn(4, 4),)


# Right, twice: differences.
def transforms():
    return _inverse(), (torch.randn(2, 3, 3),)


# Right, twice: differences.
def number():
    return _inverse(), (torch.randn(1, 1) + 2,)


CALLS = tuple(Call(make, doubtful=DOUBTFUL) for make in (camera, transforms, number))
