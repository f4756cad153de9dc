"""Sigmoid focal loss, the mean of all elements; the backward recomputes the probabilities."""

import torch
import triton
import triton.language as tl


@triton.jit
def focal_fwd(x_ptr, t_ptr, out_ptr, n, alpha, gamma, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0).to(tl.float32)
    t = tl.load(t_ptr + i, mask=i < n, other=0.0).to(tl.float32)
    ce = tl.maximum(x, 0.0) - x * t + tl.log(1.0 + tl.exp(-tl.abs(x)))
    q = tl.sigmoid(tl.where(t > 0.5, -x, x))
    a = tl.where(t > 0.5, alpha, 1.0 - alpha)
    tl.store(out_ptr + i, a * tl.exp(gamma * tl.log(q)) * ce, mask=i < n)


@triton.jit
def focal_bwd(x_ptr, t_ptr, g_ptr, dx_ptr, n, alpha, gamma, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0).to(tl.float32)
    t = tl.load(t_ptr + i, mask=i < n, other=0.0).to(tl.float32)
    ce = tl.maximum(x, 0.0) - x * t + tl.log(1.0 + tl.exp(-tl.abs(x)))
    sign = tl.where(t > 0.5, -1.0, 1.0)
    q = tl.sigmoid(sign * x)
    a = tl.where(t > 0.5, alpha, 1.0 - alpha)
    power = tl.exp(gamma * tl.log(q))
    d = a * sign * power * (gamma * (1 - q) * ce + q)
    tl.store(dx_ptr + i, d * tl.load(g_ptr) / n, mask=i < n)


class FocalLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets, alpha=0.25, gamma=2.0):
        logits, targets = logits.contiguous(), targets.contiguous()
        n = logits.numel()
        out = torch.empty(n, dtype=torch.float32, device=logits.device)
        focal_fwd[(triton.cdiv(n, 128),)](logits, targets, out, n, alpha, gamma, BLOCK=128)
        ctx.save_for_backward(logits, targets)
        ctx.options = alpha, gamma
        return out.mean()

    @staticmethod
    def backward(ctx, g):
        if torch.is_grad_enabled():
            raise RuntimeError("FocalLoss has no second derivative")
        logits, targets = ctx.saved_tensors
        n = logits.numel()
        dx = torch.empty_like(logits)
        focal_bwd[(triton.cdiv(n, 128),)](logits, targets, g, dx, n, *ctx.options, BLOCK=128)
        return dx, None, None, None


def reference(logits, targets, alpha=0.25, gamma=2.0):
    ce = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets.detach(), reduction="none")
    q = torch.where(targets > 0.5, -logits, logits).sigmoid()
    return (torch.where(targets > 0.5, alpha, 1 - alpha) * q**gamma * ce).mean()


SIZES = ({}, {"shape": (1,)}, {"shape": (128,)}, {"shape": (11, 13), "gamma": 1.5})


def example(shape=(4, 5), alpha=0.25, gamma=2.0):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, generator=generator)
    return x.requires_grad_(), torch.randint(2, shape, generator=generator).double(), alpha, gamma
