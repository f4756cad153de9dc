"""Graphs of ATen ops as terms."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.errors import FormulaError
from pullback.graph.trace import op_name
from pullback.ops.constants import VALUES
from pullback.ops.lowering import Operands
from pullback.ops.registry import BY_ATEN, CONDITIONS, OPS
from pullback.stable.term import CONST, Term, const, named, parse, topological, var, variables

_ZERO, _ONE = const(0), const(1)
_LOGICAL = frozenset(n for n in CONDITIONS if (of := OPS[n].lowering) and of.operands is Operands.TRUTHS)


def terms_of(module: fx.GraphModule, names: Sequence[str]) -> list[Term]:
    """Terms of the floating-point results of a graph, recorded on tensors of one shape and dtype.

    A Python number that is one of the known constants rounded to float64, or a simple multiple of one, means the
    constant; another float means the decimal that its author wrote.

    Args:
        module: a graph of ATen ops, as `introspect.trace` returns.
        names: names of the inputs.

    Raises:
        FormulaError: if an op is not pointwise or not in the table; it is named.
    """
    placeholders = module.graph.find_nodes(op="placeholder")
    found: dict[fx.Node, Any] = dict(zip(placeholders, map(var, names), strict=True))
    inputs = [_torch.traced_value(node) for node in placeholders]
    for node in module.graph.nodes:
        if node.op == "get_attr":
            found[node] = _of_tensor(getattr(module, node.target))
        elif node.op == "call_function":
            found[node] = _of_node(node, found, inputs[0])
    results: Any = module.graph.output_node().args[0]
    return [
        _number(found[out])
        for out in results
        if isinstance(out, fx.Node) and _torch.traced_value(out).is_floating_point()
    ]


def _of_node(node: fx.Node, found: Mapping[fx.Node, Any], like: Tensor) -> Any:
    name = op_name(node)
    if node.target is operator.getitem:  # of log_sigmoid_forward, whose second result is a buffer for its backward
        several: Any = node.args[0]
        return found[several] if node.args[1] == 0 else None
    if not _torch.is_dispatched_op(node.target):
        raise FormulaError(f"{name} is not a pointwise op of PyTorch")
    if _torch.is_mutable(node.target):
        raise FormulaError(f"{name} writes in place: give a formula that does not")
    given = _given(node, found)
    text = BY_ATEN[name].term(given) if name in BY_ATEN else None
    if text is None:
        raise FormulaError(f"{name} is not in the table of pointwise ops")
    result = node.meta["val"]
    result = result[0] if isinstance(result, tuple | list) else result
    term = _filled(parse(text), given)
    if variables(term):
        _ensure_pointwise(name, result, like)
    return _condition(term) if result.dtype == torch.bool else term


def _given(node: fx.Node, found: Mapping[fx.Node, Any]) -> dict[str, Any]:
    """Arguments of a node by name, numbers as terms."""
    parameters = _torch.op_parameters(node.target)
    given = {p.name: p.default for p in parameters if p.default is not p.empty}
    given |= dict(zip((p.name for p in parameters), node.args, strict=False))
    given |= node.kwargs
    return {name: _argument(value, found) for name, value in given.items()}


def _argument(value: Any, found: Mapping[fx.Node, Any]) -> Any:
    if isinstance(value, fx.Node):
        return found[value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return constant(value)
    return value


def _ensure_pointwise(name: str, result: Tensor, like: Tensor) -> None:
    if result.numel() != 1 and result.shape != like.shape:
        raise FormulaError(f"{name} changes the shape: accuracy is of pointwise formulas")
    if result.dtype.is_floating_point and torch.finfo(result.dtype).eps > torch.finfo(like.dtype).eps:
        narrow = str(result.dtype).removeprefix("torch.")
        raise FormulaError(f"{name} rounds to {narrow}, on wider inputs: that is not a formula of real numbers")
    if not (result.dtype.is_floating_point or result.dtype == torch.bool):
        raise FormulaError(f"{name} gives {str(result.dtype).removeprefix('torch.')}: not a formula of real numbers")


def _of_tensor(tensor: Tensor) -> Term:
    """Constant of a tensor that the formula closes over, if all its elements are equal."""
    values = tensor.detach().flatten()
    if not len(values) or not bool((values == values[0]).all()):
        raise FormulaError("the formula holds a tensor of several values: make it an input")
    if tensor.dtype == torch.bool:
        return Term("ne", (const(int(values[0])), _ZERO))
    if tensor.dtype == torch.float32:
        return constant(float(str(values[0].numpy())))
    return constant(values[0].item())


def constant(value: float) -> Term:
    """Exact constant of a number in a formula.

    Raises:
        FormulaError: if it is infinite or NaN.
    """
    if value != value or value in (float("inf"), float("-inf")):
        raise FormulaError(f"the formula has the constant {value}: there is no exact value with it")
    return _known().get(value) or const(value) if isinstance(value, float) else const(value)


@cache
def _known() -> dict[float, Term]:
    """Simple multiples of known constants and of their reciprocals, the simplest term first."""
    table: dict[float, Term] = {}
    for factor in (1, 2, Fraction(1, 2), 4, Fraction(1, 4), 3, Fraction(1, 3)):
        for sign in (1, -1):
            for name, value in VALUES.items():
                number, of = const(sign * factor), named(name)
                times = Term("neg", (of,)) if sign * factor == -1 else _fold("mul", (number, of))
                table.setdefault(sign * factor * value, times)
                table.setdefault(sign * factor / value, Term("div", (number, of)))
    return table


def _filled(template: Term, given: Mapping[str, Any]) -> Term:
    """Term of an ATen op with its arguments, truth values as 0 and 1, without adding 0 or multiplying by 1."""
    made: dict[Term, Term] = {}
    for term in topological([template]):
        if term.op == "var":
            value = given[term.value]
            made[term] = const(int(value)) if isinstance(value, bool) else value
        elif term.args:
            made[term] = _fold(term.op, tuple(made[a] for a in term.args))
        else:
            made[term] = term
    return made[template]


def _fold(op: str, args: tuple[Term, ...]) -> Term:
    wants = [op in _LOGICAL or (op == "where" and i == 0) for i in range(len(args))]
    args = tuple(_condition(a) if wanted else _number(a) for a, wanted in zip(args, wants, strict=True))
    if op == "mul" and _ONE in args:
        return args[1] if args[0] is _ONE else args[0]
    if op == "neg" and args[0].op == CONST:
        return const(-args[0].value)
    if (op == "div" and args[1] is _ONE) or (op in ("add", "sub") and args[1] is _ZERO):
        return args[0]
    return Term(op, args)


def _condition(term: Term) -> Term:
    return term if term.op in CONDITIONS else Term("ne", (term, _ZERO))


def _number(term: Term) -> Term:
    return Term("where", (term, _ONE, _ZERO)) if term.op in CONDITIONS else term
