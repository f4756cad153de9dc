"""The transforms of `torch.func`, alone and nested."""

import itertools

import torch
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

from tests.compose._contexts import cells, context, gradient, judge
from tests.compose._ops import X

ONES = torch.ones_like(X)


def diagonal(tensor):
    while tensor.dim() > 1:
        tensor = tensor.diagonal()
    return tensor


def summed(op):
    return lambda x: op(x).sum()


context("transforms", "grad")(lambda op: grad(summed(op))(X))
context("transforms", "grad_and_value")(lambda op: grad_and_value(summed(op))(X)[0])
context("transforms", "grad of grad", order=2)(lambda op: grad(summed(grad(summed(op))))(X))
context("transforms", "grad of grad of grad", order=3)(lambda op: grad(summed(grad(summed(grad(summed(op))))))(X))
context("transforms", "jacrev")(lambda op: diagonal(jacrev(op)(X)))
context("transforms", "jacfwd")(lambda op: diagonal(jacfwd(op)(X)))
context("transforms", "jacrev of jacrev", order=2)(lambda op: diagonal(jacrev(jacrev(op))(X)))
context("transforms", "jacfwd of jacrev", order=2)(lambda op: diagonal(jacfwd(jacrev(op))(X)))
context("transforms", "jacrev of jacfwd", order=2)(lambda op: diagonal(jacrev(jacfwd(op))(X)))
context("transforms", "jacfwd of jacfwd", order=2)(lambda op: diagonal(jacfwd(jacfwd(op))(X)))
for first, second, third in itertools.product((jacrev, jacfwd), repeat=3):
    context("transforms", f"{first.__name__} of {second.__name__} of {third.__name__}", order=3)(
        lambda op, first=first, second=second, third=third: diagonal(first(second(third(op)))(X))
    )
context("transforms", "hessian", order=2)(lambda op: diagonal(hessian(summed(op))(X)))
context("transforms", "vmap of grad")(lambda op: vmap(grad(op))(X))
context("transforms", "vmap of vmap of grad")(lambda op: vmap(vmap(grad(op)))(X.view(2, 2)).flatten())
context("transforms", "vmap of hessian", order=2)(lambda op: vmap(hessian(op))(X))
context("transforms", "grad of vmap")(lambda op: grad(summed(vmap(op)))(X))
context("transforms", "grad of vmap of grad", order=2)(lambda op: grad(summed(vmap(grad(op))))(X))
context("transforms", "vmap, then backward")(lambda op: gradient(vmap(op)))
context("transforms", "vmap, chunked, then backward")(lambda op: gradient(vmap(op, chunk_size=2)))
context("transforms", "grad inside create_graph", order=2)(lambda op: gradient(grad(summed(op)))[1])


@context("transforms", "vjp")
def vjp_of(op):
    y, pull = vjp(op, X)
    return y, pull(ONES)[0]


@context("transforms", "vjp, differentiated", order=2)
def grad_of_vjp(op):
    return grad(lambda x: vjp(op, x)[1](ONES)[0].sum())(X)


@context("transforms", "jvp")
def jvp_of(op):
    return jvp(op, (X,), (ONES,))


@context("transforms", "jvp of jvp", order=2)
def jvp_of_jvp(op):
    return jvp(lambda x: jvp(op, (x,), (ONES,))[1], (X,), (ONES,))[1]


@context("transforms", "grad of jvp", order=2)
def grad_of_jvp(op):
    return grad(lambda x: jvp(op, (x,), (ONES,))[1].sum())(X)


@context("transforms", "jvp of grad", order=2)
def jvp_of_grad(op):
    return jvp(grad(summed(op)), (X,), (ONES,))[1]


@context("transforms", "vmap of jvp")
def vmap_of_jvp(op):
    return vmap(lambda x, t: jvp(op, (x,), (t,)))(X, ONES)


@context("transforms", "linearize")
def linearize_of(op):
    y, push = linearize(op, X)
    return y, push(ONES)


@context("transforms", "functional_call of a module")
def functional_call_of(op):
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros_like(X))

        def forward(self):
            return op(self.weight).sum()

    return grad(lambda weight: functional_call(Module(), {"weight": weight}, ()))(X)


@cells("transforms")
def test_derivative_is_kept_in_func_transforms(row, column):
    judge(row, column)
