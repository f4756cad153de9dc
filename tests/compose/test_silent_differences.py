"""Regressions in which an op returned, or could have returned, a silently different value or derivative."""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import pullback

D = torch.float64
X = torch.tensor([1 / 3, 2 / 3], dtype=D)


def leaf():
    return X.clone().requires_grad_()


def hessian(function):
    return torch.autograd.functional.hessian(lambda t: function(t).sum(), X).diagonal()


def test_equal_results_are_distinct_tensors():
    op = pullback.function(lambda x: (torch.sin(x), torch.sin(x)))
    x = leaf()
    a, b = op(x)
    a.mul_(10)
    assert torch.equal(b, torch.sin(X))
    (g,) = torch.autograd.grad((a + b).sum(), x)
    torch.testing.assert_close(g, 11 * X.cos())


def test_detached_copy_of_a_result_does_not_require_grad():
    op = pullback.function(lambda x: (torch.tanh(x), torch.tanh(x).detach()))
    x = leaf()
    a, b = op(x)
    assert a.requires_grad
    assert not b.requires_grad
    (g,) = torch.autograd.grad(a.sum(), x)
    torch.testing.assert_close(g, 1 - X.tanh() ** 2)


def test_equal_gradients_are_distinct_tensors():
    a, b = leaf(), leaf()
    gs = torch.autograd.grad(pullback.function(lambda a, b: 2 * a + 2 * b)(a, b).sum(), [a, b])
    for g in gs:
        g.mul_(0.5)
    assert [g.tolist() for g in gs] == [[1, 1], [1, 1]]


def test_returned_closure_over_an_input_runs_inline():
    _, f = pullback.function(lambda x: (x * 2, lambda t: t * x))(leaf())
    assert torch.equal(f(torch.ones(2, dtype=D)).detach(), X)


def test_residuals_are_of_the_formula_at_the_call():
    scale = 2.0
    op = pullback.function(residuals=True)(lambda x: (x.sin() * scale, scale * x.cos()))
    op.vjp(lambda g, out, saved, x: g * saved)
    x = leaf()
    y = op(x).sum()
    scale = 5.0
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    torch.testing.assert_close(g.detach(), 2 * X.cos())
    with pytest.raises(pullback.DerivativeError, match="no derivative itself"):
        g.sum().backward()


def test_ruled_formula_may_return_its_input():
    op = pullback.function(lambda x: x).vjp(lambda g, out, x: 3 * g * out)
    torch.testing.assert_close(hessian(op), 9 * X)  # the rule says that out changes by 3 out


@pytest.mark.parametrize(
    "rule",
    [
        lambda g, out, x: g.sign(),
        lambda g, out, x: g.round(),
        lambda g, out, x: g + (g.clamp(-1, 1) - g).detach(),
        lambda g, out, x: g * torch.bernoulli(torch.full_like(g, 0.5)),
        lambda g, out, x: g + 1,
    ],
)
def test_nonlinear_rule_raises_in_forward_mode(rule):
    op = pullback.function(lambda x: x.clone()).vjp(rule)
    with pytest.raises(pullback.DerivativeError, match="linear in the cotangent"):
        torch.func.jvp(op, (X,), (torch.ones_like(X),))


def test_linearity_proof_is_dropped_when_the_rule_changes():
    clip = False
    op = pullback.function(lambda x: x.clone()).vjp(lambda g, out, x: g.clamp(-1, 1) if clip else g)
    assert torch.equal(torch.func.jvp(op, (X,), (X,))[1], X)
    clip = True
    with pytest.raises(pullback.DerivativeError, match="linear in the cotangent"):
        torch.func.jvp(op, (X,), (X,))


class OnContext(pullback.AutogradFunction):
    @staticmethod
    def forward(ctx, x):
        ctx.slope = x.cos()
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.slope


class AsArray(OnContext):
    @staticmethod
    def forward(ctx, x):
        ctx.slopes = [np.cos(x.detach().numpy())]
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * torch.from_numpy(ctx.slopes[0])


class BySetup(pullback.AutogradFunction):
    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0].detach().cos())

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


class ByStoppedOutput(pullback.AutogradFunction):
    @staticmethod
    def forward(ctx, x):
        slope = x.cos()
        ctx.mark_non_differentiable(slope)
        ctx.save_for_backward(slope)
        return x.sin(), slope

    @staticmethod
    def backward(ctx, g, _):
        return g * ctx.saved_tensors[0]


@pytest.mark.parametrize("function", [OnContext, AsArray, BySetup, ByStoppedOutput])
def test_hidden_dependence_in_ctx_raises_in_second_order(function):
    def first(x):
        out = function.apply(x)
        return out[0] if isinstance(out, tuple) else out

    (g,) = torch.autograd.grad(first(x := leaf()).sum(), x)
    torch.testing.assert_close(g, X.cos())
    with pytest.raises(pullback.DerivativeError, match="no derivative itself"):
        hessian(first)


@pytest.mark.parametrize(
    "rule",
    [
        lambda g, out, x: g * torch.tensor([v for v in x.detach().cos()], dtype=D),  # noqa: C416
        lambda g, out, x: g * complex(x.detach().cos().sum()).real,
    ],
)
def test_values_copied_inside_a_rule_raise_in_second_order(rule):
    op = pullback.function(lambda x: x.sin()).vjp(rule)
    with pytest.raises(pullback.DerivativeError, match="no derivative itself"):
        hessian(op)


def test_user_wrapper_of_a_torch_function_is_a_user_function():
    scale = 2.0

    @functools.wraps(F.softplus)
    def wrapped(x):
        return x * scale

    op = pullback.function(lambda x: wrapped(x))
    x = leaf()
    assert torch.equal(op(x), 2 * X)
    scale = 5.0
    assert torch.equal(op(x), 5 * X)


def test_aliased_arguments_have_their_own_plan():
    op = pullback.function(lambda x, y: x * (5.0 if x is y else 1.0))
    x, y = leaf(), leaf()
    assert torch.equal(op(x, y), X)
    assert torch.equal(op(x, x), 5 * X)


def test_formula_that_catches_errors_runs_inline():
    def formula(x):
        try:
            value = float(x.detach().sum())
        except Exception:  # under test: a formula that would swallow our refusal
            value = 0.0
        return x * value

    assert torch.equal(
        *(torch.autograd.grad(f(x := leaf()).sum(), x)[0] for f in (pullback.function(formula), formula))
    )


def test_running_statistics_are_updated_once_per_call():
    op = pullback.function(lambda x, mean, var: F.batch_norm(x, mean, var, training=True))
    x = torch.randn(4, 2, dtype=D, requires_grad=True)
    mean, var = torch.zeros(2, dtype=D), torch.ones(2, dtype=D)
    (g,) = torch.autograd.grad(op(x, mean, var).pow(2).sum(), x, create_graph=True)
    g.sum().backward()
    torch.testing.assert_close(mean, 0.1 * x.detach().mean(0))


def test_backward_assigned_after_class_creation_is_used():
    class Later(pullback.AutogradFunction):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    Later.backward = staticmethod(lambda ctx, g: g * 7)
    (g,) = torch.autograd.grad(Later.apply(x := leaf()).sum(), x)
    assert g.tolist() == [7, 7]
