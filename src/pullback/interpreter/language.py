"""The functions of `triton.language`, by name, on values of many programs at once.

Each takes the machine that runs the kernel, then what Triton's function of that name takes. What is missing here is
either written in Triton itself, and then interpreted as any kernel, or refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import triton.language as tl

from pullback.interpreter import assembly
from pullback.interpreter.errors import KernelError, UnsupportedError
from pullback.interpreter.memory import Space
from pullback.interpreter.values import (
    Array,
    Precision,
    Value,
    aligned,
    binary,
    broadcast_shape,
    broadcast_to,
    cast,
    common_type,
    ensure_compilable,
    is_number,
    to_value,
)
from pullback.interpreter.worlds import World


class Machine(Protocol):
    """The machine that runs a kernel, as far as functions of the language need it.

    Attributes:
        world: the options, and the record of what happens.
        space: the memory of the launch.
        grid: its size.
        precision: how floats are held.
        programs: the numbers of the running programs in the grid.
        is_used: whether the kernel uses what the function returns.
    """

    world: World
    space: Space
    grid: tuple[int, int, int]
    precision: Precision
    programs: Array
    is_used: bool

    def indices(self, axis: int) -> Array:
        """Return the index of each running program along an axis of the grid."""

    def place(self) -> tuple[str, int]:
        """Return the file and line that run."""

    def call(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call a function that Triton compiles, and return what it returns."""


Builtin = Callable[..., Any]
Registered = TypeVar("Registered", bound=Builtin)
BUILTINS: dict[str, Builtin] = {}
"""By the name of Triton's function."""


def _builtin(*names: str) -> Callable[[Registered], Registered]:
    def register(function: Registered) -> Registered:
        for name in names or (function.__name__.rstrip("_"),):
            BUILTINS[name] = function
        return function

    return register


def _value(m: Machine, x: Any) -> Value:
    return to_value(x, m.precision)


def _integer(x: Any) -> int:
    """A number that Triton needs when it compiles, such as a size."""
    if isinstance(x, Value) and x.data.size == 1:
        raise KernelError(
            "a number that must be known when the kernel is compiled is an argument of it, not a constexpr"
        )
    if not isinstance(x, int):
        raise KernelError(f"expected an integer that is known when the kernel is compiled, got {type(x).__name__}")
    return int(x)


def _shape_of(shape: Sequence[Any]) -> tuple[int, ...]:
    if len(shape) == 1 and isinstance(shape[0], tuple | list):
        shape = shape[0]
    return tuple(map(_integer, shape))


# ---- programs and constants -----------------------------------------------------------------------------------------


@_builtin()
def program_id(m: Machine, axis: int) -> Value:
    """Return the index of the program along an axis of the grid."""
    at = m.indices(_integer(axis))
    return Value(at[:1] if (at == at[0]).all() else at, tl.int32)


@_builtin()
def num_programs(m: Machine, axis: int) -> Value:
    """Return the size of the grid along an axis."""
    return to_value(m.grid[_integer(axis)], m.precision)


@_builtin()
def arange(m: Machine, start: int, end: int) -> Value:
    """Return start, …, end - 1."""
    start, end = _integer(start), _integer(end)
    if end <= start or (end - start) & (end - start - 1):
        raise KernelError(f"arange({start}, {end}): Triton needs a length that is a power of two")
    ensure_compilable([end - start])
    m.world.blocks.add(end - start)
    return Value(np.arange(start, end, dtype=np.int32)[None], tl.int32)


@_builtin()
def full(m: Machine, shape: Sequence[Any], value: Any, dtype: Any) -> Value:
    """Return a block of one number."""
    scalar = value if isinstance(value, Value) else to_value(value, m.precision, dtype)
    size = _shape_of(shape)
    ensure_compilable(size)
    return broadcast_to(cast(scalar, dtype, m.precision), size)


@_builtin()
def zeros(m: Machine, shape: Sequence[Any], dtype: Any) -> Value:
    """Return zeros."""
    return full(m, shape, 0, dtype)


@_builtin()
def zeros_like(m: Machine, input: Value) -> Value:
    """Return zeros of the shape and type of a block."""
    return full(m, input.shape, 0, input.dtype)


@_builtin("to_tensor")
def to_tensor(m: Machine, x: Any) -> Value:
    """Return a number as a scalar."""
    return _value(m, x)


@_builtin("constexpr")
def constexpr(m: Machine, value: Any) -> Any:
    """Return a number that is known when the kernel is compiled."""
    return value


# ---- shapes ---------------------------------------------------------------------------------------------------------


@_builtin()
def expand_dims(m: Machine, input: Any, axis: Any) -> Value:
    """Insert axes of length 1."""
    x = _value(m, input)
    axes = sorted(_integer(a) for a in (axis if isinstance(axis, tuple | list) else (axis,)))
    rank = len(x.shape) + len(axes)
    return x.like(np.expand_dims(x.data, tuple((a % rank) + 1 for a in axes)))


