"""ATen ops as Python expressions: infix operators with Python's precedence, methods, and PyTorch's public functions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.errors import FormulaError
from pullback.ops.registry import BY_ATEN

COMPARE, OR, XOR, AND, SUM, PRODUCT, SIGN, POWER, ATOM = range(9)
"""Precedence of an expression, as in Python's grammar: a higher level binds more tightly."""

_LEVELS = {
    **dict.fromkeys(("*", "/", "//", "%", "@"), PRODUCT),
    **dict.fromkeys(("+", "-"), SUM),
    "&": AND,
    "|": OR,
    "^": XOR,
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), COMPARE),
}
"""Precedence of Python's operators."""


class Expression(NamedTuple):
    """An expression and its precedence."""

    text: str
    level: int = ATOM

    def at(self, level: int) -> str:
        """The expression as an operand of an operator with precedence `level`: in parentheses if necessary."""
        return self.text if self.level >= level else f"({self.text})"


class PrintContext:
    """Surroundings of an expression.

    Attributes:
        dtype: dtype of the example; in the text it is that of `like`.
        like: the name of an available tensor.
        show: prints an argument of an op.
    """

    def __init__(self, dtype: torch.dtype, like: str, show: Callable[[Any], Expression]) -> None:
        self.dtype, self.like, self.show = dtype, like, show

    def dtype_of(self, dtype: torch.dtype) -> str:
        """A dtype as text: the example's dtype becomes the tensors' dtype."""
        return f"{self.like}.dtype" if dtype == self.dtype else str(dtype)


def op_name(node: fx.Node) -> str:
    """Name of a node's op, without namespace and overload."""
    target: Any = node.target
    packet = getattr(target, "overloadpacket", None)
    return str(getattr(packet or target, "__name__", target))


def infix(symbol: str, left: Expression, right: Expression) -> Expression:
    """Two operands with an operator between them."""
    level = _LEVELS[symbol]
    tight = level if symbol in "&|^" else level + 1  # a * (b * c) and (a * b) * c round differently
    if symbol == "*" and _is_number(right) and not _is_number(left):
        left, right = right, left
    if symbol == "+" and right.level == ATOM and _is_number(right) and not _is_number(left):
        left, right = right, left
    if level == COMPARE:
        return Expression(f"{left.at(OR)} {symbol} {right.at(OR)}", level)
    if symbol == "+" and right.level == SIGN and right.text.startswith("-"):
        return Expression(f"{left.at(SUM)} - {right.text[1:]}", SUM)
    return Expression(f"{left.at(level)} {symbol} {right.at(tight)}", level)


def _is_number(text: Expression) -> bool:
    return re.fullmatch(r"-?[0-9.]+(e[+-]?[0-9]+)?", text.text) is not None


def number(value: complex) -> Expression:
    """A number as a literal, an integer if it is one."""
    if isinstance(value, float) and not math.isfinite(value):
        return Expression(f'float("{value}")')
    if isinstance(value, float) and value == int(value) and abs(value) < 1e15 and math.copysign(1, value) > 0:
        value = int(value)
    text = repr(value)
    return Expression(text, SIGN if text.startswith("-") else ATOM)


def sequence(values: Sequence[Any], context: PrintContext) -> Expression:
    """A tuple display."""
    shown = [context.show(v).text for v in values]
    return Expression(f"({shown[0]},)" if len(shown) == 1 else f"({', '.join(shown)})")


def options_of(node: fx.Node) -> dict[str, Any]:
    """Keyword arguments of a node that differ from their defaults."""
    return {k: v for k, v in node.kwargs.items() if v is not None and not (k == "alpha" and v == 1)}


