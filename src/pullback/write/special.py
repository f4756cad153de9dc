"""Ops that are not spelled as a plain call: shapes, indices, constants, and ops with unusual arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from pullback.write.expressions import (
    AND,
    ATOM,
    OR,
    POWER,
    PRODUCT,
    SIGN,
    SUM,
    XOR,
    Context,
    Text,
    infix,
    number,
    op_name,
    options_of,
)
from pullback.write.places import PLACES


def _add(node: Any, context: Context) -> Text | None:
    alpha = node.kwargs.get("alpha", 1)
    if alpha == 1:
        return None
    left, right = map(context.show, node.args)
    scaled = infix("*", PRODUCT, number(alpha), right)
    return infix("+" if op_name(node) == "add" else "-", SUM, left, scaled)


def _rsub(node: Any, context: Context) -> Text:
    left, right = map(context.show, node.args)
    alpha = (*node.args[2:], node.kwargs.get("alpha", 1))[0]
    scaled = left if alpha == 1 else infix("*", PRODUCT, number(alpha), left)
    return infix("-", SUM, right, scaled)


def _pow(node: Any, context: Context) -> Text:
    base, exponent = map(context.show, node.args)
    simple = all(part.text.removeprefix("-").replace(".", "").isalnum() for part in (base, exponent))
    return Text(f"{base.at(ATOM)}{'**' if simple else ' ** '}{exponent.at(SIGN)}", POWER)


def _neg(node: Any, context: Context) -> Text:
    inner = context.show(node.args[0])
    return Text(f"-({inner.text})" if inner.text.startswith("-") else f"-{inner.at(PRODUCT)}", SIGN)


def _not(node: Any, context: Context) -> Text | None:
    x: Any = node.args[0]
    boolean = x.meta["val"].dtype == torch.bool or op_name(node) == "bitwise_not"
    return Text(f"~{context.show(x).at(SIGN)}", SIGN) if boolean else None


def _logical(node: Any, context: Context) -> Text | None:
    both: Any = node.args
    if any(x.meta["val"].dtype != torch.bool for x in both):
        return None
    symbol, level = {"logical_and": ("&", AND), "logical_or": ("|", OR), "logical_xor": ("^", XOR)}[op_name(node)]
    return infix(symbol, level, *map(context.show, both))


def _div(node: Any, context: Context) -> Text | None:
    mode = node.kwargs.get("rounding_mode")
    above = _constant(node.args[0])
    if mode is None and above is not None and math.frexp(above)[0] == 0.5:  # then c / x, c · (1 / x), is as exact
        return infix("/", PRODUCT, number(above), context.show(node.args[1]))
    return infix("//", PRODUCT, *map(context.show, node.args)) if mode == "floor" else None


def _constant(node: Any) -> float | None:
    """Return the number in a tensor that a graph fills with it."""
    if isinstance(node, fx.Node) and op_name(node) in ("full", "full_like") and isinstance(node.args[1], int | float):
        return float(node.args[1]) if op_name(node) == "full_like" or not node.args[0] else None
    return None


def is_constant(node: fx.Node) -> bool:
    """Whether a node is one number in a tensor without dimensions."""
    empty = op_name(node) == "full" and not node.args[0]
    return empty or op_name(node) == "scalar_tensor" or _held(node) is not None


def _held(node: fx.Node) -> float | None:
    """Return the number that a graph holds in a tensor without dimensions, and copies."""
    source: Any = node.args[0] if op_name(node) == "lift_fresh_copy" else None
    if not isinstance(source, fx.Node) or source.op != "get_attr":
        return None
    value = getattr(source.graph.owning_module, str(source.target))
    return value.item() if value.dim() == 0 else None


def _mul(node: Any, context: Context) -> Text | None:
    first, second = node.args
    for filled, other in ((first, second), (second, first)):
        c = _constant(filled)
        if c is None or not isinstance(other, fx.Node) or filled.meta["val"].dtype != other.meta["val"].dtype:
            continue
        if other.meta["val"].shape == node.meta["val"].shape:
            return infix("*", PRODUCT, number(c), context.show(other))
    is_finite = _finite(node)
    return None if is_finite is None else Text(f"torch.isfinite({context.show(is_finite).text})")


def _finite(node: Any) -> Any:
    """Return the x of (x == x) * (|x| != inf), the decomposition of `torch.isfinite`."""
    same, bounded = node.args
    if not (isinstance(same, fx.Node) and isinstance(bounded, fx.Node)):
        return None
    x = same.args[0] if op_name(same) == "eq" and same.args[0] is same.args[1] else None
    size: Any = bounded.args[0] if op_name(bounded) == "ne" and bounded.args[1] == math.inf else None
    return x if x is not None and size is not None and op_name(size) == "abs" and size.args[0] is x else None


def _product_and_sum(node: Any, context: Context) -> Text | None:
    if options_of(node):
        return None
    start, left, right = map(context.show, node.args)
    return infix("+", SUM, start, infix("@", PRODUCT, left, right))


def _copied(node: Any, context: Context) -> Text:
    x: Any = node.args[0]
    held = _held(node)
    if held is not None:
        return Text(f"torch.tensor({number(held).text}, {_kind(node, context)})")
    dtype = node.kwargs.get("dtype")
    if not isinstance(dtype, torch.dtype) or dtype == x.meta["val"].dtype:
        return Text(f"{context.show(x).at(ATOM)}.clone()")
    short = {torch.float64: "double()", torch.bool: "bool()", torch.int64: "long()"}.get(dtype)
    if short is None or dtype == context.dtype:
        short = f"to({context.dtype_of(dtype)})"
    return Text(f"{context.show(x).at(ATOM)}.{short}")


def _softmax(node: Any, context: Context) -> Text:
    x, dim = node.args[:2]
    return Text(f"torch.{op_name(node)[1:]}({context.show(x).text}, {context.show(dim).text})")


def _item(node: Any, context: Context) -> Text:
    source, place = node.args
    shown = context.show(source)
    return shown if op_name(source) == "log_sigmoid_forward" else Text(f"{shown.at(ATOM)}[{place}]")


def _log_sigmoid(node: Any, context: Context) -> Text:
    """Return the first of its two results: the other is a buffer, which nothing that is written reads."""
    return Text(f"F.logsigmoid({context.show(node.args[0]).text})")


def _full(node: Any, context: Context) -> Text:
    name = op_name(node)
    sizes: Any = node.args[0]
    if name == "scalar_tensor":
        return Text(f"torch.tensor({context.show(sizes).text}, {_kind(node, context)})")
    value = [context.show(node.args[1]).text] if name == "full" else []
    return Text(f"torch.{name}({', '.join([context.show(list(sizes)).text, *value, _kind(node, context)])})")


def _kind(node: Any, context: Context) -> str:
    dtype = node.meta["val"].dtype
    return f"dtype={context.dtype_of(dtype)}, device={context.like}.device"


def _like(node: Any, context: Context) -> Text:
    shown = [context.show(a).text for a in node.args]
    dtype = node.kwargs.get("dtype")
    if isinstance(dtype, torch.dtype) and dtype != node.args[0].meta["val"].dtype:
        shown.append(f"dtype={context.dtype_of(dtype)}")
    return Text(f"torch.{op_name(node)}({', '.join(shown)})")


def _new(node: Any, context: Context) -> Text:
    x, *rest = node.args
    shown = [context.show(a).text for a in rest]
    dtype = node.kwargs.get("dtype")
    if isinstance(dtype, torch.dtype) and dtype != x.meta["val"].dtype:
        shown.append(f"dtype={context.dtype_of(dtype)}")
    return Text(f"{context.show(x).at(ATOM)}.{op_name(node)}({', '.join(shown)})")


def _where(node: Any, context: Context) -> Text:
    return Text(f"torch.where({', '.join(_scalar_or(a, context) for a in node.args)})")


def _scalar_or(value: Any, context: Context) -> str:
    """Return a tensor of one number, which `torch.where` takes as such, as that number."""
    if isinstance(value, fx.Node) and is_constant(value):
        held = _held(value)
        constant: Any = held if held is not None else value.args[op_name(value) == "full"]
        if isinstance(constant, bool | int | float):
            text = repr(float(constant) if value.meta["val"].is_floating_point() else constant)
            return text if text[-1].isdigit() or text in ("True", "False") else f'float("{text}")'
    return context.show(value).text


SPECIAL: dict[str, Callable[[Any, Context], Text | None]] = {
    "add": _add,
    "sub": _add,
    "rsub": _rsub,
    "pow": _pow,
    "neg": _neg,
    "div": _div,
    "mul": _mul,
    "bitwise_not": _not,
    "logical_not": _not,
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), _logical),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), _product_and_sum),
    **dict.fromkeys(("_to_copy", "clone", "lift_fresh_copy"), _copied),
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    "getitem": _item,
    "log_sigmoid_forward": _log_sigmoid,
    **dict.fromkeys(("full", "zeros", "ones", "empty", "scalar_tensor"), _full),
    **dict.fromkeys(("zeros_like", "ones_like", "full_like", "empty_like"), _like),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full", "new_empty"), _new),
    "sym_float": lambda node, context: context.show(node.args[0]),
    "where": _where,
    **PLACES,
}