@_builtin("reshape", "view")
def reshape(m: Machine, input: Any, *shape: Any, can_reorder: bool = False) -> Value:
    """Give a block another shape."""
    x = _value(m, input)
    new = _shape_of(shape)
    if -1 in new:
        known = int(np.prod([n for n in new if n != -1]))
        new = tuple(int(np.prod(x.shape)) // known if n == -1 else n for n in new)
    if int(np.prod(new)) != int(np.prod(x.shape)):
        raise KernelError(f"reshape from {x.shape} to {new}")
    return x.like(x.data.reshape(x.programs, *new))


@_builtin()
def ravel(m: Machine, x: Value, can_reorder: bool = False) -> Value:
    """Return a block in one dimension."""
    return reshape(m, x, -1)


@_builtin("broadcast_to")
def _broadcast_to(m: Machine, input: Any, *shape: Any) -> Value:
    return broadcast_to(_value(m, input), _shape_of(shape))


@_builtin()
def broadcast(m: Machine, input: Any, other: Any) -> tuple[Value, Value]:
    """Return two blocks with the shape of both combined."""
    x, y = _value(m, input), _value(m, other)
    shape = broadcast_shape([x.shape, y.shape])
    return broadcast_to(x, shape), broadcast_to(y, shape)


@_builtin("trans", "permute")
def permute(m: Machine, input: Value, *dims: Any) -> Value:
    """Reorder the axes; without an order swap the last two."""
    rank = len(input.shape)
    order = _shape_of(dims) if dims else (*range(rank - 2), rank - 1, rank - 2)
    return input.like(input.data.transpose(0, *[d % rank + 1 for d in order]))


@_builtin()
def join(m: Machine, a: Any, b: Any) -> Value:
    """Stack two blocks along a new last axis."""
    x, y = _value(m, a), _value(m, b)
    shape = broadcast_shape([x.shape, y.shape])
    programs = max(x.programs, y.programs)
    dtype = common_type(x.dtype, y.dtype)
    parts = [np.broadcast_to(broadcast_to(v, shape).data, (programs, *shape)) for v in (x, y)]
    return Value(m.precision.rounded(np.stack(parts, axis=-1), dtype), dtype)


@_builtin()
def split(m: Machine, a: Value) -> tuple[Value, Value]:
    """Take a block apart along its last axis, of length 2."""
    if not a.shape or a.shape[-1] != 2:
        raise KernelError(f"split of a block of shape {a.shape}: its last axis must have length 2")
    return a.like(a.data[..., 0]), a.like(a.data[..., 1])


@_builtin()
def interleave(m: Machine, a: Any, b: Any) -> Value:
    """Return the elements of two blocks in turn, along the last axis."""
    joined = join(m, a, b)
    return reshape(m, joined, (*joined.shape[:-2], 2 * joined.shape[-2]))


@_builtin()
def cat(m: Machine, input: Value, other: Value, can_reorder: bool = False, dim: int = 0) -> Value:
    """Concatenate two blocks."""
    programs = max(input.programs, other.programs)
    parts = [np.broadcast_to(v.data, (programs, *v.shape)) for v in (input, other)]
    return input.like(np.concatenate(parts, axis=dim + 1))


@_builtin()
def flip(m: Machine, x: Value, dim: int | None = None) -> Value:
    """Reverse a block along an axis."""
    return x.like(np.flip(x.data, (-1 if dim is None else dim) % len(x.shape) + 1))


@_builtin()
def gather(m: Machine, src: Value, index: Value, axis: int) -> Value:
    """Take elements of a block along an axis."""
    programs = max(src.programs, index.programs)
    of, at = (np.broadcast_to(v.data, (programs, *v.shape)) for v in (src, index))
    return src.like(np.take_along_axis(of, at.astype(np.int64), axis % len(src.shape) + 1))


@_builtin("cast", "to")
def _cast(m: Machine, input: Any, dtype: Any, fp_downcast_rounding: Any = None, bitcast: bool = False) -> Value:
    x = _value(m, input)
    if dtype.is_ptr() and not x.dtype.is_ptr():
        raise UnsupportedError("pointers from integers: not interpreted")
    if not bitcast or x.dtype == dtype:
        return cast(x, dtype, m.precision)
    if x.dtype.is_ptr() or dtype.is_ptr():
        return cast(x, dtype, m.precision)
    return _bits_as(m, x, dtype)


_BITS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def _bits_as(m: Machine, x: Value, dtype: Any) -> Value:
    """Read the bits of one type as another: those on the device, also of numbers that are held in float64."""
    if x.dtype.primitive_bitwidth != dtype.primitive_bitwidth:
        raise KernelError(f"the bits of {x.dtype} are not as many as those of {dtype}")
    own = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}
    if x.dtype.name == "bf16":
        bits = (np.ascontiguousarray(x.data.astype(np.float32)).view(np.uint32) >> 16).astype(np.uint16)
    elif x.dtype.is_floating():
        if x.dtype.name not in own:
            raise UnsupportedError(f"the bits of {x.dtype}: not interpreted")
        bits = np.ascontiguousarray(x.data.astype(own[x.dtype.name])).view(_BITS[x.dtype.primitive_bitwidth])
    else:
        bits = np.ascontiguousarray(x.data).view(_BITS[x.dtype.primitive_bitwidth])
    if dtype.name == "bf16":
        return Value(m.precision.rounded((bits.astype(np.uint32) << 16).view(np.float32), dtype), dtype)
    if dtype.is_floating() and dtype.name not in own:
        raise UnsupportedError(f"bits as {dtype}: not interpreted")
    target = own[dtype.name] if dtype.is_floating() else m.precision.held(dtype)
    return Value(m.precision.rounded(bits.view(target), dtype), dtype)


