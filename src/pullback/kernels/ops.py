"""ATen ops that our kernels compute: a table of expressions that are valid in C++ and in Triton.

The functions in it are those of `include/ops.h` and `include/ops.py`.

An op that is not listed, or is called with other arguments, is left to PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback.graph.extents import Extent

aten = torch.ops.aten

COMPUTED = {torch.float32: "F", torch.float64: "D", torch.bfloat16: "F", torch.float16: "F", torch.bool: "M"}
"""Vector type in which values of a dtype are computed; 16-bit ones in float32."""
STORED = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "bfloat",
    torch.float16: "half",
    torch.bool: "boolean",
}

_UNARY = (
    "abs neg exp exp2 expm1 log log1p log2 log10 sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh asinh "
    "acosh atanh erf erfc lgamma floor ceil trunc frac sign sgn relu sigmoid silu hardsigmoid hardswish"
)
_BINARY = "maximum minimum atan2 hypot logaddexp sigmoid_backward tanh_backward silu_backward"
_COMPARISONS = "lt le gt ge eq ne"

Arguments = Sequence[Any]
"""Operands as text, numbers as `Number`."""


class NotOursError(Exception):
    """A call of an op that our kernels do not compute."""


def _call(name: str, count: int) -> Callable[[Arguments], str]:
    def write(given: Arguments) -> str:
        if len(given) < count:
            raise NotOursError(name)
        return f"{name}({', '.join(map(str, given[:count]))})"

    return write


def _plain(arguments: Arguments, count: int, *rest: Any) -> Arguments:
    """Return the first arguments; the others must have their default values."""
    if len(arguments) < count or tuple(arguments[count:]) != rest[: len(arguments) - count]:
        raise NotOursError
    return arguments[:count]


def _infix(sign: str) -> Callable[[Arguments], str]:
    def write(given: Arguments) -> str:
        a, b = given
        return f"{a} {sign} {b}"

    return write


def _sum(sign: str) -> Callable[[Arguments], str]:
    """Return the writer of a + alpha b, fused into an fma as PyTorch does."""

    def write(given: Arguments) -> str:
        a, b, *alpha = given
        if not alpha or alpha[0].value == 1:
            return f"{a} {sign} {b}"
        return f"fma({Number(alpha[0].value * (1 if sign == '+' else -1))}, {b}, {a})"

    return write


def _pow(given: Arguments) -> str:
    """Return a power as PyTorch computes it: of some exponents without `pow`."""
    base, exponent = given
    known = {
        0.5: "sqrt({0})",
        1.0: "{0}",
        2.0: "square({0})",
        3.0: "cube({0})",
        -0.5: "rsqrt({0})",
        -1.0: "reciprocal({0})",
        -2.0: "reciprocal(square({0}))",
    }
    return known.get(getattr(exponent, "value", math.nan), "pow({0}, {1})").format(base, exponent)


def _clamp(given: Arguments) -> str:
    """Write an extreme whose second operand is the value: where it equals a bound, as −0 does 0, PyTorch keeps it."""
    value, *bounds = given
    lower, upper = [*bounds, None, None][:2]
    text = str(value) if lower is None else f"maximum({lower}, {value})"
    return text if upper is None else f"minimum({upper}, {text})"


def _clamp_max(given: Arguments) -> str:
    value, upper = given
    return f"minimum({upper}, {value})"


def _gelu(suffix: str, count: int) -> Callable[[Arguments], str]:
    def write(given: Arguments) -> str:
        kind = given[count] if len(given) > count else "none"
        name = {"none": "gelu", "tanh": "gelu_tanh"}.get(getattr(kind, "value", kind))
        return f"{name}{suffix}({', '.join(map(str, given[:count]))})"

    return write


def _elu(given: Arguments) -> str:
    x, *rest = given
    return f"elu({', '.join(map(str, [x, *rest, *(Number(1.0), Number(1.0), Number(1.0))[len(rest) :]]))})"


def _celu(given: Arguments) -> str:
    x, alpha = [*given, Number(1.0)][:2]
    return f"elu({x}, {alpha}, {Number(1.0)}, {Number(1.0 / alpha.value)})"


def _elu_backward(given: Arguments) -> str:
    g, alpha, scale, input_scale, is_result, x = given
    name = "elu_backward_of_result" if is_result.value else "elu_backward"
    return f"{name}({g}, {alpha}, {scale}, {input_scale}, {x})"


def _leaky(given: Arguments) -> str:
    x, slope = [*given, Number(0.01)][:2]
    return f"leaky_relu({x}, {slope})"


def _hardtanh(given: Arguments) -> str:
    x, *bounds = given
    lower, upper = bounds or (Number(-1.0), Number(1.0))
    return _clamp((x, lower, upper))


def _addcmul(given: Arguments) -> str:
    a, b, c, value = [*given, Number(1.0)][:4]
    return f"fma({value} * {b}, {c}, {a})"


def _addcdiv(given: Arguments) -> str:
    a, b, c, value = [*given, Number(1.0)][:4]
    return f"{a} + div({value} * {b}, {c})"


def _logit(name: str, count: int) -> Callable[[Arguments], str]:
    return lambda given: f"{name}({', '.join(map(str, _plain(given, count, None)))})"


def _round(given: Arguments) -> str:
    return f"round({_plain(given, 1)[0]})"


class Number:
    """A number among the arguments; its text is a vector of the type that the op computes in."""

    def __init__(self, value: Any, vector: str = "V") -> None:
        self.value, self.vector = value, vector

    def __str__(self) -> str:
        number = float(self.value)
        if number == 0 and math.copysign(1, number) < 0:  # Triton makes every zero that it is given positive
            return f"neg(set_{self.vector}(0.0))"
        return f"set_{self.vector}({_literal(number)})"


def _literal(number: float) -> str:
    """Return a number as C++ and Python write it."""
    if math.isnan(number):  # as a global constant of a Triton kernel, NaN fails Triton's check that it is unchanged
        return "INF - INF"
    return ("-" if number < 0 else "") + "INF" if math.isinf(number) else repr(number)


def softplus_sum(x: Tensor, scaled: Tensor, tail: Tensor, beta: float, threshold: float) -> Tensor:
    """Return softplus of `scaled` = beta x, over beta, of log(1 + exp(−|scaled|)), or x beyond a threshold."""
    return torch.where(scaled > threshold, x, (scaled.clamp_min(0) + tail) / beta)


def softplus_slope(g: Tensor, share: Tensor, scaled: Tensor, threshold: float) -> Tensor:
    """Return a cotangent times the slope of softplus, which is `share`, or 1 beyond a threshold."""
    return torch.where(scaled > threshold, g, g * share)


def tanh_softplus(x: Tensor, e: Tensor) -> Tensor:
    """Return tanh(softplus(x)) as a start, 1 or e, less a correction, with e = exp(−|x|).

    With t = 1 + eˣ, tanh(log t) = (t² − 1) / (t² + 1). For x > 0 that is 1 − 2 e² / (2 (e² + e) + 1); otherwise, with
    e = eˣ, it is e − e² (e + 1) / (e² + 2 (e + 1)). The correction is at most 2/5 of the start, so no digits cancel.
    """
    above, square = x > 0, e * e
    start, share = torch.where(above, 1.0, e), torch.where(above, 2.0, e + 1)
    return start - square * share / torch.where(above, 2 * (square + e) + 1, square + 2 * (e + 1))


FLOATING: Mapping[Any, Callable[[Arguments], str]] = {
    **{getattr(aten, name).default: _call(name, 1) for name in _UNARY.split() if hasattr(aten, name)},
    **{getattr(aten, name).default: _call(name, 2) for name in _BINARY.split()},
    aten.sgn.default: _call("sign", 1),
    aten.round.default: _round,
    aten.add.Tensor: _sum("+"),
    aten.sub.Tensor: _sum("-"),
    aten.mul.Tensor: _infix("*"),
    aten.div.Tensor: _call("div", 2),
    aten.add.Scalar: _sum("+"),
    aten.sub.Scalar: _sum("-"),
    aten.mul.Scalar: _infix("*"),
    aten.div.Scalar: _call("div", 2),
    aten.rsub.Scalar: lambda given: _sum("-")([given[1], given[0], *given[2:]]),
    aten.pow.Tensor_Scalar: _pow,
    aten.pow.Tensor_Tensor: _call("pow", 2),
    aten.pow.Scalar: _call("pow", 2),
    aten.clamp.default: _clamp,
    aten.clamp_min.default: _clamp,
    aten.clamp_max.default: _clamp_max,
    aten.hardtanh.default: _hardtanh,
    aten.hardtanh_backward.default: _call("hardtanh_backward", 4),
    aten.threshold.default: _call("threshold", 3),
    aten.threshold_backward.default: _call("threshold_backward", 3),
    aten.leaky_relu.default: _leaky,
    aten.leaky_relu_backward.default: _call("leaky_relu_backward", 3),
    aten.elu.default: _elu,
    aten.celu.default: _celu,
    aten.elu_backward.default: _elu_backward,
    softplus_sum: _call("softplus_sum", 5),
    softplus_slope: _call("softplus_slope", 4),
    tanh_softplus: _call("tanh_softplus", 2),
    aten.gelu.default: _gelu("", 1),
    aten.gelu_backward.default: _gelu("_backward", 2),
    aten.logit.default: _logit("logit", 1),
    aten.logit_backward.default: _logit("logit_backward", 2),
    aten.xlogy.Tensor: _call("xlogy", 2),
    aten.special_xlog1py.default: _call("xlog1py", 2),
    aten.addcmul.default: _addcmul,
    aten.addcdiv.default: _addcdiv,
    aten.clone.default: _call("", 1),
    aten.alias.default: _call("", 1),
    aten.detach.default: _call("", 1),
}
"""Ops on numbers: all operands are brought to the dtype of the result."""

MIRRORED: Mapping[Any, str] = {aten.abs.default: "abs", aten.sigmoid.default: "mirrored_sigmoid"}
"""Functions that compute f(−x) of x, with the bits of f(−x)."""

COMPARING: Mapping[Any, Callable[[Arguments], str]] = {
    **{
        getattr(getattr(aten, name), kind): _call(name, 2)
        for name in _COMPARISONS.split()
        for kind in ("Tensor", "Scalar")
    },
    aten.isnan.default: _call("isnan", 1),
    aten.isinf.default: _call("isinf", 1),
}
"""Ops from numbers to truth values: operands are brought to the dtype that they have in common."""

LOGICAL: Mapping[Any, Callable[[Arguments], str]] = {
    aten.logical_not.default: lambda given: f"~{given[0]}",
    aten.bitwise_not.default: lambda given: f"~{given[0]}",
    **{
        getattr(aten, name).default: _infix(sign)
        for name, sign in [("logical_and", "&"), ("logical_or", "|"), ("logical_xor", "^")]
    },
    **{
        getattr(aten, name).Tensor: _infix(sign)
        for name, sign in [("bitwise_and", "&"), ("bitwise_or", "|"), ("bitwise_xor", "^")]
    },
}
"""Ops on truth values."""

CHOOSING = frozenset([aten.where.self, aten.masked_fill.Scalar, aten._to_copy.default])
"""A choice by truth values, and a cast; `source` writes them."""

CONSTANTS: Mapping[Any, int] = {
    aten.full.default: 1,
    aten.full_like.default: 1,
    aten.scalar_tensor.default: 0,
}
"""Ops that make a tensor of one number, and where that number stands."""
ZEROS_AND_ONES: Mapping[Any, float] = {
    aten.zeros_like.default: 0.0,
    aten.ones_like.default: 1.0,
    aten.zeros.default: 0.0,
    aten.ones.default: 1.0,
}


def constant_of(node: fx.Node) -> Any:
    """Return the number that all of a node's value is; `None` if it is not made so."""
    if node.target in ZEROS_AND_ONES:
        return ZEROS_AND_ONES[node.target]
    if node.target in CONSTANTS:
        value = node.args[CONSTANTS[node.target]]
        return value if isinstance(value, int | float) and type(value) is not Extent else None
    return None


