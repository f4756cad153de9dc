"""Shape, strides and dtype of the results of common ops, without computing values.

PyTorch's meta kernels are Python for nearly all of these ops, import Dynamo and sympy, which takes more than a second,
and then take 0.1 ms each. Here the dtype comes from running the op on tensors of one element, the layout of an
elementwise op follows TensorIterator, and the few others return contiguous tensors. An op that is not listed, or has
unusual arguments, gets no answer: PyTorch's own machinery decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pullback.graph.rules import RULES, Answer, UnknownError, broadcast, ones_of
from pullback.graph.strides import elementwise_strides, row_major


def results_of(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Answer | list[Answer]:
    """Return shape, strides and dtype of an op's result, or of each of several.

    Raises:
        UnknownError: if no rule gives them.
        Exception: the op's own error, or another.
    """
    name = op.overloadpacket.__name__
    if op in RULES:
        return RULES[op](op, args, kwargs)
    if name in _ELEMENTWISE or name in _ELEMENTWISE_OF_ROW_MAJOR:
        return _elementwise(op, args, kwargs, name in _ELEMENTWISE)
    raise UnknownError


def is_written_by(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an in-place op is one loop over its first argument that changes its values alone."""
    repeats = any(s == 0 and n > 1 for s, n in zip(args[0].stride(), args[0].shape, strict=True))
    if repeats or not all(a.numel() for a in args if isinstance(a, Tensor)):
        return False
    op(*map(_single, args), **kwargs)  # it raises where the dtype of the result does not fit
    return broadcast(*(a.shape for a in args if isinstance(a, Tensor))) == tuple(args[0].shape)


def _single(a: Any) -> Any:
    return ones_of((1,) * a.dim(), a.dtype) if isinstance(a, Tensor) else a


def is_loop_in_place(op: Any) -> bool:
    """Whether an op works in place, on its first argument, and is one loop."""
    name = op.overloadpacket.__name__
    return name.endswith("_") and (name[:-1] in _ELEMENTWISE or name == "masked_fill_")


def is_known(op: Any) -> bool:
    """Whether there are answers for an op."""
    name = op.overloadpacket.__name__
    return op in RULES or name in _ELEMENTWISE or name in _ELEMENTWISE_OF_ROW_MAJOR


_LOOPS = """
    abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil
    celu clamp_max clamp_min copysign cos cosh digamma div elu eq erf erfc erfinv exp exp2 expm1 floor fmax fmin fmod
    frac ge gt hardshrink hardsigmoid heaviside hypot i0 isnan isneginf isposinf le leaky_relu lerp lgamma log log10
    log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit lt maximum minimum mish mul ne
    neg nextafter polygamma reciprocal relu remainder round rsqrt rsub sgn sigmoid sign signbit silu sin sinc sinh
    softplus softshrink special_entr special_erfcx special_i0e special_i1 special_i1e special_log_ndtr special_ndtri
    special_xlog1py special_zeta sqrt sub tan tanh threshold trunc where xlogy
    elu_backward hardsigmoid_backward hardswish_backward hardtanh_backward leaky_relu_backward logit_backward
    sigmoid_backward silu_backward softplus_backward tanh_backward threshold_backward
"""
_ELEMENTWISE = frozenset(_LOOPS.split())
"""Ops that are one loop of TensorIterator."""

_IN_ANOTHER_ORDER = frozenset({"leaky_relu_backward", "rsub", "threshold_backward"})
"""Those that do not read their arguments in the order in which they are given."""

_OTHERS = """
    clamp deg2rad gelu gelu_backward hardswish hardtanh isinf log_sigmoid_backward masked_fill nan_to_num pow rad2deg
"""
_ELEMENTWISE_OF_ROW_MAJOR = frozenset(_OTHERS.split())
"""Ops that are more than one, or not only that: their results are row-major where their arguments are."""


def _elementwise(op: Any, args: Sequence[Any], kwargs: dict[str, Any], is_loop: bool) -> Answer:
    operands = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    shape = broadcast(*(x.shape for x in operands))
    if is_loop:
        strides = elementwise_strides(operands, shape, op.overloadpacket.__name__ in _IN_ANOTHER_ORDER)
    else:
        strides = row_major(shape) if all(x.stride() == row_major(x.shape) for x in operands) else None
    if strides is None or not operands or 0 in shape:
        raise UnknownError
    tiny = op(*map(_nothing, args), **{name: _nothing(a) for name, a in kwargs.items()})
    if type(tiny) is not Tensor or tiny.numel() != (0 if any(x.dim() for x in operands) else 1):
        raise UnknownError
    return shape, strides, tiny.dtype


def _nothing(a: Any) -> Any:
    """Return a tensor of the same dtype without elements, or with one where there is no dimension."""
    return ones_of((0,) if a.dim() else (), a.dtype) if isinstance(a, Tensor) else a
