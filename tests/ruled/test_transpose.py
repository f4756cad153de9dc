"""Transposition of rules: the other mode where the rule is proven linear, an error elsewhere."""

import functools
import math

import numpy as np
import pytest
import torch

import pullback

X = torch.tensor([0.5, -1.25, 2.0], dtype=torch.float64)
Y = torch.tensor([3.0, 1.5, -0.25], dtype=torch.float64)
ONES = torch.ones_like(X)


@pullback.function
def product(x, y):
    return x * y, (x > y).to(torch.int64)


@product.vjp
def _(g, out, x, y):
    return g[0] * 5 * y, g[0] * 7 * x


@pullback.function
def product_by_jvp(x, y):
    return x * y, (x > y).to(torch.int64)


@product_by_jvp.jvp
def _(tangents, out, x, y):
    parts = [factor for t, factor in ((tangents[0], 5 * y), (tangents[1], 7 * x)) if t is not None]
    moved = [t for t in tangents if t is not None]
    return sum(t * factor for t, factor in zip(moved, parts, strict=True)), None


@pytest.mark.parametrize("op", [product, product_by_jvp], ids=["vjp", "jvp"])
def test_forward_and_reverse_mode_follow_from_either_rule(op):
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    gx, gy = torch.autograd.grad(op(x, y)[0].sum(), (x, y))
    assert torch.equal(gx, 5 * Y)
    assert torch.equal(gy, 7 * X)
    assert torch.equal(torch.func.jvp(lambda x, y: op(x, y)[0], (X, Y), (ONES, 2 * ONES))[1], 5 * Y + 14 * X)
    assert torch.equal(torch.func.jvp(lambda x: op(x, Y)[0], (X,), (ONES,))[1], 5 * Y)  # y has no tangent


@pytest.mark.parametrize("op", [product, product_by_jvp], ids=["vjp", "jvp"])
def test_gradient_of_one_of_two_inputs(op):
    x = X.clone().requires_grad_()
    assert torch.equal(torch.autograd.grad(op(x, Y)[0].sum(), x)[0], 5 * Y)


def clipped(linear=None):
    @pullback.function
    def clip(x):
        return x.clone()

    @clip.vjp(linear=linear)
    def _(g, out, x):
        return g.clamp(-1, 1)

    return clip


def test_linearity_is_tested_unless_declared():
    for linear, match in ((None, "cannot be shown to be linear"), (False, "declared not linear")):
        with pytest.raises(pullback.DerivativeError, match=match):
            torch.func.jvp(clipped(linear), (X,), (ONES,))
    assert torch.equal(torch.func.jvp(clipped(True), (X,), (ONES,))[1], ONES)


class Bound:
    """A mutable number whose repr does not change."""

    value = 0.0

    def __float__(self):
        return self.value

    def __repr__(self):
        return "Bound()"


@pytest.mark.parametrize(
    ("clips", "one", "other"),
    [
        (lambda bound: float(bound) > 0, BOUND := Bound(), BOUND),
        (lambda options: math.copysign(1.0, next(iter(options))) > 0, {-0.0: 1}, {0.0: 1}),
        (lambda pair: isinstance(pair, list), (1.0,), [1.0]),
    ],
)
def test_linearity_proof_of_one_call_is_not_reused_for_another(clips, one, other):
    clip = pullback.function(lambda x, options: x.clone())
    clip.vjp(lambda g, out, x, options: (g.clamp(-1, 1) if clips(options) else 2 * g, None))
    BOUND.value = 0.0
    assert torch.equal(torch.func.jvp(lambda x: clip(x, one), (X,), (ONES,))[1], 2 * ONES)
    BOUND.value = 1.0
    with pytest.raises(pullback.DerivativeError, match="cannot be shown to be linear"):
        torch.func.jvp(lambda x: clip(x, other), (X,), (ONES,))


def test_affine_rule_is_not_linear():
    @pullback.function
    def shifted(x):
        return x.clone()

    @shifted.vjp
    def _(g, out, x):
        return g + 1

    with pytest.raises(pullback.DerivativeError, match="cannot be shown to be linear"):
        torch.func.jvp(shifted, (X,), (ONES,))


