"""Memory of a launch: addresses by which every access is checked, and who read or wrote each element.

Each storage of PyTorch has a range of addresses of its own, far from the others, so an address tells its storage and
an index beyond its end is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from pullback._torch import storage_of
from pullback.interpreter.errors import KernelError
from pullback.interpreter.values import Array, Precision
from pullback.interpreter.worlds import POISON

_SHIFT = 40
_MIDDLE = 1 << (_SHIFT - 1)
_NOBODY = -1

_POISON_BITS = np.array([POISON]).view(np.uint64)[0]


class Note(Protocol):
    """Takes note of irregular accesses."""

    def __call__(
        self, kind: str, memory: Memory | None, element: int | None, program: int, what: str, rival: int | None = None
    ) -> None:
        """Note what a program, and a rival if there is one, does to an element; the clause `what` tells it."""


@dataclass(slots=True)
class Touches:
    """The program that touched each element, once somebody asks; until then a log."""

    size: int
    log: list[tuple[Array, Array]] = field(default_factory=list)
    last: Array | None = None

    def add(self, index: Array, programs: Array) -> None:
        """Record that programs touched elements, one of each a lane."""
        if self.last is None:
            self.log.append((index, programs))
        else:
            self._note(self.last, index, programs)

    def at(self, index: Array) -> Array:
        """Return the program that touched elements: -1 for none, and for several as `_several` writes the first."""
        if self.last is None:
            self.last = np.full(self.size, _NOBODY, np.int32)
            for touched, programs in self.log:
                self._note(self.last, touched, programs)
            self.log.clear()
        return self.last[index]

    @staticmethod
    def _note(last: Array, index: Array, programs: Array) -> None:
        before = last[index]
        is_new = (before == _NOBODY) | (before == programs)
        last[index] = np.where(is_new, programs, _several(before))
        mixed = is_new & (last[index] != programs)  # several in this very access
        if mixed.any():
            last[index[mixed]] = _several(programs[mixed])


def _several(program: Array) -> Array:
    """Write that several programs touched an element, of which this is one."""
    return np.where(program >= 0, -2 - program, program)


def _one_of(program: Array) -> int:
    """Return the program that touched an element, or one of several."""
    return int(program if program >= 0 else -2 - program)


class Memory:
    """A storage of PyTorch during a launch: a flat array of elements as kernels see them.

    Attributes:
        data: the elements; `None` for a tensor on "meta", of which only the size is known.
        size: their number.
        item_size: bytes of each, as kernels hold it.
        element_size: bytes of each, as PyTorch holds it.
        flat: the storage as a tensor; there is none on "meta".
        names: the parameters of the kernel that point here.
    """

    def __init__(self, tensor: torch.Tensor, number: int, dtype: Any, precision: Precision) -> None:
        """Take the whole storage of a tensor.

        Args:
            tensor: one on the CPU, or on "meta".
            number: counts the memories of the launch, from 1.
            dtype: the type of its elements, Triton's.
            precision: how kernels hold them.
        """
        held = np.dtype(precision.held(dtype))
        self.names: list[str] = []
        self.base = (number << _SHIFT) + _MIDDLE
        self.dtype = dtype
        self.element_size, self.item_size = tensor.element_size(), int(held.itemsize)
        self.size = int(tensor.untyped_storage().nbytes()) // self.element_size
        self.is_written = self.has_poison = self._is_copy = False
        self.data: Array | None = None
        if tensor.device.type != "meta":
            self._take(tensor, held)

    def _take(self, tensor: torch.Tensor, held: np.dtype[Any]) -> None:
        flat = torch.empty(0, dtype=tensor.dtype)
        flat.set_(tensor.untyped_storage(), 0, (self.size,), (1,))
        self.flat = flat
        as_torch = torch.from_numpy(np.empty(0, held)).dtype
        self._is_copy = as_torch != tensor.dtype
        self.data = (flat.to(as_torch) if self._is_copy else flat).numpy()
        self.has_poison = held == np.float64 and bool((self.data.view(np.uint64) == _POISON_BITS).any())
        self.readers, self.writers = Touches(self.size), Touches(self.size)

    def elements(self, held: Any) -> Array | None:
        """The elements as a type of the same width."""
        return self.data if self.data is None or self.data.dtype == held else self.data.view(held)

    def write_back(self) -> None:
        """Copy elements that are held otherwise than PyTorch holds them to the storage."""
        if self._is_copy and self.is_written and self.data is not None:
            self.flat.copy_(torch.from_numpy(self.data).to(self.flat.dtype))

    def __str__(self) -> str:
        return "/".join(dict.fromkeys(self.names)) or "a tensor"


class Space:
    """The memories of a launch, and accesses to them."""

    def __init__(self, precision: Precision, grid: tuple[int, int, int], note: Note) -> None:
        """Make an empty one for a grid of programs; `note` is called for each irregular access."""
        self._precision = precision
        self._grid = grid
        self._note = note
        self._memories: list[Memory] = []
        self._of_storage: dict[int, Memory] = {}
        self.is_ordered = False
        """Whether programs order their accesses by atomic operations: then who reads after whom is no race."""
        self._has_read_unwritten = False
        self.on_store: Callable[[torch.Tensor], None] = lambda _: None
        """Called with all elements of a storage, before some are stored."""
        self.keeps_unwritten = False
        """Whether a kernel stored NaN after it read memory that nobody wrote: it did not mask it off."""

    def place(self, program: int) -> tuple[int, int, int]:
        """Return the index of a program in the grid."""
        x, y, z = np.unravel_index(program, self._grid)
        return int(x), int(y), int(z)

    def pointer_to(self, tensor: torch.Tensor, name: str, dtype: Any) -> int:
        """Return the address of a tensor's first element."""
        key = storage_of(tensor)
        memory = self._of_storage.get(key)
        if memory is None:
            memory = Memory(tensor, len(self._memories) + 1, dtype, self._precision)
            self._memories.append(memory)
            self._of_storage[key] = memory
        if memory.dtype != dtype and memory.element_size != tensor.element_size():
            raise KernelError(f"the memory of {name} is passed under two types, {memory.dtype} and {dtype}")
        memory.names.append(name)
        return int(memory.base + tensor.storage_offset() * memory.item_size)

    def write_back(self) -> None:
        """Give what kernels wrote to PyTorch."""
        for memory in self._memories:
            memory.write_back()

    def load(self, address: Array, mask: Array | None, other: Array | float, dtype: Any, programs: Array) -> Array:
        """Return the elements at addresses; `other` where masked off or out of bounds.

        Args:
            address: of shape (lanes or 1, *block).
            mask: which elements to load, of a shape that broadcasts to it; `None` for all.
            other: the rest.
            dtype: type of the elements.
            programs: the running programs.
        """
        shape = np.broadcast_shapes(address.shape, () if mask is None else mask.shape, np.shape(other))
        flat_address, positions = _flat(address, mask, shape)
        out: Array | None = None
        held = self._precision.held(dtype)
        for memory, index, at in self._found(flat_address, positions, "load", shape, programs, held):
            data = memory.elements(held)
            got = np.zeros(index.size, held) if data is None else data[index]
            if memory.has_poison:
                self._read_poison(memory, index, at, got, shape, programs, "load of")
            if data is not None:
                self._read(memory, index, at, shape, programs)
            if out is None and at is None:
                return got.reshape(shape)
            out = _filled(other, shape, held) if out is None else out
            out.reshape(-1)[at if at is not None else slice(None)] = got
        return _filled(other, shape, held) if out is None else out

    def store(self, address: Array, value: Array, mask: Array | None, programs: Array) -> None:
        """Write elements; where two lanes write one element, the last program's stays."""
        shape = np.broadcast_shapes(address.shape, () if mask is None else mask.shape, value.shape)
        flat_address, positions = _flat(address, mask, shape)
        new = np.broadcast_to(value, shape).reshape(-1)
        for memory, index, at in self._found(flat_address, positions, "store", shape, programs, value.dtype):
            data = memory.elements(value.dtype)
            written = new if at is None else new[at]
            self._look_for_nan(written)
            if data is not None:
                self._written(memory, data, index, at, written, shape, programs)

    def update(
        self,
        name: str,
        address: Array,
        value: Array,
        mask: Array | None,
        change: Callable[[Array, Array], Array],
        at_once: Any,
        programs: Array,
    ) -> Array:
        """Change elements one lane after the other; return what each lane found.

        Args:
            name: name of the operation, for messages.
            address, value, mask: as of `store`.
            change: returns the new element for an old one and the value.
            at_once: a ufunc that does the same for all lanes, where what they found is not asked for.
            programs: the running programs.
        """
        # Each program runs it, also where all have the same address.
        shape = np.broadcast_shapes((len(programs), *[1] * (address.ndim - 1)), address.shape, value.shape)
        shape = shape if mask is None else np.broadcast_shapes(shape, mask.shape)
        flat_address, positions = _flat(np.broadcast_to(address, shape), mask, shape)
        new = np.broadcast_to(value, shape).reshape(-1)
        out = np.zeros(int(np.prod(shape)), value.dtype)
        for memory, index, at in self._found(flat_address, positions, "atomic", shape, programs, value.dtype):
            data = memory.elements(value.dtype)
            if data is None:
                continue
            lanes = new if at is None else new[at]
            if memory.has_poison:
                self._read_poison(memory, index, at, data[index], shape, programs, f"{name} on")
                self.keeps_unwritten |= bool((data[index].view(np.uint64) == _POISON_BITS).any())
            self._look_for_nan(lanes)
            memory.is_written = True
            self.on_store(memory.flat)
            if at_once is not None:
                at_once.at(data, index, lanes)
                continue
            found = np.empty_like(lanes)
            for lane, (i, x) in enumerate(zip(index.tolist(), lanes, strict=True)):
                found[lane] = data[i]
                data[i] = change(data[i], x)
            out[at if at is not None else slice(None)] = found
        return out.reshape(shape)

    def _found(
        self, address: Array, positions: Array | None, what: str, shape: tuple[int, ...], programs: Array, held: Any
    ) -> Iterator[tuple[Memory, Array, Array | None]]:
        """Yield each memory, the indices of its elements, and their positions in the block (`None`: all, in order)."""
        if not address.size:
            return
        number = address >> _SHIFT
        first = int(number[0])
        if (number == first).all():
            yield from self._in_bounds(first, address, positions, what, shape, programs, held)
            return
        for each in np.unique(number).tolist():
            chosen = np.flatnonzero(number == each)
            at = chosen if positions is None else positions[chosen]
            yield from self._in_bounds(each, address[chosen], at, what, shape, programs, held)

    def _in_bounds(
        self,
        number: int,
        address: Array,
        at: Array | None,
        what: str,
        shape: tuple[int, ...],
        programs: Array,
        held: Any,
    ) -> Iterator[tuple[Memory, Array, Array | None]]:
        if not 1 <= number <= len(self._memories):
            program = _program_of(0 if at is None else int(at[0]), shape, programs)
            self._note("out-of-bounds", None, None, program, f"{what} at an address of no tensor")
            return
        memory = self._memories[number - 1]
        if np.dtype(held).itemsize != memory.item_size:
            raise KernelError(f"{what} of {np.dtype(held)} in the memory of {memory}, which has {memory.dtype}")
        index = (address - memory.base) // memory.item_size
        outside = (index < 0) | (index >= memory.size)
        if outside.any():
            where = np.flatnonzero(outside)
            position = int(where[0]) if at is None else int(at[where[0]])
            first = int(index[where[0]])
            at_first = f" of {where.size} elements out of bounds, the first" if where.size > 1 else " out of bounds,"
            elements = f"{memory.size} element{'s' * (memory.size != 1)}"
            clause = f"{what}{at_first} at index {first} of {memory}, whose storage has {elements}"
            self._note("out-of-bounds", memory, first, _program_of(position, shape, programs), clause)
            inside = np.flatnonzero(~outside)
            index, at = index[inside], inside if at is None else at[inside]
        yield memory, index, at

    def _lanes(self, at: Array | None, shape: tuple[int, ...], programs: Array, count: int) -> Array:
        """The program of each lane; where all programs share one access, they are told as several, or the only one."""
        if shape[0] == 1:
            return np.full(count, programs[0] if len(programs) == 1 else _several(programs[0]), np.int32)
        rest, each = int(np.prod(shape[1:])), programs.astype(np.int32)
        return np.repeat(each, rest) if at is None else np.asarray(each[at // rest])

    def _read_poison(
        self,
        memory: Memory,
        index: Array,
        at: Array | None,
        got: Array,
        shape: tuple[int, ...],
        programs: Array,
        does: str,
    ) -> None:
        unwritten = got.view(np.uint64) == _POISON_BITS
        if unwritten.any():
            self._has_read_unwritten = True
            k = int(np.flatnonzero(unwritten)[0])
            program, element = _program_of(k if at is None else int(at[k]), shape, programs), int(index[k])
            clause = f"{does} element {element} of {memory}, which was never written"
            self._note("uninitialised-memory", memory, element, program, clause)

    def _look_for_nan(self, new: Array) -> None:
        if self._has_read_unwritten and not self.keeps_unwritten and new.dtype.kind == "f":
            self.keeps_unwritten = bool(np.isnan(new).any())

    def _read(self, memory: Memory, index: Array, at: Array | None, shape: tuple[int, ...], programs: Array) -> None:
        lanes = self._lanes(at, shape, programs, index.size)
        if memory.is_written and not self.is_ordered:
            self._complain(memory, index, lanes, memory.writers.at(index), "read", "after {} wrote it")
        memory.readers.add(index, lanes)

    def _written(
        self,
        memory: Memory,
        data: Array,
        index: Array,
        at: Array | None,
        new: Array,
        shape: tuple[int, ...],
        programs: Array,
    ) -> None:
        memory.is_written = True
        self.on_store(memory.flat)
        lanes = self._lanes(at, shape, programs, index.size)
        changes = _differ(data[index], new)
        data[index] = new
        lost = _differ(data[index], new)
        if lost.any():
            k = int(np.flatnonzero(lost)[0])
            rivals = np.flatnonzero(index == index[k])
            others = lanes[rivals[lanes[rivals] != lanes[k]]]
            program, element = _one_of(lanes[k]), int(index[k])
            clause = f"store different values in element {element} of {memory}"
            if lanes[k] < 0 or not others.size:
                clause = f"{'several programs' if lanes[k] < 0 else 'two of its lanes'} {clause}"
                self._note("data-race", memory, element, program, clause)
            else:
                self._note("data-race", memory, element, program, clause, rival=_one_of(others[0]))
        if not self.is_ordered and changes.any():
            where = np.flatnonzero(changes)
            touched, by = index[where], lanes[where]
            self._complain(memory, touched, by, memory.writers.at(touched), "store to", "where {} stored another value")
            self._complain(memory, touched, by, memory.readers.at(touched), "store to", "after {} read it")
        memory.writers.add(index, lanes)

    def _complain(self, memory: Memory, index: Array, lanes: Array, others: Array, does: str, after: str) -> None:
        racing = (others != _NOBODY) & ((others != lanes) | (others < 0))
        if racing.any():
            k = int(np.flatnonzero(racing)[0])
            program, other, element = _one_of(lanes[k]), _one_of(others[k]), int(index[k])
            who = f"program {self.place(other)}" if other != program else "another program"
            self._note(
                "data-race", memory, element, program, f"{does} element {element} of {memory} {after.format(who)}"
            )


def _flat(address: Array, mask: Array | None, shape: tuple[int, ...]) -> tuple[Array, Array | None]:
    """Return the addresses that are not masked off, and their positions; `None` for all."""
    if mask is None or mask.all():
        return np.broadcast_to(address, shape).reshape(-1), None
    positions = np.flatnonzero(np.broadcast_to(mask, shape))
    return np.broadcast_to(address, shape).reshape(-1)[positions], positions


def _filled(other: Array | float, shape: tuple[int, ...], held: Any) -> Array:
    out = np.empty(shape, held)
    out[...] = other
    return out


def _program_of(position: int, shape: tuple[int, ...], programs: Array) -> int:
    rest = int(np.prod(shape[1:]))
    return int(programs[position // rest if shape[0] > 1 else 0])


def _differ(old: Array, new: Array) -> Array:
    different: Array = old != new
    if old.dtype.kind == "f":
        different &= (old == old) | (new == new)
    return different
