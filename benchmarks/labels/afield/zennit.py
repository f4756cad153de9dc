"""zennit: what is known of its custom function.

`Identity` is covered with one input and with two, as the hooks of layers pass them. Truth: float64 central differences.
Double backward, each argument alone, strided inputs and cotangents, two backwards, checkpoints, changes in place.
"""

import torch

from labels import Call, Package
from labels.blind import bare

PACKAGE = Package("zennit", "0.5.1", "attribution")

VIEW = "the outputs are the inputs: changing one in place raises, with PyTorch's message on views"


def _identity():
    bare("zennit")
    from zennit.core import Identity

    torch.manual_seed(0)
    return Identity


# Right, twice: differences.
def one():
    return _identity(), (torch.randn(2, 3, 4),)


# Right, twice: differences.
def two():
    return _identity(), (torch.randn(2, 3), torch.randn(4))


CALLS = tuple(Call(make, doubtful={"PB207": VIEW, "PB209": VIEW}) for make in (one, two))
