"""Derivatives of every order, in plain eager mode, of ops with stable forms."""

import mpmath
import pytest
import torch

import pullback
from pullback.stable.turns import Turns
from tests.forms import gate, gate_as_written, log_sigmoid

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
def test_four_derivatives(name):
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


def test_a_batch_of_cotangents_of_a_second_derivative():
    x = torch.tensor(X[1:3], requires_grad=True)
    (g,) = torch.autograd.grad(log_sigmoid()(x).sum(), x, create_graph=True)
    (batched,) = torch.autograd.grad(g, x, torch.eye(2), is_grads_batched=True)
    torch.testing.assert_close(batched, torch.diag(-torch.sigmoid(x) * torch.sigmoid(-x)).detach())


def test_beyond_the_forms_a_formula_that_is_a_polynomial_has_derivative_zero():
    turns = Turns({(): lambda x: x * x, (0,): lambda x: 2 * x}.get, lambda x: x * x)
    found = derivatives(turns, torch.tensor([1.0, 3.0], requires_grad=True), 2)
    assert [t.tolist() for t in found] == [[2.0, 6.0], [2.0, 2.0]]
    assert turns.of((0, 0, 0), [torch.ones(2)]).tolist() == [0.0, 0.0]


SCALE = 1.0


def scaled(x):
    return torch.log(1 + torch.exp(x * SCALE))


def test_a_formula_that_has_changed_is_not_differentiated_further(monkeypatch):
    x = torch.tensor(X[1:3], requires_grad=True)
    op = pullback.function(scaled)
    out = op(x)
    for _ in range(4):
        (out,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    with pytest.raises(pullback.DerivativeError, match="has changed between"):
        torch.autograd.grad(out.sum(), x)
