"""Values of a kernel: one array for many programs, with Triton's types and its rules of promotion.

An array has an axis for programs in front of the axes of the block. Its length is 1 where all programs have the same
value. A type says what the kernel was told; how numbers of it are held is `Precision`'s.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton.language as tl

from pullback.interpreter.errors import KernelError
from pullback.interpreter.worlds import World

Array = np.ndarray[Any, Any]

_INTEGERS = {
    "int1": np.bool_, "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64,
    "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64,
}  # fmt: skip
_FLOATS = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}
_OF_TORCH = {
    "bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2,
    "fp8e4b8": torch.float8_e4m3fnuz, "fp8e5b16": torch.float8_e5m2fnuz,
}  # fmt: skip
"""Types that NumPy lacks: held in float32, rounded as PyTorch rounds."""


_SHORT = _OF_TORCH | {"fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Precision:
    """How floats are held: all in float64 if it lifts, else rounded to their type after each operation.

    Attributes:
        lifts: whether it does.
        is_wide: if not, whether floats shorter than float32 are rounded in memory alone, and held in float32 elsewhere.
        wraps: whether integers of 32 bits are held in as many, so that they overflow as on the device.
        rounds_tf32: if not, whether `tl.dot` rounds to TF32 where it may.
    """

    lifts: bool
    is_wide: bool = False
    wraps: bool = True
    rounds_tf32: bool = True

    @classmethod
    def of(cls, world: World) -> Precision:
        """Return that of a world."""
        return cls(world.lifts, world.is_wide, world.wraps, world.rounds_tf32)

    def held(self, dtype: Any) -> Any:
        """Return NumPy's type of the arrays that hold numbers, or addresses, of a type."""
        if dtype.is_ptr():
            return np.int64
        if dtype.name in _INTEGERS:
            return _INTEGERS[dtype.name] if self.wraps or dtype.name != "int32" else np.int64
        if self.lifts:
            return np.float64
        if self.is_wide and dtype.name == "fp16":
            return np.float32
        return _FLOATS.get(dtype.name, np.float32)

    def rounded(self, data: Array, dtype: Any) -> Array:
        """Return an array as numbers of a type are held, rounded to it."""
        held = self.held(dtype)
        if held is np.bool_ and data.dtype != np.bool_:
            return np.asarray(data != 0)
        if data.dtype != held:
            data = _wrapped(data, held) if dtype.is_int() else data.astype(held)
        return data if self.lifts or self.is_wide or dtype.name not in _OF_TORCH else _narrowed(data, dtype)

    def in_memory(self, data: Array, dtype: Any) -> Array:
        """Return an array, rounded as one of its type, as memory holds it."""
        return _narrowed(data, dtype) if self.is_wide and dtype.name in _SHORT else data


def _narrowed(data: Array, dtype: Any) -> Array:
    """Return float32 numbers rounded to a shorter type, as float32."""
    as_tensor = torch.from_numpy(np.ascontiguousarray(data))
    again: Array = as_tensor.to(_SHORT[dtype.name]).to(torch.float32).numpy()
    return again


def _wrapped(data: Array, held: Any) -> Array:
    """Return numbers as integers; floats that do not fit saturate, as on the device."""
    if data.dtype.kind != "f":
        return data.astype(held)
    limits = np.iinfo(held)
    fits = np.clip(np.nan_to_num(data, nan=0.0), float(limits.min), float(limits.max))
    whole = fits.astype(held)
    return np.where(fits >= float(limits.max), limits.max, whole).astype(held)


