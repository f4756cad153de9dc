"""Functions whose faults show in calls that an example does not make."""

import torch
import triton
import triton.language as tl

BLOCK = 16


@triton.jit
def gated_kernel(x, g, y, half, IS_BACK: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + row * 2 * half + i, mask=i < half, other=0.0)
    b = tl.load(x + row * 2 * half + half + i, mask=i < half, other=0.0)
    if IS_BACK:
        d = tl.load(g + row * half + i, mask=i < half, other=0.0)
        tl.store(y + row * 2 * half + i, b * d, mask=i < half)
        tl.store(y + row * 2 * half + half + i, a * d, mask=i < half)
    else:
        tl.store(y + row * half + i, a * b, mask=i < half)


class Gated(torch.autograd.Function):
    """The product of both halves of rows of even length."""

    rounds_up = True

    @classmethod
    def launch(cls, x, g):
        rows, columns = x.shape
        assert columns % 2 == 0
        half = columns // 2
        y = x.new_empty(rows, half if g is None else columns)
        blocks = triton.cdiv(half, BLOCK) if cls.rounds_up or g is None else max(half // BLOCK, 1)
        gated_kernel[(rows, blocks)](x, x if g is None else g, y, half, g is not None, BLOCK=BLOCK)
        return y

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        ctx.save_for_backward(x)
        return Gated.launch(x, None)

    @staticmethod
    def backward(ctx, g):
        return Gated.launch(*ctx.saved_tensors, g.contiguous())


class GatedBlocks(Gated):
    """Its backward leaves out the last block that is not full."""

    rounds_up = False

    @staticmethod
    def backward(ctx, g):
        return GatedBlocks.launch(*ctx.saved_tensors, g.contiguous())


class HalfGated(torch.autograd.Function):
    """The product of both halves of rows in 16 bits: it takes no other floats, as kernels of attention do."""

    factor = 1.0

    @staticmethod
    def forward(ctx, x):
        assert x.dtype in (torch.float16, torch.bfloat16)
        return HalfGated.compute(ctx, x)

    @staticmethod
    def compute(ctx, x):
        x = x.contiguous()
        ctx.save_for_backward(x)
        y = Gated.launch(x, None)
        assert y.dtype == x.dtype
        assert y.element_size() == 2
        return y

    @classmethod
    def differentiate(cls, ctx, g):
        (x,) = ctx.saved_tensors
        assert g.dtype == x.dtype
        return (cls.factor * Gated.launch(x, g.contiguous())).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return HalfGated.differentiate(ctx, g)


class WrongFloat16Gated(HalfGated):
    """It takes float16 alone, and its gradient has the wrong sign."""

    factor = -1.0

    @staticmethod
    def forward(ctx, x):
        assert x.dtype == torch.float16
        return HalfGated.compute(ctx, x)

    @staticmethod
    def backward(ctx, g):
        return WrongFloat16Gated.differentiate(ctx, g)


class WrongHalfGated(HalfGated):
    """Its gradient has the wrong sign."""

    factor = -1.0

    @staticmethod
    def backward(ctx, g):
        return WrongHalfGated.differentiate(ctx, g)


@triton.jit
def pick_kernel(x, labels, y, columns, ignored, IS_BACK: tl.constexpr, IS_CHECKED: tl.constexpr):
    row = tl.program_id(0)
    label = tl.load(labels + row)
    is_kept = label != ignored
    at = row * columns + tl.where(is_kept, label, 0)
    if IS_BACK:
        if is_kept | (not IS_CHECKED):
            tl.store(y + at, 2 * tl.load(x + at))
    else:
        a = tl.load(x + at)
        tl.store(y + row, tl.where(is_kept, a * a, 0.0))


class Labelled(torch.autograd.Function):
    """The square of the element of each row that its label tells, or 0."""

    is_checked = True

    @staticmethod
    def forward(ctx, x, labels, ignore_index=-100):
        x, labels = x.contiguous(), labels.contiguous()
        ctx.save_for_backward(x, labels)
        ctx.ignored = ignore_index
        y = x.new_empty(len(x))
        pick_kernel[(len(x),)](x, labels, y, x.shape[1], ignore_index, False, True)
        return y

    @classmethod
    def differentiate(cls, ctx, g):
        x, labels = ctx.saved_tensors
        slope = torch.zeros_like(x)
        pick_kernel[(len(x),)](x, labels, slope, x.shape[1], ctx.ignored, True, cls.is_checked)
        return slope * g[:, None], None, None

    @staticmethod
    def backward(ctx, g):
        return Labelled.differentiate(ctx, g)


class LabelledAll(Labelled):
    """Its backward differentiates the first element of a row whose label is ignored."""

    is_checked = False

    @staticmethod
    def backward(ctx, g):
        return LabelledAll.differentiate(ctx, g)


@triton.jit
def affine_kernel(x, w, b, y, columns, HAS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    a = 2 * tl.load(x + row * columns + i, mask=i < columns)
    if HAS:
        a = a * tl.load(w + i, mask=i < columns) + tl.load(b + i, mask=i < columns)
    tl.store(y + row * columns + i, a, mask=i < columns)


class Affine(torch.autograd.Function):
    """2 x, or 2 x w + b with weight and bias, which come together."""

    factor = 1.0

    @staticmethod
    def forward(ctx, x, weight=None, bias=None):
        assert (weight is None) == (bias is None)
        assert x.ndim == 2
        x = x.contiguous()
        weight = weight if weight is None else weight.contiguous()
        bias = bias if bias is None else bias.contiguous()
        assert weight is None or weight.shape == bias.shape == x.shape[1:]
        ctx.save_for_backward(x, weight)
        y = torch.empty_like(x)
        affine_kernel[(len(x),)](
            x, weight, bias, y, x.shape[1], weight is not None, BLOCK=triton.next_power_of_2(x.shape[1])
        )
        return y

    @classmethod
    def differentiate(cls, ctx, g):
        x, weight = ctx.saved_tensors
        if weight is None:
            return 2 * g, None, None
        return 2 * g * weight, 2 * (g * x).sum(0), cls.factor * g.sum(0)

    @staticmethod
    def backward(ctx, g):
        return Affine.differentiate(ctx, g)


class WrongAffine(Affine):
    factor = 1.5

    @staticmethod
    def backward(ctx, g):
        return WrongAffine.differentiate(ctx, g)


class Narrow(torch.autograd.Function):
    """2 x; its backward insists on 16 bits, on a GPU as here."""

    @staticmethod
    def forward(ctx, x):
        ctx.dtype = x.dtype
        y = torch.empty_like(x)
        affine_kernel[(1,)](x.contiguous(), x, x, y, x.numel(), False, BLOCK=triton.next_power_of_2(max(x.numel(), 1)))
        return y

    @staticmethod
    def backward(ctx, g):
        assert g.dtype in (torch.float16, torch.bfloat16)
        return 2 * g


@triton.jit
def scale_kernel(x, y, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, factor * tl.load(x + i, mask=i < n, other=0.0), mask=i < n)


class Doubled(torch.autograd.Function):
    """Twice x, or minus that."""

    rounds_up = True

    @staticmethod
    def scaled(x, negates, blocks):
        y = torch.zeros_like(x)
        scale_kernel[(blocks,)](x, y, x.numel(), -2.0 if negates else 2.0, BLOCK=BLOCK)
        return y

    @classmethod
    def forward(cls, ctx, x, negates=True):
        ctx.negates = negates
        return Doubled.scaled(x.contiguous(), negates, triton.cdiv(x.numel(), BLOCK))

    @classmethod
    def backward(cls, ctx, g):
        blocks = triton.cdiv(g.numel(), BLOCK) if cls.rounds_up or ctx.negates else min(g.numel(), 1)
        return Doubled.scaled(g.contiguous(), ctx.negates, blocks), None


class DoubledInOneBlock(Doubled):
    """Its backward takes one block alone, but where it negates."""

    rounds_up = False


@triton.jit
def counting_kernel(x, y, count, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    if tl.atomic_add(count, 1) == 0:
        tl.store(y + i, 2.0 * tl.load(x + i, mask=i < n, other=0.0), mask=i < n)


class Counted(torch.autograd.Function):
    """Twice x, by the first program that counts itself."""

    count = torch.zeros(1, dtype=torch.int32)
    resets = True

    @classmethod
    def forward(cls, ctx, x):
        y = torch.zeros_like(x)
        counting_kernel[(2,)](x.contiguous(), y, cls.count, x.numel(), BLOCK=32)
        if cls.resets:
            cls.count.zero_()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * torch.where(x == 0, 2.0, y / x)


class CountedOnce(Counted):
    """Its counter is never reset."""

    count = torch.zeros(1, dtype=torch.int32)
    resets = False


@triton.jit
def row_kernel(x, y, row_stride, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    tl.store(y + row * row_stride + i, 2 * tl.load(x + row * n + i, mask=i < n, other=0.0), mask=i < n)


class StridesOfTheInput(torch.autograd.Function):
    """Its backward stores a contiguous gradient with the row stride of x."""

    @staticmethod
    def forward(ctx, x):
        ctx.stride = x.stride(-2)
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        dx = torch.empty_like(g)
        row_kernel[(g.numel() // g.shape[-1],)](g, dx, ctx.stride, g.shape[-1], BLOCK=BLOCK)
        return dx
