"""The launch of a kernel: its arguments, its grid, and the record of what happens."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton.language as tl

from pullback._torch import storage_of
from pullback.interpreter.errors import KernelError, UnsupportedError
from pullback.interpreter.evaluate import Machine, Source, source_of
from pullback.interpreter.language import BUILTINS
from pullback.interpreter.memory import Memory, Space
from pullback.interpreter.values import Array, Precision, Value, to_value
from pullback.interpreter.worlds import Irregularity, World, world

_AT_ONCE = 1 << 20
"""Elements of a block, over all programs that run at once."""
_MOST_AT_ONCE = 1024
_LAST = 4
"""Programs at the end of the grid that run where huge tensors are simulated."""
_TYPES = {
    torch.float64: tl.float64, torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16,
    torch.bool: tl.int1, torch.int8: tl.int8, torch.int16: tl.int16, torch.int32: tl.int32, torch.int64: tl.int64,
    torch.uint8: tl.uint8, torch.uint16: tl.uint16, torch.uint32: tl.uint32, torch.uint64: tl.uint64,
    torch.float8_e4m3fn: tl.float8e4nv, torch.float8_e5m2: tl.float8e5, torch.float8_e4m3fnuz: tl.float8e4b8,
    torch.float8_e5m2fnuz: tl.float8e5b16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compiled:
    """The result of a launch on a GPU: the compiled kernel, of which host code asks what it occupies.

    Attributes:
        kernel: made by `triton.jit`.
        n_regs, n_spills, metadata: registers, spilled registers, and shared memory and options: of no kernel.
    """

    kernel: Any
    n_regs: int = 32
    n_spills: int = 0
    metadata: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(shared=1024, num_warps=4, num_stages=2), compare=False
    )

    def _init_handles(self) -> None:
        """Load nothing."""

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """Return the launch on a grid, which takes the arguments by position, constants among them."""
        return functools.partial(self.kernel.run, grid=grid)


def run(kernel: Any, args: tuple[Any, ...], grid: Any, options: Mapping[str, Any]) -> None:
    """Run a kernel on CPU tensors.

    Args:
        kernel: made by `triton.jit`.
        args: its positional arguments.
        grid: the number of programs along each axis, or a function of the arguments that returns it.
        options: its other arguments, and options of the compiler, which are ignored but for impossible ones.

    Raises:
        KernelError: the kernel cannot be interpreted, or raises at a line that it names.
    """
    source = source_of(kernel.fn)
    known = source.signature.parameters
    try:
        bound = source.signature.bind(*args, **{name: x for name, x in options.items() if name in known})
    except TypeError as error:
        raise KernelError(f"{source.name}: {error}") from None
    bound.apply_defaults()
    warps = options.get("num_warps", 1)
    if "num_warps" not in known and (warps < 1 or warps & (warps - 1)):
        raise KernelError(f"{source.name}: num_warps is {warps}, which must be a power of 2")
    for hook in getattr(kernel, "pre_run_hooks", ()):
        hook(*args, **options)
    size = _grid(grid, dict(bound.arguments))
    try:
        _Launch(source, size, world()).run(dict(bound.arguments))
    except UnsupportedError:
        raise
    except KernelError:
        world().failed.add(kernel.fn)
        raise


def _grid(grid: Any, arguments: dict[str, Any]) -> tuple[int, int, int]:
    size = grid(arguments) if callable(grid) else grid
    sizes = [int(n) for n in (size if isinstance(size, tuple | list) else (size,))]
    x, y, z = [*sizes, 1, 1, 1][:3]
    return x, y, z


class _Launch:
    def __init__(self, source: Source, grid: tuple[int, int, int], world: World) -> None:
        self._source = source
        self._grid = grid
        self._world = world
        self._precision = Precision.of(world)
        self._space = Space(self._precision, grid, self._note)
        if world.traces:
            self._space.on_store = self._trace
        self._machine = Machine(world, self._space, grid)
        self._suspects: list[Irregularity] = []

    def run(self, arguments: dict[str, Any]) -> None:
        world, count = self._world, int(np.prod(self._grid))
        world.ensure_not_endless()
        world.launches += 1
        for axis, length in enumerate(self._grid):
            several = "several" if length > 1 else "one"
            world.ways.add((self._source.file, self._source.first_line, f"{several} along axis {axis}"))
        named = {name: self._argument(name, x) for name, x in arguments.items()}
        numbers = [x for x in named.values() if isinstance(x, int) and not isinstance(x, bool) and x > 1]
        blocks = sorted((n for n in numbers if n & (n - 1) == 0), reverse=True)
        world.blocks.update(blocks)
        self._space.is_ordered = self._source.waits or self._source.counts
        step = 1 if self._source.waits else max(1, min(_MOST_AT_ONCE, _AT_ONCE // math.prod(blocks[:2])))
        try:
            for programs in self._groups(count, step):
                self._machine.programs = programs
                with np.errstate(all="ignore"):
                    self._machine.run(self._source, [], named)
        except (KernelError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            file, line = self._machine.place()
            kind = type(error) if isinstance(error, KernelError) else KernelError
            raise kind(f"{self._source.name} ({file.rsplit('/', 1)[-1]}:{line}): {error}") from error
        finally:
            self._space.write_back()
            if self._space.keeps_unwritten:
                world.irregularities += self._suspects

    def _groups(self, count: int, step: int) -> Iterator[Array]:
        """Yield the programs that run at once."""
        if self._world.simulates and count:
            yield np.unique([0, *range(max(count - _LAST, 0), count)])
            return
        order = np.arange(count)
        if self._world.reverses and not self._source.waits:
            order = order[::-1]
        for start in range(0, count, step):
            yield order[start : start + step]

    def _argument(self, name: str, x: Any) -> Any:
        while isinstance(x, tl.constexpr):
            x = x.value
        if _is_constexpr(self._source, name):
            return x
        if isinstance(x, torch.Tensor):
            return self._pointer(name, x)
        if isinstance(x, tuple | list):
            found = [self._argument(name, each) for each in x]
            return x._make(found) if hasattr(x, "_make") else tuple(found)
        if isinstance(x, bool | int | float):
            return to_value(x, self._precision)
        if hasattr(x, "block_shape") and hasattr(x, "base"):
            return self._descriptor(name, x)
        if hasattr(x, "data_ptr") and hasattr(x, "dtype"):  # a pointer that Triton reads as another type
            raise UnsupportedError(f"{self._source.name}: the argument {name} is a {type(x).__name__}: not interpreted")
        return x

    def _pointer(self, name: str, tensor: torch.Tensor) -> Value:
        dtype = _TYPES.get(tensor.dtype)
        if dtype is None or tensor.device.type not in ("cpu", "meta"):
            raise KernelError(f"{self._source.name}: the argument {name} is {tensor.dtype} on {tensor.device}")
        if self._world.lifts and dtype == tl.float64:
            dtype = tl.float32  # an input that the audit holds in float64: as the host's code, the kernel has float32
        at = self._space.pointer_to(tensor, name, dtype)
        return Value(np.array([at], np.int64), tl.pointer_type(dtype))

    def _descriptor(self, name: str, x: Any) -> Any:
        base = self._pointer(name, x.base)
        padding = getattr(x, "padding", "zero")
        make = BUILTINS["make_tensor_descriptor"]
        return make(self._machine, base, list(x.shape), list(x.strides), list(x.block_shape), padding)

    def _trace(self, stored: torch.Tensor) -> None:
        _, lines = self._world.stores.setdefault(storage_of(stored), (stored, set()))
        lines.add((self._source.name, *self._machine.place()))

    def _note(
        self, kind: Any, memory: Memory | None, element: int | None, program: int, what: str, rival: int | None = None
    ) -> None:
        file, line = self._machine.place()
        known = self._world.irregularities + self._suspects
        if any((each.kind, each.file, each.line) == (kind, file, line) for each in known):
            return
        name = "" if memory is None else str(memory)
        # Kernels load whole blocks, part of which nobody wrote, and choose the rest by `tl.where`.
        told = self._suspects if kind == "uninitialised-memory" else self._world.irregularities
        place, other = self._space.place(program), None if rival is None else self._space.place(rival)
        told.append(Irregularity(kind, self._source.name, file, line, place, name, element, what, other))


def _is_constexpr(source: Source, name: str) -> bool:
    annotation = source.signature.parameters[name].annotation
    return annotation is tl.constexpr or (isinstance(annotation, str) and annotation.endswith("constexpr"))


def pick(autotuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a kernel with one configuration of its autotuner: which one, the world says."""
    autotuner.nargs = dict(zip(autotuner.arg_names, args, strict=False))
    try:
        configs = autotuner.prune_configs(kwargs) if len(autotuner.configs) > 1 else autotuner.configs
        here = world()
        here.configurations = max(here.configurations, len(configs))
        chosen = here.config % len(configs)
        if here.specialises:
            for other in {len(configs) - 1, len(configs) // 2} - {chosen}:
                _run_configured(autotuner, configs[other], args, {**kwargs, "warmup": True})
        if here.tunes and len(configs) > 1 and (key := _key(autotuner, kwargs)) not in here.tuned:
            here.tuned.add(key)
            _benchmark(autotuner, configs[chosen], args, kwargs)
        return _run_configured(autotuner, configs[chosen], args, kwargs)
    finally:
        autotuner.nargs = None


def _run_configured(autotuner: Any, config: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    autotuner.best_config = config
    if config.pre_hook is not None:
        config.pre_hook({**autotuner.nargs, **kwargs, **config.all_kwargs()})
    return autotuner.fn.run(*args, **{**kwargs, **config.all_kwargs()})


def _key(autotuner: Any, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return an autotuner with the key of a launch: where Triton finds another one, it benchmarks again."""
    named = {name: x for name, x in {**autotuner.nargs, **kwargs}.items() if name in autotuner.arg_names}
    dtypes = (str(x.dtype) for x in named.values() if hasattr(x, "dtype"))
    return autotuner, *(named[name] for name in autotuner.keys if name in named), *dtypes


def _benchmark(autotuner: Any, config: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run a kernel as Triton does to measure a configuration, with the hooks that undo what it writes."""
    named = {**autotuner.nargs, **kwargs, **config.all_kwargs()}
    if config.pre_hook is not None:
        config.pre_hook(named)
    autotuner.pre_hook(named)
    autotuner.fn.run(*args, **{**kwargs, **config.all_kwargs()})
    autotuner.post_hook(named, exception=None)
    autotuner.pre_hook(named, reset_only=True)