@dataclass(slots=True, eq=False)
class Value:
    """A scalar, a block or a pointer of a kernel: `data` has shape (programs or 1, *block); `dtype` is of Triton."""

    data: Array
    dtype: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the block; () for a scalar."""
        shape: tuple[int, ...] = self.data.shape[1:]
        return shape

    @property
    def programs(self) -> int:
        """The length of the axis of programs."""
        return int(self.data.shape[0])

    @property
    def type(self) -> Any:
        """The type as kernels ask for it: of the block, if it is one."""
        return tl.block_type(self.dtype, list(self.shape)) if self.shape else self.dtype

    def like(self, data: Array) -> Value:
        """Return a value of the same type."""
        return Value(data, self.dtype)

    def only(self, lanes: Array) -> Value:
        """Return the value of some programs."""
        return self if self.programs == 1 else Value(self.data[lanes], self.dtype)


def is_number(x: object) -> bool:
    """Whether this is a number known when the kernel is compiled."""
    return isinstance(x, bool | int | float)


def type_of_number(x: float) -> Any:
    """Return the type that Triton gives to a number."""
    if isinstance(x, bool):
        return tl.int1
    if isinstance(x, int):
        if -(2**31) <= x < 2**31:
            return tl.int32
        if 2**31 <= x < 2**32:
            return tl.uint32
        return tl.int64 if x < 2**63 else tl.uint64
    return tl.float32


def to_value(x: Any, precision: Precision, dtype: Any = None) -> Value:
    """Return a number, or a value, as a value."""
    if isinstance(x, Value):
        return x
    if not is_number(x):
        raise KernelError(f"expected a number or a block, got {type(x).__name__}")
    dtype = type_of_number(x) if dtype is None else dtype
    if dtype.is_int() and isinstance(x, float):
        x = int(x)
    held = precision.held(dtype)
    if dtype.is_int() and not isinstance(x, bool) and held is not np.bool_:
        bits = dtype.primitive_bitwidth
        x = int(x) & (2**bits - 1)
        x = x - 2**bits if np.dtype(held).kind == "i" and x >= 2 ** (bits - 1) else x
    return Value(precision.rounded(np.full((1,), x, held), dtype), dtype)


def aligned(*values: Value) -> list[Array]:
    """Return arrays of equal rank: scalars get axes of length 1, blocks of lower rank get them in front."""
    rank = max(v.data.ndim for v in values)
    return [
        v.data if v.data.ndim == rank else v.data.reshape(v.programs, *[1] * (rank - v.data.ndim), *v.shape)
        for v in values
    ]


def cast(x: Value, dtype: Any, precision: Precision) -> Value:
    """Convert to a type; a pointer only to a pointer or an integer."""
    if x.dtype is dtype or x.dtype == dtype:
        return x
    if dtype.is_ptr() or x.dtype.is_ptr():
        return Value(x.data.astype(precision.held(dtype)), dtype)
    return Value(precision.rounded(x.data, dtype), dtype)


def common_type(a: Any, b: Any, op: str = "", a_number: bool = False, b_number: bool = False) -> Any:
    """Return the type in which two operands are combined, by Triton's rules.

    A number known at compile time takes the type of the block, unless its kind is higher.
    """
    divides = op in ("/", "%")
    if a is b and (a is tl.float32 or not divides):
        return a
    if a_number != b_number:
        number, block = (a, b) if a_number else (b, a)
        if _kind(number) <= _kind(block):
            return tl.float32 if divides and block.name in ("fp16", "bf16") else block
    for dtype in (tl.float64, tl.float32):
        if dtype in (a, b):
            return dtype
    if tl.float16 in (a, b):
        return tl.float32 if divides else tl.float16
    if tl.bfloat16 in (a, b):
        return tl.bfloat16 if a == b and not divides else tl.float32
    if a.is_floating() or b.is_floating():
        return a if a == b else (tl.float16 if a.is_floating() and b.is_floating() else (a if a.is_floating() else b))
    return _common_integer(a, b)


def _kind(dtype: Any) -> int:
    return 0 if dtype.name == "int1" else 1 if dtype.is_int() else 2


def _common_integer(a: Any, b: Any) -> Any:
    """C's rules: the wider type; of two of the same width the unsigned one."""
    if a == b:
        return a
    if a.primitive_bitwidth != b.primitive_bitwidth:
        return a if a.primitive_bitwidth > b.primitive_bitwidth else b
    return a if a.name.startswith("u") else b


def _truncated_quotient(a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        quotient = a // b
        if a.dtype.kind == "u":
            return quotient
        inexact = (quotient < 0) & (quotient * b != a)
        return np.where(inexact, quotient + 1, quotient).astype(a.dtype)


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "%": np.fmod, "//": _truncated_quotient,
    "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor, "<<": np.left_shift, ">>": np.right_shift,
}  # fmt: skip
_COMPARISONS: dict[str, Callable[..., Any]] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
}  # fmt: skip
_OF_NUMBERS: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "%": operator.mod,
    "//": operator.floordiv, "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift,
    ">>": operator.rshift, "**": operator.pow, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


_UNARY_OF_NUMBERS: dict[str, Callable[..., Any]] = {
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
    "not": operator.not_,
}


