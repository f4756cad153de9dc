"""Functions whose sizes depend on each other, or whose optional arguments exclude each other, without a check."""

import torch
import triton
import triton.language as tl


@triton.jit
def blocks_kernel(x, w, dy, y, dw, length, rows, SIZE: tl.constexpr, IS_BACK: tl.constexpr, ROWS: tl.constexpr):
    batch = tl.program_id(0)
    first = batch * tl.cdiv(length, SIZE)
    c = tl.arange(0, ROWS)
    sums = tl.zeros([ROWS], dtype=tl.float32)
    for t in range(length):
        a = tl.load(x + batch * length + t)
        b = tl.load(w + first + t // SIZE)
        if IS_BACK:
            g = tl.load(dy + batch * length + t)
            tl.store(y + batch * length + t, g * b)
            sums += tl.where(c == t // SIZE, g * a, 0.0)
        else:
            tl.store(y + batch * length + t, a * b)
    if IS_BACK:
        tl.store(dw + first + c, sums, mask=c < rows)


class TimesBlocks(torch.autograd.Function):
    """The product of each element and the weight of its block, of which a sequence has ⌈length / block_size⌉."""

    factor = 1.0

    @classmethod
    def launch(cls, x, w, dy, block_size):
        y, dw = torch.empty_like(x), torch.empty_like(w)
        rows = triton.next_power_of_2(max(w.shape[1], 1))
        blocks_kernel[(len(x),)](
            x, w, dy, y, dw, x.shape[1], w.shape[1], SIZE=block_size, IS_BACK=dy is not x, ROWS=rows
        )
        return y, dw

    @staticmethod
    def forward(ctx, x, w, block_size):
        x, w = x.contiguous(), w.contiguous()
        ctx.save_for_backward(x, w)
        ctx.block_size = block_size
        return TimesBlocks.launch(x, w, x, block_size)[0]

    @classmethod
    def differentiate(cls, ctx, g):
        x, w = ctx.saved_tensors
        dx, dw = TimesBlocks.launch(x, w, g.contiguous(), ctx.block_size)
        return dx, cls.factor * dw, None

    @staticmethod
    def backward(ctx, g):
        return TimesBlocks.differentiate(ctx, g)


class WrongTimesBlocks(TimesBlocks):
    factor = 1.5

    @staticmethod
    def backward(ctx, g):
        return WrongTimesBlocks.differentiate(ctx, g)


@triton.jit
def shifted_kernel(x, bias, dy, y, db, n, IS_BACK: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    a = tl.load(x + row * n + i, mask=i < n, other=0.0) + tl.load(bias + i, mask=i < n, other=0.0)
    if IS_BACK:
        slope = 2 * a * tl.load(dy + row * n + i, mask=i < n, other=0.0)
        tl.store(y + row * n + i, slope, mask=i < n)
        tl.store(db + row * n + i, slope, mask=i < n)
    else:
        tl.store(y + row * n + i, a * a, mask=i < n)


class Shifted(torch.autograd.Function):
    """(x + bias)², where x has heads and channels, and the bias one element for each of both together."""

    squeezes = False

    @classmethod
    def launch(cls, x, bias, dy):
        n = x.shape[-1] * x.shape[-2]
        y, db = torch.empty_like(x), x.new_empty(len(x), n)
        grid = (len(x),)
        shifted_kernel[grid](x, bias, dy, y, db, n, IS_BACK=dy is not x, BLOCK=triton.next_power_of_2(max(n, 1)))
        return y, db

    @staticmethod
    def forward(ctx, x, bias):
        x, bias = x.contiguous(), bias.contiguous()
        ctx.save_for_backward(x, bias)
        return Shifted.launch(x, bias, x)[0]

    @classmethod
    def differentiate(cls, ctx, g):
        x, bias = ctx.saved_tensors
        dx, db = Shifted.launch(x, bias, g.contiguous())
        return dx.squeeze(0) if cls.squeezes else dx, db.sum(0)

    @staticmethod
    def backward(ctx, g):
        return Shifted.differentiate(ctx, g)


class SqueezedShifted(Shifted):
    """Its gradient lacks the first dimension if that is 1."""

    squeezes = True

    @staticmethod
    def backward(ctx, g):
        return SqueezedShifted.differentiate(ctx, g)


@triton.jit
def gates_kernel(
    x, gates, gamma, dy, y, dgates, n,
    HAS_GATES: tl.constexpr, HAS_GAMMA: tl.constexpr, IS_BACK: tl.constexpr, FACTOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    m = i < n
    up = tl.full([BLOCK], 1.0, dtype=tl.float32)
    down = up
    if HAS_GATES:
        b = tl.load(gates + row * n + i, mask=m, other=0.0)
        up, down = tl.exp(b), tl.exp(-b / 2)
    if IS_BACK:
        g = tl.load(dy + row * n + i, mask=m, other=0.0)
        if HAS_GATES:
            tl.store(y + row * n + i, g * up * down, mask=m)
            slope = g * tl.load(x + row * n + i, mask=m, other=0.0) * up * down / 2
            tl.store(dgates + row * n + i, slope, mask=m)
        elif HAS_GAMMA:
            c = tl.load(gamma + i, mask=m, other=0.0)
            tl.store(y + row * n + i, FACTOR * g * tl.exp(c / 2), mask=m)
        else:
            tl.store(y + row * n + i, g, mask=m)
    else:
        if HAS_GAMMA:
            c = tl.load(gamma + i, mask=m, other=0.0)
            down = tl.exp(-c / 2)
            if not HAS_GATES:
                up = tl.exp(c)
        tl.store(y + row * n + i, tl.load(x + row * n + i, mask=m, other=0.0) * up * down, mask=m)


class Gates(torch.autograd.Function):
    """x exp(gates / 2), or x exp(gamma / 2) with a constant gamma; with both its result means nothing."""

    factor = 1.0

    @classmethod
    def launch(cls, x, gates, gamma, dy):
        y, dgates = torch.empty_like(x), None if gates is None else torch.empty_like(gates)
        gates_kernel[(len(x),)](
            x, gates, gamma, dy, y, dgates, x.shape[1],
            HAS_GATES=gates is not None, HAS_GAMMA=gamma is not None, IS_BACK=dy is not x,
            FACTOR=cls.factor, BLOCK=triton.next_power_of_2(max(x.shape[1], 1)),
        )  # fmt: skip
        return y, dgates

    @staticmethod
    def forward(ctx, x, gates=None, gamma=None):
        x = x.contiguous()
        gates = gates if gates is None else gates.contiguous()
        gamma = gamma if gamma is None else gamma.contiguous()
        ctx.save_for_backward(x, gates, gamma)
        return Gates.launch(x, gates, gamma, x)[0]

    @staticmethod
    def backward(ctx, g):
        x, gates, gamma = ctx.saved_tensors
        return *Gates.launch(x, gates, gamma, g.contiguous()), None


class CheckedGates(Gates):
    """The function that applies it refuses both."""


class WrongGamma(Gates):
    """Its gradient is wrong with gamma alone."""

    factor = 1.5

    @staticmethod
    def backward(ctx, g):
        x, gates, gamma = ctx.saved_tensors
        return *WrongGamma.launch(x, gates, gamma, g.contiguous()), None


def gated(x, g=None, gamma=None, is_wrong=False):
    """x times one of two factors."""
    if g is not None and gamma is not None:
        raise ValueError("give one of g and gamma")
    return WrongGamma.apply(x, g, gamma) if is_wrong else CheckedGates.apply(x, g, gamma)


@triton.jit
def start_kernel(x, start, dy, y, dstart, length, n, IS_BACK: tl.constexpr, BLOCK: tl.constexpr):
    batch = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    m = i < n
    s = tl.load(start + batch * n + i, mask=m, other=0.0)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for t in range(length):
        at = (batch * length + t) * n + i
        a = tl.load(x + at, mask=m, other=0.0)
        if IS_BACK:
            g = tl.load(dy + at, mask=m, other=0.0)
            tl.store(y + at, g * s, mask=m)
            total += g * a
        else:
            tl.store(y + at, a * s, mask=m)
    if IS_BACK:
        tl.store(dstart + batch * n + i, total, mask=m)


class TimesStart(torch.autograd.Function):
    """The product of each row of x, of shape (batch, length, n), and the start of its batch, of shape (batch, 1, n)."""

    @staticmethod
    def launch(x, start, dy):
        y, dstart = torch.empty_like(x), torch.empty_like(start)
        batch, length, n = x.shape
        block = triton.next_power_of_2(max(n, 1))
        start_kernel[(batch,)](x, start, dy, y, dstart, length, n, IS_BACK=dy is not x, BLOCK=block)
        return y, dstart

    @staticmethod
    def forward(ctx, x, start):
        x, start = x.contiguous(), start.contiguous()
        ctx.save_for_backward(x, start)
        return TimesStart.launch(x, start, x)[0]

    @staticmethod
    def backward(ctx, g):
        return TimesStart.launch(*ctx.saved_tensors, g.contiguous())


@triton.jit
def heads_kernel(x, k, dy, y, dk, heads, groups, n, IS_BACK: tl.constexpr, WRITTEN: tl.constexpr, BLOCK: tl.constexpr):
    t, group = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, BLOCK)
    m = i < n
    b = tl.load(k + (t * groups + group) * n + i, mask=m, other=0.0)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for h in range(group * (heads // groups), (group + 1) * (heads // groups)):
        at = (t * heads + h) * n + i
        if IS_BACK:
            g = tl.load(dy + at, mask=m, other=0.0)
            tl.store(y + at, g * b, mask=m)
            total += g * tl.load(x + at, mask=m, other=0.0)
        else:
            tl.store(y + at, tl.load(x + at, mask=m, other=0.0) * b, mask=m)
    if IS_BACK:
        tl.store(dk + (t * groups + group) * n + i, total, mask=m & (group < WRITTEN))


class TimesKey(torch.autograd.Function):
    """The product of heads, of shape (length, heads, n), and the key that they share, of shape (length, groups, n)."""

    written = 1 << 20

    @classmethod
    def launch(cls, x, k, dy):
        y, dk = torch.empty_like(x), torch.empty_like(k)
        length, heads, n = x.shape
        assert heads % k.shape[1] == 0
        heads_kernel[(length, k.shape[1])](
            x, k, dy, y, dk, heads, k.shape[1], n,
            IS_BACK=dy is not x, WRITTEN=cls.written, BLOCK=triton.next_power_of_2(max(n, 1)),
        )  # fmt: skip
        return y, dk

    @staticmethod
    def forward(ctx, x, k):
        x, k = x.contiguous(), k.contiguous()
        ctx.save_for_backward(x, k)
        return TimesKey.launch(x, k, x)[0]

    @staticmethod
    def backward(ctx, g):
        return TimesKey.launch(*ctx.saved_tensors, g.contiguous())


class TimesFirstKey(TimesKey):
    """Its backward writes the gradient of the first key alone."""

    written = 1

    @staticmethod
    def backward(ctx, g):
        return TimesFirstKey.launch(*ctx.saved_tensors, g.contiguous())
