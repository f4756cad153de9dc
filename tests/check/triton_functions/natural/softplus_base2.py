"""Softplus by exp2 and log2 with global constants, and a threshold beyond which it is the identity."""

import torch
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def softplus(x, beta, threshold):
    z = x * beta
    return tl.where(z > threshold, x, tl.log2(1.0 + tl.exp2(z * LOG2E)) * LN2 / beta)


@triton.jit
def softplus_fwd(x_ptr, y_ptr, n, beta, threshold, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, softplus(tl.load(x_ptr + i, i < n, 0.0), beta, threshold), i < n)


@triton.jit
def softplus_bwd(x_ptr, g_ptr, dx_ptr, n, beta, threshold, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, g = tl.load(x_ptr + i, i < n, 0.0), tl.load(g_ptr + i, i < n, 0.0)
    tl.store(dx_ptr + i, tl.where(x * beta > threshold, g, g / (1.0 + tl.exp2(-x * beta * LOG2E))), i < n)


class Softplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, beta=1.0, threshold=20.0):
        x = x.contiguous()
        y = torch.empty_like(x)
        n = x.numel()
        softplus_fwd[(triton.cdiv(n, 256),)](x, y, n, beta, threshold, BLOCK=256)
        ctx.save_for_backward(x)
        ctx.options = beta, threshold
        return y

    @staticmethod
    def backward(ctx, g):
        if torch.is_grad_enabled():
            raise RuntimeError("Softplus has no second derivative")
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        n = x.numel()
        softplus_bwd[(triton.cdiv(n, 256),)](x, g.contiguous(), dx, n, *ctx.options, BLOCK=256)
        return dx, None, None


def reference(x, beta=1.0, threshold=20.0):
    return torch.nn.functional.softplus(x, beta, threshold)


SIZES = ({}, {"shape": (1,)}, {"shape": (256,)}, {"shape": (3, 100), "beta": 2.0})


def example(shape=(4, 5), beta=1.5, threshold=20.0):
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x.requires_grad_(), beta, threshold