_SYMBOLS = {
    **{name: op.symbol for name, op in BY_ATEN.items() if op.symbol},
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "matmul"), "@"),
    "true_divide": "/",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",  # of sizes, by Python's own functions
}
_TENSOR_METHODS = """
    sum mean prod amax amin argmax argmin all any cumsum cumprod clone gather scatter scatter_add index_add
    index_select index_copy index_fill masked_select masked_scatter expand reshape squeeze unsqueeze
    permute transpose flip roll tril triu diagonal diag_embed repeat var std logsumexp max min unfold narrow sort
    topk kthvalue median new_zeros new_ones new_full new_empty detach contiguous argsort unbind
    split select_scatter slice_scatter diagonal_scatter as_strided index_put norm trace sum_to_size
"""
_METHODS = frozenset([*_TENSOR_METHODS.split(), *(name for name, op in BY_ATEN.items() if op.is_method)])
_RENAMED = {
    "_softmax": "torch.softmax",
    "_log_softmax": "torch.log_softmax",
    "_adaptive_avg_pool2d": "F.adaptive_avg_pool2d",
}
_NAMESPACES = (
    ("torch", torch),
    ("F", torch.nn.functional),
    ("torch.special", torch.special),
    ("torch.linalg", torch.linalg),
)


def expression_of(node: fx.Node, context: PrintContext) -> Expression:
    """Print a node as an expression of its arguments.

    Raises:
        FormulaError: if its op has no public function.
    """
    name = op_name(node)
    if name in _SPECIAL and (found := _SPECIAL[name](node, context)) is not None:
        return found
    if name in _SYMBOLS and len(node.args) == 2 and not options_of(node):
        return infix(_SYMBOLS[name], *map(context.show, node.args))
    return _called(node, name, context)


def _called(node: fx.Node, name: str, context: PrintContext) -> Expression:
    parameters = _torch.op_parameters(node.target) if _torch.is_dispatched_op(node.target) else []
    function = _public(name, node, context)
    arguments = list(node.args)
    if function == "":
        function = f"{context.show(arguments.pop(0)).at(ATOM)}.{name}"
        parameters = parameters[1:]
    shown = [_argument(a, p.name, context) for a, p in zip(arguments, parameters, strict=False)]
    shown += [f"{k}={_value(k, v, context)}" for k, v in options_of(node).items() if k not in ("layout", "pin_memory")]
    return Expression(f"{function}({', '.join(shown)})")


def _public(name: str, node: fx.Node, context: PrintContext) -> str:
    """Name of the public function, or "" for a method of the first argument."""
    if name in _RENAMED:
        return _RENAMED[name]
    first = node.args[0] if node.args else None
    if name in _METHODS and isinstance(first, fx.Node) and isinstance(first.meta.get("val"), Tensor):
        return ""
    for prefix in ("special_", "linalg_"):
        if name.startswith(prefix) and hasattr(getattr(torch, prefix[:-1]), name.removeprefix(prefix)):
            return f"torch.{prefix[:-1]}.{name.removeprefix(prefix)}"
    for where, space in _NAMESPACES:
        if not name.startswith("_") and callable(getattr(space, name, None)):
            return f"{where}.{name}"
    if not name.startswith("_") and hasattr(Tensor, name):
        return ""
    raise FormulaError(f"it or its derivative needs {node.target}, an op without a public function in PyTorch.")


def _argument(value: Any, name: str, context: PrintContext) -> str:
    named = value is None or isinstance(value, bool) or name in ("correction", "dtype", "keepdim")
    return f"{name}={_value(name, value, context)}" if named else _value(name, value, context)


def _value(name: str, value: Any, context: PrintContext) -> str:
    if isinstance(value, torch.dtype):
        return context.dtype_of(value)
    if isinstance(value, torch.device):
        return f"{context.like}.device"
    if isinstance(value, list | tuple) and len(value) == 1 and name in ("dim", "dims"):
        return context.show(value[0]).text
    return context.show(value).text


def _transposed(node: Any, context: PrintContext) -> Expression:
    x: Any = node.args[0]
    return Expression(f"{context.show(x).at(ATOM)}.T") if x.meta["val"].dim() == 2 else context.show(x)


