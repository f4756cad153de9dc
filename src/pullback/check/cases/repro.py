"""A failing case as code that a user can paste and run."""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pullback._torch import tree_unflatten
from pullback.check.case import Case
from pullback.check.cases.callables import StandIn
from pullback.check.subject import Subject

_MAX_ELEMENTS = 200


class _Name:
    """Stands for a variable inside the `repr` of nested arguments."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def script(subject: Subject, case: Case, tail: Sequence[str] = (), mask: Sequence[bool] | None = None) -> str:
    """Return code that builds the case's arguments, calls the subject as `out = fn(…)`, then runs `tail`.

    Each differentiated argument is bound to its own name, and `inputs` to the list of them.
    """
    names = variables(case)
    load = (subject.load or f"# fn = {subject.name}").splitlines()
    imports = {"import torch", *(line for line in load if line.startswith("import "))}
    lines = [*sorted(imports), *(line for line in load if line not in imports)]
    bound: set[str] = set()
    for position, value in enumerate(case.values):
        if isinstance(value, Tensor) and names[position] not in bound:
            order = case.wrt.index(position) if position in case.wrt else None
            asks = order is not None and (mask is None or mask[order])
            lines.append(f"{names[position]} = {literal(value)}{'.requires_grad_()' if asks else ''}")
            bound.add(names[position])
    lines.append(f"inputs = [{', '.join(names[p] for p in case.wrt)}]")
    lines.append(f"out = fn({call_text(case)})")
    return "\n".join([*lines, *tail])


def variables(case: Case) -> dict[int, str]:
    """Return the variable that `script` binds each leaf to; a tensor passed twice has one."""
    names: dict[int, str] = {}
    for position, value in enumerate(case.values):
        twin = next((p for p in case.wrt if case.values[p] is value), position)
        names[position] = names.get(twin) or _identifier(case.names[position], position)
    return names


def call_text(case: Case) -> str:
    """Return the arguments of the call in terms of `variables`."""
    names = variables(case)
    leaves: list[Any] = []
    for position, value in enumerate(case.values):
        if isinstance(value, Tensor):
            copied = case.non_leaf and position in case.wrt
            leaves.append(_Name(names[position] + (".clone()" if copied else "")))
        else:
            leaves.append(_Name(_spelled(value)))
    args, kwargs = tree_unflatten(leaves, case.spec)
    return ", ".join([*(repr(a) for a in args), *(f"{key}={value!r}" for key, value in kwargs.items())])


def literal(t: Tensor) -> str:
    """Return an expression that rebuilds a tensor: values exactly, and strides where they are not the usual."""
    dtype = f"dtype={t.dtype}"
    if t.numel() > _MAX_ELEMENTS:
        values = (
            f"torch.randn({tuple(t.shape)}, {dtype})"
            if t.is_floating_point()
            else f"torch.zeros({tuple(t.shape)}, {dtype})"
        )
        return values
    if t.numel() == 0:
        return f"torch.zeros({tuple(t.shape)}, {dtype})"
    expanded = [stride == 0 and size > 1 for stride, size in zip(t.stride(), t.shape, strict=True)]
    if any(expanded):
        small = t[tuple(slice(0, 1) if repeated else slice(None) for repeated in expanded)]
        return f"{literal(small)}.expand({tuple(t.shape)})"
    flat = f"torch.tensor({_numbers(t.resolve_conj().resolve_neg().tolist())}, {dtype})"
    if t.is_contiguous():
        return flat
    return f"torch.empty_strided({tuple(t.shape)}, {tuple(t.stride())}, {dtype}).copy_({flat})"


def _numbers(values: Any) -> str:
    return f"[{', '.join(map(_numbers, values))}]" if isinstance(values, list) else _spelled(values)


def _identifier(name: str, position: int) -> str:
    cleaned = "".join(ch if ch.isalnum() or ch == "_" else "_" for ch in name).strip("_")
    return (
        cleaned if cleaned.isidentifier() and cleaned not in ("out", "fn", "torch", "inputs", "g") else f"arg{position}"
    )


def _spelled(value: object) -> str:
    """Return how to write a value: as a literal, by name if it is PyTorch's, else as a gap."""
    if isinstance(value, complex) and not cmath.isfinite(value):
        return f"complex({_spelled(value.real)}, {_spelled(value.imag)})"
    if isinstance(value, float):
        return float.__repr__(value) if math.isfinite(value) else f"float('{float(value)}')"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if value is None or isinstance(value, bool | int | complex | str | torch.dtype | torch.Size | StandIn):
        return repr(value)
    name = getattr(value, "__name__", "")
    return f"torch.{name}" if name and getattr(torch, name, None) is value else "..."
