"""Rotary position embedding of queries and keys, half against half; the backward turns the other way."""

import torch
import triton
import triton.language as tl


@triton.jit
def rotate(
    out_ptr,
    x_ptr,
    cos_ptr,
    sin_ptr,
    stride_batch,
    stride_time,
    stride_head,
    time,
    heads,
    half,
    BACKWARD: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    token = tl.program_id(0)
    b = token // time
    t = token % time
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_D)
    cos = tl.load(cos_ptr + t * half + d, mask=d < half, other=1.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + t * half + d, mask=d < half, other=0.0).to(tl.float32)[None, :]
    if BACKWARD:
        sin = -sin
    at = b * stride_batch + t * stride_time + h[:, None] * stride_head + d[None, :]
    mask = (h < heads)[:, None] & (d < half)[None, :]
    x1 = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    x2 = tl.load(x_ptr + at + half, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, x1 * cos - x2 * sin, mask=mask)
    tl.store(out_ptr + at + half, x2 * cos + x1 * sin, mask=mask)


def launch(x, cos, sin, backward):
    batch, time, heads, dim = x.shape
    x = x.contiguous()
    out = torch.empty_like(x)
    half = dim // 2
    BLOCK_D = triton.next_power_of_2(half)
    rotate[lambda META: (batch * time, triton.cdiv(heads, META["BLOCK_H"]))](
        out,
        x,
        cos,
        sin,
        x.stride(0),
        x.stride(1),
        x.stride(2),
        time,
        heads,
        half,
        BACKWARD=backward,
        BLOCK_H=2,
        BLOCK_D=BLOCK_D,
    )
    return out


class Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, base=10000.0, start=0):
        if q.dim() != 4 or k.dim() != 4 or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
            raise ValueError("q and k need shapes (batch, time, heads, size) that differ at most in heads")
        time, dim = q.shape[1], q.shape[3]
        if dim % 2:
            raise ValueError(f"the size of a head is {dim}: it must be even")
        exponents = torch.arange(0, dim, 2, dtype=torch.float32, device=q.device) / dim
        positions = torch.arange(start, start + time, dtype=torch.float32, device=q.device)
        angles = positions[:, None] * base**-exponents
        cos, sin = angles.cos(), angles.sin()
        ctx.save_for_backward(cos, sin)
        return launch(q, cos, sin, False), launch(k, cos, sin, False)

    @staticmethod
    def backward(ctx, dq, dk):
        if torch.is_grad_enabled():
            raise RuntimeError("trying to differentiate twice: Rotary has no second derivative")
        cos, sin = ctx.saved_tensors
        return launch(dq, cos, sin, True), launch(dk, cos, sin, True), None, None


def reference(q, k, base=10000.0, start=0):
    time, dim = q.shape[1], q.shape[3]
    frequencies = base ** -(torch.arange(0, dim, 2, dtype=q.dtype) / dim)
    angles = torch.arange(start, start + time, dtype=q.dtype)[:, None] * frequencies
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]

    def turn(x):
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1)

    return turn(q), turn(k)


SIZES = (
    {},
    {"batch": 1, "time": 1, "heads": 1, "key_heads": 1, "dim": 2, "start": 1},
    {"heads": 4, "key_heads": 2, "dim": 8, "start": 5},
    {"batch": 3, "time": 2, "heads": 5, "dim": 10},
)


def example(batch=2, time=3, heads=3, key_heads=1, dim=6, start=0):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(batch, time, heads, dim, dtype=torch.float64, generator=generator)
    k = torch.randn(batch, time, key_heads, dim, dtype=torch.float64, generator=generator)
    return q.requires_grad_(), k.requires_grad_(), 100.0, start
