"""Mean of the embeddings of a bag, with a padding index; the backward adds rows atomically."""

import torch
import triton
import triton.language as tl


@triton.jit
def bag_fwd(table, ids, out, L, D, padding, BLOCK: tl.constexpr):
    bag = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    count = 0
    for i in range(L):
        at = tl.load(ids + bag * L + i)
        if at != padding:
            acc += tl.load(table + at * D + d, mask=d < D, other=0.0)
            count += 1
    tl.store(out + bag * D + d, acc / tl.maximum(count, 1), mask=d < D)


@triton.jit
def bag_bwd(g, ids, dtable, L, D, padding, BLOCK: tl.constexpr, BLOCK_L: tl.constexpr):
    bag = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    k = tl.arange(0, BLOCK_L)
    at = tl.load(ids + bag * L + k, mask=k < L, other=padding)
    used = (k < L) & (at != padding)
    count = tl.sum(used.to(tl.int32), axis=0)
    dy = tl.load(g + bag * D + d, mask=d < D, other=0.0) / tl.maximum(count, 1)
    dy = tl.broadcast_to(dy[None, :], (BLOCK_L, BLOCK))
    tl.atomic_add(dtable + at[:, None] * D + d[None, :], dy, mask=used[:, None] & (d[None, :] < D))


class EmbeddingBag(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, ids, padding=0):
        table, ids = table.contiguous(), ids.contiguous()
        bags, L = ids.shape
        D = table.shape[1]
        out = torch.empty(bags, D, dtype=table.dtype, device=table.device)
        bag_fwd[(bags,)](table, ids, out, L, D, padding, BLOCK=triton.next_power_of_2(D))
        ctx.save_for_backward(ids)
        ctx.shape, ctx.padding = table.shape, padding
        return out

    @staticmethod
    def backward(ctx, g):
        if torch.is_grad_enabled():
            raise RuntimeError("EmbeddingBag has no second derivative")
        (ids,) = ctx.saved_tensors
        bags, L = ids.shape
        D = ctx.shape[1]
        dtable = torch.zeros(ctx.shape, dtype=torch.float32, device=g.device)
        bag_bwd[(bags,)](
            g.contiguous(), ids, dtable, L, D, ctx.padding,
            BLOCK=triton.next_power_of_2(D), BLOCK_L=triton.next_power_of_2(L),
        )  # fmt: skip
        return dtable.to(g.dtype), None, None


def reference(table, ids, padding=0):
    used = (ids != padding).to(table.dtype)[..., None]
    return (table[ids] * used).sum(1) / used.sum(1).clamp(min=1)


SIZES = ({}, {"bags": 1, "length": 1, "width": 1}, {"bags": 2, "length": 4, "width": 8}, {"length": 5, "width": 9})


def example(bags=3, length=6, width=5, rows=7, padding=2):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(rows, width, dtype=torch.float64, generator=generator)
    return table.requires_grad_(), torch.randint(rows, (bags, length), generator=generator), padding