# ---- memory ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockPointer:
    """A block of a tensor in memory: what `make_block_ptr` and tensor descriptors make."""

    base: Value
    shape: tuple[Value, ...]
    strides: tuple[Value, ...]
    offsets: tuple[Value, ...]
    block: tuple[int, ...]
    is_descriptor: bool = False
    fill: float = 0.0

    @property
    def dtype(self) -> Any:
        """The type that kernels ask for: of an element, if it is a descriptor, else of a pointer to one."""
        return self.base.dtype.element_ty if self.is_descriptor else self.base.dtype

    @property
    def block_shape(self) -> tuple[int, ...]:
        """The shape of the block."""
        return self.block

    @property
    def type(self) -> Any:
        """The type as kernels ask for its `element_ty`."""
        return tl.pointer_type(tl.block_type(self.base.dtype.element_ty, list(self.block)))

    def parts(self) -> list[Value]:
        """The values that it holds."""
        return [self.base, *self.shape, *self.strides, *self.offsets]

    def with_parts(self, parts: Sequence[Value]) -> BlockPointer:
        """Return one with other values, in the order of `parts`."""
        n = len(self.shape)
        shape, strides, offsets = (tuple(parts[1 + k * n : 1 + (k + 1) * n]) for k in range(3))
        return replace(self, base=parts[0], shape=shape, strides=strides, offsets=offsets)

    def addresses(self, m: Machine, checked: Sequence[int]) -> tuple[Value, Value | None]:
        """Return the addresses of the elements, and which of them lie inside along the checked axes."""
        address, mask = self.base, None
        for axis, size in enumerate(self.block):
            along = [1] * len(self.block)
            along[axis] = size
            at = Value(np.arange(size, dtype=np.int64).reshape(1, *along), tl.int64)
            at = binary("+", cast(self.offsets[axis], tl.int64, m.precision), at, m.precision)
            address = binary("+", address, binary("*", at, self.strides[axis], m.precision), m.precision)
            if axis in checked:
                above, below = binary(">=", at, 0, m.precision), binary("<", at, self.shape[axis], m.precision)
                inside = binary("&", above, below, m.precision)
                mask = inside if mask is None else binary("&", mask, inside, m.precision)
        return address, mask


@_builtin()
def make_block_ptr(
    m: Machine, base: Value, shape: Any, strides: Any, offsets: Any, block_shape: Any, order: Any = None
) -> BlockPointer:
    """Return a pointer to a block of a tensor."""
    values = (tuple(_value(m, x) for x in group) for group in (shape, strides, offsets))
    of_shape, of_strides, of_offsets = values
    m.world.blocks.update(map(_integer, block_shape))
    return BlockPointer(base, of_shape, of_strides, of_offsets, tuple(map(_integer, block_shape)))


@_builtin()
def advance(m: Machine, base: BlockPointer, offsets: Any) -> BlockPointer:
    """Move a block pointer."""
    moved = tuple(binary("+", at, by, m.precision) for at, by in zip(base.offsets, offsets, strict=True))
    return replace(base, offsets=moved)


@_builtin()
def make_tensor_descriptor(
    m: Machine, base: Value, shape: Any, strides: Any, block_shape: Any, padding_option: str = "zero"
) -> BlockPointer:
    """Return a descriptor of a tensor, whose loads give `padding_option` outside."""
    pointer = make_block_ptr(m, base, shape, strides, [0] * len(block_shape), block_shape)
    return replace(pointer, is_descriptor=True, fill=np.nan if padding_option == "nan" else 0.0)


def _of_descriptor(m: Machine, desc: BlockPointer, offsets: Any) -> tuple[Value, Value]:
    """Return the addresses of the block of a descriptor at some offsets, and which of them lie inside."""
    pointer = replace(desc, offsets=tuple(_value(m, x) for x in offsets))
    address, mask = pointer.addresses(m, range(len(desc.block)))
    assert mask is not None
    return address, mask


@_builtin("load_tensor_descriptor")
def load_tensor_descriptor(m: Machine, desc: BlockPointer, offsets: Any) -> Value:
    """Load the block of a descriptor at some offsets."""
    return _loaded(m, *_of_descriptor(m, desc, offsets), desc.fill)


@_builtin("store_tensor_descriptor")
def store_tensor_descriptor(m: Machine, desc: BlockPointer, offsets: Any, value: Value) -> None:
    """Store a block by a descriptor at some offsets."""
    address, mask = _of_descriptor(m, desc, offsets)
    _stored(m, address, value, mask)


@_builtin()
def load(
    m: Machine,
    pointer: Any,
    mask: Any = None,
    other: Any = None,
    boundary_check: Sequence[int] = (),
    padding_option: str = "",
    cache_modifier: str = "",
    eviction_policy: str = "",
    volatile: bool = False,
) -> Value:
    """Load a block."""
    if isinstance(pointer, BlockPointer):
        if pointer.is_descriptor:
            return load_tensor_descriptor(m, pointer, mask)
        address, inside = pointer.addresses(m, boundary_check)
        fill = {"zero": 0.0, "nan": np.nan}.get(padding_option)
        if fill is None and inside is not None and not inside.data.all():
            m.world.unpadded_loads.add(m.place())
        return _loaded(m, address, inside, m.world.padding if fill is None else fill)
    if not isinstance(pointer, Value) or not pointer.dtype.is_ptr():
        raise KernelError("load from what is not a pointer")
    if mask is None and other is not None:
        raise KernelError("load with `other`, and without a mask")
    if is_number(mask) and mask:
        mask = None
    _ensure_fits(pointer, mask, other)
    return _loaded(m, pointer, None if mask is None else _value(m, mask), other)


