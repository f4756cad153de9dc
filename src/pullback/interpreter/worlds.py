"""The world in which kernels run: its options, and the record of what they did."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Literal

import numpy as np
import torch

POISON = np.array([0x7FF8DEADBEEF0001], np.uint64).view(np.float64)[0]
"""What memory that nobody wrote holds: a NaN that no computation gives."""

_LAUNCHES = 1000
"""Number of launches after which a simulation ends."""
_SECONDS = 4
"""Seconds of processor time after which it ends: well before an audit that shows no sign of life is killed."""

Way = tuple[str, int, str]
"""File and line of a statement, and the way that programs went there."""

Kind = Literal["out-of-bounds", "data-race", "uninitialised-memory"]


@dataclass(frozen=True, slots=True)
class Irregularity:
    """An access to memory that no right kernel makes.

    Attributes:
        kind: what is wrong.
        kernel: its name.
        file: where its source is.
        line: the line of the access.
        program: the index of the program in the grid.
        argument: the parameter whose memory it is; "" if the address is of none.
        element: the index of the first such element in its storage; `None` if the address is of none.
        what: a clause that tells it.
        rival: the index of another program that does it, too.
    """

    kind: Kind
    kernel: str
    file: str
    line: int
    program: tuple[int, int, int]
    argument: str
    element: int | None
    what: str
    rival: tuple[int, int, int] | None = None

    @property
    def is_load(self) -> bool:
        """Whether it only reads."""
        return self.what.startswith("load")

    @property
    def told(self) -> str:
        """The program, or both of them, and what they do."""
        if self.rival is not None:
            return f"programs {self.program} and {self.rival} {self.what}"
        return f"program {self.program}: {self.what}"


@dataclass(frozen=True, eq=False)
class Specialisation:
    """A kernel, and the types and constants of a launch of it.

    Attributes:
        function: the Python function of the kernel.
        source: the kernel with types and constants, which Triton compiles.
        options: options of the compiler.
        arguments: parameters with their types or values: "x: *fp32, BLOCK=16".
    """

    function: FunctionType
    source: Any
    options: Mapping[str, Any]
    arguments: str

    @property
    def key(self) -> tuple[Any, ...]:
        """The kernel, its arguments and the options that the front end reads: equal for launches that compile alike."""
        options = sorted((name, x) for name, x in self.options.items() if name not in ("num_warps", "num_stages"))
        return self.function, self.arguments, repr(options)


@dataclass(eq=False)
class World:
    """How kernels run, and what they did.

    Attributes:
        lifts: whether every float of a kernel is held in float64; otherwise each is rounded as on the device.
        reverses: whether the last program of a launch runs first; not where programs wait for each other.
        config: which of its configurations an autotuner takes, modulo their number.
        is_wide: if it does not lift, whether floats shorter than float32 are rounded in memory alone.
        rounds_tf32: if it does not lift, whether `tl.dot` rounds float32 to TF32 unless the kernel says otherwise.
        simulates: whether tensors are on "meta", so huge ones take no memory: kernels load zeros, the first program
            and the last ones run, and all that is checked is where they access memory.
        wraps: whether integers of 32 bits overflow.
        expected: what is loaded in a simulation at lines that load integers; 0 elsewhere.
        tunes: whether an autotuner first benchmarks a kernel with that configuration, once for each of its keys.
        processors: number of multiprocessors of the device that the host's code asks about.
        shared_memory: bytes of memory that a multiprocessor's programs share.
        specialises: whether the types and constants of launches are recorded, of autotuners with up to three of their
            configurations.
        traces: whether `stores` is kept.
        undefined: what masked-off lanes of a load without `other` hold.
        padding: what a block pointer without `padding_option` gives beyond its bounds.
        irregularities: the first of each kind at each line.
        launches: number of launches.
        failed: functions of the kernels that raised, but for what the interpreter lacks.
        blocks: sizes of blocks: powers of two among the constexprs, and lengths of `arange`.
        configurations: the largest number of configurations of an autotuner.
        tuned: autotuners that have benchmarked their kernel, each with its key.
        ways: file and line of each `if` that ran, and whether its condition was "true" or "false"; of each loop that
            is not unrolled, and whether it ran "never", "once" or "again"; of each kernel, and whether "one along axis
            0" of its grid ran or "several along axis 0", and so for the others.
        bare_loads: file and line of loads without `other` in which lanes were masked off.
        unpadded_loads: those of block pointers without `padding_option` that leave their bounds.
        atomics: file and line of atomic operations.
        loaded: the largest integer that each line has loaded, but in a simulation.
        stores: of each storage that kernels wrote to, by its address: a tensor, which keeps it from being used again,
            and kernel, file and line of each store.
        specialisations: launches of other types or constants, by what tells them apart.
        began: when it was made, in seconds of processor time.
    """

    lifts: bool = True
    is_wide: bool = False
    rounds_tf32: bool = True
    simulates: bool = False
    wraps: bool = True
    expected: Mapping[tuple[str, int], int] = field(default_factory=dict)
    reverses: bool = False
    config: int = 0
    tunes: bool = False
    processors: int = 2
    shared_memory: int = 232448
    specialises: bool = False
    traces: bool = False
    undefined: float = 0.0
    padding: float = 0.0
    irregularities: list[Irregularity] = field(default_factory=list)
    launches: int = 0
    failed: set[FunctionType] = field(default_factory=set)
    blocks: set[int] = field(default_factory=set)
    configurations: int = 1
    tuned: set[tuple[Any, ...]] = field(default_factory=set)
    ways: set[Way] = field(default_factory=set)
    bare_loads: set[tuple[str, int]] = field(default_factory=set)
    unpadded_loads: set[tuple[str, int]] = field(default_factory=set)
    atomics: set[tuple[str, int]] = field(default_factory=set)
    loaded: dict[tuple[str, int], int] = field(default_factory=dict)
    stores: dict[int, tuple[torch.Tensor, set[tuple[str, str, int]]]] = field(default_factory=dict)
    specialisations: dict[tuple[Any, ...], Specialisation] = field(default_factory=dict)
    began: float = field(default_factory=time.process_time)

    def ensure_not_endless(self) -> None:
        """Ensure that a simulation has launches and time left; to be called before each step of host code.

        Raises:
            RuntimeError: if it has not, as in a loop of as many rounds as a huge tensor has rows.
        """
        if self.simulates and (self.launches >= _LAUNCHES or time.process_time() - self.began > _SECONDS):
            raise RuntimeError(
                f"host code that takes more than {_LAUNCHES} launches, or {_SECONDS} s, is not simulated"
            )


_current = World()


def world() -> World:
    """Return the world in which kernels run now."""
    return _current


@contextmanager
def inside(another: World) -> Iterator[World]:
    """Run kernels in another world; what code has cached about the device is forgotten if it is another one."""
    global _current
    before, _current = _current, another
    is_moved = (another.processors, another.shared_memory) != (before.processors, before.shared_memory)
    if is_moved:
        _forget()
    try:
        yield another
    finally:
        _current = before
        if is_moved:
            _forget()


_presented = torch.float32


def present(dtype: torch.dtype) -> None:
    """Have host code see another dtype than float32 where tensors are lifted to float64: it may refuse float32.

    It holds for every world, until it is called again.
    """
    global _presented
    _presented = dtype


def presented() -> torch.dtype:
    """Return the dtype that host code sees where tensors are lifted to float64."""
    return _presented


_NOT_ASKING = sys.stdlib_module_names | {"torch", "triton", "numpy", "scipy", "pullback"}
"""Packages whose caches are kept."""


def _forget() -> None:
    """Clear the caches of functions of libraries: a function that asks for the device is often asked once."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _NOT_ASKING - {"__main__"}:
            continue
        for value in list(getattr(module, "__dict__", {}).values()):
            if issubclass(
                type(value), functools._lru_cache_wrapper
            ):  # a proxy may raise when it is asked for its class
                value.cache_clear()
