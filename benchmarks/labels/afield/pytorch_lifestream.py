"""pytorch-lifestream: what is known of its custom functions.

Both are covered: `AllGather` by the function that applies it, in a group of one process, and `Binarization` by its
layer. The package is entered without its `__init__`, which needs PyTorch Lightning. Truth: float64 central differences.
Double backward, strided inputs and cotangents, two backwards, checkpoints, in place, dtypes. Not in a larger group,
where the cotangents of the others would not be added.
"""

from importlib import import_module

import torch

from labels import Call, Package
from labels.beyond import alone
from labels.blind import bare

PACKAGE = Package("pytorch-lifestream", "0.7.0", "event sequences")

STRAIGHT = "by design: the gradient goes straight through the sign"


# Right, twice: differences.
def gathered():
    bare("ptls", "ptls.frames", "ptls.frames.coles", "ptls.frames.coles.losses")
    alone()
    torch.manual_seed(0)
    return import_module("ptls.frames.coles.losses.dist_utils").all_gather_and_cat, (torch.randn(3, 4),)


# The cotangent.
def binarized():
    bare("ptls", "ptls.nn")
    torch.manual_seed(0)
    return import_module("ptls.nn.binarization").binary, (torch.randn(3, 4),)


CALLS = (
    Call(
        gathered,
        judged={"PB001": (False, "the audit runs in another process, without the group that was made here")},
    ),
    Call(binarized, "other", doubtful=dict.fromkeys(("PB101", "PB110", "PB302", "PB305", "PB401", "PB604"), STRAIGHT)),
)
