"""Which kernels compute the graphs of ops: our own where they can, or PyTorch's one by one."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, get_args

import torch
from torch import Tensor, fx

from pullback import _torch, settings
from pullback.errors import OptionError, RunnerError
from pullback.graph.decisions import round_before_choices
from pullback.graph.trace import simplify
from pullback.kernels import build, eager, inductor, native
from pullback.settings import Backend as Backend

_NAMED = ("cpu", "cuda")
_AUTO = ("cpu",) if torch.version.hip else _NAMED
"""Kinds of devices whose tensors our kernels compute under "native", and under "auto". "auto" leaves out GPUs of AMD,
which PyTorch calls "cuda" as well: kernels for them were compiled, and never run."""


def set_backend(name: Backend) -> None:
    """Choose the kernels of all ops of this process that do not name their own.

    Args:
        name: "native", fused kernels compiled here, for pointwise parts of graphs; "inductor", whole graphs compiled
            by PyTorch's Inductor, which may lose what stable forms gain; "eager", PyTorch's kernels one by one, whose
            values are those of the formula bit for bit; "auto", native for tensors on the CPU and on GPUs of
            NVIDIA where there is a C++ compiler and a processor that they are written for, eager otherwise.

    Raises:
        OptionError: for any other name.
    """
    settings.set_backend(checked(name))


def backend(name: Backend) -> AbstractContextManager[None]:
    """Return a context manager that has a backend for a while: `with pullback.backend("eager"): …`.

    It holds for the whole process, as `set_backend` does, whose names it takes.

    Raises:
        OptionError: for any other name.
    """
    return _chosen(checked(name))


@contextmanager
def _chosen(name: Backend) -> Iterator[None]:
    before = settings.chosen()
    settings.set_backend(name)
    try:
        yield
    finally:
        settings.set_backend(before)


def checked(name: Backend) -> Backend:
    """Return the name of a backend, validated.

    Raises:
        OptionError: for any other name.
    """
    if name not in get_args(Backend):
        raise OptionError(f"a backend is one of {', '.join(get_args(Backend))}, not {name!r}.")
    return name


def is_compiled(name: Backend) -> bool:
    """Whether a backend compiles kernels on this machine."""
    return name in ("native", "inductor") or (name == "auto" and _is_there())


def packs_bits(name: Backend) -> bool:
    """Whether a backend has kernels that pack truth values into bits: in PyTorch's that takes ten passes."""
    return name != "inductor" and is_compiled(name)


def made_for(name: Backend) -> Hashable:
    """Return the settings, besides the graph, that a backend's kernels depend on: a change invalidates them."""
    return (name, *inductor.settings()) if name == "inductor" else name


@functools.cache
def _is_there() -> bool:
    try:
        build.require()
    except RunnerError as error:
        _warn(str(error))
        return False
    return True


def lower(modules: Sequence[fx.GraphModule], exact: Sequence[bool], name: Backend) -> list[tuple[fx.GraphModule, Any]]:
    """Lower each graph: return a pair of graph and function, or of graph and `inductor.ForSizes`.

    Args:
        modules: the graphs.
        exact: for each graph, whether its results must be bit-identical to PyTorch's kernels.
        name: name of the backend; "native" takes precedence over `exact`.

    Raises:
        RunnerError: if the backend is "native" and cannot compile.
    """
    if name == "inductor":
        return [(module, inductor.lowered(module, _warn)) for module in modules]
    lowered = list(modules)
    if is_compiled(name):
        try:
            named = name == "native"
            devices = _NAMED if named else _AUTO
            lowered = native.lowered(modules, [bits and not named for bits in exact], devices)
        except RunnerError as error:
            if name == "native":
                raise
            _warn(str(error))
    return [(module, eager.lower(module)) for module in lowered]


def compiled(function: Callable[..., Tensor], name: Backend) -> Callable[..., Tensor]:
    """Return a function of tensors that traces itself at each call and runs the lowered graph."""

    def run(*tensors: Tensor) -> Tensor:
        graph = _torch.trace_ops(lambda *xs: [function(*xs)], *tensors)
        simplify(graph.graph)
        round_before_choices(graph.graph, graph.graph.output_node().all_input_nodes)
        ((_, call),) = lower([graph], [False], name)
        result: Tensor = call(*tensors)[0]
        return result

    return run


_warned: set[str] = set()


def _warn(why: str) -> None:
    if why not in _warned:
        _warned.add(why)
        warnings.warn(f"ops run in PyTorch's kernels one by one: {why.rstrip('.')}.", stacklevel=2)
