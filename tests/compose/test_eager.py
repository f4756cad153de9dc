"""Plain eager mode: every API that computes a derivative."""

import torch
from torch.autograd import forward_ad

from tests.compose._contexts import cells, context, gradient, judge, leaf
from tests.compose._ops import X


@context("eager", "backward()")
def backward(op):
    x = leaf()
    op(x).sum().backward()
    return x.grad


@context("eager", "autograd.grad")
def autograd_grad(op):
    return gradient(op)


@context("eager", "backward twice, retain_graph")
def backward_twice(op):
    x = leaf()
    y = op(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad / 2


@context("eager", "a cotangent that is strided 0, or 2")
def strided_cotangents(op):
    x = leaf()
    y = op(x)
    for g in (torch.ones((), dtype=x.dtype).expand(4), torch.ones(8, dtype=x.dtype)[::2]):
        y.backward(g, retain_graph=True)
    return y, x.grad / 2


@context("eager", "an input that is strided")
def strided_input(op):
    x = torch.stack([X, X], 1).requires_grad_()
    y = op(x[:, 0])
    y.sum().backward()
    return y, x.grad[:, 0]


@context("eager", "create_graph", order=2)
def create_graph(op):
    x = leaf()
    (g,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
    return torch.autograd.grad(g.sum(), x)[0]


@context("eager", "create_graph twice", order=3)
def create_graph_twice(op):
    x = leaf()
    g = op(x)
    for _ in range(2):
        (g,) = torch.autograd.grad(g.sum(), x, create_graph=True)
    return torch.autograd.grad(g.sum(), x)[0]


@context("eager", "backward(create_graph=True)", order=2, ignore=("Using backward\\(\\) with create_graph=True",))
def backward_create_graph(op):
    x = leaf()
    op(x).backward(torch.ones_like(x), create_graph=True)  # a cotangent that does not require grad
    g, x.grad = x.grad, None
    return torch.autograd.grad(g.sum(), x)[0]


@context("eager", "is_grads_batched")
def is_grads_batched(op):
    x = leaf()
    return torch.autograd.grad(op(x), x, torch.eye(4, dtype=x.dtype), is_grads_batched=True)[0].diagonal()


@context("eager", "is_grads_batched, create_graph", order=2)
def is_grads_batched_create_graph(op):
    x = leaf()
    (rows,) = torch.autograd.grad(op(x), x, torch.eye(4, dtype=x.dtype), is_grads_batched=True, create_graph=True)
    return torch.autograd.grad(rows.sum(), x)[0]


@context("eager", "autograd.functional.hessian", order=2)
def functional_hessian(op):
    return torch.autograd.functional.hessian(lambda x: op(x).sum(), X).diagonal()


@context("eager", "autograd.functional.jacobian, forward mode")
def functional_jacobian(op):
    jacobian = torch.autograd.functional.jacobian
    return jacobian(op, X, vectorize=True, strategy="forward-mode").diagonal()


@context("eager", "dual tensors")
def dual(op):
    with forward_ad.dual_level():
        y = forward_ad.unpack_dual(op(forward_ad.make_dual(X, torch.ones_like(X))))
        return y.primal, y.tangent


@context("eager", "forward over reverse, dual tensors", order=2)
def dual_over_reverse(op):
    with forward_ad.dual_level():
        x = forward_ad.make_dual(leaf(), torch.ones_like(X))
        (g,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
        return forward_ad.unpack_dual(g).tangent


@context("eager", "reverse over forward, dual tensors", order=2)
def reverse_over_dual(op):
    x = leaf()
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(op(forward_ad.make_dual(x, torch.ones_like(X)))).tangent
    return torch.autograd.grad(tangent.sum(), x)[0]


@context("eager", "in place on the result")
def in_place_after(op):
    x = leaf()
    y = op(x)
    before = y.detach().clone()
    y.mul_(2)
    return before, torch.autograd.grad(y.sum(), x)[0] / 2


@cells("eager")
def test_derivative_is_kept_in_eager_mode(row, column):
    judge(row, column)