def pushing(rule, linear=None):
    return pullback.function(lambda x: x.clone()).jvp(linear=linear)(rule)


@pytest.mark.parametrize(
    "rule",
    [
        lambda t, out, x: t[0].clamp(-1, 1),
        lambda t, out, x: t[0] + x,
        lambda t, out, x: t[0] * t[0].abs(),
        lambda t, out, x: torch.where(t[0] > 0, t[0], 2 * t[0]),
        lambda t, out, x: t[0] * torch.rand(3, dtype=x.dtype),
    ],
)
def test_nonlinear_jvp_is_not_transposed(rule):
    op = pushing(rule)
    x = X.clone().requires_grad_()
    with pytest.raises(pullback.DerivativeError, match=r"cannot be shown to be linear in the tangents.*@<lambda>\.vjp"):
        op(x).sum().backward()
    with pytest.raises(pullback.DerivativeError, match="cannot be shown to be linear in the tangents"):
        torch.func.grad(lambda t: op(t).sum())(X)


def test_untraceable_jvp_is_transposed_if_declared_linear():
    def rule(tangents, out, x):
        return tangents[0] * (3.0 if x.sum() > 0 else 2.0)

    x = X.clone().requires_grad_()
    assert torch.equal(torch.autograd.grad(pushing(rule, linear=True)(x).sum(), x)[0], 3 * ONES)


def test_declaring_a_jvp_nonlinear_raises():
    with pytest.raises(pullback.OptionError, match="linear in its tangents"):
        pushing(lambda t, out, x: t[0], linear=False)


def test_linear_must_be_a_bool():
    for give in (clipped, functools.partial(pushing, lambda t, out, x: t[0])):
        with pytest.raises(pullback.OptionError, match=r"linear is True.*not 'yes'"):
            give(linear="yes")


def test_invalid_jvp_result_raises_in_reverse_mode():
    x = X.clone().requires_grad_()
    with pytest.raises(pullback.DerivativeError, match="forgotten `return`"):
        torch.autograd.grad(pushing(lambda t, out, x: None)(x).sum(), x)
    with pytest.raises(pullback.DerivativeError, match=r"returned shape \(\), .* for an output of shape \(3,\)"):
        torch.autograd.grad(pushing(lambda t, out, x: t[0].sum())(x).sum(), x)


def test_refused_rule_leaves_the_op_unchanged():
    op = pullback.function(lambda x: x.sin())
    for give in (op.vjp, op.jvp):
        with pytest.raises(pullback.OptionError, match="is called as"):
            give(lambda g: g)
    assert op.kind == "derived"
    x = X.clone().requires_grad_()
    assert torch.allclose(torch.autograd.grad(op(x).sum(), x)[0], X.cos())


def test_numpy_jvp_raises_in_reverse_mode():
    @pullback.function
    def doubled(x):
        return 2 * x

    @doubled.jvp
    def _(tangents, out, x):
        return torch.from_numpy(2 * np.asarray(tangents[0].detach()))

    with pytest.raises(pullback.DerivativeError, match=r"@doubled\.vjp"):
        doubled(X.clone().requires_grad_()).sum().backward()


def test_rule_returning_none_raises_forgotten_return():
    forgetful = pullback.function(lambda x: x.clone()).jvp(lambda tangents, out, x: None)
    with pytest.raises(pullback.DerivativeError, match="the jvp of <lambda> returned None: a forgotten `return`"):
        torch.func.jvp(forgetful, (X,), (ONES,))
    forgetful = pullback.function(lambda x: x.clone()).vjp(lambda g, out, x: None)
    with pytest.raises(pullback.DerivativeError, match="the vjp of <lambda> returned None: a forgotten `return`"):
        forgetful(X.clone().requires_grad_()).sum().backward()


def test_none_tangent_is_zero():
    op = pullback.function(lambda x: (x.clone(), torch.ones_like(x)))
    op.jvp(lambda tangents, out, x: (tangents[0], None))
    assert torch.equal(torch.func.jvp(op, (X,), (ONES,))[1][1], torch.zeros_like(X))


