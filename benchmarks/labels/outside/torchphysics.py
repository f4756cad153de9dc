"""torchphysics: what is known of its custom functions.

`relu_n` is covered with a whole power and with a broken one; `linear`, of trunk nets, with an input that is expanded,
as the nets hand it over. Truth: float64 central differences. Double backward, strided and expanded inputs and
cotangents, arguments frozen, two backwards, checkpoints, changes in place, bfloat16, autocast.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.fresh import raises_in_autocast
from labels.last import derivative_of_backward_is_wrong

PACKAGE = Package("torchphysics", "1.1.2", "physics-informed networks")

TRANSFORMS = {
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    "PB803": "the module around it makes an instance, and applies the class",
}


def _enter():
    bare("torchphysics", "torchphysics.models", "torchphysics.models.deeponet")
    torch.manual_seed(0)


def _power(n):
    _enter()
    from torchphysics.models.activation_fn import relu_n

    return relu_n, (torch.randn(3, 4), n)


# Right, twice: differences.
def cubed():
    return _power(3)


# Right: differences; its second derivative is infinite on one side of 0.
def broken_power():
    return _power(1.5)


# First order right: differences.
def trunk():
    _enter()
    from torchphysics.models.deeponet.layers import linear

    def function(x, weight, bias):
        return linear.apply(x.expand(2, 5, 3), weight, bias)

    return function, (torch.randn(5, 3), torch.randn(4, 3), torch.randn(4))


CALLS = (
    Call(cubed, doubtful=TRANSFORMS),
    Call(
        broken_power,
        doubtful={**TRANSFORMS, "PB401": "infinite on one side of 0", "PB305": "infinite on one side of 0"},
    ),
    Call(
        trunk,
        bugs=(
            Bug(
                "what is saved of the input is a part of it, made without a graph: the weight's gradient silently has no derivative by the input",
                ("PB404", "PB401", "PB604"),
                partial(derivative_of_backward_is_wrong, trunk, 0),
            ),
            Bug(
                "under autocast the cotangent is narrower than the weight: the backward raises",
                ("PB413", "PB119"),
                partial(raises_in_autocast, trunk, "same dtype"),
            ),
        ),
        doubtful={
            **TRANSFORMS,
            "PB104": "the weight's gradient has one dimension more, which autograd reduces",
            "PB207": "the output is an expanded view: changing it in place raises, with PyTorch's message",
        },
    ),
)
