"""Average pooling of images without overlap, over a grid of three axes."""

import torch
import triton
import triton.language as tl


@triton.jit
def pool_fwd(x, y, H, W, OH, OW, P: tl.constexpr, BLOCK: tl.constexpr):
    image, i = tl.program_id(2), tl.program_id(1)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for a in tl.static_range(P):
        for b in tl.static_range(P):
            total += tl.load(x + image * H * W + (i * P + a) * W + j * P + b, mask=j < OW, other=0.0)
    tl.store(y + image * OH * OW + i * OW + j, total / (P * P), mask=j < OW)


@triton.jit
def pool_bwd(g, dx, H, W, OH, OW, P: tl.constexpr, BLOCK: tl.constexpr):
    image, i = tl.program_id(2), tl.program_id(1)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (i // P < OH) & (j // P < OW)
    value = tl.load(g + image * OH * OW + (i // P) * OW + j // P, mask=inside, other=0.0) / (P * P)
    tl.store(dx + image * H * W + i * W + j, value, mask=j < W)


class AvgPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, size):
        x = x.contiguous()
        N, C, H, W = x.shape
        OH, OW = H // size, W // size
        if not OH or not OW:
            raise ValueError(f"an image of {H} x {W} has no window of size {size}")
        y = torch.empty((N, C, OH, OW), dtype=x.dtype, device=x.device)
        pool_fwd[(triton.cdiv(OW, 8), OH, N * C)](x, y, H, W, OH, OW, P=size, BLOCK=8)
        ctx.shape, ctx.size = x.shape, size
        return y

    @staticmethod
    def backward(ctx, g):
        if torch.is_grad_enabled():
            raise RuntimeError("AvgPool has no second derivative")
        N, C, H, W = ctx.shape
        dx = torch.empty(ctx.shape, dtype=g.dtype, device=g.device)
        OH, OW = g.shape[-2:]
        pool_bwd[(triton.cdiv(W, 8), H, N * C)](g.contiguous(), dx, H, W, OH, OW, P=ctx.size, BLOCK=8)
        return dx, None


def reference(x, size):
    return torch.nn.functional.avg_pool2d(x, size)


SIZES = ({}, {"shape": (1, 1, 2, 2)}, {"shape": (1, 2, 4, 16)}, {"shape": (1, 1, 7, 19), "size": 3})


def example(shape=(2, 2, 5, 6), size=2):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_(), size