class Rules:
    """Rules as methods: their code counts `self`, which is not an input."""

    def push(self, tangents, out, x):
        return tangents[0] * 3 * x**2

    def pull(self, g, out, x):
        return g * 3 * x**2

    @classmethod
    def push_of_class(cls, tangents, out, x):
        return tangents[0] * 3 * x**2


def by_name(tangents, out, x):
    return tangents[0] * 3 * locals()["x"] ** 2


@pytest.mark.parametrize("rule", [Rules().push, Rules.push_of_class, by_name])
def test_jvp_may_be_a_method_or_use_locals(rule):
    op = pullback.function(lambda x: x.clone()).jvp(rule)
    x = X.clone().requires_grad_()
    assert torch.equal(torch.autograd.grad(op(x).sum(), x)[0], 3 * X**2)


def test_vjp_may_be_a_method():
    op = pullback.function(lambda x: x.clone()).vjp(Rules().pull)
    x = X.clone().requires_grad_()
    assert torch.equal(torch.autograd.grad(op(x).sum(), x)[0], 3 * X**2)


def test_inputs_and_outputs_unused_by_the_rule_may_change_after_the_call():
    @pullback.function
    def scaled(x):
        return x.clone()

    @scaled.jvp
    def _(tangents, out, x):
        return 3 * tangents[0]

    x = X.clone().requires_grad_()
    inside = x * 1
    y = scaled(inside)
    inside.detach().zero_()
    y.detach().zero_()
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], 3 * ONES)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (lambda g, out, x: torch.where(x.abs() > 1, g.sign(), g), "has a part with no derivative, sign"),
        (lambda g, out, x: g * x + g.detach() * x, "has a part with no derivative, detach"),
        (lambda g, out, x: torch.where(x > 1, _unseen(g), g), "has a part that autograd does not see"),
        (lambda g, out, x: g * torch.rand(3), "not additive|draws random"),
        (lambda g, out, x: g.clamp(-1, 1), "is not additive"),
        (lambda g, out, x: torch.linalg.solve(2 * torch.eye(3), g.clamp(-50000, 50000)), "has a derivative that reads"),
        (lambda g, out, x: torch.zeros(3).copy_(g).sign_() * x, "not additive|part with no derivative, sign"),
        (lambda g, out, x: g + None, "raised TypeError: .*NoneType"),
    ],
)
def test_rule_nonlinear_at_some_inputs_is_not_transposed(rule, why):
    op = pullback.function(lambda x: x.clone())
    op.vjp(rule)
    x = torch.tensor([2.0, -3.0, 0.5])
    with pytest.raises(pullback.DerivativeError, match=rf"cannot be shown to be linear .*{why}"):
        torch.func.jvp(op, (x,), (torch.ones(3),))


def test_replaced_rule_is_tested_for_linearity_again():
    op = pullback.function(lambda x: x.clone())
    op.vjp(lambda g, out, x: 2 * g)
    assert torch.equal(torch.func.jvp(op, (X,), (ONES,))[1], 2 * ONES)
    op.vjp(lambda g, out, x: g.clamp(-1, 1))
    with pytest.raises(pullback.DerivativeError, match="is not additive"):
        torch.func.jvp(op, (X,), (ONES,))

    other = pullback.function(lambda x: x.clone())
    other.jvp(lambda tangents, out, x: 2 * tangents[0])
    assert torch.equal(torch.func.grad(lambda x: other(x).sum())(X), 2 * ONES)
    other.jvp(lambda tangents, out, x: tangents[0].clamp(-1, 1))
    with pytest.raises(pullback.DerivativeError, match="is not additive"):
        torch.func.grad(lambda x: other(x).sum())(X)


