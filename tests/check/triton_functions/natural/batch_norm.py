"""Batch norm of training over (batch, space), a program for each channel."""

import torch
import triton
import triton.language as tl


@triton.jit
def bn_fwd(x, y, w, b, mean, rstd, N, C, S, eps, BLOCK: tl.constexpr):
    c = tl.program_id(0)
    total = N * S
    s1 = tl.zeros((BLOCK,), tl.float32)
    for i in range(0, total, BLOCK):
        j = i + tl.arange(0, BLOCK)
        at = (j // S) * C * S + c * S + j % S
        s1 += tl.load(x + at, mask=j < total, other=0.0)
    mu = tl.sum(s1, 0) / total
    s2 = tl.zeros((BLOCK,), tl.float32)
    for i in range(0, total, BLOCK):
        j = i + tl.arange(0, BLOCK)
        at = (j // S) * C * S + c * S + j % S
        d = tl.where(j < total, tl.load(x + at, mask=j < total, other=0.0) - mu, 0.0)
        s2 += d * d
    r = 1.0 / tl.sqrt(tl.sum(s2, 0) / total + eps)
    tl.store(mean + c, mu)
    tl.store(rstd + c, r)
    scale = tl.load(w + c) * r
    shift = tl.load(b + c) - mu * scale
    for i in range(0, total, BLOCK):
        j = i + tl.arange(0, BLOCK)
        at = (j // S) * C * S + c * S + j % S
        tl.store(y + at, tl.load(x + at, mask=j < total, other=0.0) * scale + shift, mask=j < total)


@triton.jit
def bn_bwd(x, dy, dx, w, mean, rstd, dw, db, N, C, S, BLOCK: tl.constexpr):
    c = tl.program_id(0)
    total = N * S
    mu, r = tl.load(mean + c), tl.load(rstd + c)
    sum_dy = tl.zeros((BLOCK,), tl.float32)
    sum_dyx = tl.zeros((BLOCK,), tl.float32)
    for i in range(0, total, BLOCK):
        j = i + tl.arange(0, BLOCK)
        at = (j // S) * C * S + c * S + j % S
        g = tl.load(dy + at, mask=j < total, other=0.0)
        xhat = (tl.load(x + at, mask=j < total, other=0.0) - mu) * r
        sum_dy += g
        sum_dyx += g * xhat
    a, b = tl.sum(sum_dy, 0), tl.sum(sum_dyx, 0)
    tl.store(db + c, a)
    tl.store(dw + c, b)
    k = tl.load(w + c) * r
    for i in range(0, total, BLOCK):
        j = i + tl.arange(0, BLOCK)
        at = (j // S) * C * S + c * S + j % S
        g = tl.load(dy + at, mask=j < total, other=0.0)
        xhat = (tl.load(x + at, mask=j < total, other=0.0) - mu) * r
        tl.store(dx + at, k * (g - a / total - xhat * b / total), mask=j < total)


class BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps=1e-5):
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        N, C = x.shape[:2]
        S = x[0, 0].numel()
        y = torch.empty_like(x)
        mean, rstd = (torch.empty(C, dtype=torch.float32, device=x.device) for _ in range(2))
        bn_fwd[(C,)](x, y, weight, bias, mean, rstd, N, C, S, eps, BLOCK=32)
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.S = S
        return y

    @staticmethod
    def backward(ctx, dy):
        if torch.is_grad_enabled():
            raise RuntimeError("BatchNorm has no second derivative")
        x, weight, mean, rstd = ctx.saved_tensors
        N, C = x.shape[:2]
        dx, dw, db = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        bn_bwd[(C,)](x, dy.contiguous(), dx, weight, mean, rstd, dw, db, N, C, ctx.S, BLOCK=32)
        return dx, dw, db, None


def reference(x, weight, bias, eps=1e-5):
    return torch.nn.functional.batch_norm(x, None, None, weight, bias, training=True, eps=eps)


SIZES = ({}, {"shape": (2, 1, 1)}, {"shape": (4, 2, 8)}, {"shape": (3, 2, 11)})


def example(shape=(3, 4, 2, 3), eps=1e-2):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, generator=generator)
    weight, bias = torch.randn(2, shape[1], dtype=torch.float64, generator=generator)
    return x.requires_grad_(), weight.clone().requires_grad_(), bias.clone().requires_grad_(), eps
