"""dhl-mm: what is known of its custom function.

`SparseLieBracketFn` is covered by the module that applies it, for the algebra G2: of two batches, of a batch and a
single element, and of two elements. Truth: float64 central differences. Double backward, strided inputs and cotangents,
two backwards, checkpoints, changes in place.
"""

import torch

from labels import Call, Package

PACKAGE = Package("dhl-mm", "0.2.2", "exceptional Lie algebras")

SUMMED = "of an element that was broadcast the backward returns a batch of gradients: PyTorch sums it, to the right one"
SETUP = "torch.func does not take it: it has no setup_context"
FIXED = {"PB119": (False, "the dimension of the algebra is fixed, and was changed")}
DOUBTFUL = dict.fromkeys(("PB405", "PB406", "PB407"), SETUP)


def _bracket():
    from equivariant.sparse_kernel import SparseLieBracket

    torch.manual_seed(0)
    return SparseLieBracket.from_algebra("G2")


# Right, twice: differences.
def batches():
    return _bracket(), (torch.randn(3, 14), torch.randn(3, 14))


# Right, twice: differences.
def batch_and_element():
    return _bracket(), (torch.randn(3, 14), torch.randn(14))


# Right, twice: differences.
def elements():
    return _bracket(), (torch.randn(14), torch.randn(14))


CALLS = (
    Call(batches, doubtful=DOUBTFUL, judged=FIXED),
    Call(batch_and_element, doubtful={**DOUBTFUL, "PB104": SUMMED, "PB115": SUMMED}, judged=FIXED),
    Call(elements, doubtful=DOUBTFUL, judged=FIXED),
)
