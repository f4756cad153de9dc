"""Triton's front end, which types a kernel for one launch of it and needs no GPU: every use of its private API.

Triton itself binds the arguments of a launch: its own `JITFunction.run` is called until it would compile. So a
parameter that is 1 or `None` becomes a constant, and a tensor a pointer, as they do on a GPU. Then the front end alone
runs, for the GPU that host code is told of, an H100.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from traceback import walk_tb
from types import FunctionType
from typing import Any

from pullback.interpreter.worlds import Specialisation, World

_RAISED = re.compile(r"\w+\((?P<said>(?P<quote>[\"']).*(?P=quote)),?\)", re.DOTALL)
"""Matches the `repr` of an exception with one text, which the front end puts into a message."""
_OF_A_TARGET = "not supported in this architecture"
"""Part of the message on a type that other GPUs have."""
_SHOWN = 300
"""Characters of a message."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A launch whose kernel the front end refuses.

    Attributes:
        kernel: name of the kernel.
        file, line: the statement, in the kernel or in a function that it calls.
        message: what the front end says.
        arguments: parameters of the kernel with their types or values.
    """

    kernel: str
    file: str
    line: int
    message: str
    arguments: str


class _BoundError(Exception):
    """Ends a launch when its arguments are bound."""


def note(world: World, kernel: Any, args: tuple[Any, ...], options: Mapping[str, Any], launch: Any) -> None:
    """Record the specialisation of a launch in a world, unless it has it.

    Args:
        world: where kernels run.
        kernel: made by `triton.jit`.
        args: its positional arguments.
        options: its other arguments, and options of the compiler.
        launch: Triton's `JITFunction.run`, whose place another may have taken.
    """
    found = _specialised(kernel, args, options, launch)
    if found is not None:
        world.specialisations.setdefault(found.key, found)


def _specialised(
    kernel: Any, args: tuple[Any, ...], options: Mapping[str, Any], launch: Callable[..., Any]
) -> Specialisation | None:
    """Return the specialisation of a launch; `None` if Triton refuses its arguments, or has another API."""
    bound: list[tuple[Any, dict[str, Any]]] = []

    def compile_nothing(source: Any, target: Any = None, options: Any = None, **others: Any) -> None:
        bound.append((source, dict(options or {})))
        raise _BoundError

    with suppress(Exception):
        from triton.runtime import driver

        assert kernel.device_caches[driver.active.get_current_device()]  # which sets `compile`
        with _with_attributes(kernel, compile=compile_nothing, pre_run_hooks=[]):
            launch(kernel, *args, grid=(1,), warmup=True, **options)
    with suppress(Exception):
        for source, chosen in bound:
            return Specialisation(kernel.fn, source, chosen, _arguments(source))
    return None


@contextmanager
def _with_attributes(obj: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(obj, name) for name in values}
    try:
        for name, value in values.items():
            setattr(obj, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(obj, name, value)


def _arguments(source: Any) -> str:
    shown = []
    for index, (name, kind) in enumerate(source.signature.items()):
        shown.append(f"{name}={_constant(source.constants[index,])}" if kind == "constexpr" else f"{name}: {kind}")
    return ", ".join(shown)


def _constant(value: Any) -> str:
    value = getattr(value, "value", value)
    function = getattr(value, "fn", None)
    return str(function.__name__) if isinstance(function, FunctionType) else repr(value)


def refusal(specialisation: Specialisation) -> Refusal | None:
    """Run the front end; return its refusal, or `None` if there is none or Triton itself fails.

    A failed `static_assert` is no refusal: autotuners skip such configurations, and the interpreter checks it.
    """
    try:
        from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
    except ImportError:
        return None
    try:
        _run_front_end(specialisation)
    except CompilationError as error:
        chain = list(_chain(error, CompilationError))
        if isinstance(chain[-1], CompileTimeAssertionFailure):
            return None
        message = _said(chain[-1])
        if _OF_A_TARGET in message:
            return None
        file, line = next(filter(None, map(_place, reversed(chain))), _start(specialisation.function))
        return Refusal(specialisation.function.__name__, file, line, message, specialisation.arguments)
    except Exception:  # a fault of the compiler, or of the way it is called here
        return None
    return None


def refusals(world: World) -> list[Refusal]:
    """Run the front end on each launch that a world has recorded."""
    return [found for one in world.specialisations.values() if (found := refusal(one)) is not None]


def _run_front_end(specialisation: Specialisation) -> None:
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    options = backend.parse_options(dict(specialisation.options))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    known = {
        "target": target,
        "options": options,
        "codegen_fns": backend.get_codegen_implementation(options),
        "module_map": backend.get_module_map(),
        "context": context,
    }
    make = specialisation.source.make_ir
    make(**{name: known[name] for name in inspect.signature(make).parameters})


def _chain(error: BaseException | None, kind: type[BaseException]) -> Iterator[Any]:
    """Yield an error in a kernel, and those in the functions that it calls, of which it comes."""
    while isinstance(error, kind):
        yield error
        error = error.__cause__


def _said(error: Any) -> str:
    text = (error.error_message or str(error)).strip()
    if raised := _RAISED.fullmatch(text):
        with suppress(ValueError, SyntaxError):
            text = str(ast.literal_eval(raised["said"]))
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _place(error: Any) -> tuple[str, int] | None:
    """Return file and line of an error; `None` if it is in a function of Triton."""
    for frame, _ in walk_tb(error.__traceback__):
        called = getattr(frame.f_locals.get("self"), "jit_fn", None)
        if called is not None and called.src == error.src and not called.fn.__module__.startswith("triton."):
            file, first = _start(called.fn)
            return file, first + getattr(error.node, "lineno", 1) - 1
    return None


def _start(function: FunctionType) -> tuple[str, int]:
    """Return the file and the line of a `def` statement: Triton's lines of a kernel begin there."""
    lines, first = inspect.getsourcelines(function)
    before = next((n for n, line in enumerate(lines) if line.lstrip().startswith("def ")), 0)
    return inspect.getsourcefile(function) or "", first + before
