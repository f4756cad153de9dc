"""Adaptive modulation x (1 + scale) + shift, of one scale and shift for all tokens of a sample."""

import torch
import triton
import triton.language as tl


@triton.jit
def modulate_fwd(x, scale, shift, y, T, D, BLOCK_D: tl.constexpr):
    b, t = tl.program_id(0), tl.program_id(1)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        mask = d < D
        s = tl.load(scale + b * D + d, mask=mask, other=0.0)
        h = tl.load(shift + b * D + d, mask=mask, other=0.0)
        at = (b * T + t) * D + d
        tl.store(y + at, tl.load(x + at, mask=mask, other=0.0) * (1 + s) + h, mask=mask)


@triton.jit
def modulate_bwd(x, scale, g, dx, dscale, dshift, T, D, BLOCK_D: tl.constexpr):
    b = tl.program_id(0)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    mask = d < D
    s = tl.load(scale + b * D + d, mask=mask, other=0.0)
    acc_s = tl.zeros((BLOCK_D,), tl.float32)
    acc_h = tl.zeros((BLOCK_D,), tl.float32)
    for t in range(T):
        at = (b * T + t) * D + d
        dy = tl.load(g + at, mask=mask, other=0.0)
        tl.store(dx + at, dy * (1 + s), mask=mask)
        acc_s += dy * tl.load(x + at, mask=mask, other=0.0)
        acc_h += dy
    tl.store(dscale + b * D + d, acc_s, mask=mask)
    tl.store(dshift + b * D + d, acc_h, mask=mask)


class Modulate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, shift):
        B, T, D = x.shape
        x, scale, shift = x.contiguous(), scale.contiguous(), shift.contiguous()
        y = torch.empty_like(x)
        modulate_fwd[(B, T)](x, scale, shift, y, T, D, BLOCK_D=16)
        ctx.save_for_backward(x, scale)
        return y

    @staticmethod
    def backward(ctx, g):
        if torch.is_grad_enabled():
            raise RuntimeError("Modulate has no second derivative")
        x, scale = ctx.saved_tensors
        B, T, D = x.shape
        dx, dscale, dshift = torch.empty_like(x), torch.empty_like(scale), torch.empty_like(scale)
        modulate_bwd[(B, triton.cdiv(D, 16))](x, scale, g.contiguous(), dx, dscale, dshift, T, D, BLOCK_D=16)
        return dx, dscale, dshift


def reference(x, scale, shift):
    return x * (1 + scale[:, None]) + shift[:, None]


SIZES = ({}, {"shape": (1, 1, 1)}, {"shape": (2, 3, 16)}, {"shape": (1, 4, 17)})


def example(shape=(2, 3, 5)):
    generator = torch.Generator().manual_seed(0)
    b, _, d = shape
    return tuple(
        torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in (shape, (b, d), (b, d))
    )