def _ensure_fits(pointer: Value, *others: Any) -> None:
    """Raise if a mask or a value does not broadcast to the pointers: Triton never broadcasts these."""
    for x in others:
        if not isinstance(x, Value) or not x.shape:
            continue
        if not pointer.shape:
            raise KernelError(f"a block of shape {x.shape} beside a pointer that is no block")
        fits = len(x.shape) == len(pointer.shape)
        if not fits or any(n not in (1, of) for n, of in zip(x.shape, pointer.shape, strict=True)):
            raise KernelError(f"a block of shape {x.shape} beside pointers of shape {pointer.shape}")


def _loaded(m: Machine, pointer: Value, mask: Value | None, other: Any) -> Value:
    dtype = pointer.dtype.element_ty
    if mask is None:
        return Value(_noted(m, m.space.load(pointer.data, None, 0, dtype, m.programs), True, dtype), dtype)
    if other is None and not mask.data.all():
        m.world.bare_loads.add(m.place())
    rest = m.world.undefined if other is None else other
    filled = cast(_value(m, rest), dtype, m.precision)
    address, where, fill = aligned(pointer, mask, filled)
    return Value(_noted(m, m.space.load(address, where, fill, dtype, m.programs), where, dtype), dtype)


def _noted(m: Machine, data: Array, where: Array | bool, dtype: Any) -> Array:
    """Note the largest of integers that are loaded; in a simulation, give what is expected of that line."""
    if not dtype.is_int() or dtype.name == "int1" or not data.size:
        return data
    place, world = m.place(), m.world
    if not world.simulates:
        largest = int(np.where(where, data, 0).max())
        world.loaded[place] = max(largest, world.loaded.get(place, 0))
        return data
    expected = min(world.expected.get(place, 0), int(np.iinfo(data.dtype).max))
    filled: Array = np.where(where, data.dtype.type(expected), data)
    return filled


@_builtin()
def store(
    m: Machine,
    pointer: Any,
    value: Any,
    mask: Any = None,
    boundary_check: Sequence[int] = (),
    cache_modifier: str = "",
    eviction_policy: str = "",
) -> None:
    """Store a block."""
    if isinstance(pointer, BlockPointer):
        if pointer.is_descriptor:
            store_tensor_descriptor(m, pointer, value, mask)
            return
        address, inside = pointer.addresses(m, boundary_check)
        _stored(m, address, value, inside)
        return
    if not isinstance(pointer, Value) or not pointer.dtype.is_ptr():
        raise KernelError("store to what is not a pointer")
    if is_number(mask) and mask:
        mask = None
    _ensure_fits(pointer, value, mask)
    _stored(m, pointer, value, None if mask is None else _value(m, mask))


def _stored(m: Machine, pointer: Value, value: Any, mask: Value | None) -> None:
    new = cast(_value(m, value), pointer.dtype.element_ty, m.precision)
    parts = [pointer, new] if mask is None else [pointer, new, mask]
    broadcast_shape([p.shape for p in parts])
    address, data, *where = aligned(*parts)
    data = m.precision.in_memory(data, new.dtype)
    m.space.store(address, data, where[0] if where else None, m.programs)


_CHANGES: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "add": (lambda old, new: old + new, np.add),
    "max": (max, np.maximum),
    "min": (min, np.minimum),
    "and": (lambda old, new: old & new, np.bitwise_and),
    "or": (lambda old, new: old | new, np.bitwise_or),
    "xor": (lambda old, new: old ^ new, np.bitwise_xor),
    "xchg": (lambda old, new: new, None),
}


def _atomic(name: str) -> Builtin:
    def run(m: Machine, pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> Value:
        m.world.atomics.add(m.place())
        if isinstance(pointer, BlockPointer):  # a method of descriptors, which takes offsets and a value
            (pointer, mask), val = _of_descriptor(m, pointer, val), mask
        _ensure_fits(pointer, val, mask)
        dtype = pointer.dtype.element_ty
        new = cast(_value(m, val), dtype, m.precision)
        parts = [pointer, new] if mask is None else [pointer, new, _value(m, mask)]
        address, data, *where = aligned(*parts)
        change, at_once = _CHANGES[name]
        lanes = where[0] if where else None
        found = m.space.update(
            f"atomic_{name}", address, data, lanes, change, None if m.is_used else at_once, m.programs
        )
        return Value(found, dtype)

    return run


for _name in _CHANGES:
    BUILTINS[f"atomic_{_name}"] = _atomic(_name)


@_builtin()
def atomic_cas(m: Machine, pointer: Value, cmp: Any, val: Any, sem: Any = None, scope: Any = None) -> Value:
    """Store `val` where memory holds `cmp`; return what it held."""
    dtype = pointer.dtype.element_ty
    expected, new = (cast(_value(m, x), dtype, m.precision) for x in (cmp, val))
    address, before, after = aligned(pointer, expected, new)
    if before.size != 1:
        raise UnsupportedError("atomic_cas of a block: not interpreted")
    wanted = before.reshape(-1)[0]
    found = m.space.update(
        "atomic_cas", address, after, None, lambda old, x: x if old == wanted else old, None, m.programs
    )
    return Value(found, dtype)


# ---- elementwise ----------------------------------------------------------------------------------------------------


def _by_torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Array], Array]:
    def run(x: Array) -> Array:
        found: Array = function(torch.from_numpy(np.ascontiguousarray(x))).numpy()
        return found

    return run