def binary(op: str, a: Any, b: Any, precision: Precision) -> Any:
    """Combine two operands: numbers as Python does, values as Triton does."""
    if not isinstance(a, Value) and not isinstance(b, Value):
        return _OF_NUMBERS[op](a, b)
    if (a is None or b is None or isinstance(a, str) or isinstance(b, str)) and op in ("==", "!="):
        return op == "!="
    x, y = to_value(a, precision), to_value(b, precision)
    if x.dtype.is_ptr() or y.dtype.is_ptr():
        return _of_pointers(op, x, y, precision)
    dtype = common_type(x.dtype, y.dtype, op, is_number(a), is_number(b))
    if op == "/" and dtype.is_int():
        dtype = tl.float32
    if op == "**":
        raise KernelError("** of blocks: Triton has none")
    # A number takes its type before it is rounded: 3.0 with a block of int32 stays a float above.
    x, y = (to_value(n, precision, dtype) if is_number(n) else cast(v, dtype, precision) for n, v in ((a, x), (b, y)))
    left, right = aligned(x, y)
    with np.errstate(all="ignore"):
        if op in _COMPARISONS:
            return Value(_COMPARISONS[op](left, right), tl.int1)
        if dtype.name == "int1" and op in ("+", "-", "*"):
            left, right = left.astype(np.int8), right.astype(np.int8)
            return Value((_ARITHMETIC[op](left, right) & 1).astype(np.bool_), tl.int1)
        return Value(precision.rounded(_ARITHMETIC[op](left, right), dtype), dtype)


def _of_pointers(op: str, x: Value, y: Value, precision: Precision) -> Value:
    if op in _COMPARISONS:
        return Value(_COMPARISONS[op](*aligned(x, y)), tl.int1)
    if op == "-" and x.dtype.is_ptr() and y.dtype.is_ptr():
        a, b = aligned(x, y)
        return Value((a - b) // item_size(x.dtype.element_ty, precision), tl.int64)
    pointer, offset = (x, y) if x.dtype.is_ptr() else (y, x)
    if op not in ("+", "-") or not offset.dtype.is_int():
        raise KernelError(f"{op} of a pointer and {offset.dtype}")
    at, by = aligned(pointer, offset)
    bytes_ = by.astype(np.int64) * item_size(pointer.dtype.element_ty, precision)
    return Value(at + bytes_ if op == "+" else at - bytes_, pointer.dtype)


def item_size(dtype: Any, precision: Precision) -> int:
    """Bytes of an element, as memory holds it during a launch."""
    return int(np.dtype(precision.held(dtype)).itemsize)


def unary(op: str, x: Any, precision: Precision) -> Any:
    """Apply -, +, ~ or `not`."""
    if not isinstance(x, Value):
        of_number: Callable[..., Any] = _UNARY_OF_NUMBERS[op]
        return of_number(x)
    with np.errstate(all="ignore"):
        if op == "not":
            return Value(x.data == 0, tl.int1)
        if op == "~":
            return x.like(np.invert(x.data))
        if op == "-":
            return x.like(-x.data if x.dtype.name != "int1" else x.data)
    return x


_MOST_ELEMENTS = 1 << 20
"""Of a block, in Triton's compiler (`TRITON_MAX_TENSOR_NUMEL`)."""


def ensure_compilable(shape: Sequence[int]) -> None:
    """Ensure that the compiler takes a block of a shape.

    Raises:
        KernelError: if it is too large.
    """
    if math.prod(shape) > _MOST_ELEMENTS:
        raise KernelError(f"a block of shape {tuple(shape)} has more than {_MOST_ELEMENTS} elements, Triton's maximum")


def broadcast_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of several blocks combined.

    Raises:
        KernelError: if they do not fit, or the block would be too large.
    """
    try:
        shape = tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        raise KernelError(f"blocks of shapes {', '.join(map(str, shapes))} do not fit each other") from None
    ensure_compilable(shape)
    return shape


def broadcast_to(x: Value, shape: tuple[int, ...]) -> Value:
    """Return a value expanded to a shape."""
    if x.shape == shape:
        return x
    (data,) = (
        aligned(x)
        if x.data.ndim > len(shape)
        else [x.data.reshape(x.programs, *[1] * (len(shape) - len(x.shape)), *x.shape)]
    )
    return x.like(np.broadcast_to(data, (x.programs, *shape)))
