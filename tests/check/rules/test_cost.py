"""Rules about memory and speed."""

import pytest
import torch

import pullback

from ..making import normal


def found(rule, target, *inputs):
    return [(f.severity, f.message) for f in pullback.check(target, *(inputs or (normal(4),)), select=rule).findings]


def keeping(save, gradient=lambda g, x, *kept: g * 2 * x):
    """Return a Function x² that saves what `save(x, out)` returns."""

    class Keeping(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            out = x * x
            ctx.save_for_backward(*save(x, out))
            return out

        @staticmethod
        def backward(ctx, g):
            return gradient(g, *ctx.saved_tensors)

    return Keeping


@pytest.mark.parametrize(
    ("save", "what"),
    [
        (lambda x, out: (x, out.clone()), "a copy of an output"),
        (lambda x, out: (x, x + 0), "a copy of an input"),
        (lambda x, out: (x, x.sin(), x.sin()), "a copy of another one that is kept"),
        (lambda x, out: (x, x.sum(0).expand(3, 4).clone()), "the same all along dim 0"),
    ],
)
def test_701_redundant_residual_is_a_warning_with_its_source(save, what):
    warnings = [m for severity, m in found("PB701", keeping(save), normal(3, 4)) if severity == "warning"]
    assert len(warnings) == 1
    assert warnings[0].startswith("kept for the backward: float64 (3, 4), 96 bytes, ")
    assert warnings[0].endswith(what)


def test_701_intermediate_beside_its_inputs_is_an_info():
    ((severity, message),) = found("PB701", keeping(lambda x, out: (x, x.cos())))
    assert severity == "info"
    assert "which is kept as well as the inputs that determine it element by element" in message


def test_701_output_beside_its_inputs_is_an_info():
    ((severity, message),) = found("PB701", keeping(lambda x, out: (x, out)))
    assert severity == "info"
    assert "an output, which is kept as well" in message


@pytest.mark.parametrize(
    "save",
    [
        lambda x, out: (x,),
        lambda x, out: (x, x.mean().reshape(1)),
        lambda x, out: (x, x.sum(-1, keepdim=True).expand(x.shape)),
        lambda x, out: (x, x > 0),
        lambda x, out: (x, x.cumsum(0)),
        lambda x, out: (x.clamp(-10, 10),),
    ],
)
def test_701_needed_residuals_are_not_reported(save):
    assert found("PB701", keeping(save), normal(3, 4)) == []


def test_702_integers_may_be_indices():
    assert found("PB702", keeping(lambda x, out: (x, (x > 0).long()))) == []


def test_702_floats_that_happen_to_be_0_and_1_are_no_mask():
    steps = keeping(lambda x, out: (x, x.floor()))
    assert found("PB702", steps, torch.tensor([0.2, 1.4, 0.7, 1.1])) == []


def test_703_views_of_one_storage_are_counted_together():
    def halves(x, out):
        both = torch.stack([x.sin(), x.cos()])
        return x, both[0], both[1]

    assert found("PB703", keeping(halves)) == []


def test_703_view_of_an_input_is_not_reported():
    assert found("PB703", keeping(lambda x, out: (x, x[:1]))) == []


def scaled(gradients):
    """Return x · s for tensors of one shape, with the backward `gradients(ctx, g, x, s)`."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, s):
            ctx.save_for_backward(x, s)
            return x * s

        @staticmethod
        def backward(ctx, g):
            return gradients(ctx, g, *ctx.saved_tensors)

    return Scaled


def test_704_wasted_operations_are_counted():
    several = scaled(lambda ctx, g, x, s: (g * s if ctx.needs_input_grad[0] else None, (g * 2 * x) / 2))
    assert found("PB704", several, normal(4), normal(4, seed=1)) == [
        (
            "info",
            "the backward computes gradients that are not needed: with s frozen, 3 of 4 operations serve its "
            "gradient alone (float64 (4,), 32 bytes)",
        )
    ]


def test_704_operations_shared_by_both_gradients_are_not_wasted():
    def gradients(ctx, g, x, s):
        shared = g * 1.5 / 1.5
        gx = shared * s
        return gx, gx * x / s if ctx.needs_input_grad[1] else None

    assert found("PB704", scaled(gradients), normal(4), normal(4, seed=1)) == []


def test_704_unchanged_cotangent_costs_nothing():
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x + y.mT

        @staticmethod
        def backward(ctx, g):
            return g, g.mT

    assert found("PB704", Sum, normal(2, 3), normal(3, 2, seed=1)) == []


def test_705_recomputed_output_is_an_info():
    again = keeping(lambda x, out: (x,), lambda g, x: g * 2 * x * x / x)

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x.exp()

    ((severity, message),) = found("PB705", Again)
    assert severity == "info"
    assert message == "aten.exp in the backward computes again output 0 (float64 (4,), 32 bytes)"
    assert found("PB705", again) == []


def test_705_copy_is_no_recomputation():
    copying = keeping(lambda x, out: (x, x.cos()), lambda g, x, c: g * 2 * x + 0 * c.clone() + 0 * (c + 0) * c.abs())
    assert found("PB705", copying) == []
