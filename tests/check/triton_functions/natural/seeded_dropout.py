"""Dropout whose mask is drawn again in the backward, from the same seed; tl.rand."""

import torch
import triton
import triton.language as tl


@triton.jit
def _seeded_dropout(x_ptr, output_ptr, n_elements, p, seed, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    block_start = pid * BLOCK_SIZE
    offsets = block_start + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    random = tl.rand(seed, offsets)
    x_keep = random > p
    output = tl.where(x_keep, x / (1 - p), 0.0)
    tl.store(output_ptr + offsets, output, mask=mask)


class SeededDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p, seed):
        x = x.contiguous()
        output = torch.empty_like(x)
        n = x.numel()
        _seeded_dropout[(triton.cdiv(n, 128),)](x, output, n, p, seed, BLOCK_SIZE=128)
        ctx.p, ctx.seed = p, seed
        return output

    @staticmethod
    def backward(ctx, grad):
        if torch.is_grad_enabled():
            raise RuntimeError("SeededDropout has no second derivative")
        grad = grad.contiguous()
        dx = torch.empty_like(grad)
        n = grad.numel()
        _seeded_dropout[(triton.cdiv(n, 128),)](grad, dx, n, ctx.p, ctx.seed, BLOCK_SIZE=128)
        return dx, None, None


def _philox(seed, offsets):
    """Philox 4x32-10 of a seed of 32 bits, the first word as a float in [0, 1)."""
    c = [offsets & 0xFFFFFFFF, torch.zeros_like(offsets), torch.zeros_like(offsets), torch.zeros_like(offsets)]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(10):
        products = [(m, [((c[i] & 0xFFFF) * m, (c[i] >> 16) * m)]) for i, m in ((0, 0xD2511F53), (2, 0xCD9E8D57))]
        (h0, l0), (h1, l1) = (_words(low, high) for _, [(low, high)] in products)
        c = [h1 ^ c[1] ^ k0, l1, h0 ^ c[3] ^ k1, l0]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    x = torch.where(c[0] >= 1 << 31, c[0] - (1 << 32), c[0])
    return torch.where(x < 0, -x - 1, x).double() * 4.6566127342e-10


def _words(low, high):
    total = low + ((high & 0xFFFF) << 16)
    return (high >> 16) + (total >> 32), total & 0xFFFFFFFF


def reference(x, p, seed):
    keep = _philox(seed, torch.arange(x.numel())).view(x.shape) > p
    return torch.where(keep, x / (1 - p), 0.0)


SIZES = ({}, {"shape": (1,), "p": 0.0}, {"shape": (128,)}, {"shape": (3, 50), "p": 0.2})


def example(shape=(5, 7), p=0.4, seed=1234):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_(), p, seed
