"""neuraloperator: what is known of its custom functions.

Two of its four are covered, in a group of one process, where all are the identity; what they do between processes is
no label. Truth: float64 central differences. Double backward, strided inputs and cotangents, two backwards, checkpoints.
"""

import torch

from labels import Call, Package
from labels.anew import VIEW
from labels.beyond import alone
from labels.blind import bare

PACKAGE = Package("neuraloperator", "2.0.0", "operator learning")


def _function(name, *others):
    bare("neuralop", "neuralop.mpu")
    from neuralop.mpu import mappings

    alone()
    torch.manual_seed(0)
    return getattr(mappings, name), (torch.randn(2, 4), *others)


# Right, twice: differences.
def copied():
    return _function("_CopyToModelParallelRegion")


# Right, twice: differences.
def gathered():
    return _function("_GatherFromModelParallelRegion", 1)


CALLS = tuple(Call(make, doubtful={"PB207": VIEW}) for make in (copied, gathered))
