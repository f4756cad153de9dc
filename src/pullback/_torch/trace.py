"""Private PyTorch that graphs are traced with."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import fx

from pullback._torch.dynamo import import_dynamo
from pullback._torch.private import private

_decomposition_table = private("torch._decomp.decomposition_table")
_FakeTensorMode = private("torch._subclasses.fake_tensor.FakeTensorMode")
_get_proxy_mode = private("torch.fx.experimental.proxy_tensor.get_proxy_mode")
_make_fx = private("torch.fx.experimental.proxy_tensor.make_fx")


_TRACING = threading.RLock()
"""That a trace is running is a global of torch.fx, which two threads would leave wrong for good."""


_LENT = threading.local()
"""Of a thread that runs `apart`: it holds the lock of the one that waits for it."""


@contextmanager
def tracing() -> Iterator[None]:
    """Wait until no other thread traces; the thread that does may come in again.

    Its backward passes run in itself, as AOTAutograd's do. Autograd has one thread for all backward passes on a GPU:
    to wait for that one, which may be in a backward that waits to trace, would be for ever.
    """
    lock = nullcontext() if getattr(_LENT, "lock", False) else _TRACING
    with lock, torch.autograd.set_multithreading_enabled(False):
        yield


def apart(function: Callable[[], Any]) -> Any:
    """Call a function in a separate thread, where no transform, mode, tracer or autocast of this thread sees its ops.

    Relies on the states of all these being local to a thread. It may trace, while this thread waits for it.
    """
    outcome: list[Any] = []

    def run() -> None:
        _LENT.lock = True
        torch.get_num_threads()  # until it is asked, a new thread computes on as many as there are cores
        try:
            outcome.extend((function(), None))
        except BaseException as error:
            outcome.extend((None, error))

    _replace_guard()
    with tracing():
        thread = threading.Thread(target=run, name="pullback-apart")
        thread.start()
        thread.join()
    result, error = outcome
    if error is not None:
        raise error
    return result


def new_thread() -> ThreadPoolExecutor:
    """Return an executor with one thread, which no transform, mode or tracer of this thread reaches.

    Relies on the states of all these being local to a thread.
    """
    _replace_guard()
    return ThreadPoolExecutor(1)


@functools.cache
def _replace_guard() -> None:
    """Initialise, on a machine without a GPU, what the first fake tensor initialises, before a short-lived thread does.

    PyTorch replaces the guard of CUDA devices. In a CUDA build of 2.11 the process crashes once the thread that did so
    has ended. Relies on `torch._C._ensureCUDADeviceGuardSet`, which fake tensors call.
    """
    replace = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if replace is not None and not torch.cuda.is_available():
        replace()


fx.has_side_effect(torch.ops.aten._linalg_check_errors.default)
"""It has no result, only an error: torch.fx of PyTorch 2.11 would remove it from a graph as dead code."""


def trace_ops(function: Callable[..., Any], *tensors: torch.Tensor) -> fx.GraphModule:
    """Record the ATen ops of a call, without decompositions, on fake tensors.

    Relies on `torch.fx.experimental.proxy_tensor.make_fx` and its options. Without a table of decompositions, PyTorch
    2.15 and later write `alias` for `detach`: the derivative of such a graph differs from the formula's.
    """
    import_dynamo()
    with tracing():
        traced: fx.GraphModule = _make_fx(
            function, decomposition_table={}, tracing_mode="fake", _allow_non_fake_inputs=True
        )(*tensors)
    return traced


def trace_symbolic(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], table: dict[Any, Callable[..., Any]]
) -> fx.GraphModule:
    """Record the ATen ops of a call on fake tensors with symbolic sizes, with the ops in the table decomposed.

    Relies on `torch.fx.experimental.proxy_tensor.make_fx` and its options.
    """
    with tracing():
        traced: fx.GraphModule = _make_fx(
            function, decomposition_table=table, tracing_mode="symbolic", _allow_non_fake_inputs=True
        )(*tensors)
    return traced


def shape_guards(traced: fx.GraphModule) -> list[Any]:
    """Return the sympy conditions on the sizes that a graph of `trace_symbolic` holds for.

    Relies on `GraphModule.shape_env` and `ShapeEnv.guards`.
    """
    environment: Any = traced.shape_env
    return [environment.simplify(guard.expr) for guard in environment.guards]


def size_hints(tensor: torch.Tensor) -> list[int]:
    """Return the sizes that a tensor without values had in the example that was traced.

    Relies on `torch.SymInt.node.hint`.
    """
    return [s if isinstance(s, int) else int(s.node.hint) for s in tensor.shape]


def trace_for_sizes(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], varying: Collection[int]
) -> tuple[fx.GraphModule, bool]:
    """Record the ATen ops of a call on fake tensors; each size among `varying` is one symbol, which is not 0 nor 1.

    Returns:
        The graph, and whether nothing in it depends on the values of the symbols.

    Relies on `torch.fx.experimental.proxy_tensor.make_fx`, `FakeTensorMode.from_tensor`, `ConstantSource`, and of
    `torch.fx.experimental.symbolic_shapes` on `StatelessSymbolicContext`, `DimDynamic` and `ShapeEnv`, with its
    `guards`, `replacements`, `deferred_runtime_asserts` and `var_to_range`.
    """
    from torch._dynamo.source import ConstantSource  # late: they take a second
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    environment = ShapeEnv()
    mode = _FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    fakes = []
    for i, tensor in enumerate(tensors):
        how = [DimDynamic.DUCK if n in varying else DimDynamic.STATIC for n in tensor.shape]
        context: Any = StatelessSymbolicContext(dynamic_sizes=how)
        fakes.append(mode.from_tensor(tensor, source=ConstantSource(f"x{i}"), symbolic_context=context))
    before = dict(environment.var_to_range)
    with tracing():
        traced: fx.GraphModule = _make_fx(function, decomposition_table={}, _allow_non_fake_inputs=True)(*fakes)
    noted = (environment.guards, environment.replacements, environment.deferred_runtime_asserts)
    return traced, not any(noted) and environment.var_to_range == before


def example_of(number: Any) -> tuple[int, Any]:
    """Return a size's value in the traced example, and its sympy expression if it has symbols.

    Relies on `torch.SymInt.node`, its `hint` and its `expr`.
    """
    if not isinstance(number, torch.SymInt):
        return int(number), None
    expression: Any = number.node.expr
    return int(number.node.hint), expression if expression.free_symbols else None


def evaluated(expression: Any, symbols: Mapping[Any, int]) -> int:
    """Return the value of an expression in sizes.

    Relies on these being sympy's.
    """
    return int(expression.subs(symbols))


def decompositions() -> dict[str, list[tuple[Any, Callable[..., Any]]]]:
    """Return the decompositions of PyTorch's ops: for each name its overloads, each with a function in other ops.

    Relies on `torch._decomp.decomposition_table`.
    """
    found: dict[str, list[tuple[Any, Callable[..., Any]]]] = {}
    for op, made in _decomposition_table.items():
        packet = getattr(op, "overloadpacket", None)
        if packet is not None:
            found.setdefault(packet.__name__, []).append((op, made))
    return found


def size_symbols(tensor: torch.Tensor) -> list[Any]:
    """Return the sizes of a tensor without values: numbers, or sympy expressions.

    Relies on `torch.SymInt.node.expr`.
    """
    return [s if isinstance(s, int) else s.node.expr for s in tensor.shape]


def names_traced() -> list[str]:
    """Return the names of the nodes that `trace_ops`, which is running, has recorded so far.

    Relies on `torch.fx.experimental.proxy_tensor.get_proxy_mode` and its `tracer.graph`.
    """
    mode = _get_proxy_mode()
    assert mode is not None
    return [node.name for node in mode.tracer.graph.nodes]


def traced_value(node: fx.Node) -> torch.Tensor:
    """Return the tensor without data that a node of a graph had when `trace_ops` recorded it.

    Relies on `node.meta["val"]`.
    """
    value: torch.Tensor = node.meta["val"]
    return value
