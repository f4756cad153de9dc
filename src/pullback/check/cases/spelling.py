"""Values as Python source, and the names that this source needs."""

from __future__ import annotations

import cmath
import math
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from pullback.check.cases.callables import SmoothCallable

GAP = "..."
"""Placeholder for a value that has no literal."""
_MAX_ELEMENTS = 200
_PLAIN = bool | int | complex | str | bytes | range | slice
_OF_TORCH = torch.dtype | torch.Size | torch.layout | torch.memory_format


def literal(t: Tensor) -> str:
    """Return an expression that rebuilds a tensor: values exactly, layout, and strides where they are not the usual."""
    dtype = f"dtype={t.dtype}"
    if t.layout is not torch.strided:
        return f"{literal(t.detach().to_dense())}.to_sparse(layout={t.layout})"
    if t.is_conj():
        return f"{literal(t.conj())}.conj()"
    if t.numel() == 0:
        return f"torch.zeros({tuple(t.shape)}, {dtype})"
    expanded = [stride == 0 and size > 1 for stride, size in zip(t.stride(), t.shape, strict=True)]
    if any(expanded):
        small = t[tuple(slice(0, 1) if repeated else slice(None) for repeated in expanded)]
        return f"{literal(small)}.expand({tuple(t.shape)})"
    if is_long(t):
        flat = f"torch.{'randn' if t.is_floating_point() else 'zeros'}({tuple(t.shape)}, {dtype})"
    else:
        flat = f"torch.tensor({_numbers(t.resolve_conj().resolve_neg().tolist())}, {dtype})"
    if t.is_contiguous():
        return flat
    return f"torch.empty_strided({tuple(t.shape)}, {tuple(t.stride())}, {dtype}).copy_({flat})"


def is_long(t: Tensor) -> bool:
    """Whether a tensor has too many elements to be written out, or lost them: `literal` gives others of its shape."""
    if t.layout is not torch.strided:
        return t.numel() > _MAX_ELEMENTS
    was_freed = t.numel() > 0 and t.untyped_storage().nbytes() == 0
    written = math.prod(size for size, stride in zip(t.shape, t.stride(), strict=True) if stride)  # others are expanded
    return written > _MAX_ELEMENTS or was_freed


def spelled(value: object) -> str:
    """Return how to write a value: as a literal, or by the names that `needed` lists; else a gap."""
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}" if _is_reached(type(value)) else GAP
    if isinstance(value, complex) and not cmath.isfinite(value):
        return f"complex({spelled(value.real)}, {spelled(value.imag)})"
    if isinstance(value, float):
        return float.__repr__(value) if math.isfinite(value) else f"float('{float(value)}')"
    if value is ...:
        return "Ellipsis"  # not the gap
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if value is None or isinstance(value, _PLAIN | _OF_TORCH | SmoothCallable):
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type) and _is_reached(type(value)):
        given = {f.name: spelled(getattr(value, f.name)) for f in fields(value) if f.init}
        return f"{type(value).__qualname__}({', '.join(f'{name}={text}' for name, text in given.items())})"
    name = getattr(value, "__name__", "")
    if name and getattr(torch, name, None) is value:
        return f"torch.{name}"
    return str(value.__qualname__) if _is_reached(value) else GAP  # type: ignore[attr-defined]


def needed(value: object) -> Iterator[tuple[str, str]]:
    """Yield (module, dotted name) of each import that the source of a value needs.

    That is `spelled`'s for a leaf, and `repr` for the lists, tuples and mappings that hold leaves.
    """
    if isinstance(value, Enum):
        yield from _imported(type(value))
    elif isinstance(value, dict):
        if type(value) is not dict:
            yield from _imported(type(value))
        for item in value.values():
            yield from needed(item)
    elif isinstance(value, tuple | list) and not isinstance(value, torch.Size):
        if type(value) not in (tuple, list):
            yield from _imported(type(value))
        for item in value:
            yield from needed(item)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _imported(type(value))
        for field in fields(value):
            yield from needed(getattr(value, field.name))
    elif hasattr(value, "__qualname__") and getattr(torch, getattr(value, "__name__", ""), None) is not value:
        yield from _imported(value)


def _imported(named: Any) -> Iterator[tuple[str, str]]:
    if _is_reached(named) and named.__module__ != "builtins":
        yield named.__module__, named.__qualname__


def _is_reached(named: Any) -> bool:
    """Whether a class or function can be found under its name in its module."""
    module, path = getattr(named, "__module__", None), getattr(named, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str):
        return False
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is named


def _numbers(values: Any) -> str:
    return f"[{', '.join(map(_numbers, values))}]" if isinstance(values, list) else spelled(values)
