"""Bias and the tanh approximation of GELU, by libdevice; the bias' gradient is added atomically."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def gelu_tanh(x):
    return 0.5 * x * (1.0 + libdevice.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@triton.jit
def bias_gelu_fwd(x_ptr, b_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    r = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    c = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    mask = (r < M) & (c < N)
    z = tl.load(x_ptr + r * N + c, mask) + tl.load(b_ptr + c, c < N)
    tl.store(y_ptr + r * N + c, gelu_tanh(z), mask)


@triton.jit
def bias_gelu_bwd(x_ptr, b_ptr, dy_ptr, dx_ptr, db_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    r = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    c = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    mask = (r < M) & (c < N)
    z = tl.load(x_ptr + r * N + c, mask, other=0) + tl.load(b_ptr + c, c < N, other=0)
    t = libdevice.tanh(0.7978845608028654 * (z + 0.044715 * z * z * z))
    dz = 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * z * z)
    dx = tl.load(dy_ptr + r * N + c, mask, other=0) * dz
    tl.store(dx_ptr + r * N + c, dx, mask)
    tl.atomic_add(db_ptr + tl.program_id(1) * BN + tl.arange(0, BN), tl.sum(dx, 0),
                  mask=tl.program_id(1) * BN + tl.arange(0, BN) < N)  # fmt: skip


class BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias):
        x, bias = x.contiguous(), bias.contiguous()
        N = x.shape[-1]
        M = x.numel() // N
        y = torch.empty_like(x)
        bias_gelu_fwd[(triton.cdiv(M, 8), triton.cdiv(N, 16))](x, bias, y, M, N, BM=8, BN=16)
        ctx.save_for_backward(x, bias)
        return y

    @staticmethod
    def backward(ctx, dy):
        if torch.is_grad_enabled():
            raise RuntimeError("BiasGelu has no second derivative")
        x, bias = ctx.saved_tensors
        N = x.shape[-1]
        M = x.numel() // N
        dx, db = torch.empty_like(x), torch.zeros_like(bias)
        bias_gelu_bwd[(triton.cdiv(M, 8), triton.cdiv(N, 16))](x, bias, dy.contiguous(), dx, db, M, N, BM=8, BN=16)
        return dx, db


def reference(x, bias):
    return torch.nn.functional.gelu(x + bias, approximate="tanh")


SIZES = ({}, {"shape": (1, 1)}, {"shape": (8, 16)}, {"shape": (2, 9, 17)})


def example(shape=(3, 4, 11)):
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in (shape, shape[-1:]))
