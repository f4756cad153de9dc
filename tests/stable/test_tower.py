"""Derivatives beyond the stable forms, by differentiating the forms, in every order that the jet carries."""

import math

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch.func import grad
from torch.fx.experimental.proxy_tensor import make_fx

import pullback
from pullback.stable.tower import DerivativeTower
from tests.forms import gate, gate_as_written, log_sigmoid, stable_op


def softplus(x):
    return mpmath.log1p(mpmath.exp(x))


FORMULAS = {
    "log(1 + eˣ)": (lambda x: torch.log(1 + torch.exp(x)), softplus),
    "log σ": (lambda x: torch.log(torch.sigmoid(x)), lambda x: -softplus(-x)),
    "gelu": (
        lambda x: x * 0.5 * (1 + torch.erf(x / 1.5)),
        lambda x: x * (1 + mpmath.erf(x / mpmath.mpf(1.5))) / 2,
    ),
    "mish": (lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))), lambda x: x * mpmath.tanh(softplus(x))),
    "tanh": (lambda x: torch.tanh(x), mpmath.tanh),
    "log(1 + eˣʸ)": (lambda x, y: torch.log(1 + torch.exp(x * y)), lambda x, y: softplus(x * y)),
    "log(1 + eˣ) y": (lambda x, y: torch.log(1 + torch.exp(x)) * y, lambda x, y: softplus(x) * y),
}
POINTS = [(-100.0, 1.0), (0.0, 3.0), (0.5, -1.5), (20.0, 2.0)]


def exact(reference, order, points):
    with mpmath.workdps(60):
        at = [[mpmath.mpf(float(x)) for x in point] for point in zip(*points, strict=True)]
        return torch.tensor([float(mpmath.diff(reference, tuple(p), tuple(order))) for p in at])


def recorded(op, by, points):
    xs = [x.clone().requires_grad_() for x in points]
    out = op(*xs)
    for i in by:
        (out,) = torch.autograd.grad(out.sum(), xs[i], create_graph=True, materialize_grads=True)
    return out.detach()


def nested(op, by, points):
    f = op
    for i in by:
        f = grad(lambda *xs, f=f: f(*xs).sum(), i)
    return f(*points)


