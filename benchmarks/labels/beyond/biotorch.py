"""biotorch: what is known of its custom functions.

All four are covered: those of direct feedback alignment, whose gradients are the derivatives (a hook changes them
later), and those of feedback alignment, which send the cotangent through other weights. Truth: float64 central
differences of first and second derivatives, and the formula of feedback alignment. Each argument frozen, strided inputs
and cotangents, two backwards, checkpoints, changes in place, autocast, groups, dilation, paddings, sizes of 1.
"""

from functools import partial
from importlib import import_module

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.fresh import raises, raises_in_autocast

PACKAGE = Package("biotorch", "0.0.16", "feedback alignment")

ALIGNED = "by design: feedback alignment sends the cotangent through other weights"
UNBATCHED = "the backward of an image without a batch raises: what makes the layers' input batched is not there"


def _module(name):
    bare("biotorch", "biotorch.autograd", "biotorch.autograd.fa", "biotorch.autograd.dfa")
    return import_module("biotorch.autograd." + name)


def _dense(outputs=2):
    torch.manual_seed(0)
    weights = torch.randn(outputs, 3), torch.randn(outputs, 3)
    return torch.randn(4, 3), *weights, torch.randn(outputs), torch.randn(outputs)


def _maps():
    torch.manual_seed(0)
    return torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3), torch.randn(4, 3, 3, 3), torch.randn(4), torch.randn(4)


# Right, twice: differences.
def linear(outputs=2):
    x, weight, _, bias, _ = _dense(outputs)
    return _module("dfa.linear").LinearGrad, (x, weight, bias)


# Right, twice: differences.
def convolution(padding=(1, 1), stride=(2, 2)):
    x, weight, _, bias, _ = _maps()
    return _module("dfa.conv").Conv2dGrad, (x, weight, bias, stride, padding, (1, 1), 1)


# Its formula.
def aligned_linear(outputs=2):
    return _module("fa.linear").LinearGrad, _dense(outputs)


# Its formula.
def aligned_convolution(padding=(1, 1), stride=(2, 2)):
    return _module("fa.conv").Conv2dGrad, (*_maps(), stride, padding, (1, 1), 1)


def _backward(given):
    function, arguments = given
    arguments = [a.requires_grad_() if isinstance(a, torch.Tensor) else a for a in arguments]
    output = function.apply(*arguments)
    return raises(output.sum().backward, "shape compatible with [1]", "must be a matrix", "convolution_backward()")


def sequences_raise():
    """Whether the backward of sequences fails, whose forward does not."""
    function, (_, weight, bias) = linear()
    return _backward((function, (torch.randn(2, 4, 3), weight, bias)))


def _autocast(make):
    return Bug(
        "under autocast the backward meets a cotangent of another dtype than the weights, and raises",
        ("PB413",),
        partial(raises_in_autocast, make, "same dtype", "expected scalar type", "primitive descriptor"),
    )


def _single(make):
    return Bug(
        "with a single output feature the gradient of the bias loses its dimension, and the backward raises",
        ("PB504", "PB104", "PB119"),
        lambda: _backward(make(1)),
    )


def _padded(make):
    return Bug(
        "the backward does not take the paddings 'same' and 'valid', which layer and forward take: it raises",
        ("PB119",),
        lambda: _backward(make("same", (1, 1))),
    )


CALLS = (
    Call(
        linear,
        bugs=(
            _single(linear),
            Bug(
                "the backward multiplies matrices only: where the input is a batch of sequences it raises",
                ("PB119",),
                sequences_raise,
            ),
            _autocast(linear),
        ),
    ),
    Call(convolution, bugs=(_padded(convolution), _autocast(convolution)), doubtful={"PB119": UNBATCHED}),
    Call(
        aligned_linear,
        "other",
        bugs=(_single(aligned_linear), _autocast(aligned_linear)),
        doubtful=dict.fromkeys(("PB101", "PB107", "PB110", "PB401"), ALIGNED),
    ),
    Call(
        aligned_convolution,
        "other",
        bugs=(_padded(aligned_convolution), _autocast(aligned_convolution)),
        doubtful={**dict.fromkeys(("PB101", "PB107", "PB110", "PB401"), ALIGNED), "PB119": UNBATCHED},
    ),
)
