"""Residuals of ruled ops: saved for the first derivative, computed again where a second is asked for."""

import numpy as np
import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import pullback


def exponential(x):
    e = torch.exp(x)
    return 2 * e, e


def by_numpy(x):
    e = torch.from_numpy(np.exp(x.detach().numpy()))
    return 2 * e, e


def masked(x):
    mask = torch.rand_like(x)
    return x * mask, mask


by_vjp = pullback.function(residuals=True)(exponential)
by_vjp.vjp(lambda g, out, saved, x: g * saved * 2)
by_jvp = pullback.function(residuals=True)(exponential)
by_jvp.jvp(lambda t, out, saved, x: t[0] * saved * 2)
opaque = pullback.function(residuals=True)(by_numpy)
opaque.vjp(lambda g, out, saved, x: g * saved * 2)
random = pullback.function(residuals=True)(masked)
random.vjp(lambda g, out, saved, x: g * saved)

X = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)
EXPECTED = 2 * X.exp()


@pytest.mark.parametrize("op", [by_vjp, by_jvp])
def test_every_order_sees_how_residuals_depend_on_the_inputs(op):
    def total(x):
        return op(x).sum()

    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(total(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(first.detach(), EXPECTED)
    torch.testing.assert_close(second, EXPECTED)
    torch.testing.assert_close(grad(total)(X), EXPECTED)
    torch.testing.assert_close(jvp(op, (X,), (torch.ones_like(X),))[1], EXPECTED)
    for twice in (hessian, lambda f: jacrev(jacrev(f)), lambda f: jacfwd(jacfwd(f)), lambda f: jacrev(jacfwd(f))):
        torch.testing.assert_close(twice(total)(X).diagonal(), EXPECTED)
    torch.testing.assert_close(vmap(grad(op))(X), EXPECTED)


@pytest.mark.parametrize("op", [opaque, random])
def test_residuals_that_autograd_cannot_follow_have_no_second_derivative(op):
    torch.manual_seed(0)
    x = X.clone().requires_grad_()
    out = op(x)
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    torch.testing.assert_close(first.detach(), EXPECTED if op is opaque else out.detach() / X)
    with pytest.raises(pullback.DerivativeError, match="no derivative itself"):
        first.sum().backward()
    with pytest.raises(pullback.DerivativeError, match="no derivative itself"):
        jacrev(jacrev(lambda t: op(t).sum()))(X)


def test_residuals_that_autograd_cannot_follow_have_a_first_derivative_under_transforms():
    torch.manual_seed(0)
    mask = torch.rand_like(X)
    for transform in (grad(lambda x: random(x).sum()), lambda x: jvp(random, (x,), (torch.ones_like(x),))[1]):
        torch.manual_seed(0)
        assert torch.equal(transform(X), mask)


def test_tangents_of_a_gradient_see_residuals_also_without_create_graph():
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(X.clone().requires_grad_(), torch.ones_like(X))
        (first,) = torch.autograd.grad(by_vjp(x).sum(), x)
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(first).tangent, EXPECTED)
