"""Rotary embedding of neighbouring pairs, by reshape, split and join."""

import torch
import triton
import triton.language as tl


@triton.jit
def rope_pairs_kernel(x_ptr, y_ptr, theta_ptr, T, H, D: tl.constexpr, SIGN: tl.constexpr, BLOCK_H: tl.constexpr):
    bt = tl.program_id(0)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    t = bt % T
    HALF: tl.constexpr = D // 2
    d = tl.arange(0, D)
    ptr = (bt * H + h[:, None]) * D + d[None, :]
    mask = h[:, None] < H
    x = tl.load(x_ptr + ptr, mask=mask, other=0.0)
    a, b = tl.split(tl.reshape(x, (BLOCK_H, HALF, 2)))
    angle = tl.load(theta_ptr + tl.arange(0, HALF)) * t
    c = tl.cos(angle)[None, :]
    s = tl.sin(angle)[None, :] * SIGN
    y = tl.join(a * c - b * s, a * s + b * c)
    tl.store(y_ptr + ptr, tl.reshape(y, (BLOCK_H, D)), mask=mask)


class RopePairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, theta):
        B, T, H, D = x.shape
        x, theta = x.contiguous(), theta.contiguous()
        y = torch.empty_like(x)
        rope_pairs_kernel[(B * T, triton.cdiv(H, 2))](x, y, theta, T, H, D, 1, BLOCK_H=2)
        ctx.save_for_backward(theta)
        return y

    @staticmethod
    def backward(ctx, dy):
        if torch.is_grad_enabled():
            raise RuntimeError("RopePairs has no second derivative")
        (theta,) = ctx.saved_tensors
        B, T, H, D = dy.shape
        dy = dy.contiguous()
        dx = torch.empty_like(dy)
        rope_pairs_kernel[(B * T, triton.cdiv(H, 2))](dy, dx, theta, T, H, D, -1, BLOCK_H=2)
        return dx, None


def reference(x, theta):
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None, None] * theta.detach()
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1).flatten(-2)


SIZES = ({}, {"shape": (1, 1, 1, 2)}, {"shape": (1, 4, 2, 4)}, {"shape": (2, 3, 3, 16)})


def example(shape=(2, 5, 3, 8)):
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x.requires_grad_(), 1 / 10 ** torch.linspace(0, 1, shape[-1] // 2, dtype=torch.float64)
