"""Ordered weighted average: tl.sort forward; backward the rank of each element, and tl.gather."""

import torch
import triton
import triton.language as tl


@triton.jit
def owa_fwd(x_ptr, w_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + c, mask=c < n, other=float("-inf"))
    w = tl.load(w_ptr + c, mask=c < n, other=0.0)
    s = tl.sort(x, descending=True)
    tl.store(y_ptr + row, tl.sum(tl.where(c < n, w * s, 0.0), axis=0))


@triton.jit
def owa_bwd(x_ptr, w_ptr, g_ptr, dx_ptr, dw_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + c, mask=c < n, other=float("-inf"))
    w = tl.load(w_ptr + c, mask=c < n, other=0.0)
    g = tl.load(g_ptr + row)
    before = (x[None, :] > x[:, None]) | ((x[None, :] == x[:, None]) & (c[None, :] < c[:, None]))
    rank = tl.sum(before.to(tl.int32), axis=1)
    tl.store(dx_ptr + row * n + c, g * tl.gather(w, rank, 0), mask=c < n)
    tl.atomic_add(dw_ptr + rank, g * tl.where(c < n, x, 0.0), mask=c < n)


class OrderedAverage(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        x, weight = x.contiguous(), weight.contiguous()
        rows, n = x.shape
        y = torch.empty(rows, dtype=x.dtype, device=x.device)
        owa_fwd[(rows,)](x, weight, y, n, BLOCK=triton.next_power_of_2(n))
        ctx.save_for_backward(x, weight)
        return y

    @staticmethod
    def backward(ctx, g):
        if torch.is_grad_enabled():
            raise RuntimeError("OrderedAverage has no second derivative")
        x, weight = ctx.saved_tensors
        rows, n = x.shape
        dx, dw = torch.empty_like(x), torch.zeros_like(weight)
        owa_bwd[(rows,)](x, weight, g.contiguous(), dx, dw, n, BLOCK=triton.next_power_of_2(n))
        return dx, dw


def reference(x, weight):
    return (x.sort(-1, descending=True).values * weight).sum(-1)


SIZES = ({}, {"rows": 1, "n": 1}, {"rows": 2, "n": 8}, {"rows": 3, "n": 9})


def example(rows=4, n=6):
    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, n), (n,))
    return tuple(torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes)
