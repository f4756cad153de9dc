"""SwiGLU: the SiLU of one tensor times another, element by element."""

import torch
import triton
import triton.language as tl


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def swiglu_forward(c_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    a = tl.load(a_ptr + i, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + i, mask=mask, other=0.0)
    tl.store(c_ptr + i, silu(a).to(b.dtype) * b, mask=mask)


@triton.jit
def swiglu_backward(da_ptr, db_ptr, dc_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    a = tl.load(a_ptr + i, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + i, mask=mask, other=0.0).to(tl.float32)
    dc = tl.load(dc_ptr + i, mask=mask, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(a)
    da = dc * b * (sigmoid + a * sigmoid * (1 - sigmoid))
    db = dc * a * sigmoid
    tl.store(da_ptr + i, da, mask=mask)
    tl.store(db_ptr + i, db, mask=mask)


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        if a.shape != b.shape:
            raise ValueError(f"a and b need one shape, not {tuple(a.shape)} and {tuple(b.shape)}")
        if not a.is_cuda:
            raise ValueError("SwiGLU runs on a GPU")
        a, b = a.contiguous(), b.contiguous()
        c = torch.empty_like(a)
        n = c.numel()
        swiglu_forward[lambda META: (triton.cdiv(n, META["BLOCK"]),)](c, a, b, n, BLOCK=16)
        ctx.save_for_backward(a, b)
        return c

    @staticmethod
    def backward(ctx, dc):
        if torch.is_grad_enabled():
            raise RuntimeError("trying to differentiate twice: SwiGLU has no second derivative")
        a, b = ctx.saved_tensors
        dc = dc.contiguous()
        da, db = torch.empty_like(a), torch.empty_like(b)
        n = dc.numel()
        swiglu_backward[lambda META: (triton.cdiv(n, META["BLOCK"]),)](da, db, dc, a, b, n, BLOCK=16)
        return da, db


def reference(a, b):
    return a * torch.sigmoid(a) * b


SIZES = ({}, {"shape": (1,)}, {"shape": (2, 8)}, {"shape": (1, 33)})


def example(shape=(3, 13)):
    a, b = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return a.clone().requires_grad_(), b.clone().requires_grad_()
