"""Rounding to a grid with a straight-through gradient inside of the range."""

import torch
import triton
import triton.language as tl


@triton.jit
def fake_quant(x_ptr, y_ptr, keep_ptr, n, scale, lo, hi, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    q = tl.load(x_ptr + offs, mask=mask, other=0.0) / scale
    inside = (q >= lo) & (q <= hi)
    r = tl.floor(tl.minimum(tl.maximum(q, lo), hi) + 0.5)
    tl.store(y_ptr + offs, r * scale, mask=mask)
    tl.store(keep_ptr + offs, inside.to(tl.int8), mask=mask)


class FakeQuantSTE(torch.autograd.Function):
    """Fake quantisation; the backward is a straight-through estimator."""

    @staticmethod
    def forward(ctx, x, scale, bits=4):
        x = x.contiguous()
        y = torch.empty_like(x)
        keep = torch.empty(x.shape, dtype=torch.int8, device=x.device)
        n = x.numel()
        hi = 2 ** (bits - 1) - 1
        fake_quant[(triton.cdiv(n, 64),)](x, y, keep, n, scale, -hi - 1, hi, BLOCK=64)
        ctx.save_for_backward(keep)
        return y

    @staticmethod
    def backward(ctx, dy):
        if torch.is_grad_enabled():
            raise RuntimeError("FakeQuantSTE has no second derivative")
        (keep,) = ctx.saved_tensors
        return dy * keep, None, None


def reference(x, scale, bits=4):
    hi = 2 ** (bits - 1) - 1
    soft = x.clamp((-hi - 1) * scale, hi * scale)
    return soft + (torch.floor(soft / scale + 0.5) * scale - soft).detach()


SIZES = ({}, {"shape": (1,)}, {"shape": (64,)}, {"shape": (5, 14), "bits": 3})


def example(shape=(7, 11), scale=0.3, bits=4):
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x.requires_grad_(), scale, bits
