"""adeptml: what is known of its custom functions.

All three are covered, with a function in NumPy in the place of the solver that they are for. Truth: float64 central
differences. Double backward, strided inputs and cotangents, two backwards, checkpoints, changes in place.
"""

from functools import partial

import numpy
import torch

from labels import Bug, Call, Package
from labels.anew import NARROW, NO_FUNC, cut
from labels.blind import bare
from labels.fresh import input_change_is_unnoticed, raises_in_checkpoint

PACKAGE = Package("adeptml", "2.1", "hybrid physics models")

MIXING = numpy.random.default_rng(0).standard_normal((3, 2))
SOLVER = "the derivative is computed in NumPy, and knows of no graph"
DOUBTFUL = {
    **dict.fromkeys(("PB119", "PB413", "PB105"), NARROW),
    **dict.fromkeys(("PB405", "PB406", "PB407", "PB408"), NO_FUNC),
    **dict.fromkeys(("PB504", "PB505", "PB503"), "the solver is made for its own number of features"),
}


def _x():
    bare("adeptml")
    torch.manual_seed(0)
    return torch.randn(4, 3, dtype=torch.float64)


def _physics(x):
    return numpy.sin(x) @ MIXING


# First order right: differences.
def jacobian():
    x = _x()
    from adeptml.models import Physics

    return Physics, (x, _physics, lambda x: numpy.einsum("bi,io->boi", numpy.cos(x), MIXING), None)


# First order right: differences.
def product():
    x = _x()
    from adeptml.models import Physics_VJP

    return Physics_VJP, (x, _physics, lambda x, grad: numpy.cos(x) * (grad @ MIXING.T), None)


# First order right: differences.
def pullback():
    x = _x()
    from adeptml.models import Physics_SplitVJP

    def forward(x):
        return _physics(x), lambda grad: (numpy.cos(x) * (grad @ MIXING.T),)

    return Physics_SplitVJP, (x, forward, None)


def _twice(make):
    return Bug(
        "the backward reads ctx.saved_tensors twice: it raises under activation checkpointing",
        ("PB411", "PB412"),
        partial(raises_in_checkpoint, make, "already unpacked once"),
    )


CALLS = (
    *(Call(make, bugs=(cut(make, SOLVER), _twice(make)), doubtful=DOUBTFUL) for make in (jacobian, product)),
    Call(
        pullback,
        bugs=(
            cut(pullback, SOLVER),
            Bug(
                "the pullback holds an array in the argument's memory, and what is saved is never read: "
                "a change in place silently changes the gradient",
                ("PB209", "PB205"),
                partial(input_change_is_unnoticed, pullback, 0),
            ),
        ),
        doubtful={**DOUBTFUL, "PB205": "the argument is saved and not read", "PB411": "the pullback is kept"},
    ),
)
