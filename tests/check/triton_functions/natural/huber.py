"""Sum of Huber losses, added atomically by the programs."""

import torch
import triton
import triton.language as tl


@triton.jit
def huber_fwd(x_ptr, t_ptr, out_ptr, n, delta, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    d = tl.load(x_ptr + offs, mask=mask, other=0.0) - tl.load(t_ptr + offs, mask=mask, other=0.0)
    a = tl.abs(d)
    loss = tl.where(a < delta, 0.5 * d * d, delta * (a - 0.5 * delta))
    tl.atomic_add(out_ptr, tl.sum(loss, axis=0))


@triton.jit
def huber_bwd(x_ptr, t_ptr, g_ptr, dx_ptr, n, delta, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    d = tl.load(x_ptr + offs, mask=mask, other=0.0) - tl.load(t_ptr + offs, mask=mask, other=0.0)
    g = tl.load(g_ptr)
    tl.store(dx_ptr + offs, g * tl.clamp(d, -delta, delta), mask=mask)


class HuberSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, target, delta=1.0):
        x, target = x.contiguous(), target.contiguous()
        out = torch.zeros((), dtype=torch.float32, device=x.device)
        n = x.numel()
        huber_fwd[(triton.cdiv(n, 64),)](x, target, out, n, delta, BLOCK=64)
        ctx.save_for_backward(x, target)
        ctx.delta = delta
        return out

    @staticmethod
    def backward(ctx, g):
        if torch.is_grad_enabled():
            raise RuntimeError("HuberSum has no second derivative")
        x, target = ctx.saved_tensors
        dx = torch.empty_like(x)
        n = x.numel()
        huber_bwd[(triton.cdiv(n, 64),)](x, target, g, dx, n, ctx.delta, BLOCK=64)
        return dx, -dx if ctx.needs_input_grad[1] else None, None


def reference(x, target, delta=1.0):
    return torch.nn.functional.huber_loss(x, target, reduction="sum", delta=delta)


SIZES = ({}, {"shape": (1,)}, {"shape": (64,)}, {"shape": (13, 11), "delta": 2.0})


def example(shape=(7, 11), delta=0.7):
    generator = torch.Generator().manual_seed(0)
    return *(torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2)), delta