def _reshaped(node: Any, context: PrintContext) -> Expression:
    x, sizes = node.args[:2]
    method = "expand" if op_name(node) == "expand" else "reshape"
    return Expression(f"{context.show(x).at(ATOM)}.{method}({context.show(sizes).text})")


def _slice(node: Any, context: PrintContext) -> Expression:
    given = list(node.args)
    x, dim, start, end, step = given + [0, None, None, 1][len(given) - 1 :]
    place = dim % x.meta["val"].dim()
    last = end is None or (isinstance(end, int) and end >= 2**62)
    span = f"{'' if start in (0, None) else context.show(start).text}:{'' if last else context.show(end).text}"
    span += "" if step == 1 else f":{context.show(step).text}"
    return Expression(f"{context.show(x).at(ATOM)}[{', '.join([':'] * place + [span])}]")


def _select(node: Any, context: PrintContext) -> Expression:
    x, dim, index = node.args
    place = dim % x.meta["val"].dim()
    return Expression(f"{context.show(x).at(ATOM)}[{', '.join([':'] * place + [context.show(index).text])}]")


def _index(node: Any, context: PrintContext) -> Expression:
    x, indices = node.args
    shown = [":" if i is None else context.show(i).text for i in indices]
    return Expression(f"{context.show(x).at(ATOM)}[{', '.join(shown)}]")


def _index_put(node: Any, context: PrintContext) -> Expression | None:
    x, indices, values = node.args[:3]
    if any(i is None for i in indices):
        return None
    inside = ", ".join(context.show(i).text for i in indices)
    comma = "," if len(indices) == 1 else ""
    more = ", accumulate=True" if (*node.args[3:], node.kwargs.get("accumulate"))[0] else ""
    return Expression(f"{context.show(x).at(ATOM)}.index_put(({inside}{comma}), {context.show(values).text}{more})")


def _shape_entry(node: Any, context: PrintContext) -> Expression:
    return Expression(f"{context.show(node.args[0]).at(ATOM)}.shape[{node.args[1]}]")


def _numel(node: Any, context: PrintContext) -> Expression:
    return Expression(f"{context.show(node.args[0]).at(ATOM)}.numel()")


def _add(node: Any, context: PrintContext) -> Expression | None:
    alpha = node.kwargs.get("alpha", 1)
    if alpha == 1:
        return None
    left, right = map(context.show, node.args)
    scaled = infix("*", number(alpha), right)
    return infix("+" if op_name(node) == "add" else "-", left, scaled)


def _rsub(node: Any, context: PrintContext) -> Expression:
    left, right = map(context.show, node.args)
    alpha = (*node.args[2:], node.kwargs.get("alpha", 1))[0]
    scaled = left if alpha == 1 else infix("*", number(alpha), left)
    return infix("-", right, scaled)


def _pow(node: Any, context: PrintContext) -> Expression:
    base, exponent = map(context.show, node.args)
    simple = all(part.text.removeprefix("-").replace(".", "").isalnum() for part in (base, exponent))
    return Expression(f"{base.at(ATOM)}{'**' if simple else ' ** '}{exponent.at(SIGN)}", POWER)


def _neg(node: Any, context: PrintContext) -> Expression:
    inner = context.show(node.args[0])
    return Expression(f"-({inner.text})" if inner.text.startswith("-") else f"-{inner.at(PRODUCT)}", SIGN)


def _inverted(node: Any, context: PrintContext) -> Expression | None:
    x: Any = node.args[0]
    boolean = x.meta["val"].dtype == torch.bool or op_name(node) == "bitwise_not"
    return Expression(f"~{context.show(x).at(SIGN)}", SIGN) if boolean else None


def _logical(node: Any, context: PrintContext) -> Expression | None:
    both: Any = node.args
    if any(x.meta["val"].dtype != torch.bool for x in both):
        return None
    symbol = {"logical_and": "&", "logical_or": "|", "logical_xor": "^"}[op_name(node)]
    return infix(symbol, *map(context.show, both))


