"""sparsemax: what is known of its custom function.

`SparsemaxFunction` is covered through the module: the last dimension, one in the middle of three, the first of two.
Truth: float64 central differences. Double backward, strided inputs and cotangents, two backwards, checkpoints, in place,
dtypes.
"""

import torch

from labels import Call, Package

PACKAGE = Package("sparsemax", "0.1.9", "activation functions")

VIEW = "the output is a view: changing it in place raises, with PyTorch's message on views"


def _module(dim, *shape):
    from sparsemax import Sparsemax

    torch.manual_seed(0)
    return Sparsemax(dim=dim), (torch.randn(*shape),)


# Right, twice: differences.
def rows():
    return _module(-1, 3, 5)


# Right, twice: differences.
def channels():
    return _module(1, 2, 4, 3)


# Right, twice: differences.
def heads():
    return _module(-1, 2, 3, 4)


ROWS = {"PB505": "it wants a dimension, and says so"}
CALLS = (Call(rows, doubtful=ROWS), *(Call(make, doubtful={"PB207": VIEW, **ROWS}) for make in (channels, heads)))
