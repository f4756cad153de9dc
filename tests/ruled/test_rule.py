"""The call of a rule: its arguments, and the checks of its result."""

import pytest
import torch

import pullback

X = torch.tensor([0.5, -1.25, 2.0], dtype=torch.float64)


def leaf():
    return X.clone().requires_grad_()


def with_vjp(rule, formula=lambda x, y: x * y, **options):
    """Make an op of a formula and a vjp."""

    def op(x, y):
        return formula(x, y)

    made = pullback.function(**options)(op) if options else pullback.function(op)
    return made.vjp(rule)


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        (lambda g, out, x, y: g, r"returned 1 gradient for 2 inputs \(x, y\)"),
        (lambda g, out, x, y: (g, g, g), "returned 3 gradients for 2 inputs"),
        (lambda g, out, x, y: [g, None], "returned a list: return a tuple"),
        (lambda g, out, x, y: (g.sum(), None), r"shape \(\), torch.float64 for `x` of shape \(3,\)"),
        (lambda g, out, x, y: (g.float(), None), "torch.float32 for `x`"),
        (lambda g, out, x, y: (1.0, None), "a float for `x`, not a tensor"),
        (lambda g, out, x, y: ([g], None), r"returned \[tensor\] for `x`, which is tensor"),
        (lambda g, out, x, y: (g, g), "a gradient for `y`, where 2.0 is not a tensor: return None"),
    ],
)
def test_invalid_vjp_result_raises(rule, match):
    with pytest.raises(pullback.DerivativeError, match=match):
        with_vjp(rule)(leaf(), 2.0).sum().backward()


def test_too_many_gradients_raise():
    op = pullback.function(lambda x: x.clone()).vjp(lambda g, out, x: (g, None))
    with pytest.raises(pullback.DerivativeError, match="returned 2 gradients for 1 input"):
        op(leaf()).sum().backward()


def test_gradient_for_an_integer_input_raises():
    op = with_vjp(lambda g, out, x, y: (g, g.to(torch.int64)))
    with pytest.raises(pullback.DerivativeError, match=r"for `y`, which holds torch\.int64"):
        op(leaf(), torch.tensor([1, 2, 3])).sum().backward()


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        (lambda ts, out, x: (ts[0], ts[0]), "the jvp of identity returned"),
        (lambda ts, out, x: ts[0].sum(), r"shape \(\), torch.float64 for an output of shape \(3,\)"),
        (lambda ts, out, x: ts[0].float(), r"torch.float32 for an output of shape \(3,\), torch.float64"),
    ],
)
def test_invalid_jvp_result_raises(rule, match):
    @pullback.function
    def identity(x):
        return x.clone()

    identity.jvp(rule)
    with pytest.raises(pullback.DerivativeError, match=match):
        torch.func.jvp(identity, (X,), (X,))


def test_residuals_keep_their_structure():
    def rule(g, out, saved, x, y):
        assert list(saved) == ["two", "name"]
        assert saved["name"] == "n"
        return g * saved["two"], None

    op = with_vjp(rule, lambda x, y: (x * y, {"two": 2 * x, "name": "n"}), residuals=True)
    x = leaf()
    assert torch.equal(torch.autograd.grad(op(x, 3.0).sum(), x)[0], 2 * X)


def test_formula_without_residuals_raises():
    op = with_vjp(lambda g, out, saved, x, y: (g, None), residuals=True)
    with pytest.raises(pullback.DerivativeError, match=r"its formula returns \(out, saved\)"):
        op(leaf(), 2.0)


def test_needs_is_the_needs_input_grad_mask():
    seen = []

    def rule(g, out, x, y, *, needs):
        seen.append(needs)
        return g * y, g * x

    op = with_vjp(rule)
    for x, y in ((leaf(), X), (X, leaf()), (leaf(), leaf())):
        op(x, y).sum().backward()
    torch.func.grad(lambda x: op(x, X).sum())(X)
    assert seen == [(True, False), (False, True), (True, True), (True, False)]


def test_numbers_have_no_tangent_and_no_cotangent():
    seen = []
    op = pullback.function(lambda x, scale, flag: (x * scale, 2.0, {"n": 3}))

    @op.jvp(linear=True)
    def _(tangents, out, x, scale, flag):
        tx, *others = tangents
        seen.extend(others)
        return tx * scale + sum(x * t for t in others if t is not None), None, {"n": None}

    _, t = torch.func.jvp(lambda x: op(x, 3.0, True)[0], (X,), (torch.ones_like(X),))
    assert t.tolist() == [3, 3, 3]
    assert torch.autograd.grad(op(x := leaf(), 3.0, True)[0].sum(), x)[0].tolist() == [3, 3, 3]
    assert seen == [None] * len(seen)
    other = pullback.function(lambda x, flag: (x * 2, 5.0))

    @other.vjp
    def _(g, out, x, flag, *, needs):
        seen.append((g[1], needs))
        return g[0] * 2, None

    torch.autograd.grad(other(x := leaf(), True)[0].sum(), x)
    assert seen[-1] == (None, (True, False))


def test_containers_as_arguments_and_results():
    @pullback.function
    def pair(parts, mode, flag=None):
        assert mode == "sum"
        assert flag is None
        return {"sum": parts["a"] + parts["b"][0], "where": parts["a"] > 0}

    @pair.vjp
    def _(g, out, parts, mode, flag):
        return {"a": 2 * g["sum"], "b": [3 * g["sum"], None]}, None, None

    for call in (
        lambda a, b: pair({"a": a, "b": [b, 4]}, "sum"),
        lambda a, b: pair(mode="sum", parts={"a": a, "b": [b, 4]}),
    ):
        a, b = leaf(), leaf()
        out = call(a, b)
        assert not out["where"].requires_grad
        out["sum"].sum().backward()
        assert torch.equal(a.grad, torch.full_like(X, 2))
        assert torch.equal(b.grad, torch.full_like(X, 3))
        ga = torch.func.grad(lambda a, b=X, call=call: call(a, b)["sum"].sum())(X)
        assert torch.equal(ga, torch.full_like(X, 2))


def test_complex_cotangents_follow_pytorchs_convention():
    @pullback.function
    def square(z):
        return z * z

    @square.vjp
    def _(g, out, z):
        return g * (2 * z).conj()

    z = torch.complex(X, X + 1).requires_grad_()
    assert torch.autograd.gradcheck(square, z, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(square, z)


def test_unused_output_has_a_zero_cotangent():
    @pullback.function
    def both(x):
        return x.clone(), 2 * x

    @both.vjp
    def _(g, out, x):
        return g[0] * 5 + g[1] * 7

    x = leaf()
    assert torch.equal(torch.autograd.grad(both(x)[1].sum(), x)[0], torch.full_like(X, 7))
    assert torch.equal(torch.func.grad(lambda x: both(x)[0].sum())(X), torch.full_like(X, 5))


def test_op_with_residuals_and_no_rule_raises():
    @pullback.function(residuals=True)
    def unfinished(x):
        return x, x

    with pytest.raises(pullback.DerivativeError, match=r"\.vjp"):
        unfinished(X)


def test_gradient_has_the_input_dtype_under_autocast():
    op = with_vjp(lambda g, out, x, y: (g @ y.mT.to(g.dtype), None), lambda x, y: x @ y)
    x, y = torch.ones(2, 3, requires_grad=True), torch.ones(3, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = op(x, y)
    assert out.dtype is torch.bfloat16
    out.float().sum().backward()
    assert x.grad.dtype is torch.float32
    assert torch.equal(x.grad, torch.full((2, 3), 2.0))
