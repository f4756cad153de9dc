"""Ops of `torch.library` that launch Triton kernels."""

import torch
import triton
import triton.language as tl

BLOCK = 16


@triton.jit
def sine_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.sin(tl.load(x + i, mask=i < n)), mask=i < n)


@triton.jit
def slope_kernel(x, g, y, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slope = factor * tl.cos(tl.load(x + i, mask=i < n))
    tl.store(y + i, slope * tl.load(g + i, mask=i < n), mask=i < n)


def slope(x, g, factor):
    """Return the cotangent of x; its memory is made as on a GPU alone."""
    assert x.is_cuda
    assert g.device.type == "cuda"
    if torch.is_grad_enabled():
        raise NotImplementedError("no second derivative")
    x, g = x.contiguous(), g.contiguous()
    y = torch.empty(x.shape, device="cuda", dtype=torch.float32)
    slope_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, g, y, x.numel(), factor, BLOCK=BLOCK)
    return y


def sine_of(x):
    """Return sin(x) of a tensor on a GPU."""
    assert x.is_cuda
    x = x.contiguous()
    y = torch.empty_like(x)
    sine_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK=BLOCK)
    return y


def save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


@torch.library.triton_op("pullback_test_kernels::sine", mutates_args=())
def sine(x: torch.Tensor) -> torch.Tensor:
    assert x.is_cuda
    x = x.contiguous()
    y = torch.empty_like(x)
    torch.library.wrap_triton(sine_kernel)[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK=BLOCK)
    return y


sine.register_autograd(lambda ctx, g: slope(*ctx.saved_tensors, g, 1.0), setup_context=save)


@torch.library.custom_op("pullback_test_kernels::wrong_sine", mutates_args=(), device_types="cuda")
def wrong_sine(x: torch.Tensor) -> torch.Tensor:
    return sine_of(x)


@wrong_sine.register_fake
def _(x):
    return torch.empty_like(x)


torch.library.register_autograd(
    "pullback_test_kernels::wrong_sine", lambda ctx, g: slope(*ctx.saved_tensors, g, 1.01), setup_context=save
)
