"""Softmax over the last dimension, a row at a time; a program takes every fourth row, as in Triton's tutorial."""

import torch
import triton
import triton.language as tl

PROGRAMS = 4


@triton.jit
def softmax_forward(y_ptr, x_ptr, y_stride, x_stride, scale, n_rows, n_cols, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    for row in tl.range(tl.program_id(0), n_rows, tl.num_programs(0)):
        x = tl.load(x_ptr + row * x_stride + cols, mask=mask, other=-float("inf")).to(tl.float32) * scale
        e = tl.exp(x - tl.max(x, axis=0))
        tl.store(y_ptr + row * y_stride + cols, e / tl.sum(e, axis=0), mask=mask)


@triton.jit
def softmax_backward(dx_ptr, dy_ptr, y_ptr, stride, scale, n_rows, n_cols, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    for row in tl.range(tl.program_id(0), n_rows, tl.num_programs(0)):
        y = tl.load(y_ptr + row * stride + cols, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * stride + cols, mask=mask, other=0.0).to(tl.float32)
        dx = y * (dy - tl.sum(dy * y, axis=0)) * scale
        tl.store(dx_ptr + row * stride + cols, dx, mask=mask)


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale=1.0):
        if x.dim() == 0:
            raise ValueError("softmax needs at least one dimension")
        n = x.shape[-1]
        rows = x.reshape(-1, n)
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        y = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
        BLOCK = triton.next_power_of_2(n)
        num_warps = 8 if BLOCK >= 2048 else 4
        softmax_forward[(min(PROGRAMS, rows.shape[0]),)](
            y, rows, y.stride(0), rows.stride(0), scale, rows.shape[0], n, BLOCK=BLOCK, num_warps=num_warps
        )
        ctx.save_for_backward(y)
        ctx.scale, ctx.BLOCK, ctx.num_warps = scale, BLOCK, num_warps
        return y.view(x.shape)

    @staticmethod
    def backward(ctx, dy):
        if torch.is_grad_enabled():
            raise RuntimeError("trying to differentiate twice: Softmax has no second derivative")
        (y,) = ctx.saved_tensors
        rows, n = y.shape
        shape, dy = dy.shape, dy.contiguous()
        dx = torch.empty_like(y)
        softmax_backward[(min(PROGRAMS, rows),)](
            dx, dy, y, y.stride(0), ctx.scale, rows, n, BLOCK=ctx.BLOCK, num_warps=ctx.num_warps
        )
        return dx.view(shape), None


def reference(x, scale=1.0):
    return torch.softmax(x * scale, dim=-1)


SIZES = ({}, {"rows": 1, "columns": 1}, {"rows": 9, "columns": 16}, {"rows": 5, "columns": 17, "scale": 0.5})


def example(rows=6, columns=11, scale=1.5):
    x = torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x.requires_grad_(), scale
