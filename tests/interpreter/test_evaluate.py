"""Control flow, where the programs of a launch go different ways, against a loop over programs in Python."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed")
import triton.language as tl  # noqa: E402

from pullback.interpreter.errors import KernelError  # noqa: E402
from tests.interpreter.launching import launch  # noqa: E402

STEP: tl.constexpr = tl.constexpr(3)


@triton.jit
def collatz(starts, lengths, n):
    p = tl.program_id(0)
    if p >= n:
        return
    x, steps = tl.load(starts + p), 0
    while x != 1:
        if x % 2 == 0:  # noqa: SIM108
            x = x // 2
        else:
            x = 3 * x + 1
        steps += 1
    tl.store(lengths + p, steps)


def test_loops_end_at_another_time_in_each_program():
    starts = torch.arange(1, 20, dtype=torch.int32)
    lengths = torch.full((19,), -1, dtype=torch.int32)
    world = launch(collatz, starts, lengths, 19, grid=(32,))
    axes = ["one along axis 1", "one along axis 2"]
    assert sorted(way for _, _, way in world.ways) == [
        "again", "false", "false", *axes, "several along axis 0", "true", "true",
    ]  # fmt: skip
    alone = launch(collatz, starts, lengths, 19, grid=(1,))  # of 1
    assert sorted(way for _, _, way in alone.ways) == ["false", "never", "one along axis 0", *axes]
    launch(collatz, starts, lengths, 19, grid=(32,))

    def length(x: int) -> int:
        return 0 if x == 1 else 1 + length(x // 2 if x % 2 == 0 else 3 * x + 1)

    assert lengths.tolist() == [length(x) for x in starts.tolist()]


@triton.jit
def ranges(begins, ends, out, SKIP: tl.constexpr):
    p = tl.program_id(0)
    total = 0
    for i in range(tl.load(begins + p), tl.load(ends + p), STEP):
        if i % 5 == SKIP:
            continue
        if i > 40:
            break
        total += i * i
    for j in tl.static_range(3):
        total += j
    tl.store(out + p, total)


def test_ranges_differ_between_programs_with_break_and_continue():
    begins, ends = torch.arange(10, dtype=torch.int32), torch.arange(0, 100, 10, dtype=torch.int32)
    out = torch.zeros(10, dtype=torch.int32)
    launch(ranges, begins, ends, out, grid=(10,), SKIP=2)

    def total(begin: int, end: int) -> int:
        return 3 + sum(i * i for i in range(begin, end, 3) if i % 5 != 2 and i <= 40)

    assert out.tolist() == [total(b, e) for b, e in zip(begins.tolist(), ends.tolist(), strict=True)]


@triton.jit
def chosen(x, k):
    if k == 0:
        return x + 1
    if k == 1:
        y = x * 2
    else:
        if k == 2:
            return -x
        y = x * x
    return y


@triton.jit
def calls(x, kinds, out, N: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, N)
    a = tl.load(x + p * N + i)
    before = a * 1
    b = chosen(a, tl.load(kinds + p))
    tl.store(out + p * N + i, b + (before if p % 2 == 0 else 0.0))


def test_functions_return_from_several_places():
    x, kinds = torch.randn(8, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 3, 2, 1, 0], dtype=torch.int32)
    out = torch.empty_like(x)
    launch(calls, x, kinds, out, grid=(8,), N=4)
    rules = [lambda x: x + 1, lambda x: 2 * x, lambda x: -x, lambda x: x * x]
    rows = zip(range(8), x, kinds.tolist(), strict=True)
    expected = torch.stack([rules[k](row) + (row if p % 2 == 0 else 0) for p, row, k in rows])
    torch.testing.assert_close(out, expected, rtol=0, atol=0)


@triton.jit
def nested(limits, out):
    p = tl.program_id(1) * 2 + tl.program_id(0)
    found = -1
    for i in range(6):
        for j in range(tl.load(limits + p)):
            if i * j > 7:
                break
            found = i * 10 + j
        if found > 35:
            tl.store(out + p, found)
            return
    tl.store(out + p, 1000 + found)


def test_breaks_leave_the_inner_loop_and_returns_the_kernel():
    limits, out = torch.tensor([0, 1, 3, 6], dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    launch(nested, limits, out, grid=(2, 2))

    def run(limit: int) -> int:
        found = -1
        for i in range(6):
            for j in range(limit):
                if i * j > 7:
                    break
                found = i * 10 + j
            if found > 35:
                return found
        return 1000 + found

    assert out.tolist() == [run(n) for n in limits.tolist()]


@triton.jit
def optional(x, bias, out, HAS_BIAS: tl.constexpr, flag: tl.constexpr, N: tl.constexpr = 4):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    if bias is not None:
        a += tl.load(bias + i)
    if not HAS_BIAS and flag == "twice":
        a, _ = a * 2, 1
    tl.store(out + i, a if HAS_BIAS or flag else a * 0)


@pytest.mark.parametrize("has_bias", [False, True])
def test_what_is_known_before_chooses_the_code(has_bias):
    x, out = torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    launch(optional, x, x if has_bias else None, out, HAS_BIAS=has_bias, flag="twice")
    assert out.tolist() == [2.0] * 4


@triton.jit
def spins(lock, total, x):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total, tl.load(total) + tl.load(x + tl.program_id(0)))
    tl.atomic_xchg(lock, 0)


def test_programs_that_wait_for_a_lock_run_one_after_the_other():
    lock, total, x = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.float64), torch.ones(9).double()
    world = launch(spins, lock, total, x, grid=(9,))
    assert total.item() == 9
    assert world.irregularities == []


@triton.jit
def wrong_name(x):
    tl.store(x, undefined_name)  # noqa: F821


@triton.jit
def in_one_branch(x):
    if tl.program_id(0) == 0:
        y = 1.0
    tl.store(x, y)


@triton.jit
def in_a_loop(x):
    for i in range(3):
        y = i * 2.0
    tl.store(x, y)


@triton.jit
def in_an_unrolled_loop(x, ROUNDS: tl.constexpr):
    for i in tl.static_range(ROUNDS):
        y = i * 2.0
    tl.store(x, y)


def test_names_of_an_unrolled_loop_are_known_after_it():
    x = torch.zeros(1, dtype=torch.float64)
    launch(in_an_unrolled_loop, x, ROUNDS=3)
    assert x.item() == 4


def test_a_loop_that_no_compiler_would_unroll():
    with pytest.raises(KernelError, match="static_range of 1000000 rounds"):
        launch(in_an_unrolled_loop, torch.zeros(1, dtype=torch.float64), ROUNDS=1_000_000)


@pytest.mark.parametrize(("kernel", "name"), [(wrong_name, "undefined_name"), (in_one_branch, "y"), (in_a_loop, "y")])
def test_names_that_are_not_defined(kernel, name):
    with pytest.raises(KernelError, match=rf"test_evaluate\.py:\d+\): the name '{name}' is not defined here"):
        launch(kernel, torch.zeros(1, dtype=torch.float64), grid=(2,))