def test_scatter_by_integer_indices_is_refused_in_forward_mode():
    op = pullback.function(lambda x, k: x.gather(-1, k))
    op.vjp(lambda g, out, x, k: (torch.zeros_like(x).scatter(-1, k, g), None))
    x, k = torch.randn(4, 3), torch.tensor([[0, 2]] * 4)
    with pytest.raises(pullback.DerivativeError, match="or writes by whole numbers, which were tried all equal"):
        torch.func.jvp(lambda x: op(x, k), (x,), (torch.ones_like(x),))
    op.vjp(lambda g, out, x, k: (torch.zeros_like(x).scatter_add(-1, k, g), None))
    assert torch.equal(torch.func.jvp(lambda x: op(x, k), (x,), (2 * x,))[1], 2 * x.gather(-1, k))


def _unseen(g):
    with torch.no_grad():
        return g * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.bfloat16])
@pytest.mark.parametrize(
    "rule",
    [
        lambda g, out, x: g * x.conj() * 2,
        lambda g, out, x: torch.where(x.abs() > 1, g, 0) + g.flip(0).cumsum(0),
        lambda g, out, x: g * torch.asin(x.abs() / 8) + g.sum() - g[:1],
        lambda g, out, x: torch.nn.functional.linear(g, torch.ones(3, 3, dtype=g.dtype)),
        lambda g, out, x: g.clone().index_add_(0, torch.tensor([0]), g[:1]),
        lambda g, out, x: torch.fft.ifft(g).to(g.dtype) if g.dtype == torch.complex64 else g / 3,
    ],
)
def test_linear_rule_is_transposed(rule, dtype):
    """⟨t, A g⟩ = ⟨Aᵀ t, g⟩, where Aᵀ t is what forward mode gives."""
    op = pullback.function(lambda x: x.clone())
    op.vjp(rule)
    x = torch.tensor([2, -3, 0.5], dtype=dtype)
    t, g = torch.tensor([[1, -2, 0.5], [0.25, 1, 4]], dtype=dtype) * (1 + 2j if dtype.is_complex else 1)
    pushed = torch.func.jvp(op, (x,), (t,))[1]
    pulled = rule(g, x, x)
    ours, theirs = ((a.conj() * b).sum().real.double() for a, b in ((g, pushed), (pulled, t)))
    assert abs(ours - theirs) <= 8 * torch.finfo(dtype).eps * (1 + (g.abs() * pushed.abs()).sum())


def _under_no_grad(g, out, x):
    with torch.no_grad():
        return 2 * g


def _in_part(g, out, x):
    with torch.no_grad():
        half = g.clone()
    return g + half


def _by_numpy(g, out, x):
    return torch.from_numpy(2 * g.detach().numpy())


@pytest.mark.parametrize("rule", [_under_no_grad, _in_part, lambda g, out, x: 2 * g.detach(), _by_numpy])
def test_opaque_vjp_declared_linear_raises_in_forward_mode(rule):
    op = pullback.function(lambda x: 2 * x).vjp(linear=True)(rule)
    x = ONES.clone().requires_grad_()
    assert torch.equal(torch.autograd.grad(op(x).sum(), x)[0], 2 * ONES)
    for push in (lambda: torch.func.jvp(op, (ONES,), (ONES,)), lambda: torch.func.jacfwd(op)(ONES)):
        with pytest.raises(pullback.DerivativeError, match="declared linear in the cotangent, but"):
            push()


def test_opaque_jvp_declared_linear_raises_in_reverse_mode():
    def in_part(tangents, out, x):
        with torch.no_grad():
            half = tangents[0].clone()
        return tangents[0] + half

    op = pullback.function(lambda x: 2 * x).jvp(linear=True)(in_part)
    x = ONES.clone().requires_grad_()
    with pytest.raises(pullback.DerivativeError, match="declared linear in the tangents, but"):
        torch.autograd.grad(op(x).sum(), x)


def test_value_dependent_rule_may_be_declared_linear():
    def decides(g, out, x):
        return 2 * g if x.sum() > -1e9 else 3 * g

    with pytest.raises(pullback.DerivativeError, match=r"decides by values.*linear=True"):
        torch.func.jvp(pullback.function(lambda x: 2 * x).vjp(decides), (ONES,), (ONES,))
    op = pullback.function(lambda x: 2 * x).vjp(linear=True)(decides)
    assert torch.equal(torch.func.jvp(op, (ONES,), (ONES,))[1], 2 * ONES)
