"""supar: what is known of its custom functions.

Both are covered, with the dimensions that its semirings pass. Truth: float64 central differences. Double backward, ties,
strided inputs and cotangents, two backwards, checkpoints, changes in place, half precision.
"""

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.fresh import gradients, raises

PACKAGE = Package("supar", "1.1.4", "parsing of language")


def _fn():
    bare("supar", "supar.structs", "supar.utils")
    from supar.structs import fn

    torch.manual_seed(0)
    return fn


# Right, twice: differences.
def sparsemax():
    return _fn().SparsemaxFunction, (torch.randn(2, 3, 5), -1)


# Right, twice: differences.
def sparsemax_of_first_dimension():
    return _fn().SparsemaxFunction, (torch.randn(4, 3), 0)


# Wrong.
def sampled():
    return _fn().SampledLogsumexp, (torch.randn(2, 3, 5), -1)


CALLS = (
    Call(sparsemax),
    Call(sparsemax_of_first_dimension),
    Call(
        sampled,
        "other",
        bugs=(
            Bug(
                "the backward takes the tuple of saved tensors for the tensor in it and raises, always",
                ("PB119", "PB101"),
                lambda: raises(lambda: gradients(sampled), "'tuple' object has no attribute"),
            ),
        ),
    ),
)