def _rounded_half_away(x: Array) -> Array:
    return np.asarray(np.trunc(x + np.copysign(0.5, x)))


_MATH: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "cos": np.cos, "sin": np.sin, "sqrt": np.sqrt,
    "sqrt_rn": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "floor": np.floor, "ceil": np.ceil,
    "erf": _by_torch(torch.erf), "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}  # fmt: skip
"""Triton's own functions of one float; an integer is refused by Triton, and taken as float32 here."""
_LIBDEVICE: dict[str, Callable[..., Any]] = _MATH | {
    "tanh": np.tanh, "sinh": np.sinh, "cosh": np.cosh, "tan": np.tan, "expm1": np.expm1, "log10": np.log10,
    "log1p": np.log1p, "trunc": np.trunc, "rint": np.rint, "nearbyint": np.rint, "cbrt": np.cbrt, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "round": _rounded_half_away, "erfc": _by_torch(torch.special.erfc), "erfinv": _by_torch(torch.special.erfinv),
    "erfcx": _by_torch(torch.special.erfcx), "lgamma": _by_torch(torch.special.gammaln),
    "normcdf": _by_torch(torch.special.ndtr), "normcdfinv": _by_torch(torch.special.ndtri),
    "exp10": lambda x: np.power(10.0, x), "j0": _by_torch(torch.special.bessel_j0),
    "j1": _by_torch(torch.special.bessel_j1), "cyl_bessel_i0": _by_torch(torch.special.i0),
    "cyl_bessel_i1": _by_torch(torch.special.i1), "abs": np.abs, "fabs": np.abs, "sinpi": lambda x: np.sin(np.pi * x),
    "cospi": lambda x: np.cos(np.pi * x), "saturatef": lambda x: np.clip(x, 0, 1),
    "pow": np.power, "atan2": np.arctan2, "hypot": np.hypot, "fmod": np.fmod, "copysign": np.copysign,
    "fmax": np.fmax, "fmin": np.fmin, "max": np.fmax, "min": np.fmin, "div_rn": np.divide, "add_rn": np.add,
    "sub_rn": np.subtract, "mul_rn": np.multiply, "fdim": lambda x, y: np.fmax(x - y, 0),
    "fma": lambda x, y, z: x * y + z,
    "ldexp": lambda x, n: x * np.exp2(n), "remainder": lambda x, y: x - y * np.rint(x / y),
}  # fmt: skip
_FAST = ("tanh", "exp", "log", "log2", "log10", "sin", "cos", "tan", "pow", "exp10")
_LIBDEVICE |= {f"fast_{name}f": _LIBDEVICE[name] for name in _FAST} | {"fast_dividef": np.divide, "fdividef": np.divide}
_TESTS: dict[str, Callable[..., Any]] = {
    "isnan": np.isnan, "isnand": np.isnan, "isinf": np.isinf, "isinfd": np.isinf, "finitef": np.isfinite,
    "isfinited": np.isfinite, "signbit": np.signbit, "signbitd": np.signbit, "signbitf": np.signbit,
}  # fmt: skip
_TO_INTEGER: dict[str, Callable[..., Any]] = {
    "float2int_rn": np.rint, "float2int_rz": np.trunc, "float2int_ru": np.ceil, "float2int_rd": np.floor,
    "llrint": np.rint, "llround": _rounded_half_away,
}  # fmt: skip


def _elementwise(m: Machine, function: Callable[..., Any], *args: Any) -> Value:
    values = [_value(m, x) for x in args]
    floats = [v.dtype for v in values if v.dtype.is_floating()] or [tl.float32]
    dtype = floats[0]
    for other in floats[1:]:
        dtype = common_type(dtype, other)
    arrays = aligned(*[cast(v, dtype, m.precision) for v in values])
    with np.errstate(all="ignore"):
        return Value(m.precision.rounded(np.asarray(function(*arrays)), dtype), dtype)


def _math(function: Callable[..., Any]) -> Builtin:
    return lambda m, *args, **_: _elementwise(m, function, *args)


for _name, _function in _MATH.items():
    BUILTINS[_name] = _math(_function)


def libdevice(name: str) -> Builtin | None:
    """Return the function of `libdevice` with a name; `None` if it is not interpreted."""
    if name in _LIBDEVICE:
        return _math(_LIBDEVICE[name])
    if name in _TESTS:
        test = _TESTS[name]
        return lambda m, x: cast(_value(m, x).like(test(_value(m, x).data)), tl.int1, m.precision)
    if name in _TO_INTEGER:
        whole = _TO_INTEGER[name]
        return lambda m, x: Value(m.precision.rounded(whole(_value(m, x).data), tl.int32), tl.int32)
    return None


@_builtin("abs")
def abs_(m: Machine, x: Any) -> Any:
    """Return absolute values."""
    return x.like(np.abs(x.data)) if isinstance(x, Value) else abs(x)


@_builtin("fdiv", "div_rn")
def fdiv(m: Machine, x: Any, y: Any, ieee_rounding: bool = False) -> Value:
    """Divide floats."""
    return _elementwise(m, np.divide, x, y)


@_builtin()
def fma(m: Machine, x: Any, y: Any, z: Any) -> Value:
    """Return x * y + z."""
    return _elementwise(m, lambda a, b, c: a * b + c, x, y, z)


