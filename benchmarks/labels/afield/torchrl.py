"""torchrl: what is known of its custom functions.

The four of `torchrl.modules.distributions.utils` are covered where nothing is clamped, and the GRU that is scanned. The
wheel holds compiled code beside these. Truth: float64 central differences. Double backward, strided inputs and
cotangents, each argument frozen, two backwards, checkpoints, in place, dtypes.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import second_is_wrong

PACKAGE = Package(
    "torchrl", "0.14.1", "reinforcement learning", ("tensordict==0.15.3", "pyvers==0.2.3", "hoptorch==0.1.4")
)

CLAMPED = "by design: where it is clamped, the gradient is that of the function at the bound"
DOUBTFUL = dict.fromkeys(("PB101", "PB110", "PB301", "PB302", "PB303", "PB305", "PB401"), CLAMPED)


def _function(name, *bound):
    from torchrl.modules.distributions import utils

    torch.manual_seed(0)
    function = getattr(utils, name)
    return lambda x: function(x, *bound)


# Right, twice: differences.
def tanh():
    return _function("safetanh", 1e-6), (torch.randn(3, 4),)


# Right, twice: differences.
def tanh_of_its_dtype():
    return _function("safetanh_noeps"), (torch.randn(3, 4),)


# Right, twice: differences.
def inverse():
    return _function("safeatanh", 1e-6), (1.8 * torch.rand(3, 4) - 0.9,)


# Right, twice: differences.
def inverse_of_its_dtype():
    return _function("safeatanh_noeps"), (1.8 * torch.rand(3, 4) - 0.9,)


# First order right: differences.
def scanned_gru():
    from torchrl.modules.tensordict_module.rnn import _GRUScanFunction

    torch.manual_seed(0)
    starts = torch.tensor([[True, False], [False, False], [False, True], [False, False]])
    sizes = ((4, 2, 3), (2, 2), (4, 2, 2), (6, 3), (6, 2), (6,), (6,))

    def call(x, initial, reset, *weights):
        return _GRUScanFunction.apply(x, initial, reset, starts, *weights)

    return call, tuple(map(torch.randn, sizes))


CALLS = (
    *(Call(make, doubtful=DOUBTFUL) for make in (tanh, tanh_of_its_dtype, inverse, inverse_of_its_dtype)),
    Call(
        scanned_gru,
        bugs=(
            Bug(
                "it is once_differentiable, and beside another way to the input the second derivative is silently wrong",
                ("PB401", "PB402", "PB404", "PB604"),
                partial(second_is_wrong, scanned_gru),
            ),
        ),
        doubtful={"PB501": "the scan wants its state contiguous, and says so; the module makes it so"},
    ),
)
