"""iunets: what is known of its custom functions.

Both are covered, `cayley` and `expm`, with skew-symmetric matrices, which is what its layers pass. The package is entered
without its `__init__`, which needs MemCNN. Truth: float64 central differences, and PyTorch's own derivatives of `solve`
and `matrix_exp`, with which the values agree (1e-7).
"""

from functools import partial
from importlib import import_module

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.fresh import first_is_wrong

PACKAGE = Package("iunets", "0.1", "invertible networks")

NARROW = "half precision is not taken: expm raises, cayley goes over to float32"
FIRST = "the first order is wrong already"
DOUBTFUL = {
    **dict.fromkeys(("PB119", "PB413", "PB105"), NARROW),
    **dict.fromkeys(("PB303", "PB401", "PB404", "PB604"), FIRST),
    **dict.fromkeys(("PB501", "PB503", "PB504", "PB505"), "a matrix is to be square, and not empty"),
}


def _module(name):
    bare("iunets")
    return import_module(f"iunets.{name}")


def _skew(scale):
    torch.manual_seed(0)
    weight = scale * torch.randn(2, 3, 3)
    return weight - weight.transpose(-1, -2)


# Wrong.
def cayley():
    return _module("cayley").cayley, (_skew(0.5),)


# Wrong.
def small_exponential():
    return _module("expm").expm, (_skew(0.1),)


# Wrong.
def large_exponential():
    return _module("expm").expm, (_skew(4.0),)


def _wrong(make, what):
    return Call(
        make, bugs=(Bug(what, ("PB101", "PB106", "PB110"), partial(first_is_wrong, make, 0)),), doubtful=DOUBTFUL
    )


CALLS = (
    _wrong(cayley, "the backward has the wrong sign and inverts the wrong matrix: near 0 it is minus the gradient"),
    _wrong(
        small_exponential, "the backward adds up the denominator from the numerator's terms: silently another gradient"
    ),
    _wrong(large_exponential, "the backward squares by products from one side only: silently another gradient"),
)
