"""A formula as a graph of PyTorch's functions that holds for all shapes, by calling it with proxies of `torch.fx`.

Such a graph is accepted only if it computes the formula: on examples both run the same ATen ops, those of the gradient
included. This excludes everything that a proxy does not see: `no_grad`, a branch on `isinstance`, a random number.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.proxy import GraphAppendingTracer

from pullback import _torch
from pullback.errors import FormulaError, tell_mistake
from pullback.stable.written import as_written

_SHAPES = ((4, 4), (3,), (2, 4, 4), ())
"""Of all inputs of an example: squares go through matrix products too."""
_WRITING = frozenset(
    f"i{name}" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "matmul")
) | {"setitem", "delitem"}
_SETTINGS = torch.dtype | torch.device | torch.layout | torch.memory_format | type(...)


def variables_of(formula: Callable[..., Any], name: str) -> tuple[str, ...]:
    """Return the names of the parameters that a call has to give, all of them by position."""
    try:
        parameters = inspect.signature(formula).parameters.values()
    except (ValueError, TypeError):
        raise FormulaError(f"{name} does not say what it takes") from None
    needed = [p for p in parameters if p.default is p.empty]
    if not needed or any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in needed):
        raise FormulaError(f"{name} does not take a fixed number of tensors by position")
    return tuple(p.name for p in needed)


def recorded(formula: Callable[..., Any], names: Sequence[str], name: str) -> fx.Graph:
    """Return the graph of a formula, with placeholders of these names.

    Raises:
        FormulaError: if it decides by its tensors or their shapes, writes in place, or makes tensors.
    """
    graph = fx.Graph()
    tracer = GraphAppendingTracer(graph)
    tracer.root = None  # type: ignore[attr-defined]  # which an op among the functions asks for
    try:
        with as_written():
            result = formula(*(fx.Proxy(graph.placeholder(n), tracer) for n in names))
            graph.output(tracer.create_arg(result))
    except Exception as error:  # any error of a user's function or torch.fx
        tell_mistake(error, name)
        why = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise FormulaError(f"{name} cannot be recorded for all shapes: {why}") from error
    for node in graph.nodes:
        if _writes(node):
            raise FormulaError(f"{name} writes in place, with `{node.target}`: give a formula that does not")
        fx.node.map_aggregate((node.args, node.kwargs), lambda value: _require_plain(value, name))
    return graph


def _require_plain(value: Any, name: str) -> None:
    """Refuse arguments of a graph's nodes other than numbers and the like: a tensor made while recording."""
    if value is not None and not isinstance(value, fx.Node | int | float | complex | str | slice | _SETTINGS):
        raise FormulaError(f"{name} uses a {type(value).__name__} that is not among its inputs")


def _writes(node: fx.Node) -> bool:
    called = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = called.endswith("_") and not called.endswith("__")
    return node.op.startswith("call") and (in_place or called in _WRITING or "out" in node.kwargs)


def examples(function: Callable[..., Any], arity: int) -> Iterator[list[Tensor]]:
    """Yield tensors that a function takes."""
    for shape in _SHAPES:
        random = torch.Generator().manual_seed(0)
        tensors = [torch.rand(shape, generator=random, dtype=torch.float32, device="cpu") for _ in range(arity)]
        try:
            with as_written(), torch.no_grad():
                function(*tensors)
        except Exception:  # not a shape that it takes
            continue
        yield tensors


def ops_of(function: Callable[..., Any], tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return the ATen ops of a function and of its gradient, as text, and its result without tensors.

    Return nothing if it raises.
    """
    rest: list[Any] = []

    def both(*given: Tensor) -> list[Any]:
        xs = [x.detach().requires_grad_() for x in given]
        with torch.enable_grad():
            leaves, spec = _torch.tree_leaves(function(*xs))
        outs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        rest.append((spec, [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]))
        live = [out for out in outs if out.requires_grad]
        ones = [torch.ones_like(out) for out in live]
        slopes = torch.autograd.grad(live, xs, ones, allow_unused=True) if live else ()
        return [*outs, *slopes]

    try:
        with as_written(), _torch.without_fake_tensor_log():
            code = _torch.trace_ops(both, *tensors).code
    except Exception as error:  # any error of a user's function or the tracer
        tell_mistake(error)
        return ()
    return code, rest[-1]


def function_of(graph: fx.Graph) -> Callable[..., Any]:
    """Return a plain function that computes a graph without attributes; its parameters are the placeholders."""
    code = graph.python_code("self")
    scope = dict(code.globals)
    exec(compile(code.src, "<a formula in parts>", "exec"), scope)
    forward = scope["forward"]

    def function(*tensors: Any) -> Any:
        return forward(None, *tensors)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [node.name for node in graph.find_nodes(op="placeholder")]
    function.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])  # type: ignore[attr-defined]
    return function
