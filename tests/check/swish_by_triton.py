"""Functions with Triton kernels for `test_interpreted.py`: a right one, and some with one fault each."""

import torch
import triton
import triton.language as tl

BLOCK = 8


@triton.jit
def forward_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=0.0).to(tl.float32)
    tl.store(y + i, a * tl.sigmoid(a), mask=i < n)


@triton.jit
def backward_kernel(x, dy, dx, n, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=0.0).to(tl.float32)
    if FAULT == "bounds":  # noqa: SIM108 - a branch is not compiled, a ternary of Triton is
        g = tl.load(dy + i)
    else:
        g = tl.load(dy + i, mask=i < n, other=0.0)
    s = tl.sigmoid(a)
    slope = s + a * s * (1 - s)
    if FAULT == "formula":
        slope = slope * 0.999
    tl.store(dx + i, g * slope, mask=i < (n - 1 if FAULT == "tail" else n))


class Swish(torch.autograd.Function):
    fault = ""

    @classmethod
    def differentiate(cls, x, dy):
        dx = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), BLOCK),)
        backward_kernel[grid](x, dy.contiguous(), dx, x.numel(), FAULT=cls.fault, BLOCK=BLOCK)
        return dx

    @staticmethod
    def forward(ctx, x):
        if not x.is_cuda or x.dtype != torch.float32:
            raise TypeError("give a float32 tensor on a GPU")
        x = x.contiguous()
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        forward_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK=BLOCK)
        return y

    @staticmethod
    def backward(ctx, dy):
        return Swish.differentiate(*ctx.saved_tensors, dy)


class WrongFormula(Swish):
    fault = "formula"

    @staticmethod
    def backward(ctx, dy):
        return WrongFormula.differentiate(*ctx.saved_tensors, dy)


class WrongTail(Swish):
    fault = "tail"

    @staticmethod
    def backward(ctx, dy):
        return WrongTail.differentiate(*ctx.saved_tensors, dy)


class OutOfBounds(Swish):
    fault = "bounds"

    @staticmethod
    def backward(ctx, dy):
        return OutOfBounds.differentiate(*ctx.saved_tensors, dy)


def swish(x):
    assert x.is_cuda
    return Swish.apply(x * 1.0)


@triton.jit
def cube_kernel(x, factor, y, columns, IS_SLOPE: tl.constexpr, IS_HALVED: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0) * columns
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        a = tl.load(x + first + i, mask=i < columns, other=0.0)
        g = tl.load(factor + first + i, mask=i < columns, other=0.0)
        y_i = 3 * g * a * a if IS_SLOPE else a * a * a
        if IS_HALVED:
            if IS_SLOPE and start > 0:  # noqa: SIM108 - what is recorded is where statements lead
                y_i = y_i * 0.49
            else:
                y_i = y_i * 0.5
        tl.store(y + first + i, y_i, mask=i < columns)


class WrongFarAway(torch.autograd.Function):
    """Cubes, wrong where they are halved and beyond the first block of a row."""

    @staticmethod
    def compute(x, factor, is_slope, is_halved):
        y = torch.empty_like(x)
        cube_kernel[(x.shape[0],)](x, factor, y, x.shape[1], is_slope, is_halved, BLOCK=BLOCK)
        return y

    @staticmethod
    def forward(ctx, x, is_halved=False):
        x = x.contiguous()
        ctx.save_for_backward(x)
        ctx.is_halved = is_halved
        return WrongFarAway.compute(x, x, False, is_halved)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return WrongFarAway.compute(x, g.contiguous(), True, ctx.is_halved), None


