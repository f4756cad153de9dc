"""optimum-quanto: what is known of its custom functions.

Covered are quantisers, dequantisers and the linear layer, as its modules call them; the others need a GPU. Truth: the
formulas, central differences of the linear layer in its input and bias. Half precision, autocast, inputs of one, two
and three dimensions and of none, strided inputs, transposed and expanded cotangents, double backward, frozen
arguments, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import bare, raises_with
from labels.fresh import raises
from labels.last import transposed_cotangent_raises

PACKAGE = Package("optimum-quanto", "0.2.7", "quantisation")

STRAIGHT = "straight-through: the weights are rounded, and the scale comes from them without a gradient"
ROUNDED = {"PB101": STRAIGHT, "PB107": STRAIGHT, "PB604": STRAIGHT, "PB401": STRAIGHT}
CONTIGUOUS = ("view size is not compatible",)


def _tensor():
    bare("optimum", "optimum.quanto")
    import optimum.quanto.library  # noqa: F401
    from optimum.quanto import tensor

    return tensor


def _weights():
    torch.manual_seed(0)
    return torch.randn(4, 6)


def _quantised(weights):
    tensor = _tensor()
    scale = weights.detach().abs().amax(1, keepdim=True) / 127
    return tensor.quantize_weight(weights, tensor.qint8, 0, scale)


# Straight-through, right.
def weights():
    return (lambda w: _quantised(w).dequantize()), (_weights(),)


# Straight-through, right.
def weights_of_four_bits():
    tensor = _tensor()

    def function(w):
        from optimum.quanto.tensor.optimizers import MaxOptimizer

        scale, shift = MaxOptimizer()(w.detach(), tensor.qint4, 0, None)
        return tensor.quantize_weight(w, tensor.qint4, 0, scale, shift).dequantize()

    return function, (_weights(),)


# Straight-through, right.
def activations():
    tensor = _tensor()

    def function(x):
        return tensor.quantize_activation(x, tensor.qint8, torch.tensor(0.02, dtype=x.dtype)).dequantize()

    torch.manual_seed(0)
    return function, (torch.randn(2, 3, 6),)


# The gradients of input and bias are right: differences. That of the weights is straight-through.
def linear():
    torch.manual_seed(1)
    return (lambda x, w, b: torch.nn.functional.linear(x, _quantised(w), b)), (
        torch.randn(2, 3, 6),
        _weights(),
        torch.randn(4),
    )


def vector_raises():
    """Whether the backward of an input without a batch raises, which the forward takes, as PyTorch's own does."""
    function, (x, weights, bias) = linear()
    leaves = [t.requires_grad_() for t in (x[0, 0].clone(), weights, bias)]
    y = function(*leaves)
    return y.shape == (4,) and raises(y.sum().backward, "invalid gradient at index 2")


def _swapped(index, argument):
    return argument.transpose(0, 1).contiguous().transpose(0, 1) if index == 0 else argument


CALLS = (
    Call(weights, "other", doubtful=ROUNDED),
    Call(weights_of_four_bits, "other", doubtful=ROUNDED),
    Call(activations, "other", doubtful=ROUNDED),
    Call(
        linear,
        "other",
        bugs=(
            Bug(
                "the backward takes a view of its cotangent, and raises where that is not contiguous",
                ("PB502", "PB119"),
                partial(transposed_cotangent_raises, linear, *CONTIGUOUS),
            ),
            Bug(
                "the backward takes a view of the input, and raises where that is not contiguous",
                ("PB119",),
                partial(raises_with, linear, _swapped, *CONTIGUOUS),
            ),
            Bug(
                "of an input of one dimension the gradient of the bias is summed to a number: the backward raises",
                ("PB104", "PB119"),
                vector_raises,
            ),
        ),
        doubtful=ROUNDED,
    ),
)
