"""SPAIC: what is known of its custom functions.

Five of the seven surrogates of `spaic.Learning.surrogate` are covered, with the width of which each module makes a
parameter. `quadratic_gate` is made as `gate` is; the `ActFun`s of the learners are made anew by each. By hand: the
formulas. One argument frozen, two backwards, checkpoints, in place, dtypes.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import raises_in_checkpoint, raises_when_frozen

PACKAGE = Package("SPAIC", "0.6.3.0.0", "spiking networks", ("pandas", "requests", "tqdm"))

SURROGATE = "by design: the derivative of a smooth function in place of that of the step"
DOUBTFUL = {
    **dict.fromkeys(("PB101", "PB107", "PB110", "PB302", "PB305", "PB604"), SURROGATE),
    **dict.fromkeys(("PB401", "PB402", "PB404"), "the second derivative is that of the surrogate, if any"),
    **dict.fromkeys(
        ("PB201", "PB209"), "the width is kept on ctx, and nothing changes it between forward and backward"
    ),
    "PB208": "the width has no gradient by design",
}


def _surrogate(name):
    from spaic.Learning import surrogate

    torch.manual_seed(0)
    module = getattr(surrogate, name)()
    return type(module).firing_func, (torch.randn(3, 4), module.alpha.detach().clone())


# Its formula.
def sigmoid():
    return _surrogate("SigmoidGrad")


# Its formula.
def arctangent():
    return _surrogate("AtanGrad")


# Its formula.
def rectangle():
    return _surrogate("RectangleGrad")


# Its formula.
def like_relu():
    return _surrogate("ReLUGrad")


# The cotangent.
def straight_through():
    from spaic.Learning.surrogate import straight_through_estimator

    torch.manual_seed(0)
    return straight_through_estimator, (torch.randn(3, 4),)


CALLS = (
    Call(sigmoid, "other", doubtful=DOUBTFUL),
    Call(
        arctangent,
        "other",
        bugs=(
            Bug(
                "the backward reads the saved tensors more than once: under activation checkpointing it raises",
                ("PB411", "PB412"),
                partial(raises_in_checkpoint, arctangent, "already unpacked once"),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(rectangle, "other", doubtful=DOUBTFUL),
    Call(
        like_relu,
        "other",
        bugs=(
            Bug(
                "where the width alone is trained nothing was saved, and the backward raises",
                ("PB113", "PB119"),
                partial(raises_when_frozen, like_relu, 1, "not enough values to unpack"),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(straight_through, "other", doubtful=DOUBTFUL),
)