WAYS = {
    "recorded": recorded,
    "nested": nested,
    "traced": lambda op, by, points: recorded(make_fx(lambda *xs: op(*xs))(*points), by, points),
}
OF_ONE, OF_TWO = ((0, 0, 0), (0, 0, 0, 0)), ((0, 1, 1), (0, 0, 0, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.few(2)
def test_third_and_fourth_derivatives_match_mpmath(name, dtype):
    function, reference = FORMULAS[name]
    op, count = pullback.function(function), function.__code__.co_argcount
    points = [torch.tensor(xs, dtype=dtype) for xs in zip(*POINTS, strict=True)][:count]
    eps = torch.finfo(dtype).eps
    for by in OF_ONE if count == 1 else OF_TWO:
        right = exact(reference, [by.count(i) for i in range(count)], points)
        for way, run in WAYS.items():
            found = run(op, by, points).float()
            assert torch.allclose(found, right, rtol=64 * eps, atol=4 * eps**2), (by, way, found, right)
    assert op._stable.dtypes() == [str(dtype).removeprefix("torch.")]


AT_TIES_AND_KINKS = {
    "log(1 + x)": (lambda x: torch.logaddexp(torch.log(x), torch.zeros_like(x)), 1.0, (0.5, -0.25, 0.25)),
    "softplus(x - 1) + 1": (lambda x: torch.logaddexp(x, torch.ones_like(x)), 1.0, (0.5, 0.25, 0.0)),
    "log(2 cosh(x - ½))": (lambda x: torch.logaddexp(x - 0.5, 0.5 - x), 0.5, (0.0, 1.0, 0.0)),
    "in base 2": (lambda x: torch.logaddexp2(x, -x), 0.0, (0.0, math.log(2), 0.0)),
    "log1p(elu(1 + x))": (lambda x: torch.log1p(F.elu(1 + x)), -1.0, (1.0, -1.0, 2.0)),
    "exp(celu(1 + x)) - 1": (lambda x: torch.exp(F.celu(1 + x, 0.5)) - 1, -1.0, (1.0, 1.0, 1.0)),
}


@pytest.mark.parametrize("name", AT_TIES_AND_KINKS)
@pytest.mark.few(2)
def test_higher_derivatives_at_ties_and_kinks(name):
    """In logaddexp = max(a, b) + log1p(exp(−|a − b|)) two kinks cancel, but only in the first order as written."""
    formula, at, right = AT_TIES_AND_KINKS[name]
    x = torch.tensor([at])
    for n, expected in enumerate(right, 1):
        for way, run in WAYS.items():
            found = run(pullback.function(formula), (0,) * n, [x])
            torch.testing.assert_close(found, torch.tensor([expected]), msg=f"{way}, order {n}: {found}")


def test_form_without_derivative_uses_that_of_the_formula():
    """Polynomials have no derivative in the registry."""
    forms = {
        (): "otherwise: expm1(x)",
        ("x",): "otherwise: exp(x)",
        ("x", "x"): "x <= -1e-4: exp(x)\nx <= 1e-4: poly(x, 0, 0, 0, 0, 0, 1, 1, 0.5)\notherwise: exp(x)",
    }
    op = stable_op(lambda x: torch.exp(x) - 1, forms)
    x = torch.tensor([-1e-5, 0.5, 2.0])
    for n in (3, 4):
        for way, run in WAYS.items():
            torch.testing.assert_close(run(op, (0,) * n, [x]), x.exp(), rtol=1e-6, atol=0, msg=way)


def test_formula_runs_as_written_where_no_derivative_is_available(monkeypatch):
    monkeypatch.setattr("pullback.stable.tower._MOST_TERMS", 1)
    function, _ = FORMULAS["log(1 + eˣ)"]
    x = torch.tensor([-1.0, 0.5])
    for run in WAYS.values():
        torch.testing.assert_close(run(pullback.function(function), (0, 0, 0), [x]), run(function, (0, 0, 0), [x]))


X = [-30.0, -1.0, 0.5, 30.0]


def derivatives(op, x, count):
    out, found = op(x), []
    for _ in range(count):
        (out,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        found.append(out.detach())
    return found


OPS = {
    "with a certificate": (log_sigmoid, lambda x: -mpmath.log1p(mpmath.exp(-x))),
    "by rules": (
        lambda: pullback.function(lambda x: torch.log(1 + torch.exp(x))),
        lambda x: mpmath.log1p(mpmath.exp(x)),
    ),
    "of which rules change the slope alone": (lambda: pullback.function(lambda x: torch.tanh(x)), mpmath.tanh),
}


@pytest.mark.parametrize("name", OPS)
def test_four_derivatives_match_mpmath(name):
    make, reference = OPS[name]
    found = derivatives(make(), torch.tensor(X, requires_grad=True), 4)
    with mpmath.workdps(60):
        for order, ours in enumerate(found, start=1):
            exact = torch.tensor([float(mpmath.diff(reference, mpmath.mpf(x), order)) for x in X])
            torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-30)


def test_mixed_third_derivatives_of_broadcast_inputs():
    results = []
    for op in (gate(), gate_as_written):
        x, y = torch.linspace(-2, 2, 4)[:, None].requires_grad_(), torch.tensor([0.5, 2.0]).requires_grad_()
        (gx,) = torch.autograd.grad(op(x, y).sum(), x, create_graph=True)
        (gxy,) = torch.autograd.grad((gx * gx).sum(), y, create_graph=True)
        results.append((gx, gxy, *torch.autograd.grad((gxy * gxy).sum(), (x, y))))
    for ours, right in zip(*results, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-5)


def test_batched_cotangents_of_a_second_derivative():
    x = torch.tensor(X[1:3], requires_grad=True)
    (g,) = torch.autograd.grad(log_sigmoid()(x).sum(), x, create_graph=True)
    (batched,) = torch.autograd.grad(g, x, torch.eye(2), is_grads_batched=True)
    torch.testing.assert_close(batched, torch.diag(-torch.sigmoid(x) * torch.sigmoid(-x)).detach())


def test_polynomial_has_zero_derivatives_beyond_its_degree():
    turns = DerivativeTower({(): lambda x: x * x, (0,): lambda x: 2 * x}.get, lambda x: x * x)
    found = derivatives(turns, torch.tensor([1.0, 3.0], requires_grad=True), 2)
    assert [t.tolist() for t in found] == [[2.0, 6.0], [2.0, 2.0]]
    assert turns.of((0, 0, 0), [torch.ones(2)]).tolist() == [0.0, 0.0]


SCALE = 1.0


def scaled(x):
    return torch.log(1 + torch.exp(x * SCALE))


def test_capture_changed_before_the_fifth_derivative_raises(monkeypatch):
    x = torch.tensor(X[1:3], requires_grad=True)
    op = pullback.function(scaled)
    out = op(x)
    for _ in range(4):
        (out,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    with pytest.raises(pullback.DerivativeError, match="has changed between"):
        torch.autograd.grad(out.sum(), x)
