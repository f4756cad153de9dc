"""Rows of a table by index, times a factor; the backward adds atomically, since indices repeat."""

import torch
import triton
import triton.language as tl


@triton.jit
def embedding_forward(
    out_ptr,
    weight_ptr,
    index_ptr,
    out_stride,
    weight_stride,
    n,
    width,
    scale,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    cols = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    index = tl.load(index_ptr + rows, mask=rows < n, other=0)
    mask = (rows < n)[:, None] & (cols < width)[None, :]
    values = tl.load(weight_ptr + index[:, None] * weight_stride + cols[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + rows[:, None] * out_stride + cols[None, :], values * scale, mask=mask)


@triton.jit
def embedding_backward(
    dweight_ptr,
    dout_ptr,
    index_ptr,
    dweight_stride,
    dout_stride,
    n,
    width,
    scale,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    cols = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    index = tl.load(index_ptr + rows, mask=rows < n, other=0)
    mask = (rows < n)[:, None] & (cols < width)[None, :]
    dout = tl.load(dout_ptr + rows[:, None] * dout_stride + cols[None, :], mask=mask, other=0.0)
    tl.atomic_add(dweight_ptr + index[:, None] * dweight_stride + cols[None, :], dout * scale, mask=mask)


class Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, index, scale=1.0):
        if weight.dim() != 2:
            raise ValueError("weight needs the shape (rows, width)")
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < weight.shape[0]:
            raise ValueError(f"an index is not between 0 and {weight.shape[0] - 1}")
        shape = index.shape
        weight, index = weight.contiguous(), index.contiguous().view(-1)
        n, width = index.numel(), weight.shape[1]
        out = torch.empty((n, width), dtype=weight.dtype, device=weight.device)
        grid = (triton.cdiv(n, 8), triton.cdiv(width, 16))
        embedding_forward[grid](
            out, weight, index, out.stride(0), weight.stride(0), n, width, scale, BLOCK_N=8, BLOCK_W=16
        )
        ctx.save_for_backward(index)
        ctx.rows, ctx.scale, ctx.dtype = weight.shape[0], scale, weight.dtype
        return out.view(*shape, width)

    @staticmethod
    def backward(ctx, dout):
        if torch.is_grad_enabled():
            raise RuntimeError("trying to differentiate twice: Embedding has no second derivative")
        (index,) = ctx.saved_tensors
        n, width = index.numel(), dout.shape[-1]
        dout = dout.contiguous().view(n, width)
        dweight = torch.zeros((ctx.rows, width), dtype=torch.float32, device=dout.device)
        embedding_backward[lambda META: (triton.cdiv(n, META["BLOCK_N"]), triton.cdiv(width, META["BLOCK_W"]))](
            dweight,
            dout,
            index,
            dweight.stride(0),
            dout.stride(0),
            n,
            width,
            ctx.scale,
            BLOCK_N=8,
            BLOCK_W=16,
        )
        return dweight.to(ctx.dtype), None, None


def reference(weight, index, scale=1.0):
    return weight[index] * scale


SIZES = (
    {},
    {"rows": 1, "width": 1, "shape": (1,)},
    {"rows": 4, "width": 16, "shape": (8,), "scale": 1.0},
    {"rows": 7, "width": 33, "shape": (2, 3, 4)},
)


def example(rows=5, width=19, shape=(3, 4), scale=1.5):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(rows, width, dtype=torch.float64, generator=generator)
    return weight.requires_grad_(), torch.randint(rows, shape, generator=generator), scale