def is_written(node: fx.Node) -> bool:
    """Whether a node's arguments are among those that its op is written for."""
    if node.target == aten._to_copy.default:
        return not node.kwargs.keys() - _OF_COPIES
    if node.target in CHOOSING:
        return not node.kwargs
    try:
        return bool(expression(node, dict.fromkeys(node.all_input_nodes, "x"), "V"))
    except (NotOursError, ValueError, TypeError, AttributeError):
        return False


_OF_COPIES = {"dtype", "layout", "device", "pin_memory", "non_blocking", "memory_format"}


def expression(node: fx.Node, operands: Mapping[fx.Node, str], vector: str, rounded: torch.dtype | None = None) -> str:
    """Return the expression of a node, for operands in a vector type and numbers that may be rounded to a dtype.

    Raises:
        NotOursError: if it is called with unknown arguments.
    """
    writers = FLOATING.get(node.target) or COMPARING.get(node.target) or LOGICAL[node.target]
    args = node.args if rounded is None else [_rounded(a, rounded) for a in node.args]
    given = [_argument(a, operands, vector) for a in args]
    keywords = dict(node.kwargs)
    if node.target in _KEYWORDS:
        given += [
            _argument(keywords.pop(name), operands, vector) for name in _KEYWORDS[node.target] if name in keywords
        ]
    keywords.pop("memory_format", None)
    if keywords:
        raise NotOursError(str(keywords))
    return writers(given).replace("set_V(", f"set_{vector}(")


_KEYWORDS: Mapping[Any, tuple[str, ...]] = {
    aten.add.Tensor: ("alpha",),
    aten.sub.Tensor: ("alpha",),
    aten.addcmul.default: ("value",),
    aten.addcdiv.default: ("value",),
    aten.gelu.default: ("approximate",),
    aten.gelu_backward.default: ("approximate",),
}


def _rounded(a: Any, dtype: torch.dtype) -> Any:
    return torch.tensor(a, dtype=dtype, device="cpu").item() if isinstance(a, int | float) else a


def _argument(a: Any, operands: Mapping[fx.Node, str], vector: str) -> Any:
    if isinstance(a, fx.Node):
        return operands[a]
    return a if a is None or isinstance(a, str) else Number(a, vector)
