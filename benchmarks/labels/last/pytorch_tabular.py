"""pytorch-tabular: what is known of its custom functions.

All three are covered. Truth: float64 central differences (below 1e-6), to second order too. Half precision, strided
inputs and cotangents, ties, large values, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.fresh import second_is_wrong, second_raises

PACKAGE = Package("pytorch-tabular", "1.2.0", "tabular data")

CLASS = {"PB801": "the methods are class methods, which PyTorch takes"}
ENDS = "next to where it saturates the output is 1 to the last bit, and what is left of the gradient goes with it"


def _activations():
    bare("pytorch_tabular", *("pytorch_tabular.models" + m for m in ("", ".common", ".common.layers")))
    from pytorch_tabular.models.common.layers import activations

    return activations


def _logits():
    torch.manual_seed(0)
    return torch.randn(3, 5)


# First order right: differences.
def entmoid():
    return _activations().Entmoid15, (_logits(),)


# First and second order right: differences.
def sparsemax():
    return _activations().sparsemax, (_logits(), -1)


# First and second order right: differences.
def sparsemax_of_columns():
    return _activations().sparsemax, (_logits(), 0)


# First order right, and second order where nothing is 0: differences.
def entmax():
    return _activations().entmax15, (_logits(), -1)


# As above.
def entmax_of_columns():
    return _activations().entmax15, (_logits(), 0)


def _nan(make):
    return Bug(
        "the root of an output of 0, of which the function is made to give many, makes the second derivative NaN",
        ("PB401", "PB304"),
        partial(second_is_wrong, make),
    )


CALLS = (
    Call(
        entmoid,
        bugs=(
            Bug(
                "double backward raises, of a change in place, without saying that it is not supported",
                ("PB403", "PB401"),
                partial(second_raises, entmoid, "modified by an inplace operation"),
            ),
        ),
        doubtful={"PB302": ENDS, "PB303": ENDS},
    ),
    Call(sparsemax, doubtful=CLASS),
    Call(sparsemax_of_columns, doubtful=CLASS),
    Call(entmax, bugs=(_nan(entmax),), doubtful=CLASS),
    Call(entmax_of_columns, bugs=(_nan(entmax_of_columns),), doubtful=CLASS),
)
