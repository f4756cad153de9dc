"""Accesses that no right kernel makes are told with their line; those of right kernels are not."""

from __future__ import annotations

import inspect

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed")
import triton.language as tl  # noqa: E402

from pullback.interpreter.host import POISON  # noqa: E402
from pullback.interpreter.launch import World  # noqa: E402
from tests.interpreter.launching import launch  # noqa: E402


def line_of(kernel, text: str) -> int:
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(i for i, line in enumerate(lines) if text in line)


@triton.jit
def double(x, y, n, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if MASKED:
        tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)
    else:
        tl.store(y + i, 2 * tl.load(x + i))  # beyond


def test_a_tail_without_a_mask_is_out_of_bounds_and_changes_nothing_else():
    base = torch.arange(12, dtype=torch.float64)
    y = torch.zeros(7, dtype=torch.float64)
    world = launch(double, base[:11], y, 7, grid=(2,), MASKED=False, BLOCK=8)
    assert torch.equal(y, 2 * base[:7])
    reads = [(each.kind, each.argument, each.program, each.line) for each in world.irregularities]
    assert reads == [("out-of-bounds", "x", (1, 0, 0), line_of(double, "# beyond"))]
    assert "load of 4 elements, the first 12 of x, whose storage has 12" in world.irregularities[0].what


def test_a_masked_tail_is_not():
    x, y = torch.arange(7, dtype=torch.float64), torch.zeros(7, dtype=torch.float64)
    world = launch(double, x, y, 7, grid=(2,), MASKED=True, BLOCK=8)
    assert torch.equal(y, 2 * x)
    assert world.irregularities == []
    assert {line for _, line in world.bare_loads} == {line_of(double, "mask=i < n")}


@triton.jit
def accumulate(x, total, HOW: tl.constexpr):
    p = tl.program_id(0)
    if HOW == "stores":
        tl.store(total, tl.load(x + p))
    elif HOW == "reads back":
        tl.store(total + p, tl.load(x + p))
        tl.store(total + 8 + p, tl.load(total + (p + 1) % 4))
    elif HOW == "in place":
        a = tl.load(x + (p + 1) % 4)
        tl.store(x + p, a + 1)
    elif HOW == "lanes":
        tl.store(total + p + tl.zeros((2,), tl.int32), tl.arange(0, 2).to(tl.float32))
    elif HOW == "equal":
        tl.store(total, 3.0)
    elif HOW == "atomic":
        tl.atomic_add(total, tl.load(x + p))
    elif HOW == "own":
        tl.store(x + p, tl.load(x + p) + 1)
        tl.store(x + p, tl.load(x + p) + 1)


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("stores", "two programs store different values in element 0 of total"),
        ("reads back", "read element 1 of total after program 1 wrote it"),
        ("in place", "store to element 0 of x after program 3 read it"),
        ("lanes", "two lanes of a program store different values in element 0 of total"),
        ("equal", ""),
        ("atomic", ""),
        ("own", ""),
    ],
)
def test_races(how, what):
    x, total = torch.arange(4, dtype=torch.float64), torch.zeros(16, dtype=torch.float64)
    world = launch(accumulate, x, total, grid=(4,), HOW=how)
    races = [each.what for each in world.irregularities if each.kind == "data-race"]
    assert len(races) == len(world.irregularities) == (what != "")
    assert all(what in race for race in races)


def test_a_race_between_programs_that_do_not_run_at_once():
    n = 3000
    x, total = torch.arange(n, dtype=torch.float64), torch.zeros(16, dtype=torch.float64)
    world = launch(accumulate, x, total, grid=(n,), HOW="stores")
    assert [each.kind for each in world.irregularities] == ["data-race"]
    assert total[0] == n - 1


def test_a_read_of_what_nobody_wrote():
    x, y = torch.zeros(8, dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
    x.numpy()[5] = POISON
    world = launch(double, x, y, 8, MASKED=True, BLOCK=8)
    assert [(each.kind, each.argument) for each in world.irregularities] == [("uninitialised-memory", "x")]
    assert world.irregularities[0].what == "load of element 5 of x, unwritten"


def test_float32_memory_is_read_and_written_in_its_own_type():
    x, y = torch.rand(8), torch.zeros(8)
    launch(double, x, y, 8, MASKED=True, BLOCK=8)
    assert torch.equal(y, 2 * x)
    y.zero_()
    launch(double, x, y, 8, MASKED=True, BLOCK=8, world=World(lifts=False))
    assert torch.equal(y, 2 * x)


@triton.jit
def masked_sum(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out, tl.sum(tl.load(x + i, mask=i < n)))


@pytest.mark.parametrize("undefined", [0.0, 1000.0])
def test_masked_off_lanes_hold_what_the_world_says(undefined):
    x, out = torch.ones(5, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    launch(masked_sum, x, out, 5, BLOCK=8, world=World(undefined=undefined))
    assert out.item() == 5 + 3 * undefined
