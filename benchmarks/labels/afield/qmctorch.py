"""qmctorch: what is known of its custom function.

`BatchDeterminant` is covered by two batches. Truth: float64 central differences. Double backward, strided inputs and
cotangents, two backwards, checkpoints, changes in place.
"""

import torch

from labels import Call, Package

PACKAGE = Package(
    "qmctorch",
    "0.4.0",
    "quantum Monte Carlo",
    ("scipy==1.17.1", "matplotlib==3.11.2", "h5py==3.16.0", "twiggy==0.5.1", "six==1.17.0", "tqdm==4.67.1"),
)

SINGULAR = "of a singular matrix the inverse raises, with PyTorch's message"
NARROW = "PyTorch has no LU decomposition in half precision"
DOUBTFUL = {
    **dict.fromkeys(("PB301", "PB302", "PB303"), SINGULAR),
    **dict.fromkeys(("PB119", "PB413", "PB105"), f"{SINGULAR}; {NARROW}"),
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    "PB802": "Tensor.lu is deprecated",
}


def _determinant(size):
    from qmctorch.utils.algebra_utils import BatchDeterminant

    torch.manual_seed(0)
    return BatchDeterminant, (torch.randn(3, size, size),)


# Right, twice: differences.
def three_rows():
    return _determinant(3)


# Right, twice: differences.
def four_rows():
    return _determinant(4)


CALLS = tuple(Call(make, doubtful=DOUBTFUL) for make in (three_rows, four_rows))
