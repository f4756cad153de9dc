"""braincog: what is known of its custom functions.

Four surrogates of spikes are covered, of nine; the others are like them. The package is entered without its `__init__`,
which needs torchvision. Truth: their formulas, and for second order differences of the gradient. Each argument frozen,
strided inputs and cotangents, two backwards, checkpoints, changes in place, autocast, half precision.
"""

from functools import partial
from importlib import import_module

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.fresh import raises_in_checkpoint, raises_when_frozen

PACKAGE = Package("braincog", "0.2.7.19", "spiking networks")

SURROGATE = "by design: the gradient is that of a surrogate"
INTERMEDIATE = "the derivative of the surrogate is saved; that of a surrogate is no derivative anyway"
WIDTH = "the width is a constant, kept on ctx"
DOUBTFUL = {
    **dict.fromkeys(("PB101", "PB107", "PB110", "PB305", "PB302"), SURROGATE),
    **dict.fromkeys(("PB201", "PB209"), WIDTH),
    **dict.fromkeys(("PB401", "PB402", "PB404", "PB604"), INTERMEDIATE),
}


def _function(name):
    bare("braincog", "braincog.base", "braincog.base.strategy")
    return getattr(import_module("braincog.base.strategy.surrogate"), name)


def _potentials():
    torch.manual_seed(0)
    return torch.randn(3, 4)


# Its formula.
def sigmoid():
    return _function("sigmoid"), (_potentials(), torch.tensor(4.0))


# Its formula.
def arctangent():
    return _function("atan"), (_potentials(), torch.tensor(2.0))


# Its formula.
def quadratic_gate():
    return _function("quadratic_gate"), (_potentials(), torch.tensor(2.0))


# Its formula.
def like_relu():
    return _function("relu_like"), (_potentials(), torch.tensor(2.0))


CALLS = (
    Call(sigmoid, "other", doubtful=DOUBTFUL),
    Call(
        arctangent,
        "other",
        bugs=(
            Bug(
                "the backward reads the saved tensors more than once: under activation checkpointing it raises",
                ("PB411",),
                partial(raises_in_checkpoint, arctangent, "already unpacked once"),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(quadratic_gate, "other", doubtful=DOUBTFUL),
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
)
