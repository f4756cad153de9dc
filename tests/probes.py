"""Probes for behaviour that differs between PyTorch releases: tests query it, never the version."""

import functools

import torch


class _Negated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return -g


@functools.cache
def is_backward_kept_by_compiled_grad():
    """Does torch.compile of torch.func.grad call a Function's backward? PyTorch 2.15 does, 2.13 does not."""
    torch.compiler.reset()
    compiled = torch.compile(torch.func.grad(lambda x: _Negated.apply(x).sum()), backend="aot_eager")
    try:
        return compiled(torch.ones(1)).item() == -1
    finally:
        torch.compiler.reset()


@functools.cache
def is_broken_graph_differentiated(backend):
    """Does torch.compile of torch.func.grad go on after a graph break? Not with "eager"."""

    def broken(x):
        torch._dynamo.graph_break()
        return x * x

    torch.compiler.reset()
    try:
        return torch.compile(torch.func.grad(lambda x: broken(x).sum()), backend=backend)(torch.ones(1)).item() == 2
    except Exception:
        return False
    finally:
        torch.compiler.reset()


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x


@functools.cache
def is_twin_lost():
    """Does a compiled Function that is given one tensor twice get half of its gradient? Under PyTorch 2.11 it does."""
    torch.compiler.reset()
    x = torch.ones(2, requires_grad=True)
    try:
        out = torch.compile(_Product.apply, backend="aot_eager")(x, x)
        return torch.autograd.grad(out.sum(), x)[0].tolist() == [1, 1]
    finally:
        torch.compiler.reset()
