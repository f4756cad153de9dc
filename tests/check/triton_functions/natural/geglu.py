"""GEGLU with the exact GELU, of gate and value as two tensors; tl.erf."""

import torch
import triton
import triton.language as tl

INV_SQRT2: tl.constexpr = tl.constexpr(0.7071067811865475)
INV_SQRT_2PI: tl.constexpr = tl.constexpr(0.3989422804014327)


@triton.jit
def geglu_forward_kernel(gate, up, out, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    e = tl.load(gate + offsets, mask=mask, other=0).to(tl.float32)
    g = tl.load(up + offsets, mask=mask, other=0)
    f = 0.5 * e * (tl.math.erf(e * INV_SQRT2) + 1.0)
    tl.store(out + offsets, f.to(g.dtype) * g, mask=mask)


@triton.jit
def geglu_backward_kernel(grad, gate, up, dgate, dup, n_elements, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    dy = tl.load(grad + offsets, mask=mask, other=0)
    e = tl.load(gate + offsets, mask=mask, other=0).to(tl.float32)
    g = tl.load(up + offsets, mask=mask, other=0)
    cdf = 0.5 * (tl.math.erf(e * INV_SQRT2) + 1.0)
    pdf = INV_SQRT_2PI * tl.exp(-0.5 * e * e)
    tl.store(dup + offsets, dy * (e * cdf).to(dy.dtype), mask=mask)
    tl.store(dgate + offsets, dy * g * (cdf + e * pdf).to(dy.dtype), mask=mask)


class GEGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(up)
        n = out.numel()
        grid = lambda meta: (triton.cdiv(n, meta["BLOCK_SIZE"]),)  # noqa: E731
        geglu_forward_kernel[grid](gate, up, out, n, BLOCK_SIZE=1024)
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    def backward(ctx, dy):
        if torch.is_grad_enabled():
            raise RuntimeError("GEGLU has no second derivative")
        gate, up = ctx.saved_tensors
        dy = dy.contiguous()
        dgate, dup = torch.empty_like(gate), torch.empty_like(up)
        n = dy.numel()
        grid = lambda meta: (triton.cdiv(n, meta["BLOCK_SIZE"]),)  # noqa: E731
        geglu_backward_kernel[grid](dy, gate, up, dgate, dup, n, BLOCK_SIZE=1024)
        return dgate, dup


def reference(gate, up):
    return torch.nn.functional.gelu(gate) * up


SIZES = ({}, {"shape": (1,)}, {"shape": (2, 512)}, {"shape": (3, 400)})


def example(shape=(3, 4, 5)):
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2))
