"""Sums of runs of rows, by 2-D grid and inline strides: no copy of a transposed input."""

import itertools

import torch
import triton
import triton.language as tl


@triton.jit
def segment_fwd(x, out, starts, sx_row, sx_col, D, BLOCK: tl.constexpr):
    seg = tl.program_id(0)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for row in range(tl.load(starts + seg), tl.load(starts + seg + 1)):
        acc += tl.load(x + row * sx_row + d * sx_col, mask=d < D, other=0.0)
    tl.store(out + seg * D + d, acc, mask=d < D)


@triton.jit
def segment_bwd(g, dx, starts, sg_row, sg_col, D, BLOCK: tl.constexpr):
    seg = tl.program_id(0)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    dy = tl.load(g + seg * sg_row + d * sg_col, mask=d < D, other=0.0)
    for row in range(tl.load(starts + seg), tl.load(starts + seg + 1)):
        tl.store(dx + row * D + d, dy, mask=d < D)


class SegmentSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, starts):
        rows, D = x.shape
        assert starts[0] == 0
        assert starts[-1] == rows
        assert (starts.diff() >= 0).all()
        starts = starts.contiguous()
        n = starts.numel() - 1
        out = torch.empty((n, D), dtype=x.dtype, device=x.device)
        segment_fwd[(n, triton.cdiv(D, 16))](x, out, starts, x.stride(0), x.stride(1), D, BLOCK=16)
        ctx.save_for_backward(starts)
        ctx.rows = rows
        return out

    @staticmethod
    def backward(ctx, g):
        if torch.is_grad_enabled():
            raise RuntimeError("SegmentSum has no second derivative")
        (starts,) = ctx.saved_tensors
        n, D = g.shape
        dx = torch.empty((ctx.rows, D), dtype=g.dtype, device=g.device)
        segment_bwd[(n, triton.cdiv(D, 16))](g, dx, starts, g.stride(0), g.stride(1), D, BLOCK=16)
        return dx, None


def reference(x, starts):
    return torch.stack([x[a:b].sum(0) for a, b in itertools.pairwise(starts)])


SIZES = ({}, {"lengths": (1,), "width": 1}, {"lengths": (4, 4), "width": 16}, {"lengths": (1, 0, 5), "width": 17})


def example(lengths=(3, 0, 4), width=5):
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    x = torch.randn(sum(lengths), width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x.requires_grad_(), starts
