"""ATen ops in PyTorch's public names: infix where Python has an operator, a method or a function elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.errors import FormulaError
from pullback.ops.registry import BY_ATEN
from pullback.write.expressions import (
    AND,
    ATOM,
    COMPARE,
    OR,
    PRODUCT,
    SUM,
    XOR,
    Context,
    Text,
    infix,
    op_name,
    options_of,
)
from pullback.write.special import SPECIAL

_LEVELS = {
    **dict.fromkeys(("*", "/", "//", "%", "@"), PRODUCT),
    **dict.fromkeys(("+", "-"), SUM),
    "&": AND,
    "|": OR,
    "^": XOR,
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), COMPARE),
}
"""Python's operators and how strongly they bind."""
_SYMBOLS = {
    **{name: op.symbol for name, op in BY_ATEN.items() if op.symbol},
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "matmul"), "@"),
    "true_divide": "/",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",  # of sizes, by Python's own functions
}
_OF_TENSORS = """
    sum mean prod amax amin argmax argmin all any cumsum cumprod clone gather scatter scatter_add index_add
    index_select index_copy index_fill masked_select masked_scatter expand reshape squeeze unsqueeze
    permute transpose flip roll tril triu diagonal diag_embed repeat var std logsumexp max min unfold narrow sort
    topk kthvalue median new_zeros new_ones new_full new_empty detach contiguous argsort unbind
    split select_scatter slice_scatter diagonal_scatter as_strided index_put norm trace sum_to_size
"""
_METHODS = frozenset([*_OF_TENSORS.split(), *(name for name, op in BY_ATEN.items() if op.is_method)])
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


def spelled(node: fx.Node, context: Context) -> Text:
    """Return a node as an expression of its arguments.

    Raises:
        FormulaError: if its op has no public name.
    """
    name = op_name(node)
    if name in SPECIAL and (found := SPECIAL[name](node, context)) is not None:
        return found
    if name in _SYMBOLS and len(node.args) == 2 and not options_of(node):
        return infix(_SYMBOLS[name], _LEVELS[_SYMBOLS[name]], *map(context.show, node.args))
    return _called(node, name, context)


def _called(node: fx.Node, name: str, context: Context) -> Text:
    parameters = _torch.op_parameters(node.target) if _torch.is_dispatched_op(node.target) else []
    function = _public(name, node, context)
    arguments = list(node.args)
    if function == "":
        function = f"{context.show(arguments.pop(0)).at(ATOM)}.{name}"
        parameters = parameters[1:]
    shown = [_argument(a, p.name, context) for a, p in zip(arguments, parameters, strict=False)]
    shown += [f"{k}={_value(k, v, context)}" for k, v in options_of(node).items() if k not in ("layout", "pin_memory")]
    return Text(f"{function}({', '.join(shown)})")


def _public(name: str, node: fx.Node, context: Context) -> str:
    """Return the name of the public function, or "" for a method of the first argument."""
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
    raise FormulaError(f"it uses {node.target}, which has no public name.")


def _argument(value: Any, name: str, context: Context) -> str:
    named = value is None or isinstance(value, bool) or name in ("correction", "dtype", "keepdim")
    return f"{name}={_value(name, value, context)}" if named else _value(name, value, context)


def _value(name: str, value: Any, context: Context) -> str:
    if isinstance(value, torch.dtype):
        return context.dtype_of(value)
    if isinstance(value, torch.device):
        return f"{context.like}.device"
    if isinstance(value, list | tuple) and len(value) == 1 and name in ("dim", "dims"):
        return context.show(value[0]).text
    return context.show(value).text
