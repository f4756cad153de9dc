"""OpenNMT-py: what is known of its custom functions.

`SparsemaxFunction` and `SparsemaxLossFunction` are covered; `SRU_Compute` needs a GPU. The package is entered without
its `__init__`, which needs tokenizers and spaCy. Truth: float64 central differences. Double backward, strided inputs and
cotangents, two backwards, checkpoints, sizes of 1, changes in place.
"""

from functools import partial
from importlib import import_module

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.fresh import first_is_wrong
from labels.last import derivative_of_backward_is_wrong
from labels.outside import argument_is_changed

PACKAGE = Package("OpenNMT-py", "3.5.1", "losses and attention of translation")

KINK = "where a number enters or leaves the support there is a kink"


def _module(name):
    bare("onmt", "onmt.modules")
    return import_module(f"onmt.modules.{name}")


# First and second order right: differences, of a copy of the input.
def attention():
    torch.manual_seed(0)
    return _module("sparse_activations").SparsemaxFunction, (torch.randn(4, 6), -1)


# Wrong: "any shape".
def attention_of_one():
    torch.manual_seed(0)
    return _module("sparse_activations").Sparsemax(dim=-1), (torch.randn(2, 1, 6),)


def _loss(reduction):
    torch.manual_seed(0)
    criterion = _module("sparse_losses").SparsemaxLoss(ignore_index=1, reduction=reduction)
    return criterion, (torch.randn(4, 6), torch.tensor([0, 2, 5, 1]))


# Wrong.
def loss():
    torch.manual_seed(0)
    return _module("sparse_losses").SparsemaxLossFunction, (torch.randn(4, 6), torch.tensor([0, 2, 5, 1]))


# Wrong: what is ignored is trained.
def summed_loss():
    return _loss("sum")


def _changed(make):
    return Bug(
        "the forward subtracts the maximum from its input in place: whoever reads the input later silently gets other numbers",
        ("PB202", "PB501", "PB411", "PB209", "PB117"),
        partial(argument_is_changed, make),
    )


def _ignored(make):
    return Call(
        make,
        bugs=(
            Bug(
                "the backward ignores the cotangent: weights, means and ignored targets silently do not count",
                ("PB111", "PB101", "PB109"),
                partial(first_is_wrong, make, 0),
            ),
            Bug(
                "the backward takes the threshold for a constant: the second derivative is silently wrong",
                ("PB401", "PB404", "PB604"),
                partial(derivative_of_backward_is_wrong, make),
            ),
        ),
        doubtful={"PB305": KINK},
    )


CALLS = (
    Call(attention, bugs=(_changed(attention),), doubtful={"PB305": KINK}),
    Call(
        attention_of_one,
        bugs=(
            _changed(attention_of_one),
            Bug(
                "where a size is 1, the sizes of the supports are paired with the wrong rows: silently another gradient",
                ("PB101", "PB104", "PB504", "PB115"),
                partial(first_is_wrong, attention_of_one, 0),
            ),
        ),
        doubtful={"PB305": KINK},
    ),
    _ignored(loss),
    _ignored(summed_loss),
)
