"""Kernels that are interpreted alike, each with its launch; prints those that the compiler refuses, as JSON.

A comment `# refused: TEXT` is at the line of a statement that the compiler refuses, with a part of its message.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pullback import interpreter

interpreter.enter()

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

FACTOR = 2.0
CONSTANT = tl.constexpr(2.0)
LAUNCHES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {}


def launched(*more: Any, **options: Any) -> Any:
    """Launch a kernel with an input of 37 elements, an output and their number."""

    def register(kernel: Any) -> Any:
        def launch(x: torch.Tensor, out: torch.Tensor) -> None:
            kernel[(3,)](x, out, x.numel(), *more, **options)

        name = kernel
        while not hasattr(name, "__name__"):
            name = name.fn
        LAUNCHES[name.__name__] = launch
        return kernel

    return register


# ---- refused --------------------------------------------------------------------------------------------------------


@launched(BLOCK=16)
@triton.jit
def shape_in_loop(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = 0.0
    for _ in range(2):  # refused: Loop-carried variable total has initial type fp32
        total += tl.load(x + i, mask=i < n, other=0.0)
    tl.store(out + i, total, mask=i < n)


@launched(BLOCK=16)
@triton.jit
def dtype_in_loop(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.int32)
    for _ in range(2):  # refused: Loop-carried variable total has initial type
        total = total + tl.load(x + i, mask=i < n, other=0.0)
    tl.store(out + i, total, mask=i < n)


@launched(BLOCK=16)
@triton.jit
def number_of_module(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, FACTOR * tl.load(x + i, mask=i < n, other=0.0), mask=i < n)  # refused: global variable FACTOR


@launched(BLOCK=16)
@triton.jit
def name_of_a_branch(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if n > 0:
        y = 2 * tl.load(x + i, mask=i < n, other=0.0)
    tl.store(out + i, y, mask=i < n)  # refused: y is not defined


@launched(BLOCK=16)
@triton.jit
def type_of_a_branch(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    factor = 1
    if n > 0:  # refused: `factor`
        factor = 2.0
    tl.store(out + i, factor * tl.load(x + i, mask=i < n, other=0.0), mask=i < n)


@launched(BLOCK=16)
@triton.jit
def return_in_loop(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for k in range(3):
        if k == 1:  # refused: `return` statements inside `while` or `for`
            return
        tl.store(out + i, 2 * tl.load(x + i, mask=i < n, other=0.0), mask=i < n)


@launched(BLOCK=16)
@triton.jit
def break_of_loop(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for k in range(3):
        if k == 1:
            break  # refused: Break
        tl.store(out + i, 2 * tl.load(x + i, mask=i < n, other=0.0), mask=i < n)


@launched(BLOCK=16)
@triton.jit
def small_dot(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.reshape(tl.load(x + i, mask=i < n, other=0.0), [4, 4])
    z = tl.dot(y, y)  # refused: and K >=
    tl.store(out + i, tl.reshape(z, [BLOCK]), mask=i < n)


@triton.jit
def doubled(y):
    return FACTOR * y  # refused: global variable FACTOR


@launched(BLOCK=16)
@triton.jit
def number_in_a_helper(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, doubled(tl.load(x + i, mask=i < n, other=0.0)), mask=i < n)


@launched()
@triton.autotune([triton.Config({"BLOCK": 16, "STEP": s}, num_warps=w) for s, w in ((0, 4), (0, 8), (1, 4))], key=["n"])
@triton.jit
def second_configuration(x, out, n, BLOCK: tl.constexpr, STEP: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(x + i, mask=i < n, other=0.0)
    if STEP:
        y = FACTOR * y  # refused: global variable FACTOR
    tl.store(out + i, y, mask=i < n)


# ---- compiled -------------------------------------------------------------------------------------------------------


@triton.jit
def squared(y):
    return y * y


@launched(squared, tl.float32, None, 1, (2, 1.5, None), True, BLOCK=16)
@triton.jit
def arguments_of_many_kinds(
    x, out, n, function: tl.constexpr, KIND: tl.constexpr, bias, one, several, flag, BLOCK: tl.constexpr
):
    i = tl.program_id(0) * BLOCK + one * tl.arange(0, BLOCK)
    y = function(tl.load(x + i, mask=i < n, other=0.0).to(KIND)) * CONSTANT
    if bias is not None:
        y += tl.load(bias + i, mask=i < n, other=0.0)
    if several[2] is None:
        y = y * several[0] + several[1]
    if flag:
        y = -y
    tl.store(out + i, y, mask=i < n)


@launched()
@triton.heuristics({"IS_EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def heuristic(x, out, n, IS_EVEN: tl.constexpr, BLOCK: tl.constexpr = 16):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if IS_EVEN:  # noqa: SIM108 - of two types
        y = FACTOR
    else:
        y = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(out + i, y, mask=i < n)


@launched()
@triton.autotune([triton.Config({"BLOCK": 16, "GOOD": 1}), triton.Config({"BLOCK": 16, "GOOD": 0})], key=["n"])
@triton.jit
def configuration_that_asserts(x, out, n, BLOCK: tl.constexpr, GOOD: tl.constexpr):
    tl.static_assert(GOOD == 1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n, other=0.0), mask=i < n)


@triton.jit
def described(source, target, BLOCK: tl.constexpr):
    target.store([0, 0], source.load([0, 0]) + tl.zeros([4, BLOCK], tl.float32))


def launch_described(x: torch.Tensor, out: torch.Tensor) -> None:
    source, target = (TensorDescriptor.from_tensor(t[:32].reshape(4, 8), [4, 8]) for t in (x, out))
    described[(1,)](source, target, BLOCK=8)


LAUNCHES["described"] = launch_described


def main() -> None:
    """Print the refusals of each launch, and how often it was recorded."""
    report = {}
    for name, launch in LAUNCHES.items():
        with interpreter.inside(interpreter.World(lifts=False, specialises=True)) as world:
            for _ in range(2):
                interpreter.hosting(launch)(torch.randn(37), torch.zeros(37))
        found = interpreter.refusals(world)
        report[name] = {
            "refused": [(one.kernel, one.line, one.message) for one in found],
            "arguments": [one.arguments for one in world.specialisations.values()],
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
