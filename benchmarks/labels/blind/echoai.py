"""echoAI: what is known of its custom functions.

All three are covered. Truth: float64 central differences (below 1e-10 but for what is labelled) and the formulas in
plain PyTorch; strided, half-precision and zero inputs, double backward, frozen arguments, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import raises_in
from labels.fresh import first_is_wrong

PACKAGE = Package("echoAI", "0.1.3", "activations")

KINK = "at 0 the gradient is that of one side"


# First and second order right: differences (3e-11), where channels are a multiple of four, as it needs them.
def maxout():
    from echoAI.Activation.Torch.maxout import Maxout

    torch.manual_seed(0)
    return Maxout, (torch.randn(2, 8, 3, 3),)


# First and second order right: differences (6e-11).
def brelu():
    from echoAI.Activation.Torch.brelu import BReLU

    torch.manual_seed(0)
    return BReLU, (torch.randn(5, 4),)


# Wrong in all three arguments: differences. The hinges are at b - x > 0, and the backward takes them to be at x >= 0.
def apl():
    from echoAI.Activation.Torch.apl import apl_function

    torch.manual_seed(0)
    return apl_function, (torch.randn(3, 4), 0.2 * torch.randn(2, 1, 4), torch.randn(2, 1, 4))


CALLS = (
    Call(
        maxout,
        doubtful={"PB503": "a number of channels that is no multiple of four is refused by a view, as is one of none"},
    ),
    Call(
        brelu,
        bugs=(
            Bug(
                "in bfloat16 and float16 the backward raises: it puts float32 into the gradient",
                ("PB119", "PB413", "PB105"),
                partial(raises_in, brelu, torch.bfloat16, "dtypes match"),
            ),
        ),
        doubtful={"PB305": KINK},
    ),
    Call(
        apl,
        bugs=(
            Bug(
                "the gradient of the input is wrong: the mask of the hinges is that of another condition",
                ("PB101",),
                partial(first_is_wrong, apl, 0),
            ),
            Bug("the gradient of the slopes is wrong", ("PB101",), partial(first_is_wrong, apl, 1)),
            Bug("the gradient of the hinges is wrong", ("PB101",), partial(first_is_wrong, apl, 2)),
        ),
        doubtful={
            "PB401": "the second derivative is wrong with the first",
            "PB404": "the second derivative is wrong with the first",
            "PB105": "the gradients of slopes and hinges are computed in float32",
            "PB305": KINK,
        },
    ),
)
