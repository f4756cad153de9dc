"""A graph as one Python function that calls PyTorch's kernels one by one.

`fx.GraphModule` does the same at about twice the price of a call: it looks each op up by its dotted name every
time, and goes through the dispatcher's boxed calls, where PyTorch's own bindings are faster.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import fx

from pullback import _torch

# Beside its reader: this is about PyTorch's Python bindings, and some of these ops have no record.
_UNARY = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh digamma erf erfc erfinv exp exp2 expm1 floor frac isnan lgamma "
    "log log10 log1p log2 logical_not neg reciprocal relu round rsqrt sgn sigmoid sign signbit sin sinh sqrt "
    "tan tanh trunc"
)
_BINARY = "add div eq ge gt le lt mul ne sub"
_OTHER: tuple[str, ...] = (
    "atan2.default",
    "maximum.default",
    "minimum.default",
    "mm.default",
    "bmm.default",
    "addmm.default",
)
_OTHER += ("pow.Tensor_Tensor", "pow.Tensor_Scalar", "where.self", "masked_fill.Scalar", "clone.default")

BINDINGS: dict[Any, Callable[..., Any]] = {
    getattr(getattr(torch.ops.aten, name), overload): getattr(torch, name)
    for name, overload in [
        *((name, "default") for name in _UNARY.split()),
        *((name, "Tensor") for name in _BINARY.split()),
        *(entry.split(".") for entry in _OTHER),
    ]
}
"""Ops that PyTorch's own bindings resolve to the same overload for all tensors and numbers."""


def lower(module: fx.GraphModule) -> Callable[..., list[Any]]:
    """Return a function of the graph's placeholders that returns the list of its results.

    Each value is dropped after its last use, so that memory peaks where it does under autograd.
    """
    writer = _Writer(module)
    for node in module.graph.nodes:
        writer.write(node)
    scope = writer.scope
    exec(compile("\n".join(writer.lines), f"<graph of {len(module.graph.nodes)} nodes>", "exec"), scope)
    run: Callable[..., list[Any]] = scope["run"]
    return run


def remade(run: Callable[..., Any], remake: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function that `lower` wrote with something else in place of each value that it refers to."""
    scope = {name: value if name == "__builtins__" else remake(value) for name, value in run.__globals__.items()}
    return FunctionType(run.__code__, scope)


class _Writer:
    """Writes the lines of a function; the objects that they refer to are in `scope`."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._names: dict[fx.Node, str] = {}
        self._last = {argument: node for node in module.graph.nodes for argument in node.all_input_nodes}
        self.scope: dict[str, Any] = {}
        self.lines = [f"def run({', '.join(f'x{i}' for i in range(len(module.graph.find_nodes(op='placeholder'))))}):"]

    def write(self, node: fx.Node) -> None:
        """Add the line of one node."""
        if node.op == "placeholder":
            self._names[node] = f"x{len(self._names)}"
        elif node.op == "get_attr":
            self._names[node] = self._bound(operator.attrgetter(str(node.target))(self._module))
        elif node.op == "output":
            self.lines.append(f"    return {self._text(_results(node))}")
        elif node.target is operator.getitem:
            self._assign(node, f"{self._text(node.args[0])}[{self._text(node.args[1])}]")
        else:
            arguments = [self._text(a) for a in node.args]
            arguments += [f"{name}={self._text(a)}" for name, a in node.kwargs.items()]
            self._assign(
                node,
                f"{self._bound(BINDINGS.get(node.target) or _torch.kernel_of(node.target))}({', '.join(arguments)})",
            )

    def _assign(self, node: fx.Node, text: str) -> None:
        self._names[node] = f"v{len(self._names)}"
        done = [self._names[a] for a in node.all_input_nodes if self._last[a] is node and a.op != "get_attr"]
        self.lines.append(f"    {self._names[node]} = {text}" + (f"; del {', '.join(done)}" if done else ""))

    def _text(self, argument: Any) -> str:
        if isinstance(argument, fx.Node):
            return self._names[argument]
        if isinstance(argument, list | tuple):
            inner = "".join(f"{self._text(a)}, " for a in argument)
            return f"[{inner}]" if isinstance(argument, list) else f"({inner})"
        if isinstance(argument, slice):
            return f"slice({self._text(argument.start)}, {self._text(argument.stop)}, {self._text(argument.step)})"
        return repr(argument) if type(argument) in (int, bool, type(None)) else self._bound(argument)

    def _bound(self, value: Any) -> str:
        name = f"c{len(self.scope)}"
        self.scope[name] = value
        return name


def _results(node: fx.Node) -> Sequence[Any]:
    (results,) = node.args
    assert isinstance(results, list | tuple)
    return results
