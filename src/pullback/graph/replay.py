"""A graph in place of a formula, derivative included: refused if the formula does what a graph of values omits."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.graph.facts import Flat
from pullback.graph.functional import functionalise

_ALIASES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift_fresh.default)


def graph_of(flat: Flat, tensors: Sequence[Tensor], wanted: Sequence[int]) -> fx.GraphModule | str:
    """Return the graph of a formula's value, free of writes, or why no graph can replace the formula.

    The derivative of its ops must be the formula's: the graph shows neither a `no_grad` nor a separately given
    derivative (a Function's, a rule's).
    """

    def value(*given: Tensor) -> list[Any]:
        for i in wanted:
            given[i].requires_grad_()
        with torch.enable_grad():
            return flat(*given)

    module = _torch.trace_ops(value, *(x.detach() for x in tensors))
    written = functionalise(module.graph)
    copied = next((node for node in module.graph.nodes if node.target is torch.ops.aten.copy.default), None)
    if (left := written or copied) is not None:  # `copy` has no derivative, which `copy_` has
        return f"it works in place ({left.target})"
    module.graph.eliminate_dead_code()
    module.recompile()
    if wanted and not _same_derivative(flat, lambda *given: list(module(*given)), tensors, wanted):
        return "its derivative is not that of its ops: it has a no_grad (use detach) or a derivative that is given"
    return module


def _same_derivative(one: Flat, other: Flat, tensors: Sequence[Tensor], wanted: Sequence[int]) -> bool:
    """Whether two functions of one result are the same computation, and so are their gradients."""
    numbers: dict[Any, int] = {}
    found = []
    for flat in (one, other):

        def both(*given: Tensor, flat: Flat = flat) -> list[Any]:
            primals = [x.detach().requires_grad_() if i in wanted else x.detach() for i, x in enumerate(given)]
            with torch.enable_grad():
                (out,) = flat(*primals)
                if not out.requires_grad:
                    return [out]
                return [out, *torch.autograd.grad(out, [primals[i] for i in wanted], allow_unused=True)]

        found.append(_numbered(_torch.trace_ops(both, *(x.detach() for x in tensors)), numbers))
    return bool(found[0] == found[1])


def _numbered(module: fx.GraphModule, numbers: dict[Any, int]) -> Any:
    """Return the results of a graph as numbers that are equal for equal expressions."""
    functionalise(module.graph)
    known: dict[fx.Node, int] = {}
    for i, node in enumerate(module.graph.nodes):
        key: Any
        if node.op == "output":
            return repr(fx.node.map_arg(node.args[0], lambda a: known[a]))
        if node.op == "placeholder":
            key = ("input", i)
        elif node.op == "get_attr":
            constant: Tensor = operator.attrgetter(str(node.target))(module)
            key = ("constant", str(constant.dtype), repr(constant.tolist()))
        elif node.target in _ALIASES:
            known[node] = known[node.args[0]]
            continue
        else:
            given = fx.node.map_arg((node.args, node.kwargs), lambda a: known[a])
            key = (node.target, repr(given))
        known[node] = numbers.setdefault(key, len(numbers))
    raise AssertionError("a graph has an output")
