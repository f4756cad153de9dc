"""Accesses that no right kernel makes are told with their line; those of right kernels are not."""

from __future__ import annotations

import inspect

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed")
import triton.language as tl  # noqa: E402

from pullback.interpreter.worlds import POISON, World  # noqa: E402
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
    assert (
        "load of 4 elements out of bounds, the first at index 12 of x, whose storage has 12 elements"
        in world.irregularities[0].what
    )


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
        ("stores", "programs (0, 0, 0) and (1, 0, 0) store different values in element 0 of total"),
        ("reads back", "read element 1 of total after program (1, 0, 0) wrote it"),
        ("in place", "store to element 0 of x after program (3, 0, 0) read it"),
        ("lanes", "program (0, 0, 0): two of its lanes store different values in element 0 of total"),
        ("equal", ""),
        ("atomic", ""),
        ("own", ""),
    ],
)
def test_races(how, what):
    x, total = torch.arange(4, dtype=torch.float64), torch.zeros(16, dtype=torch.float64)
    world = launch(accumulate, x, total, grid=(4,), HOW=how)
    races = [each.told for each in world.irregularities if each.kind == "data-race"]
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
    assert world.irregularities[0].what == "load of element 5 of x, which was never written"


def test_an_atomic_addition_to_what_nobody_wrote():
    x, total = torch.ones(4, dtype=torch.float64), torch.zeros(16, dtype=torch.float64)
    total.numpy()[0] = POISON
    world = launch(accumulate, x, total, grid=(4,), HOW="atomic")
    assert [each.what for each in world.irregularities] == ["atomic_add on element 0 of total, which was never written"]


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


@triton.jit
def rows(x, y, stride, n, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    if WIDE:
        row = row.to(tl.int64)
    i = tl.arange(0, BLOCK)
    a = tl.load(x + row * stride + i, mask=i < n, other=0.0)
    tl.store(y + row * stride + i, a, mask=i < n)


@pytest.mark.parametrize("wide", [False, True])
def test_offsets_of_32_bits_overflow_in_huge_tensors(wide):
    x = torch.empty(2**22 + 1, 600, dtype=torch.float64, device="meta")
    y = torch.empty_like(x)
    world = World(simulates=True)
    launch(rows, x, y, 600, 600, grid=(len(x),), WIDE=wide, BLOCK=1024, world=world)
    told = [(each.kind, each.argument, each.program) for each in world.irregularities]
    # The last four programs run; the offset of the first of them is the smallest negative one.
    assert told == ([] if wide else [("out-of-bounds", name, (len(x) - 4, 0, 0)) for name in "xy"])


def test_a_simulation_ends_after_many_launches():
    x = torch.empty(4, 600, dtype=torch.float64, device="meta")
    world = World(simulates=True, launches=1000)
    with pytest.raises(RuntimeError, match="not simulated"):
        launch(rows, x, torch.empty_like(x), 600, 600, grid=(4,), WIDE=False, BLOCK=1024, world=world)
    late = World(simulates=True, began=-1e9)
    with pytest.raises(RuntimeError, match="not simulated"):
        late.ensure_not_endless()
    World(launches=1000).ensure_not_endless()


def test_offsets_without_overflow_stay_within_huge_tensors():
    x = torch.empty(2**22 + 1, 600, dtype=torch.float64, device="meta")
    world = World(simulates=True, wraps=False)
    launch(rows, x, torch.empty_like(x), 600, 600, grid=(len(x),), WIDE=False, BLOCK=1024, world=world)
    assert world.irregularities == []


@triton.jit
def mean(x, out, n, BLOCK: tl.constexpr):
    total = tl.zeros((1,), dtype=x.dtype.element_ty)
    for i in range(0, n, BLOCK):
        total = (total + tl.sum(tl.load(x + i + tl.arange(0, BLOCK)), 0)).to(total.dtype)
    tl.store(out + tl.arange(0, 1), total / n)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_accumulation_shows_beside_float32_inside(dtype):
    x = torch.linspace(0.25, 0.35, 4096).to(dtype)
    out = torch.zeros(1, dtype=dtype)
    launch(mean, x, out, 4096, BLOCK=2, world=World(lifts=False))
    as_written = out.double().item()
    launch(mean, x, out, 4096, BLOCK=2, world=World(lifts=False, is_wide=True))
    right = x.double().mean().item()
    assert out.item() == torch.tensor(right).to(dtype).item()
    assert abs(as_written - right) > 4 * torch.finfo(dtype).eps * right


@triton.jit
def strided_rows(x, y, n_rows, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), n_rows, tl.num_programs(0)):
        tl.store(y + row * n + i, tl.load(x + row * n + i, mask=i < n, other=0.0), mask=i < n)


def test_loops_over_huge_tensors_go_on_at_their_end():
    x = torch.empty(2**22 + 1, 600, dtype=torch.float64, device="meta")
    world = launch(
        strided_rows, x, torch.empty_like(x), len(x), 600, grid=(4,), BLOCK=1024, world=World(simulates=True)
    )
    assert [(each.kind, each.argument) for each in world.irregularities] == [("out-of-bounds", "x")]


@triton.jit
def lower_triangle(x, y, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(y + i * N + j, tl.where(i >= j, tl.load(x + i * N + j), 0.0))


def test_unwritten_elements_that_the_kernel_masks_off_are_no_fault():
    expected = torch.ones(4, 4, dtype=torch.float64).tril()
    x = expected.clone()
    x.numpy()[expected.numpy() == 0] = POISON
    y = torch.zeros(4, 4, dtype=torch.float64)
    world = launch(lower_triangle, x, y, N=4)
    assert torch.equal(y, expected)
    assert world.irregularities == []


@triton.jit
def adds(x, total, BLOCK: tl.constexpr):
    tl.atomic_add(total, tl.sum(tl.load(x + tl.arange(0, BLOCK)), 0))


def test_an_atomic_on_what_nobody_wrote():
    x, total = torch.ones(8, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    total.numpy()[:] = POISON
    world = launch(adds, x, total, BLOCK=8)
    assert [(each.kind, each.argument) for each in world.irregularities] == [("uninitialised-memory", "total")]
