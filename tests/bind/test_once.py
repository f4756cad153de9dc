"""Rules that leave PyTorch, and residuals that autograd cannot follow: a second derivative is an error, always."""

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jvp, vmap

import pullback
from tests.compose.test_transforms import summed

X = torch.tensor([0.5, -1.25, 2.0], dtype=torch.float64)
ONES = torch.ones_like(X)


@pullback.function
def through_numpy(x):
    return torch.from_numpy(np.sin(x.detach().numpy()))


@through_numpy.vjp
def _(g, out, x):
    return torch.from_numpy(g.detach().numpy() * np.cos(x.detach().numpy()))


@pullback.function(residuals=True)
def with_residual(x):
    return x.sin(), x.cos() * torch.ones(()).item()  # by way of Python, so it cannot be followed


@with_residual.vjp
def _(g, out, cosine, x):
    return g * cosine


OPS = pytest.mark.parametrize("op", [through_numpy, with_residual], ids=lambda op: op.__name__)


def leaf():
    return X.clone().requires_grad_()


def create_graph(op):
    x = leaf()
    (g,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
    return torch.autograd.grad(g.sum(), x)


def create_graph_beside_another_way(op):
    """The sine gives a gradient too, so a missing one would not be noticed by the engine."""
    x = leaf()
    (g,) = torch.autograd.grad((op(x) + x.sin()).sum(), x, create_graph=True)
    return torch.autograd.grad(g.sum(), x)


def backward_create_graph(op):
    x = leaf()
    op(x).backward(ONES, create_graph=True)  # a cotangent that does not require grad
    g, x.grad = x.grad, None
    return torch.autograd.grad(g.sum() + x.sum(), x)


def batched(op):
    x = leaf()
    (rows,) = torch.autograd.grad(op(x), x, torch.eye(3, dtype=x.dtype), is_grads_batched=True, create_graph=True)
    return torch.autograd.grad(rows.sum(), x)


def forward_over_reverse(op):
    with forward_ad.dual_level():
        x = forward_ad.make_dual(leaf(), ONES)
        return torch.autograd.grad(op(x).sum(), x, create_graph=True)


WAYS = [
    create_graph,
    create_graph_beside_another_way,
    backward_create_graph,
    batched,
    forward_over_reverse,
    lambda op: hessian(summed(op))(X),
    lambda op: grad(summed(grad(summed(op))))(X),
    lambda op: jvp(grad(summed(op)), (X,), (ONES,)),
    lambda op: jvp(lambda x: jvp(op, (x,), (ONES,))[1], (X,), (ONES,)),
    lambda op: create_graph(grad(summed(op))),
    lambda op: torch.autograd.functional.hessian(lambda x: op(x).sum(), X),
    lambda op: torch.autograd.functional.hessian(lambda x: op(x).sum(), X, vectorize=True),
    lambda op: torch.autograd.gradgradcheck(op, leaf()),
]


@OPS
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True")
def test_a_second_derivative_is_an_error(op, way):
    with pytest.raises(pullback.DerivativeError, match=op.__name__):
        way(op)


@OPS
def test_a_first_derivative_that_could_be_differentiated_is_right(op):
    x = leaf()
    (g,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
    assert torch.allclose(g, X.cos(), rtol=1e-15)


def test_first_derivatives_with_residuals_hold_under_transforms():
    assert torch.equal(grad(summed(with_residual))(X), X.cos())
    assert torch.equal(vmap(grad(with_residual))(X), X.cos())
    assert torch.equal(jvp(with_residual, (X,), (ONES,))[1], X.cos())


def test_numpy_under_a_transform_says_where_it_may_be_called():
    for transform in (grad(summed(through_numpy)), vmap(through_numpy)):
        with pytest.raises(pullback.DerivativeError, match="outside of the transform"):
            transform(X)


def test_residuals_that_are_indices_hide_nothing():
    @pullback.function(residuals=True)
    def largest(x):
        values, indices = x.max(-1)
        return values, indices

    @largest.vjp
    def _(g, out, indices, x):
        return torch.zeros_like(x).scatter(-1, indices.unsqueeze(-1), g.unsqueeze(-1)) * x.square() / out.square()

    x = leaf()
    (g,) = torch.autograd.grad(largest(x), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)  # of g = x²/out²: 2x/out² − 2x²/out³, and both are 2/out at the largest
    assert torch.equal(h, torch.zeros_like(x))
