"""Intermediates kept on `ctx` hide a dependence on the inputs: second derivatives through them raise."""

from collections import deque
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.func import grad, hessian, jacrev, jvp, vmap

import pullback

X = torch.tensor([0.5, -1.25], dtype=torch.float64)


class Hiding(pullback.AutogradFunction):
    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.slope

    @staticmethod
    def jvp(ctx, t):
        return t * ctx.slope


class OnContext(Hiding):
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.slope = inputs[0].exp()


class Saved(Hiding):
    @staticmethod
    def setup_context(ctx, inputs, output):
        slope = inputs[0].exp()
        ctx.save_for_backward(slope)
        ctx.save_for_forward(slope)

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return g * slope

    jvp = backward


class SavedForBackward(Saved):
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0].exp())


class Honest(Hiding):
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.slope, ctx.factor, ctx.sign = output, 1.0, inputs[0] > 0


class OldStyle(pullback.AutogradFunction):
    @staticmethod
    def forward(ctx, x):
        ctx.slope = x.exp()
        return ctx.slope.clone()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.slope


def first_by_jvp(f):
    return lambda x: jvp(f, (x,), (torch.ones_like(x),))[1]


def through_vmap(f):
    def twice(x):
        x = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(vmap(f)(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    return twice


SECOND = {
    "grad of grad": lambda f: grad(lambda x: grad(lambda y: f(y).sum())(x).sum()),
    "vmap of grad of grad": lambda f: vmap(grad(grad(f))),
    "jacrev of jacrev": lambda f: lambda x: jacrev(jacrev(f))(x).sum((0, 1)),
    "hessian": lambda f: lambda x: hessian(f)(x).sum((0, 1)),
    "jvp of jvp": lambda f: first_by_jvp(first_by_jvp(f)),
    "grad of jvp": lambda f: grad(lambda x: first_by_jvp(f)(x).sum()),
    "vmap, then autograd": through_vmap,
}


@pytest.mark.parametrize("function", [OnContext, Saved])
@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND)
def test_intermediate_on_ctx_raises_in_second_order_under_transforms(function, second):
    with pytest.raises(pullback.DerivativeError, match="no derivative itself"):
        second(function.apply)(X)


@pytest.mark.parametrize("second", [SECOND["grad of grad"], through_vmap])
def test_intermediate_saved_for_backward_raises_in_second_order(second):
    with pytest.raises(pullback.DerivativeError, match="no derivative itself"):
        second(SavedForBackward.apply)(X)


@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND)
def test_inputs_outputs_numbers_and_masks_may_be_on_ctx(second):
    torch.testing.assert_close(second(Honest.apply)(X), X.exp())


@pytest.mark.parametrize("function", [OnContext, Saved, Honest])
def test_first_derivative_is_the_rules(function):
    for first in (
        grad(lambda x: function.apply(x).sum()),
        vmap(grad(function.apply)),
        first_by_jvp(function.apply),
        vmap(first_by_jvp(function.apply)),
    ):
        torch.testing.assert_close(first(X), X.exp())


@pytest.mark.parametrize("function", [OnContext, OldStyle])
def test_intermediate_on_ctx_raises_in_second_order_under_a_function_mode(function):
    x = X.clone().requires_grad_()
    with torch.overrides.BaseTorchFunctionMode():
        (first,) = torch.autograd.grad(function.apply(x).sum(), x, create_graph=True)
        torch.testing.assert_close(first, X.exp(), check_dtype=True)
        with pytest.raises(pullback.DerivativeError, match="no derivative itself"):
            torch.autograd.grad(first.sum(), x)


def test_forward_may_read_and_delete_ctx_attributes():
    class Scratch(pullback.AutogradFunction):
        @staticmethod
        def forward(ctx, x):
            ctx.slope = x.exp()
            y = ctx.slope * 1
            del ctx.slope
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            assert not hasattr(ctx, "slope")
            return g * ctx.saved_tensors[0]

    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(Scratch.apply(x).sum(), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], X.exp())


@dataclass
class Kept:
    slope: torch.Tensor


class Slotted:
    __slots__ = ("slope",)

    def __init__(self, slope):
        self.slope = slope


@pytest.mark.parametrize(
    "keep",
    [
        Kept,
        Slotted,
        lambda slope: SimpleNamespace(within={"deep": [slope]}),
        lambda slope: partial(torch.mul, slope),
        lambda slope: lambda: slope,
        lambda slope: Kept(slope).__repr__,
        lambda slope: deque([slope]),
        lambda slope: slope.mul,
    ],
    ids=["dataclass", "slots", "nested", "partial", "closure", "method", "deque", "method of a tensor"],
)
@pytest.mark.parametrize("is_output", [False, True])
def test_tensors_inside_objects_on_ctx_are_found(keep, is_output):
    class Function(pullback.AutogradFunction):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.kept, ctx.slope = keep(y), y if is_output else None
            return y if is_output else y.clone()

        @staticmethod
        def backward(ctx, g):
            return g * (ctx.slope if is_output else 1)

    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(Function.apply(x).sum(), x, create_graph=True)
    if is_output:
        torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], x.exp())
    else:
        with pytest.raises(pullback.DerivativeError, match="no derivative itself"):
            torch.autograd.grad(first.sum(), x)


def test_modules_may_be_on_ctx():
    class Function(pullback.AutogradFunction):
        @staticmethod
        def forward(ctx, x, module):
            ctx.module = module
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2, None

    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad((Function.apply(x, torch.nn.Linear(2, 2)) * x).sum(), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], torch.full_like(X, 4.0))
