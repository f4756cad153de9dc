"""The linear layer x wᵀ + b with any number of batch dimensions and an optional bias."""

import torch
from torch.autograd import Function


class Linear(Function):
    """out = x wᵀ + b: (..., n), (m, n), (m,) or None -> (..., m)."""

    @staticmethod
    def forward(x, w, b):
        return torch.nn.functional.linear(x, w, b)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w, b = inputs
        ctx.save_for_backward(x, w)
        ctx.bias_dtype = None if b is None else b.dtype

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gx = gw = gb = None
        if ctx.needs_input_grad[0]:
            gx = (g.to(w.dtype) @ w).to(x.dtype)
        if ctx.needs_input_grad[1]:
            rows = x.shape[:-1].numel()
            gw = g.to(x.dtype).reshape(rows, w.shape[0]).t() @ x.reshape(rows, w.shape[1])
            gw = gw.to(w.dtype)
        if ctx.needs_input_grad[2]:
            gb = g.sum_to_size(g.shape[-1:]).to(ctx.bias_dtype)
        return gx, gw, gb


def inputs():
    generator = torch.Generator().manual_seed(2)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    return draw(3, 2, 4), draw(5, 4), draw(5)
