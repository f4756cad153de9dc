"""lightly: what is known of its custom function.

`GatherLayer` is its only one; it is covered in a group of one process, and entered without what is around it. Truth:
float64 central differences of first and second derivatives; strided inputs and cotangents, two backwards, checkpoints,
changes in place, autocast, half precision.
"""

from importlib import import_module

import torch

from labels import Call, Package
from labels.beyond import alone
from labels.blind import bare

PACKAGE = Package("lightly", "1.6.0", "self-supervised vision")

ALONE = "what processes exchange takes no batch"


# Right, twice: differences.
def gather():
    alone()
    bare("lightly", "lightly.utils")
    torch.manual_seed(0)
    return import_module("lightly.utils.dist").GatherLayer, (torch.randn(4, 3),)


CALLS = (
    Call(
        gather,
        doubtful=dict.fromkeys(("PB406", "PB408", "PB405"), ALONE),
        judged={"PB001": (False, "the audit runs in another process, without the group that was made here")},
    ),
)