@_builtin()
def umulhi(m: Machine, x: Any, y: Any) -> Value:
    """Return the upper 32 bits of a product of unsigned integers."""
    a, b = _value(m, x), _value(m, y)
    bits = max(v.dtype.primitive_bitwidth for v in (a, b))
    if bits > 32:
        raise UnsupportedError("umulhi of 64-bit integers: not interpreted")
    left, right = aligned(a, b)
    product = (left.astype(np.uint32).astype(np.uint64) * right.astype(np.uint32).astype(np.uint64)) >> np.uint64(32)
    dtype = common_type(a.dtype, b.dtype)
    return Value(product.astype(m.precision.held(dtype)), dtype)


@_builtin()
def where(m: Machine, condition: Any, x: Any, y: Any) -> Value:
    """Choose between two blocks."""
    chosen = cast(_value(m, condition), tl.int1, m.precision)
    a, b = _value(m, x), _value(m, y)
    if a.dtype.is_ptr() or b.dtype.is_ptr():
        dtype = a.dtype if a.dtype.is_ptr() else b.dtype
    else:
        dtype = common_type(a.dtype, b.dtype, "", is_number(x), is_number(y))
    a, b = (
        to_value(n, m.precision, dtype) if is_number(n) else cast(v, dtype, m.precision) for n, v in ((x, a), (y, b))
    )
    broadcast_shape([chosen.shape, a.shape, b.shape])
    return Value(np.where(*aligned(chosen, a, b)), dtype)


def _extreme(
    name: str, ignores_nan: Callable[..., Any], keeps_nan: Callable[..., Any], of_numbers: Callable[..., Any]
) -> None:
    def run(m: Machine, x: Any, y: Any, propagate_nan: Any = None) -> Any:
        if not isinstance(x, Value) and not isinstance(y, Value):
            return of_numbers(x, y)
        a, b = _value(m, x), _value(m, y)
        dtype = common_type(a.dtype, b.dtype, "", is_number(x), is_number(y))
        a, b = (
            to_value(n, m.precision, dtype) if is_number(n) else cast(v, dtype, m.precision)
            for n, v in ((x, a), (y, b))
        )
        keeps = propagate_nan is not None and getattr(propagate_nan, "name", "") == "ALL"
        return Value((keeps_nan if keeps else ignores_nan)(*aligned(a, b)), dtype)

    BUILTINS[name] = run


_extreme("maximum", np.fmax, np.maximum, max)
_extreme("minimum", np.fmin, np.minimum, min)


@_builtin()
def clamp(m: Machine, x: Any, min: Any, max: Any, propagate_nan: Any = None) -> Any:
    """Limit a block."""
    return BUILTINS["minimum"](m, BUILTINS["maximum"](m, x, min, propagate_nan), max, propagate_nan)


@_builtin()
def cdiv(m: Machine, x: Any, div: Any) -> Any:
    """Return the quotient of integers, rounded up."""
    above = binary("-", binary("+", x, div, m.precision), 1, m.precision)
    return binary("//", above, div, m.precision)


def _operator(name: str, op: str) -> None:
    BUILTINS[name] = lambda m, x, y, **_: binary(op, x, y, m.precision)


for _name, _op in (("add", "+"), ("sub", "-"), ("mul", "*")):
    _operator(_name, _op)


@_builtin()
def logical_and(m: Machine, x: Any, y: Any) -> Any:
    """Return whether both hold."""
    return binary("&", cast(_value(m, x), tl.int1, m.precision), cast(_value(m, y), tl.int1, m.precision), m.precision)


@_builtin()
def logical_or(m: Machine, x: Any, y: Any) -> Any:
    """Return whether one holds."""
    return binary("|", cast(_value(m, x), tl.int1, m.precision), cast(_value(m, y), tl.int1, m.precision), m.precision)


@_builtin()
def inline_asm_elementwise(
    m: Machine, asm: str, constraints: str, args: Sequence[Any], dtype: Any, is_pure: bool, pack: int
) -> Any:
    """Run assembly that computes floats, one element at a time."""
    if pack != 1 and args:
        raise UnsupportedError("inline assembly on packed elements: not interpreted")
    values = [_value(m, x) for x in args]
    shape = broadcast_shape([v.shape for v in values])
    dtypes = list(dtype) if isinstance(dtype, tuple | list) else [dtype]
    arrays = aligned(*values, Value(np.zeros((1, *[1] * len(shape))), tl.float32))[:-1]
    with np.errstate(all="ignore"):
        found = assembly.run(asm, len(dtypes), arrays, m.precision.held(dtypes[0]))
    done = [
        full(m, shape, 0, each) if x is None else Value(m.precision.rounded(x, each), each)
        for x, each in zip(found, dtypes, strict=True)
    ]
    return tuple(done) if isinstance(dtype, tuple | list) else done[0]


# ---- products, reductions, scans ------------------------------------------------------------------------------------