@triton.jit
def square_kernel(x, factor, y, columns, IS_SLOPE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(0) * columns + i
    a = tl.load(x + at, mask=i < columns, other=0.0)
    g = tl.load(factor + at, mask=i < columns, other=0.0)
    tl.store(y + at, 2 * g * a if IS_SLOPE else a * a, mask=i < columns)


class WrongBeyondChunk(torch.autograd.Function):
    """Squares, whose gradient is zero beyond the first chunk of a row."""

    @staticmethod
    def compute(x, factor, is_slope):
        columns = x.shape[1]
        block = min(128, triton.next_power_of_2(columns))
        y = torch.zeros_like(x)
        chunks = 1 if is_slope else triton.cdiv(columns, block)
        square_kernel[(x.shape[0], chunks)](x, factor, y, columns, is_slope, block)
        return y

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        ctx.save_for_backward(x)
        return WrongBeyondChunk.compute(x, x, False)

    @staticmethod
    def backward(ctx, g):
        return WrongBeyondChunk.compute(*ctx.saved_tensors, g.contiguous(), True)


@triton.jit
def take_turns_kernel(x, tickets, y, n):
    p = tl.program_id(0)
    turn = tl.atomic_add(tickets, 1)
    tl.store(y + p, tl.load(x + p) * (1.0 + turn))


class WrongOrder(torch.autograd.Function):
    """Each element times the turn of its program."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        tickets = torch.zeros(1, dtype=torch.int32, device=x.device)
        take_turns_kernel[(x.numel(),)](x, tickets, y, x.numel())
        return y

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.arange(1, x.numel() + 1, device=x.device).view_as(x)


@triton.jit
def energy_kernel(x, out, n, BLOCK: tl.constexpr):
    block = tl.make_block_ptr(x, (n,), (1,), (tl.program_id(0) * BLOCK,), (BLOCK,), (0,))
    a = tl.load(block, boundary_check=(0,))
    tl.atomic_add(out, tl.sum(a * a, 0))


class WithoutPadding(torch.autograd.Function):
    """The energy of a signal, from blocks of which the last one is padded with what the device has there."""

    @staticmethod
    def forward(ctx, x):
        x, out = x.contiguous(), torch.zeros(1, dtype=x.dtype, device=x.device)
        ctx.save_for_backward(x)
        energy_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, out, x.numel(), BLOCK=BLOCK)
        return out

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x


@triton.jit
def entropy_kernel(x, out, n, BLOCK: tl.constexpr):
    """Sum x log x over a row; the excess lanes are 0 log 0."""
    i = tl.arange(0, BLOCK)
    a = tl.load(x + tl.program_id(0) * n + i, mask=i < n, other=0.0)
    tl.store(out + tl.program_id(0), tl.sum(a * tl.log(a), 0))


class Entropy(torch.autograd.Function):
    """Sums of x log x, NaN if the width is no power of two."""

    @staticmethod
    def forward(ctx, x):
        """Launch the kernel."""
        x = x.contiguous()
        ctx.save_for_backward(x)
        out = x.new_empty(x.shape[0])
        entropy_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out

    @staticmethod
    def backward(ctx, g):
        """Return the derivative."""
        (x,) = ctx.saved_tensors
        return g[:, None] * (x.log() + 1)


@triton.jit
def leak_kernel(x, h0, y, length, columns, IS_BACK: tl.constexpr, HAS_STATE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    h = tl.zeros([BLOCK], dtype=tl.float32)
    if HAS_STATE and not IS_BACK:
        h += tl.load(h0 + row * columns + i, mask=i < columns, other=0.0)
    for step in range(length):
        t = length - 1 - step if IS_BACK else step
        at = (row * length + t) * columns + i
        h = 0.5 * h + tl.load(x + at, mask=i < columns, other=0.0)
        tl.store(y + at, h, mask=i < columns)
    if HAS_STATE and IS_BACK:
        tl.store(h0 + row * columns + i, 0.5 * h, mask=i < columns)


class LeakySum(torch.autograd.Function):
    """h_t = h_{t-1} / 2 + x_t, from a state of shape (rows, columns), or from 0."""

    factor = 1.0

    @staticmethod
    def launch(x, h0, is_back):
        rows, length, columns = x.shape
        y = torch.empty_like(x)
        leak_kernel[(rows,)](x, h0, y, length, columns, is_back, h0 is not None, triton.next_power_of_2(columns))
        return y

    @staticmethod
    def forward(ctx, x, initial_state=None, scale=None):
        ctx.has_state = initial_state is not None
        ctx.scale = 1.0 if scale is None else scale
        return LeakySum.launch(x.contiguous(), initial_state, False) * ctx.scale

    @classmethod
    def differentiate(cls, ctx, g):
        g = g.contiguous() * ctx.scale
        dh0 = torch.empty_like(g[:, 0]) if ctx.has_state else None
        dx = LeakySum.launch(g, dh0, True)
        return dx, dh0 if dh0 is None else dh0 * cls.factor, None

    @staticmethod
    def backward(ctx, g):
        return LeakySum.differentiate(ctx, g)


class WrongState(LeakySum):
    factor = 1.01

    @staticmethod
    def backward(ctx, g):
        return WrongState.differentiate(ctx, g)


class StateLayout(LeakySum):
    @staticmethod
    def backward(ctx, g):
        dx, dh0, _ = LeakySum.differentiate(ctx, g)
        return dx, dh0 if dh0 is None else LeakySum.differentiate(ctx, g.as_strided(g.shape, dx.stride()))[1], None


@triton.jit
def decay_kernel(x, gates, y, dy, dx, dgates, n, IS_BACK: tl.constexpr, IS_NAIVE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    c = tl.cumsum(tl.load(gates + i, mask=i < n, other=0.0), 0)
    earlier = (i[:, None] >= i[None, :]) & (i[:, None] < n)
    between = c[:, None] - c[None, :]
    if IS_NAIVE:  # noqa: SIM108 - Triton's own style
        p = tl.exp(between) * earlier
    else:
        p = tl.exp(tl.where(earlier, between, float("-inf")))
    a = tl.load(x + i, mask=i < n, other=0.0)
    if IS_BACK:
        g = tl.load(dy + i, mask=i < n, other=0.0)
        tl.store(dx + i, tl.sum(p * g[:, None], 0), mask=i < n)
        slope = p * g[:, None] * a[None, :]
        dc = tl.sum(slope, 1) - tl.sum(slope, 0)
        tl.store(dgates + i, tl.sum(dc) - tl.cumsum(dc, 0) + dc, mask=i < n)
    else:
        tl.store(y + i, tl.sum(p * a[None, :], 1), mask=i < n)


class Decayed(torch.autograd.Function):
    """y_t = Σ_{s ≤ t} exp(g_{s+1} + … + g_t) x_s, of up to 16 elements."""

    is_naive = False

    @classmethod
    def launch(cls, x, gates, g):
        x, gates = x.contiguous(), gates.contiguous()
        y, dx, dgates = (torch.empty_like(x) for _ in range(3))
        decay_kernel[(1,)](x, gates, y, x if g is None else g.contiguous(), dx, dgates, x.numel(), g is not None,
                           cls.is_naive, BLOCK=16)  # fmt: skip
        return (y,) if g is None else (dx, dgates)

    @staticmethod
    def forward(ctx, x, gates):
        ctx.save_for_backward(x, gates)
        return Decayed.launch(x, gates, None)[0]

    @staticmethod
    def backward(ctx, g):
        return Decayed.launch(*ctx.saved_tensors, g)


class NaivelyDecayed(Decayed):
    is_naive = True

    @staticmethod
    def forward(ctx, x, gates):
        ctx.save_for_backward(x, gates)
        return NaivelyDecayed.launch(x, gates, None)[0]

    @staticmethod
    def backward(ctx, g):
        return NaivelyDecayed.launch(*ctx.saved_tensors, g)


@triton.jit
def softplus_kernel(x, y, dy, n, IS_BACK: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    e = tl.exp(tl.load(x + i, mask=i < n, other=0.0))
    if IS_BACK:
        tl.store(y + i, tl.load(dy + i, mask=i < n, other=0.0) * e / (1 + e), mask=i < n)
    else:
        tl.store(y + i, tl.log(1 + e), mask=i < n)


class NaiveSoftplus(torch.autograd.Function):
    @staticmethod
    def launch(x, dy):
        y = torch.empty_like(x)
        softplus_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, dy, x.numel(), dy is not x, BLOCK=BLOCK)
        return y

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        ctx.save_for_backward(x)
        return NaiveSoftplus.launch(x, x)

    @staticmethod
    def backward(ctx, g):
        return NaiveSoftplus.launch(*ctx.saved_tensors, g.contiguous())


class TwoDtypes(torch.autograd.Function):
    """x w wᵀ; under autocast the second product gets tensors of two dtypes, since `out=` has none."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        y = torch.zeros(x.shape[0], w.shape[0], dtype=x.dtype, device=x.device)
        return torch.addmm(y, x @ w, w.t(), out=y)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w @ w.t(), x.t() @ g @ w + g.t() @ x @ w


@triton.jit
def levels_kernel(x, w, y, n, PAST: tl.constexpr, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        level = tl.ceil(tl.log2((i + 1).to(tl.float32))).to(tl.int32)
        is_masked = start == 0 or not PAST
        a = tl.load(x + i, mask=(i < n) | (not is_masked), other=0.0)
        tl.store(y + i, a * tl.load(w + level, mask=i < n, other=0.0), mask=i < n)


class Levels(torch.autograd.Function):
    """A step times the weight of its level: of n steps there are ⌈log₂ n⌉ + 1 levels."""

    past = False

    @classmethod
    def compute(cls, x, w):
        y = torch.empty_like(x)
        levels_kernel[(1,)](x, w, y, x.numel(), PAST=cls.past, BLOCK=16)
        return y

    @staticmethod
    def forward(ctx, x, w):
        x, w = x.contiguous(), w.contiguous()
        ctx.save_for_backward(w)
        return Levels.compute(x, w)

    @staticmethod
    def backward(ctx, g):
        return Levels.compute(g.contiguous(), *ctx.saved_tensors), None


class LevelsPastTheEnd(Levels):
    """Reads past the end in the second block of steps."""

    past = True

    @staticmethod
    def forward(ctx, x, w):
        x, w = x.contiguous(), w.contiguous()
        ctx.save_for_backward(w)
        return LevelsPastTheEnd.compute(x, w)


@triton.jit
def rows_kernel(x, order, y, n, GATHERS: tl.constexpr, IS_WIDE: tl.constexpr, BLOCK: tl.constexpr):
    here = tl.program_id(0).to(tl.int64)
    there = tl.load(order + here)
    if IS_WIDE:
        there = there.to(tl.int64)
    i = tl.arange(0, BLOCK)
    if GATHERS:
        tl.store(y + here * n + i, tl.load(x + there * n + i, mask=i < n, other=0.0), mask=i < n)
    else:
        tl.store(y + there * n + i, tl.load(x + here * n + i, mask=i < n, other=0.0), mask=i < n)


class SortedRows(torch.autograd.Function):
    """Rows in the order of their first elements."""

    is_wide = True

    @classmethod
    def move(cls, x, order, gathers):
        x, y = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
        n = x.shape[1]
        rows_kernel[(len(x),)](x, order, y, n, gathers, cls.is_wide, BLOCK=triton.next_power_of_2(n))
        return y

    @staticmethod
    def forward(ctx, x):
        ctx.order = x[:, 0].argsort().int()
        return SortedRows.move(x, ctx.order, True)

    @staticmethod
    def backward(ctx, g):
        return SortedRows.move(g, ctx.order, False)


class SortedRowsIn32Bits(SortedRows):
    """The same, with offsets that overflow."""

    is_wide = False

    @staticmethod
    def forward(ctx, x):
        ctx.order = x[:, 0].argsort().int()
        return SortedRowsIn32Bits.move(x, ctx.order, True)


@triton.jit
def scale_kernel(x, y, n, IS_DOUBLED: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if IS_DOUBLED:
        factor = 2.0
    tl.store(y + i, factor * tl.load(x + i, mask=i < n, other=0.0), mask=i < n)


class WithoutFactor(torch.autograd.Function):
    """Twice x; without the flag the kernel of the backward has no factor."""

    @staticmethod
    def forward(ctx, x, is_doubled=True):
        ctx.is_doubled = is_doubled
        return x * (2 if is_doubled else 1)

    @staticmethod
    def backward(ctx, g):
        g, gx = g.contiguous(), torch.empty_like(g, memory_format=torch.contiguous_format)
        scale_kernel[(triton.cdiv(g.numel(), BLOCK),)](g, gx, g.numel(), ctx.is_doubled, BLOCK=BLOCK)
        return gx, None


@triton.jit
def gated_kernel(x, g, y, columns, half, IS_BACK: tl.constexpr, IS_MASKED: tl.constexpr, BLOCK: tl.constexpr):
    x += tl.program_id(0) * columns
    y += tl.program_id(0) * (columns if IS_BACK else half)
    i = tl.arange(0, BLOCK)
    is_inside = (i < half) | (not IS_MASKED)
    a = tl.load(x + i, mask=is_inside, other=0.0)
    b = tl.load(x + half + i, mask=is_inside, other=0.0)
    if IS_BACK:
        d = tl.load(g + tl.program_id(0) * half + i, mask=i < half, other=0.0)
        tl.store(y + i, b * d, mask=i < half)
        tl.store(y + half + i, a * d, mask=i < half)
    else:
        tl.store(y + i, a * b, mask=i < half)


class Gated(torch.autograd.Function):
    """The product of both halves of a row; rows of odd length are not refused."""

    is_masked = True

    @classmethod
    def launch(cls, x, g):
        x, columns = x.contiguous(), x.shape[1]
        half = (columns + 1) // 2
        y = torch.empty_like(x) if g is not None else x.new_empty(len(x), half)
        gated_kernel[(len(x),)](x, x if g is None else g.contiguous(), y, columns, half, g is not None, cls.is_masked,
                                BLOCK=triton.next_power_of_2(half))  # fmt: skip
        return y

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Gated.launch(x, None)

    @staticmethod
    def backward(ctx, g):
        return Gated.launch(*ctx.saved_tensors, g)


class GatedPastTheEnd(Gated):
    is_masked = False

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return GatedPastTheEnd.launch(x, None)


@triton.jit
def table_kernel(x, table, y, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0) * columns + tl.arange(0, BLOCK)
    is_inside = tl.arange(0, BLOCK) < columns
    a = tl.load(x + at, mask=is_inside, other=0.0)
    tl.store(y + at, a * tl.load(table + at, mask=is_inside, other=0.0), mask=is_inside)


class TimesPositions(torch.autograd.Function):
    """Row t times row t of a table, which has at least as many rows; fewer are not refused."""

    @staticmethod
    def launch(x, table):
        y = torch.empty_like(x)
        table_kernel[(len(x),)](x, table, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y

    @staticmethod
    def forward(ctx, x, table):
        x, table = x.contiguous(), table.contiguous()
        ctx.save_for_backward(table)
        return TimesPositions.launch(x, table)

    @staticmethod
    def backward(ctx, g):
        return TimesPositions.launch(g.contiguous(), *ctx.saved_tensors), None


class ScaledInChunks(torch.autograd.Function):
    """Twice x, by a launch for every two rows."""

    @staticmethod
    def scale(x, factor):
        x = x.contiguous()
        y = torch.empty_like(x)
        for start in range(0, len(x), 2):
            part = x[start : start + 2]
            n = part.numel()
            scale_kernel[(1,)](part, y[start : start + 2], n, factor != 1, BLOCK=triton.next_power_of_2(n))
        return y

    @staticmethod
    def forward(ctx, x):
        return ScaledInChunks.scale(x, 2)

    @staticmethod
    def backward(ctx, g):
        return ScaledInChunks.scale(g, 2)
