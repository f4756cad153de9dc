"""Functions whose kernels are interpreted, and of which the compiler refuses some."""

from typing import ClassVar

import torch
import triton
import triton.language as tl

FACTOR = 2.0


@triton.jit
def doubled_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, FACTOR * tl.load(x + i, mask=i < n, other=0.0), mask=i < n)


@triton.jit
def misspelt_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.sigmod(tl.load(x + i, mask=i < n, other=0.0)), mask=i < n)


@triton.jit
def masked_kernel(x, out, n, is_masked: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(x + i, mask=i < n, other=0.0)
    if is_masked:
        y = FACTOR * y / 2
    tl.store(out + i, y, mask=i < n)


@triton.jit
def tail_kernel(x, out, n, has_tail: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(x + i, mask=i < n, other=0.0)
    if has_tail:
        y = FACTOR * y * 0.5
    tl.store(out + i, y, mask=i < n)


@triton.jit
def square_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at, mask = i[:, None] * n + i[None, :], (i[:, None] < n) & (i[None, :] < n)
    y = tl.load(x + at, mask=mask, other=0.0)
    if n < 8:  # a way that the audit looks for
        y += 0.0
    tl.store(out + at, tl.dot(y, y, input_precision="ieee"), mask=mask)


@triton.jit
def narrow_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.zeros([BLOCK], tl.bfloat16)
    for _ in range(2):
        y = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(out + i, y, mask=i < n)


@triton.jit
def kept_kernel(x, kept, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(kept + i, tl.load(x + i, mask=i < n, other=0.0) + 1.0, mask=i < n)
    y = tl.zeros([BLOCK], tl.float32)
    for _ in range(2):
        y = tl.load(kept + i, mask=i < n, other=0.0)
    tl.store(kept + i, y, mask=i < n)


def called(kernel, x, *more):
    x = x.contiguous()
    out = torch.zeros_like(x)
    kernel[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), *more, BLOCK=16)
    return out


class Double(torch.autograd.Function):
    """2 x."""

    @staticmethod
    def forward(ctx, x):
        return called(doubled_kernel, x)

    @staticmethod
    def backward(ctx, g):
        return called(doubled_kernel, g)


class Misspelt(torch.autograd.Function):
    """2 x, with a kernel of the backward that names what Triton does not have."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return called(misspelt_kernel, g)


class DoubleForward(torch.autograd.Function):
    """2 x, with a kernel in the forward alone."""

    @staticmethod
    def forward(ctx, x):
        return called(doubled_kernel, x)

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class Scaled(torch.autograd.Function):
    """2 scale x, for any number: a guessed call has two arguments."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return called(doubled_kernel, x) * scale

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return called(doubled_kernel, g * scale), (called(doubled_kernel, x) * g).sum_to_size(scale.shape)


class Option(torch.autograd.Function):
    """x, with a branch of the kernel that the example leaves out."""

    @staticmethod
    def forward(ctx, x, is_masked=False):
        ctx.is_masked = is_masked
        return called(masked_kernel, x, is_masked)

    @staticmethod
    def backward(ctx, g):
        return called(masked_kernel, g, ctx.is_masked), None


class Narrow(torch.autograd.Function):
    """x, by a kernel for bfloat16."""

    @staticmethod
    def forward(ctx, x):
        return called(narrow_kernel, x)

    @staticmethod
    def backward(ctx, g):
        return called(narrow_kernel, g)


class Kept(torch.autograd.Function):
    """x + 1, by way of a buffer in float32 that is kept from call to call."""

    buffers: ClassVar = {}

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        if x.shape not in Kept.buffers:
            Kept.buffers[x.shape] = torch.empty_like(x, dtype=torch.float32)
        kept_kernel[(1,)](x, Kept.buffers[x.shape], x.numel(), BLOCK=triton.next_power_of_2(x.numel()))
        return Kept.buffers[x.shape].to(x.dtype, copy=True)

    @staticmethod
    def backward(ctx, g):
        return g.clone()


class Tail(torch.autograd.Function):
    """x, with a branch of the kernel for lengths that are no multiple of a block."""

    @staticmethod
    def forward(ctx, x):
        return called(tail_kernel, x, x.numel() % 16 > 0)

    @staticmethod
    def backward(ctx, g):
        return called(tail_kernel, g, g.numel() % 16 > 0)


class Square(torch.autograd.Function):
    """The square of a matrix, by a kernel for 16 rows or more."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        ctx.save_for_backward(x)
        out = torch.zeros_like(x)
        square_kernel[(1,)](x, out, len(x), BLOCK=triton.next_power_of_2(len(x)))
        return out

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g @ x.T + x.T @ g