@_builtin()
def dot(
    m: Machine,
    input: Value,
    other: Value,
    acc: Value | None = None,
    input_precision: str | None = None,
    allow_tf32: Any = None,
    max_num_imprecise_acc: Any = None,
    out_dtype: Any = tl.float32,
) -> Value:
    """Multiply matrices; float32 is rounded to TF32 unless `input_precision` says otherwise, as on the device."""
    if len(input.shape) != len(other.shape) or input.shape[-1] != other.shape[-2]:
        raise KernelError(f"dot of blocks of shapes {input.shape} and {other.shape}")
    if input.dtype.is_int():
        product = np.matmul(input.data.astype(np.int32), other.data.astype(np.int32))
        return _accumulated(m, product, acc, tl.int32)
    precision = input_precision or ("ieee" if allow_tf32 is False else "tf32")
    a, b = input.data, other.data
    if not m.precision.lifts:
        narrow = (
            m.precision.rounds_tf32
            and precision.startswith("tf32")
            and not precision.endswith("x3")
            and input.dtype.name == "fp32"
        )
        a, b = (_as_tf32(x) if narrow else x.astype(np.float32) for x in (a, b))
    elif input.dtype.name == "fp64":
        out_dtype = tl.float64
    return _accumulated(m, np.matmul(a, b), acc, out_dtype if acc is None else acc.dtype)


def _accumulated(m: Machine, product: Array, acc: Value | None, dtype: Any) -> Value:
    total = product if acc is None else acc.data + product
    return Value(m.precision.rounded(total, dtype), dtype)


def _as_tf32(x: Array) -> Array:
    """Round to the 10 bits of TF32, to nearest with ties away, as the hardware's conversion does."""
    bits = np.ascontiguousarray(x.astype(np.float32)).view(np.uint32)
    rounded: Array = (bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)
    return rounded.view(np.float32)


def _at_axis(axis: Any, rank: int) -> int:
    """Return the axis of an array that is an axis of a block: the first one is of programs."""
    at = _integer(axis)
    if not -rank <= at < rank:
        raise KernelError(f"axis {at} of a block of {rank} dimension{'s' * (rank != 1)}")
    return at % rank + 1


def _reduced_axis(x: Value, axis: int | None, function: Callable[..., Array], keep_dims: bool) -> Array:
    if not x.shape:
        return x.data
    if axis is not None:
        return function(x.data, axis=_at_axis(axis, len(x.shape)), keepdims=keep_dims)
    flat = function(x.data.reshape(x.programs, -1), axis=1)
    return flat.reshape(x.programs, *[1] * len(x.shape)) if keep_dims else flat


def _wide(dtype: Any) -> Any:
    """The type in which Triton sums: at least 32 bits for integers."""
    if dtype.is_int() and dtype.primitive_bitwidth < 32:
        return tl.uint32 if dtype.name.startswith("u") else tl.int32
    return tl.float32 if dtype.name == "bf16" else dtype


@_builtin("sum")
def sum_(m: Machine, input: Any, axis: Any = None, keep_dims: bool = False, dtype: Any = None) -> Value:
    """Add along an axis: short integers in 32 bits, bfloat16 in float32, of which the sum then is."""
    x = _value(m, input)
    wide = cast(x, _wide(x.dtype) if dtype is None else dtype, m.precision)
    return Value(m.precision.rounded(_reduced_axis(wide, axis, np.sum, keep_dims), wide.dtype), wide.dtype)


@_builtin()
def xor_sum(m: Machine, input: Value, axis: Any = None, keep_dims: bool = False) -> Value:
    """Combine along an axis by exclusive or."""
    return input.like(_reduced_axis(input, axis, np.bitwise_xor.reduce, keep_dims))


@_builtin()
def reduce_or(m: Machine, input: Value, axis: Any = None, keep_dims: bool = False) -> Value:
    """Combine along an axis by or."""
    return input.like(_reduced_axis(input, axis, np.bitwise_or.reduce, keep_dims))


def _extreme_of(name: str, find: Callable[..., Array], at: Callable[..., Array]) -> None:
    def of(
        m: Machine,
        input: Any,
        axis: Any = None,
        return_indices: bool = False,
        return_indices_tie_break_left: bool = True,
        keep_dims: bool = False,
    ) -> Any:
        x = _value(m, input)
        if x.dtype.is_int() and x.dtype.primitive_bitwidth < 32:
            x = cast(x, tl.int32, m.precision)
        with np.errstate(all="ignore"):
            best = x.like(_reduced_axis(x, axis, find, keep_dims))
        return (best, position(m, x, axis, keep_dims=keep_dims)) if return_indices else best

    def position(m: Machine, input: Any, axis: Any, tie_break_left: bool = True, keep_dims: bool = False) -> Value:
        x = _value(m, input)
        return Value(_reduced_axis(x, axis, at, keep_dims).astype(np.int32), tl.int32)

    BUILTINS[name], BUILTINS[f"arg{name}"] = of, position


_extreme_of("max", np.fmax.reduce, np.argmax)
_extreme_of("min", np.fmin.reduce, np.argmin)