def _div(node: Any, context: PrintContext) -> Expression | None:
    mode = node.kwargs.get("rounding_mode")
    above = _fill_value(node.args[0])
    if mode is None and above is not None and math.frexp(above)[0] == 0.5:  # then c / x, c · (1 / x), is as exact
        return infix("/", number(above), context.show(node.args[1]))
    return infix("//", *map(context.show, node.args)) if mode == "floor" else None


def _fill_value(node: Any) -> float | None:
    """The number that `full` or `full_like` fills a tensor with."""
    if isinstance(node, fx.Node) and op_name(node) in ("full", "full_like") and isinstance(node.args[1], int | float):
        return float(node.args[1]) if op_name(node) == "full_like" or not node.args[0] else None
    return None


def is_constant(node: fx.Node) -> bool:
    """Whether a node is one number in a tensor without dimensions."""
    empty = op_name(node) == "full" and not node.args[0]
    return empty or op_name(node) == "scalar_tensor" or _graph_constant(node) is not None


def _graph_constant(node: fx.Node) -> float | None:
    """The number in a zero-dimensional constant of the graph, which `torch.tensor` leaves in a trace."""
    source: Any = node.args[0] if op_name(node) == "lift_fresh_copy" else None
    if not isinstance(source, fx.Node) or source.op != "get_attr":
        return None
    value = getattr(source.graph.owning_module, str(source.target))
    return value.item() if value.dim() == 0 else None


def _mul(node: Any, context: PrintContext) -> Expression | None:
    first, second = node.args
    for filled, other in ((first, second), (second, first)):
        c = _fill_value(filled)
        if c is None or not isinstance(other, fx.Node) or filled.meta["val"].dtype != other.meta["val"].dtype:
            continue
        if other.meta["val"].shape == node.meta["val"].shape:
            return infix("*", number(c), context.show(other))
    is_finite = _isfinite_operand(node)
    return None if is_finite is None else Expression(f"torch.isfinite({context.show(is_finite).text})")


def _isfinite_operand(node: Any) -> Any:
    """The x of (x == x) * (|x| != inf), the decomposition of `torch.isfinite`."""
    same, bounded = node.args
    if not (isinstance(same, fx.Node) and isinstance(bounded, fx.Node)):
        return None
    x = same.args[0] if op_name(same) == "eq" and same.args[0] is same.args[1] else None
    size: Any = bounded.args[0] if op_name(bounded) == "ne" and bounded.args[1] == math.inf else None
    return x if x is not None and size is not None and op_name(size) == "abs" and size.args[0] is x else None


def _product_and_sum(node: Any, context: PrintContext) -> Expression | None:
    if options_of(node):
        return None
    start, left, right = map(context.show, node.args)
    return infix("+", start, infix("@", left, right))


def _copied(node: Any, context: PrintContext) -> Expression:
    x: Any = node.args[0]
    held = _graph_constant(node)
    if held is not None:
        return Expression(f"torch.tensor({number(held).text}, {_dtype_and_device(node, context)})")
    dtype = node.kwargs.get("dtype")
    if not isinstance(dtype, torch.dtype) or dtype == x.meta["val"].dtype:
        return Expression(f"{context.show(x).at(ATOM)}.clone()")
    short = {torch.float64: "double()", torch.bool: "bool()", torch.int64: "long()"}.get(dtype)
    if short is None or dtype == context.dtype:
        short = f"to({context.dtype_of(dtype)})"
    return Expression(f"{context.show(x).at(ATOM)}.{short}")


def _softmax(node: Any, context: PrintContext) -> Expression:
    x, dim = node.args[:2]
    return Expression(f"torch.{op_name(node)[1:]}({context.show(x).text}, {context.show(dim).text})")


