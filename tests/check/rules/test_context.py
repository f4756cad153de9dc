"""Rules about attributes of the context, in-place changes and undefined cotangents."""

import pytest
import torch

import pullback

from ..making import normal


def found(rule, target, *inputs):
    return [(f.severity, f.message) for f in pullback.check(target, *(inputs or (normal(4),)), select=rule).findings]


def test_201_message_names_each_attribute():
    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mask = x > 0
            ctx.parts = {"x": x, "twice": 2 * x}
            ctx.n = x.numel()
            return x * x

        @staticmethod
        def backward(ctx, g):
            return ctx.parts["twice"] * g

    (floating, other) = found("PB201", Kept)
    assert floating == ("warning", "the forward keeps ctx.parts (an input) outside of save_for_backward")
    assert other == ("info", "the forward keeps ctx.mask (computed) outside of save_for_backward")


def test_201_setup_context_attributes_are_named():
    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.out, ctx.x = output, inputs[0]

        @staticmethod
        def backward(ctx, g):
            return 2 * g * ctx.x

    ((severity, message),) = found("PB201", Kept)
    assert severity == "warning"
    assert "ctx.out (an output) and ctx.x (an input)" in message


class Frees(torch.autograd.Function):
    """Gives its input's memory back, as a reversible network does."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.clone())
        out = x * x.sin()
        x.untyped_storage().resize_(0)
        return out

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.sin() + x * x.cos())


@pytest.mark.parametrize("rule", ["PB101", "PB202", "PB701"])
def test_freed_memory_is_not_read(rule):
    told = [("error", "the forward frees the memory of x")] if rule == "PB202" else []
    assert found(rule, Frees) == told


def test_202_buffer_may_be_updated():
    class Counting(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, count):
            count.add_(1)
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * g * x, None

    assert found("PB202", Counting, normal(3).requires_grad_(), torch.zeros(1)) == []


@pytest.mark.parametrize(("factor", "severity"), [(1, "warning"), (2, "error")])
def test_202_in_place_change_is_a_warning_if_the_gradient_passes_unchanged(factor, severity):
    class Clamp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x.clamp_(-0.5, 0.5)
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return factor * g

    assert found("PB202", Clamp) == [(severity, "the forward changes x in place and does not mark it as dirty")]


def test_203_message_names_the_changed_tensors():
    class Writes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            out = x.exp()
            ctx.save_for_backward(x, out)
            return out

        @staticmethod
        def backward(ctx, g):
            _, out = ctx.saved_tensors
            result = g * out
            out.detach().zero_()
            g.neg_()
            return result

    assert found("PB203", Writes) == [("error", "the backward changes its cotangent and an output in place")]


@pytest.mark.parametrize(("needed", "told"), [("any", ["error", "output 0"]), ("all", ["warning", "outputs 0, 1"])])
def test_112_undefined_cotangents_are_tried_in_turn_and_together(needed, told):
    class SumAndProduct(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(x, y)
            return x + y, x * y

        @staticmethod
        def backward(ctx, *gs):
            x, y = ctx.saved_tensors
            defined = [g is not None for g in gs]
            assert all(defined) if needed == "any" else any(defined)
            g, h = (torch.zeros_like(x) if g is None else g for g in gs)
            return g + y * h, g + x * h

    ((severity, message),) = found("PB112", SumAndProduct, normal(4).requires_grad_(), normal(4).requires_grad_())
    assert [severity, f"with an undefined cotangent of {told[1]}, " in message] == [told[0], True]