@_builtin()
def reduce(m: Machine, input: Any, axis: Any, combine_fn: Any, keep_dims: bool = False) -> Any:
    """Combine along an axis by a function: halves, then halves of these."""
    is_tuple = isinstance(input, tuple | list)
    values = [_value(m, x) for x in (input if is_tuple else [input])]
    rank = len(values[0].shape)
    if axis is None:
        values, at = [reshape(m, v, -1) for v in values], 1
    else:
        at = _at_axis(axis, rank)
    while (length := values[0].data.shape[at]) > 1:
        halves = [np.split(v.data[_upto(at, length // 2 * 2)], 2, axis=at) for v in values]
        left = [v.like(h[0]) for v, h in zip(values, halves, strict=True)]
        right = [v.like(h[1]) for v, h in zip(values, halves, strict=True)]
        values = _combined(m, combine_fn, left, right)
    if keep_dims:
        done = values if axis is not None else [v.like(v.data.reshape(v.programs, *[1] * rank)) for v in values]
    else:
        done = [v.like(np.squeeze(v.data, axis=at)) for v in values]
    return tuple(done) if is_tuple else done[0]


def _upto(axis: int, end: int) -> tuple[slice, ...]:
    return (*[slice(None)] * axis, slice(0, end))


def _combined(m: Machine, combine_fn: Any, left: list[Value], right: list[Value]) -> list[Value]:
    found = m.call(combine_fn, [*left, *right], {})
    results = list(found) if isinstance(found, tuple | list) else [found]
    return [cast(_value(m, r), x.dtype, m.precision) for r, x in zip(results, left, strict=True)]


@_builtin()
def associative_scan(m: Machine, input: Any, axis: Any, combine_fn: Any, reverse: bool = False) -> Any:
    """Combine each element with all before it: Hillis and Steele's scan, in log n steps."""
    is_tuple = isinstance(input, tuple | list)
    values = [_value(m, x) for x in (input if is_tuple else [input])]
    at = _at_axis(axis, len(values[0].shape))
    if reverse:
        values = [v.like(np.flip(v.data, at)) for v in values]
    length, step = values[0].data.shape[at], 1
    while step < length:
        before = [v.like(v.data[_upto(at, length - step)]) for v in values]
        here = [v.like(v.data[(*[slice(None)] * at, slice(step, None))]) for v in values]
        done = _combined(m, combine_fn, before, here)
        values = [_joined(v, d, at, step) for v, d in zip(values, done, strict=True)]
        step *= 2
    if reverse:
        values = [v.like(np.flip(v.data, at)) for v in values]
    return tuple(values) if is_tuple else values[0]


def _joined(first: Value, rest: Value, axis: int, step: int) -> Value:
    programs = max(first.programs, rest.programs)
    parts = [first.data[_upto(axis, step)], rest.data]
    return first.like(np.concatenate([np.broadcast_to(p, (programs, *p.shape[1:])) for p in parts], axis=axis))


def _cumulative(name: str, function: Callable[..., Array]) -> None:
    def run(m: Machine, input: Value, axis: int = 0, reverse: bool = False, dtype: Any = None) -> Value:
        x = cast(input, _wide(input.dtype) if dtype is None else dtype, m.precision)
        at = _at_axis(axis, len(x.shape))
        data = np.flip(x.data, at) if reverse else x.data
        data = function(data, axis=at, dtype=x.data.dtype)
        return Value(m.precision.rounded(np.flip(data, at) if reverse else data, x.dtype), x.dtype)

    BUILTINS[name] = run


_cumulative("cumsum", np.cumsum)
_cumulative("cumprod", np.cumprod)


@_builtin()
def softmax(m: Machine, x: Value, dim: Any = None, keep_dims: bool = False, ieee_rounding: bool = False) -> Value:
    """Return exp(x - max) / sum along an axis, the first one by default, as Triton has it."""
    axis = _at_axis(0 if dim is None else dim, len(x.shape))
    with np.errstate(all="ignore"):
        powers = np.exp(x.data - np.max(x.data, axis=axis, keepdims=True))
        return x.like(m.precision.rounded(powers / powers.sum(axis=axis, keepdims=True), x.dtype))


@_builtin()
def sort(m: Machine, x: Value, dim: Any = None, descending: bool = False) -> Value:
    """Sort along the last axis."""
    data = np.sort(x.data, axis=-1)
    return x.like(np.flip(data, -1) if descending else data)


@_builtin()
def topk(m: Machine, x: Value, k: int, dim: Any = None) -> Value:
    """Return the k largest elements of the last axis, in descending order."""
    return x.like(np.flip(np.sort(x.data, axis=-1), -1)[..., : _integer(k)])


@_builtin()
def histogram(m: Machine, input: Value, num_bins: int, mask: Value | None = None) -> Value:
    """Count the integers 0, …, num_bins - 1."""
    bins = np.arange(_integer(num_bins))
    hits = input.data[..., None] == bins
    if mask is not None:
        hits = hits & mask.data[..., None]
    return Value(hits.sum(axis=1).astype(np.int32), tl.int32)


# ---- what has no effect on values -----------------------------------------------------------------------------------


@_builtin("multiple_of", "max_contiguous", "max_constancy")
def hint(m: Machine, input: Any, values: Any = None) -> Any:
    """Return the value: what is said of it concerns the compiler."""
    return input


@_builtin("debug_barrier", "assume", "device_print", "static_print")
def nothing(m: Machine, *args: Any, **kwargs: Any) -> None:
    """Do nothing."""


@_builtin()
def static_assert(m: Machine, cond: Any, msg: str = "") -> None:
    """Refuse the kernel if a condition on its constants does not hold."""
    if not isinstance(cond, Value) and not cond:
        raise KernelError(f"static_assert failed{f': {msg}' if msg else ''}")


@_builtin()
def device_assert(m: Machine, cond: Any, msg: str = "", mask: Any = None) -> None:
    """Do nothing: Triton checks it only in debug mode."""


@_builtin("condition")
def condition(m: Machine, arg: Any, disable_licm: bool = False) -> Any:
    """Return the condition of a loop."""
    return arg