def _getitem(node: Any, context: PrintContext) -> Expression:
    source, place = node.args
    shown = context.show(source)
    return shown if op_name(source) == "log_sigmoid_forward" else Expression(f"{shown.at(ATOM)}[{place}]")


def _log_sigmoid(node: Any, context: PrintContext) -> Expression:
    """The first of two results: the other one is a buffer of PyTorch's backward, which is decomposed."""
    return Expression(f"F.logsigmoid({context.show(node.args[0]).text})")


def _full(node: Any, context: PrintContext) -> Expression:
    name = op_name(node)
    sizes: Any = node.args[0]
    if name == "scalar_tensor":
        return Expression(f"torch.tensor({context.show(sizes).text}, {_dtype_and_device(node, context)})")
    value = [context.show(node.args[1]).text] if name == "full" else []
    return Expression(
        f"torch.{name}({', '.join([context.show(list(sizes)).text, *value, _dtype_and_device(node, context)])})"
    )


def _dtype_and_device(node: Any, context: PrintContext) -> str:
    dtype = node.meta["val"].dtype
    return f"dtype={context.dtype_of(dtype)}, device={context.like}.device"


def _like(node: Any, context: PrintContext) -> Expression:
    shown = [context.show(a).text for a in node.args]
    dtype = node.kwargs.get("dtype")
    if isinstance(dtype, torch.dtype) and dtype != node.args[0].meta["val"].dtype:
        shown.append(f"dtype={context.dtype_of(dtype)}")
    return Expression(f"torch.{op_name(node)}({', '.join(shown)})")


def _new(node: Any, context: PrintContext) -> Expression:
    x, *rest = node.args
    shown = [context.show(a).text for a in rest]
    dtype = node.kwargs.get("dtype")
    if isinstance(dtype, torch.dtype) and dtype != x.meta["val"].dtype:
        shown.append(f"dtype={context.dtype_of(dtype)}")
    return Expression(f"{context.show(x).at(ATOM)}.{op_name(node)}({', '.join(shown)})")


def _where(node: Any, context: PrintContext) -> Expression:
    return Expression(f"torch.where({', '.join(_scalar_or(a, context) for a in node.args)})")


def _scalar_or(value: Any, context: PrintContext) -> str:
    """A constant as a number, which `torch.where` accepts; anything else as usual."""
    if isinstance(value, fx.Node) and is_constant(value):
        held = _graph_constant(value)
        constant: Any = held if held is not None else value.args[op_name(value) == "full"]
        if isinstance(constant, bool | int | float):
            text = repr(float(constant) if value.meta["val"].is_floating_point() else constant)
            return text if text[-1].isdigit() or text in ("True", "False") else f'float("{text}")'
    return context.show(value).text


# Not in the registry: these printers know the printer's context, and most of their ops are not pointwise.
_SPECIAL: dict[str, Callable[[Any, PrintContext], Expression | None]] = {
    "add": _add,
    "sub": _add,
    "rsub": _rsub,
    "pow": _pow,
    "neg": _neg,
    "div": _div,
    "mul": _mul,
    "bitwise_not": _inverted,
    "logical_not": _inverted,
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), _logical),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), _product_and_sum),
    **dict.fromkeys(("_to_copy", "clone", "lift_fresh_copy"), _copied),
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    "getitem": _getitem,
    "log_sigmoid_forward": _log_sigmoid,
    **dict.fromkeys(("full", "zeros", "ones", "empty", "scalar_tensor"), _full),
    **dict.fromkeys(("zeros_like", "ones_like", "full_like", "empty_like"), _like),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full", "new_empty"), _new),
    "sym_float": lambda node, context: context.show(node.args[0]),
    "where": _where,
    "t": _transposed,
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "expand"), _reshaped),
    "slice": _slice,
    "select": _select,
    "index": _index,
    "index_put": _index_put,
    "sym_size": _shape_entry,
    "sym_numel": _numel,
}
"""Printers of ops that are no plain call, by name; `None` from one leaves the op to the general printer."""
