"""PB121: value and gradients against a reference."""

import torch

import pullback

from ..making import normal


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]


def found(target, reference, *inputs):
    report = pullback.check(target, *(inputs or (normal(3, 4),)), select="PB121", reference=reference)
    return [(f.severity, f.message) for f in report.findings]


def test_another_order_of_operations_is_no_difference():
    assert found(Square, lambda x: x**2) == []
    assert found(lambda x: (x.float() * x.float()).double(), lambda x: x**2) == []


def test_gradient_that_the_formula_has_not():
    ((severity, message),) = found(Square, lambda x: x**2 + (x - x.detach()) * 0.5)
    assert severity == "error"
    assert message.startswith("the gradient of x[")
    assert ", that of the reference " in message


def test_shape_and_number_of_outputs():
    ((_, message),) = found(Square, lambda x: (x**2).sum())
    assert message.startswith("its outputs have the shapes [[")
    assert message.endswith("]], those of the reference [[]]")
    ((_, message),) = found(Square, lambda x: (x**2, x))
    assert message.startswith("its outputs have the shapes [[")


def test_reference_that_raises_decides_nothing():
    ((severity, message),) = found(Square, lambda x: x.no_such_method())
    assert severity == "info"
    assert "the reference raises" in message


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None


def test_input_that_is_not_differentiated_is_not_compared():
    x, w = normal(3).detach(), normal(3).detach()
    assert found(Scaled, torch.mul, x, w) == []
    assert found(Scaled, lambda x, w: 2 * x * w, x, w)
