"""Functions of `triton.language`, against PyTorch and NumPy."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed")
import triton.language as tl  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402

from pullback.interpreter.errors import KernelError, UnsupportedError  # noqa: E402
from pullback.interpreter.worlds import World  # noqa: E402
from tests.interpreter.launching import launch  # noqa: E402

AS_WRITTEN = World(lifts=False)


def doubles(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@triton.jit
def of_one(x, y, NAME: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    if NAME == "exp":
        b = tl.exp(a)
    elif NAME == "exp2":
        b = tl.exp2(a)
    elif NAME == "log":
        b = tl.log(a)
    elif NAME == "log2":
        b = tl.log2(a)
    elif NAME == "sqrt":
        b = tl.sqrt(a)
    elif NAME == "rsqrt":
        b = tl.rsqrt(a)
    elif NAME == "sin":
        b = tl.sin(a)
    elif NAME == "cos":
        b = tl.cos(a)
    elif NAME == "sigmoid":
        b = tl.sigmoid(a)
    elif NAME == "erf":
        b = tl.erf(a)
    elif NAME == "floor":
        b = tl.floor(a)
    elif NAME == "ceil":
        b = tl.ceil(a)
    elif NAME == "abs":
        b = tl.abs(a)
    elif NAME == "tanh":
        b = libdevice.tanh(a)
    elif NAME == "expm1":
        b = libdevice.expm1(a)
    elif NAME == "log1p":
        b = libdevice.log1p(a)
    elif NAME == "erfc":
        b = libdevice.erfc(a)
    elif NAME == "lgamma":
        b = libdevice.lgamma(a)
    tl.store(y + i, b)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        *((name, getattr(torch, name)) for name in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos")),
        *((name, getattr(torch, name)) for name in ("sigmoid", "erf", "floor", "ceil", "abs", "tanh", "expm1")),
        *((name, getattr(torch, name)) for name in ("log1p", "erfc", "lgamma")),
    ],
)
def test_functions_of_one_float(name, reference):
    x = doubles(16).abs() + 0.1
    y = torch.empty_like(x)
    launch(of_one, x, y, NAME=name, BLOCK=16)
    torch.testing.assert_close(y, reference(x), rtol=1e-14, atol=0)


@triton.jit
def of_integers(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(a + i), tl.load(b + i)
    tl.store(out + i, x // y)
    tl.store(out + N + i, x % y)
    tl.store(out + 2 * N + i, x >> 1)
    tl.store(out + 3 * N + i, (x & y) | (x ^ 5))
    tl.store(out + 4 * N + i, tl.cdiv(x, y))
    tl.store(out + 5 * N + i, -x)
    tl.store(out + 6 * N + i, ~x)


def test_integers_divide_as_c_does_and_shift_arithmetically():
    a = torch.tensor([7, -7, 7, -7, 0, 9, -9, 100], dtype=torch.int32)
    b = torch.tensor([2, 2, -2, -2, 3, 4, 4, 7], dtype=torch.int32)
    out = torch.zeros(7, 8, dtype=torch.int32)
    launch(of_integers, a, b, out, N=8)
    quotient = torch.div(a, b, rounding_mode="trunc")
    expected = [quotient, torch.fmod(a, b), a >> 1, (a & b) | (a ^ 5)]
    expected += [torch.div(a + b - 1, b, rounding_mode="trunc"), -a, ~a]
    assert torch.equal(out, torch.stack(expected))


@triton.jit
def wraps(x, out):
    n = tl.load(x)
    tl.store(out, n * n)
    tl.store(out + 1, n.to(tl.int64) * n)


def test_products_of_32_bits_wrap_as_on_the_device():
    x, out = torch.tensor([70_000], dtype=torch.int32), torch.zeros(2, dtype=torch.int64)
    launch(wraps, x, out)
    assert out.tolist() == [(70_000**2 + 2**31) % 2**32 - 2**31, 70_000**2]


@triton.jit
def reductions(x, out, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    a = tl.load(x + i[:, None] * N + j[None, :])
    tl.store(out + i, tl.sum(a, axis=1))
    tl.store(out + M + i, tl.max(a, axis=1))
    tl.store(out + 2 * M + i, tl.min(a, 1))
    tl.store(out + 3 * M + i, tl.argmax(a, 1).to(tl.float32))
    tl.store(out + 4 * M + i, tl.argmin(a, axis=1).to(tl.float32))
    tl.store(out + 5 * M, tl.sum(a))
    tl.store(out + 5 * M + 1, tl.max(tl.max(a, axis=0), axis=0))
    best, at = tl.max(a, axis=1, return_indices=True)
    tl.store(out + 6 * M + i, best + at)
    tl.store(out + 7 * M + i, tl.sum(tl.cumsum(a, axis=1), axis=1))
    tl.store(out + 8 * M + i, tl.sum(tl.softmax(a), 1))
    tl.store(out + 9 * M + i, tl.sum(tl.sort(a) * j[None, :], 1))


def test_reductions():
    x, m = doubles(4, 8), 4
    out = torch.zeros(10, m, dtype=torch.float64)
    launch(reductions, x, out, M=4, N=8)
    j = torch.arange(8)
    expected = [x.sum(1), x.amax(1), x.amin(1), x.argmax(1).double(), x.argmin(1).double()]
    expected += [torch.tensor([x.sum(), x.max(), 0, 0]), x.amax(1) + x.argmax(1), x.cumsum(1).sum(1)]
    expected += [x.softmax(0).sum(1), (x.sort(1).values * j).sum(1)]
    torch.testing.assert_close(out, torch.stack(expected), rtol=1e-13, atol=1e-13)


@triton.jit
def affine(a0, b0, a1, b1):
    return a0 * a1, b0 * a1 + b1


@triton.jit
def larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def scans(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(a + i), tl.load(b + i)
    _, h = tl.associative_scan((x, y), 0, affine)
    tl.store(out + i, h)
    _, back = tl.associative_scan((x, y), 0, affine, reverse=True)
    tl.store(out + N + i, back)
    tl.store(out + 2 * N + i, tl.reduce(y, 0, larger) + i)
    tl.store(out + 3 * N + i, tl.cumsum(x, 0, reverse=True))
    tl.store(out + 4 * N + i, tl.cumprod(x, 0))
    tl.store(out + 5 * N + i, tl.flip(x))


def test_scans_with_functions():
    a, b = doubles(16).sigmoid(), doubles(16, seed=1)
    out = torch.zeros(6, 16, dtype=torch.float64)
    launch(scans, a, b, out, N=16)

    def recurrence(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        h, steps = torch.zeros(()), []
        for p, q in zip(a, b, strict=True):
            h = p * h + q
            steps.append(h)
        return torch.stack(steps)

    expected = [recurrence(a, b), recurrence(a.flip(0), b.flip(0)).flip(0), b.max() + torch.arange(16)]
    expected += [a.flip(0).cumsum(0).flip(0), a.cumprod(0), a.flip(0)]
    torch.testing.assert_close(out, torch.stack(expected), rtol=1e-13, atol=1e-14)


@triton.jit
def shapes(x, out, M: tl.constexpr, N: tl.constexpr):
    k = tl.arange(0, M * N)
    a = tl.load(x + k)
    b = tl.reshape(a, (M, N))
    tl.store(out + k, tl.reshape(tl.trans(b), (M * N,)))
    even, odd = tl.split(tl.reshape(a, (M * N // 2, 2)))
    h = tl.arange(0, M * N // 2)
    tl.store(out + M * N + h, even - odd)
    tl.store(out + 2 * M * N + k, tl.interleave(odd, even))
    tl.store(out + 3 * M * N + k, tl.ravel(tl.permute(b.expand_dims(0), (2, 1, 0))))
    tl.store(out + 4 * M * N + k, tl.ravel(tl.broadcast_to(tl.sum(b, 1, keep_dims=True), (M, N))))
    tl.store(out + 5 * M * N + k, tl.ravel(tl.join(even, odd)))
    tl.store(out + 6 * M * N + k, tl.gather(a, M * N - 1 - k, 0))
    tl.store(out + 7 * M * N + k, tl.cat(even, odd, can_reorder=True))


def test_shapes():
    x = doubles(4 * 8)
    out = torch.zeros(8, 32, dtype=torch.float64)
    launch(shapes, x, out, M=4, N=8)
    m, pairs = x.view(4, 8), x.view(16, 2)
    expected = [m.T.reshape(-1), torch.cat([pairs[:, 0] - pairs[:, 1], torch.zeros(16)]), pairs.flip(1).reshape(-1)]
    expected += [m.T.reshape(-1), m.sum(1, keepdim=True).expand(4, 8).reshape(-1), x, x.flip(0), pairs.T.reshape(-1)]
    torch.testing.assert_close(out, torch.stack(expected), rtol=1e-15, atol=1e-15)


@triton.jit
def product(a, b, c, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, HOW: tl.constexpr):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + i[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * N + j[None, :])
    z = tl.zeros((M, N), dtype=tl.float32)
    z = tl.dot(x, y, z, input_precision=HOW)
    tl.store(c + i[:, None] * N + j[None, :], z)


def test_products_are_of_float64_when_lifted():
    a, b = doubles(16, 32), doubles(32, 16, seed=1)
    c = torch.zeros(16, 16, dtype=torch.float64)
    launch(product, a, b, c, M=16, K=32, N=16, HOW="tf32")
    torch.testing.assert_close(c, a @ b, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(("how", "most", "least"), [("tf32", 4e-3, 1e-4), ("ieee", 1e-5, 1e-9)])
def test_products_as_written_round_to_tf32_unless_told_otherwise(how, most, least):
    a, b = doubles(16, 32).float(), doubles(32, 16, seed=1).float()
    c = torch.zeros(16, 16)
    launch(product, a, b, c, M=16, K=32, N=16, HOW=how, world=World(lifts=False))
    error = ((c - a.double() @ b.double()).norm() / c.norm()).item()
    assert least < error < most


def test_tf32_is_what_a_kernel_asks_for_and_rounds_wide_worlds_too():
    a, b = doubles(16, 32).float(), doubles(32, 16, seed=1).float()
    right = a.double() @ b.double()
    errors = []
    for settings in ({"is_wide": True}, {"rounds_tf32": False}):
        c = torch.zeros(16, 16)
        launch(product, a, b, c, M=16, K=32, N=16, HOW="tf32", world=World(lifts=False, **settings))
        errors.append(((c - right).norm() / right.norm()).item())
    assert errors[0] > 1e-4 > 1e-5 > errors[1]


@triton.jit
def casts(x, out16, out_b, out_8, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(out16 + i, a.to(tl.float16))
    tl.store(out_b + i, a.to(tl.bfloat16) + a.to(tl.bfloat16) * a.to(tl.bfloat16))
    tl.store(out_8 + i, a.to(tl.float8e5))


def test_narrow_types_as_written_round_as_pytorch_does():
    x = doubles(32).float()
    out16, out_b, out_8 = (torch.zeros(32, dtype=t) for t in (torch.float16, torch.bfloat16, torch.float8_e5m2))
    launch(casts, x, out16, out_b, out_8, N=32, world=World(lifts=False))
    b = x.bfloat16()
    assert torch.equal(out16, x.half())
    assert torch.equal(out_b, b + b * b)
    assert torch.equal(out_8.float(), x.to(torch.float8_e5m2).float())


@triton.jit
def bits(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    n = tl.load(x + i).to(tl.int32, bitcast=True)
    tl.store(out + i, (n ^ 1).to(tl.float32, bitcast=True))


def test_bits_of_float32():
    x, out = doubles(8).float().double(), torch.zeros(8, dtype=torch.float64)
    launch(bits, x, out, N=8)
    flipped = x.float().numpy().view(np.int32) ^ 1
    assert torch.equal(out, torch.from_numpy(flipped.view(np.float32)).double())


@triton.jit
def half_the_bits(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(tl.int16, bitcast=True))


def test_bits_of_another_length_are_refused_as_by_triton():
    x, out = doubles(8), torch.zeros(8, dtype=torch.int16)
    with pytest.raises(KernelError, match="the bits of fp32 are not as many as those of int16"):
        launch(half_the_bits, x, out, N=8)


@triton.jit
def draws(out, seed, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.rand(seed, i))
    tl.store(out + N + i, tl.randn(seed, i))


def test_random_numbers_are_those_of_philox_and_look_random():
    out = torch.zeros(2, 4096, dtype=torch.float64)
    launch(draws, out, 7, N=4096)
    uniform, normal = out
    assert 0 <= uniform.min() < 0.01 < 0.99 < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.03
    assert abs(normal.std() - 1) < 0.05
    assert len(uniform.unique()) > 4000


@triton.jit
def blocks(x, y, m, n, M: tl.constexpr, N: tl.constexpr):
    p = tl.make_block_ptr(x, (m, n), (n, 1), (tl.program_id(0) * M, 0), (M, N), (1, 0))
    q = tl.make_block_ptr(y, (m, n), (n, 1), (tl.program_id(0) * M, 0), (M, N), (1, 0))
    for _ in range(tl.cdiv(n, N)):
        tl.store(q, tl.load(p, boundary_check=(0, 1), padding_option="zero") * 2, boundary_check=(0, 1))
        p, q = tl.advance(p, (0, N)), tl.advance(q, (0, N))


@triton.jit
def described(x, y, m, n, M: tl.constexpr, N: tl.constexpr):
    p = tl.make_tensor_descriptor(x, [m, n], [n, 1], [M, N])
    q = tl.make_tensor_descriptor(y, [m, n], [n, 1], [M, N])
    for j in range(0, n, N):
        q.store([tl.program_id(0) * M, j], p.load([tl.program_id(0) * M, j]) * 2)


_HAS_BLOCK_POINTERS = pytest.mark.skipif(not hasattr(tl, "advance"), reason="this Triton has no block pointers")


@pytest.mark.parametrize("kernel", [pytest.param(blocks, marks=_HAS_BLOCK_POINTERS), described])
def test_block_pointers_and_descriptors_stop_at_the_borders(kernel):
    x, y = doubles(7, 11), torch.full((7, 11), math.nan, dtype=torch.float64)
    world = launch(kernel, x, y, 7, 11, grid=(2,), M=4, N=8)
    assert torch.equal(y, 2 * x)
    assert world.irregularities == []


@triton.jit
def described_or_not(pointer, m, n, M: tl.constexpr, N: tl.constexpr):
    if isinstance(pointer, tl.tensor_descriptor):
        return pointer
    return tl.make_tensor_descriptor(pointer, [m, n], [n, 1], [M, N])


@triton.jit
def copied(x, y, m, n, M: tl.constexpr, N: tl.constexpr):
    p = described_or_not(x, m, n, M, N)
    p = described_or_not(p, m, n, M, N)
    tl.static_assert(isinstance(p, (tl.tensor, tl.tensor_descriptor)) and not isinstance(p, tl.tensor))
    tl.static_assert(isinstance(x, tl.tensor) and not isinstance(x, tl.constexpr) and isinstance(M, tl.constexpr))
    tl.make_tensor_descriptor(y, [m, n], [n, 1], [M, N]).store([0, 0], p.load([0, 0]))


def test_descriptors_are_told_from_pointers():
    x, y = doubles(3, 5), torch.zeros(3, 5).double()
    launch(copied, x, y, 3, 5, grid=(1,), M=4, N=8)
    assert torch.equal(x, y)


@triton.jit
def summed_by_descriptor(x, total, most, m, n, M: tl.constexpr, N: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)[:, None]
    j = tl.arange(0, N)[None, :]
    block = tl.load(x + rows * n + j, mask=(rows < m) & (j < n), other=0.0)
    p = tl.make_tensor_descriptor(total, [1, n], [n, 1], [1, N])
    q = tl.make_tensor_descriptor(most, [1, n], [n, 1], [1, N])
    p.atomic_add([0, 0], tl.sum(block, 0)[None, :])
    q.atomic_max([0, 0], tl.max(block, 0)[None, :])


def test_atomics_of_descriptors_stop_at_the_borders():
    x, total, most = doubles(7, 11).abs(), torch.zeros(1, 11).double(), torch.zeros(1, 11).double()
    world = launch(summed_by_descriptor, x, total, most, 7, 11, grid=(2,), M=4, N=16)
    torch.testing.assert_close(total, x.sum(0, keepdim=True))
    assert torch.equal(most, x.amax(0, keepdim=True))
    assert world.irregularities == []


@triton.jit
def counts(x, total, most, old, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=0.0)
    tl.atomic_add(total + tl.zeros((BLOCK,), tl.int32), a)
    tl.atomic_max(most, tl.max(a, 0))
    ticket = tl.atomic_add(old, 1)
    tl.store(old + 1 + tl.program_id(0), ticket)


def test_atomics_of_many_programs():
    x = doubles(37).abs()
    total, most = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    old = torch.zeros(6, dtype=torch.int32)
    world = launch(counts, x, total, most, old, 37, grid=lambda meta: (triton.cdiv(37, meta["BLOCK"]),), BLOCK=8)
    torch.testing.assert_close(total[0], x.sum())
    assert most[0] == x.max()
    assert old[0] == 5
    assert sorted(old[1:].tolist()) == [0, 1, 2, 3, 4]
    assert world.irregularities == []


@triton.jit
def with_assembly(x):
    a = tl.load(x)
    b = tl.inline_asm_elementwise("and.b32 $0, $1, 7;", "=r,r", [a], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(x, b)


@triton.jit
def unfit(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), tl.zeros((2 * N,), tl.float32))


@triton.jit
def of_addresses(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, tl.load(x + i).to(tl.int64).to(tl.pointer_type(tl.float32)))


@triton.jit
def with_a_rare_function(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), libdevice.rcbrt(tl.load(x + tl.arange(0, N))))


class Pair:
    """An aggregate of Triton, as far as the interpreter looks."""

    __triton_aggregate__ = True


@triton.jit
def with_an_aggregate(x, N: tl.constexpr):
    Pair(x, N)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (with_an_aggregate, "the aggregate Pair: not interpreted"),
        (of_addresses, "pointers from integers: not interpreted"),
        (with_a_rare_function, r"libdevice\.rcbrt: not interp"),
    ],
)
def test_what_the_interpreter_lacks_is_told_from_what_triton_refuses(kernel, message):
    with pytest.raises(UnsupportedError, match=message):
        launch(kernel, doubles(4), N=4)


@triton.jit
def filled(x, N: tl.constexpr, IS_SQUARE: tl.constexpr):
    block = tl.zeros((N, N), tl.float32) if IS_SQUARE else tl.arange(0, N)
    tl.store(x, block.shape[0])


@pytest.mark.parametrize("is_square", [False, True])
def test_blocks_beyond_the_maximum_of_the_compiler_are_refused(is_square):
    launch(filled, doubles(1), N=1 << 10, IS_SQUARE=is_square)
    with pytest.raises(KernelError, match="has more than 1048576 elements"):
        launch(filled, doubles(1), N=1 << (11 if is_square else 21), IS_SQUARE=is_square)


class Row(NamedTuple):
    pointer: torch.Tensor
    length: int


@triton.jit
def doubled_row(row, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, 2 * tl.load(row.pointer + i, mask=i < row.length, other=0.0))


def test_named_tuples_are_arguments():
    x, y = doubles(5), torch.zeros(8, dtype=torch.float64)
    launch(doubled_row, Row(x, 5), y, N=8)
    assert torch.equal(y, torch.cat([2 * x, torch.zeros(3, dtype=torch.float64)]))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [(with_assembly, r"with_assembly \(test_language\.py:\d+\): the instruction and\.b32 of inline assembly"),
     (unfit, r"unfit \(test_language\.py:\d+\): a block of shape \(8,\) beside pointers of shape \(4,\)")],
)  # fmt: skip
def test_what_is_not_interpreted_is_refused_with_the_line(kernel, message):
    constants = {"N": 4} if kernel is unfit else {}
    with pytest.raises(KernelError, match=message):
        launch(kernel, doubles(16), **constants)


@triton.jit
def impossible(x, y, HOW: tl.constexpr):
    i = tl.arange(0, 4)
    if HOW == "axis":
        tl.store(y, tl.sum(tl.load(x + i), 1))
    if HOW == "other":
        tl.store(y + i, tl.load(x + i, other=0.0))
    if HOW == "mask":
        tl.store(y + i, tl.load(x, mask=i < 3, other=0.0))
    if HOW == "value":
        tl.store(y, tl.load(x + i))
    if HOW == "rank":
        tl.store(y + i, tl.load(x + i)[:, None])
    if HOW == "warps":
        tl.store(y + i, tl.load(x + i))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("axis", "axis 1 of a block of 1 dimension"),
        ("other", "without a mask"),
        ("mask", "beside a pointer that is no block"),
        ("value", "beside a pointer that is no block"),
        ("rank", r"shape \(4, 1\) beside pointers of shape \(4,\)"),
        ("warps", "num_warps is 3"),
    ],
)
def test_what_triton_does_not_compile(how, message):
    with pytest.raises(KernelError, match=message):
        launch(impossible, doubles(4), doubles(4), HOW=how, num_warps=3 if how == "warps" else 4)


@triton.jit
def softplus_in_assembly(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.inline_asm_elementwise(
        asm="""{
            .reg .pred p;  // a comment
            setp.gt.f32  p, $1, 2.;
            @p  mov.f32  $0, $1;
            @!p mul.f32  $0, $1, 1.4426950408889634;
            @!p ex2.approx.ftz.f32 $0, $0;
            @!p add.f32  $0, $0, 0f3F800000;
            @!p lg2.approx.ftz.f32 $0, $0;
            @!p mul.f32  $0, $0, 0.6931471805599453;
        }""",
        constraints="=r,r",
        args=[tl.load(x + i)],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )
    tl.store(y + i, a)


def test_assembly_with_predicates():
    x = torch.tensor([-3.0, 0.0, 1.9, 2.1], dtype=torch.float64)
    y = torch.zeros_like(x)
    launch(softplus_in_assembly, x, y, BLOCK=4)
    # 1 + exp(-3) loses 4 bits of exp(-3), here and in the assembly.
    torch.testing.assert_close(y, torch.where(x > 2, x, torch.log(1 + x.exp())), rtol=1e-14, atol=0)
