"""A failing case as code that a user can paste and run: values as Python source, and the script around them."""

from __future__ import annotations

import cmath
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from pullback._torch import tree_leaves, tree_unflatten
from pullback.check.case import Case
from pullback.check.cases.templates import SmoothCallable
from pullback.check.find.kernels import entering_lines
from pullback.check.subject import Subject, on_device_lines
from pullback.dtypes import is_opaque
from pullback.report.evidence import ALTERED

GAP = "..."
"""Placeholder for a value that has no literal."""
_MAX_ELEMENTS = 200
_PLAIN = bool | int | complex | str | bytes | range | slice
_OF_TORCH = torch.dtype | torch.Size | torch.layout | torch.memory_format


def literal(t: Tensor) -> str:
    """An expression that rebuilds a tensor: exact values, layout, and strides unless it is contiguous."""
    dtype = f"dtype={t.dtype}"
    if t.is_meta:
        return f"torch.empty({tuple(t.shape)}, {dtype}, device='meta')"
    if t.layout is not torch.strided:
        return f"{literal(t.detach().to_dense())}.to_sparse(layout={t.layout})"
    if t.is_meta:
        return f"torch.empty({tuple(t.shape)}, {dtype}, device='meta')"
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
    span = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True)) + 1
    if span == t.numel():
        return f"torch.empty_strided({tuple(t.shape)}, {tuple(t.stride())}, {dtype}).copy_({flat})"
    # The elements between those of the tensor are zeros, as in a variant: a kernel may read them.
    length = min(t.untyped_storage().nbytes() // t.element_size(), span + max(t.stride()) - 1)
    return f"torch.zeros({length}, {dtype}).as_strided({tuple(t.shape)}, {tuple(t.stride())}).copy_({flat})"


def bind(name: str, value: Tensor | Sequence[Tensor], more: str = "") -> str:
    """Return the line of a script that binds a name to a tensor, a list or a tuple of them, followed by `more`.

    A comment says so if a tensor is too long to be written out: a script with other values does not repeat a finding.
    """
    tensors = [value] if isinstance(value, Tensor) else value
    written = ", ".join(map(literal, tensors))
    text = written if isinstance(value, Tensor) else f"({written},)" if isinstance(value, tuple) else f"[{written}]"
    return f"{name} = {text}{more}{f'  {ALTERED}' if any(map(is_long, tensors)) else ''}"


def is_long(t: Tensor) -> bool:
    """Whether a tensor is too large to be written out, or was freed: `literal` then gives other values."""
    if t.layout is not torch.strided:
        return t.numel() > _MAX_ELEMENTS
    was_freed = t.numel() > 0 and t.untyped_storage().nbytes() == 0
    written = math.prod(size for size, stride in zip(t.shape, t.stride(), strict=True) if stride)  # others are expanded
    return written > _MAX_ELEMENTS or was_freed


def source_of(value: object) -> str:
    """Source of a value: a literal, or the names that `needed` lists; otherwise a gap."""
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}" if _is_reached(type(value)) else GAP
    if isinstance(value, complex) and not cmath.isfinite(value):
        return f"complex({source_of(value.real)}, {source_of(value.imag)})"
    if isinstance(value, float):
        return float.__repr__(value) if math.isfinite(value) else f"float('{float(value)}')"
    if value is ...:
        return "Ellipsis"  # not the gap
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if value is None or isinstance(value, _PLAIN | _OF_TORCH | SmoothCallable):
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type) and _is_reached(type(value)):
        given = {f.name: source_of(getattr(value, f.name)) for f in fields(value) if f.init}
        return f"{type(value).__qualname__}({', '.join(f'{name}={text}' for name, text in given.items())})"
    name = getattr(value, "__name__", "")
    if name and getattr(torch, name, None) is value:
        return f"torch.{name}"
    return str(value.__qualname__) if _is_reached(value) else GAP  # type: ignore[attr-defined]


def needed(value: object) -> Iterator[tuple[str, str]]:
    """Yield (module, dotted name) of each import that the source of a value needs.

    That is `source_of`'s for a leaf, and `repr` for the lists, tuples and mappings that hold leaves.
    """
    if isinstance(value, Enum):
        yield from _import_of(type(value))
    elif isinstance(value, dict):
        if type(value) is not dict:
            yield from _import_of(type(value))
        for item in value.values():
            yield from needed(item)
    elif isinstance(value, tuple | list) and not isinstance(value, torch.Size):
        if type(value) not in (tuple, list):
            yield from _import_of(type(value))
        for item in value:
            yield from needed(item)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _import_of(type(value))
        for field in fields(value):
            yield from needed(getattr(value, field.name))
    elif hasattr(value, "__qualname__") and getattr(torch, getattr(value, "__name__", ""), None) is not value:
        yield from _import_of(value)


def _import_of(named: Any) -> Iterator[tuple[str, str]]:
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
    return f"[{', '.join(map(_numbers, values))}]" if isinstance(values, list) else source_of(values)


_RUNS = re.compile(r"\b(fn|call|gradient_at|value_at|grad|backward|vjp|jvp|compiled|module)\(")
"""Matches a line of a script that runs the subject."""
_IMPORTS_BY_NAME = re.compile(r"torch\.(compile|export)|pickle")
"""Features that need the function's module to be in `sys.modules`."""
NO_LITERAL = f"# {GAP} stands for"
"""Comment in a script that does not reproduce the failing case exactly."""
_TAKEN = frozenset(
    {
        *("out", "outs", "fn", "held", "holding", "torch", "inputs", "g", "call", "value_at", "gradient_at", "names"),
        *("interpreter", "weights", "loss", "first", "second", "total", "both", "got", "above", "below", "dot"),
        *("results", "grads"),
    }
)
"""Names that scripts bind themselves."""


class _Name:
    """Placeholder for a variable inside the `repr` of nested arguments."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def script(
    subject: Subject,
    case: Case,
    tail: Sequence[str] = (),
    mask: Sequence[bool] | None = None,
    seed: int | None = None,
) -> str:
    """Return code that builds the case's arguments, calls the subject as `out = fn(…)`, then runs `tail`.

    Each differentiated argument is bound to its own name, and `inputs` to the list of them, if `tail` reads it. With a
    seed, what runs the subject starts from that random state.
    """
    names = variables(case)
    load = _loading(subject, case, tail)
    imports = {"import torch", *(line for line in load if line.startswith("import "))}
    lines = entering_lines() if subject.is_interpreted else []
    lines += [*sorted(imports.difference(lines)), *(line for line in load if line not in imports)]
    lines += _holding(case, names)
    bound: set[str] = set()
    for position, value in enumerate(case.values):
        if isinstance(value, Tensor) and names[position] not in bound:
            input_index = case.wrt.index(position) if position in case.wrt else None
            asks = input_index is not None and (mask is None or mask[input_index])
            if position in case.captured:
                lines.append(f'{names[position]} = held["{names[position]}"].requires_grad_({asks})')
                lines.append(bind(f"{names[position]}.data", value))
            else:
                lines.append(bind(names[position], value, ".requires_grad_()" if asks else ""))
            bound.add(names[position])
        elif not isinstance(value, Tensor) and GAP in source_of(value):
            lines.append(f"{NO_LITERAL} {case.names[position]}, of type {type(value).__name__}, which has no literal")
    if not tail or any(re.search(r"\binputs\b", line) for line in tail):
        lines.append(f"inputs = [{', '.join(names[p] for p in case.wrt)}]")
    lines.append(f"out = fn({call_text(case)})")
    lines += tail
    return "\n".join(_spaced(lines if seed is None else _seeded(lines, seed)))


def _holding(case: Case, names: Mapping[int, str]) -> list[str]:
    """Return the lines that find the tensors a subject holds, and let a function of all inputs replace them."""
    if not case.captured:
        return []
    held = ", ".join(f"{names[p]}={h.text}" for p, h in case.captured.items())
    given = sum(p not in case.captured for p in case.wrt)
    moved = ", ".join(f'held["{names[p]}"]' for p in case.wrt if p in case.captured)
    return [
        *(["import inspect"] if "inspect." in held else []),
        f"held = dict({held})",
        "def holding(function):",
        "    def call(inputs, *rest):",
        f"        leaves = [*inputs[:{given}], {moved}]",
        "        before = [leaf.data for leaf in leaves]",
        "        for leaf, value in zip(leaves, inputs):",
        "            leaf.data = value.data",
        "        result = function(leaves, *rest)",
        "        for leaf, data in zip(leaves, before):",
        "            leaf.data = data",
        "        return result",
        "    return call",
    ]


def variables(case: Case) -> dict[int, str]:
    """Return the variable that `script` binds each leaf to; a tensor passed twice has one."""
    names: dict[int, str] = {}
    for position, value in enumerate(case.values):
        twin = next((p for p in case.wrt if case.values[p] is value), position)
        names[position] = names.get(twin) or identifier(case.names[position], position)
    return names


def call_text(case: Case, moved: Mapping[str, str] | None = None) -> str:
    """Return the arguments of the call in terms of `variables`; some of these may be `moved` to an expression."""
    args, kwargs = _named(case, moved or {})
    return ", ".join([*(repr(a) for a in args), *(f"{key}={value!r}" for key, value in kwargs.items())])


def definition(name: str, case: Case, body: Iterable[str], also: str = "") -> list[str]:
    """Return the lines of a function of the list of differentiated inputs, which starts by calling the subject.

    It also takes the names in `also`.

    Its body continues with `out`, and with the inputs under their own names.
    """
    names = variables(case)
    given = ", ".join(names[p] for p in case.wrt)
    call = [f"[{given}] = inputs", f"out = fn({call_text(case)})"]
    decorated = ["@holding"] if case.captured else []
    return [*decorated, f"def {name}(inputs{also and f', {also}'}):", *(f"    {line}" for line in (*call, *body))]


def bind_outs(result: object, asked: str = "o.requires_grad") -> str:
    """Return the line that binds `outs` to the tensors of `out`, a result like this one, for which `asked` holds."""
    if isinstance(result, Tensor):
        return "outs = [out]"
    if any(isinstance(value, Tensor) and is_opaque(value) for value in tree_leaves(result)[0]):
        asked += " and o.dtype.itemsize > 1"
    if isinstance(result, tuple | list) and all(isinstance(value, Tensor) for value in result):
        return f"outs = [o for o in out if {asked}]"
    leaves = "torch.utils._pytree.tree_leaves(out)"
    return f"outs = [o for o in {leaves} if isinstance(o, torch.Tensor) and {asked}]"


def _named(case: Case, moved: Mapping[str, str]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments with placeholders for the leaves, whose `repr` is their source."""
    names = variables(case)
    leaves = []
    for position, value in enumerate(case.values):
        copied = ".clone()" if case.non_leaf and position in case.wrt else ""
        name = moved.get(names[position], names[position] + copied)
        leaves.append(_Name(name if isinstance(value, Tensor) else source_of(value)))
    args, kwargs = tree_unflatten(leaves, case.spec)
    held = {case.paths[p][1] for p in case.captured}
    return args, {key: value for key, value in kwargs.items() if key not in held}


def _loading(subject: Subject, case: Case, tail: Sequence[str]) -> list[str]:
    """Return the lines that bind `fn`, and the names that the arguments need."""
    load = (subject.load or f"# fn = {subject.name}").splitlines()
    leaves = [None if isinstance(value, Tensor) else value for value in case.values]
    wanted = list(dict.fromkeys(needed(tree_unflatten(leaves, case.spec))))
    run_by_path = any("runpy.run_path(" in line for line in load)
    home = getattr(subject.target, "__module__", None) if run_by_path else None
    found = re.fullmatch(r"fn = runpy\.run_path\((.*?)\)(\[.*)", load[-1])
    if found is not None and any(_IMPORTS_BY_NAME.search(line) for line in tail):
        load = [line for line in load[:-1] if line != "import runpy"]
        load += [*_imported(found[1]), f"fn = names{found[2]}"]
    elif found is not None and any(module == home for module, _ in wanted):
        # From the same run of the file: objects compared by identity, such as enumerations, must not exist twice.
        load[-1:] = [f"names = runpy.run_path({found[1]})", f"fn = names{found[2]}"]
    for module, path in wanted:
        root = path.partition(".")[0]
        load.append(f'{root} = names["{root}"]' if module == home else f"from {module} import {root}")
        if root != path:
            load.append(f"{path.rpartition('.')[2]} = {path}")
    if subject.is_interpreted and subject.kind != "function":
        load.append("fn = interpreter.hosting(fn)")
    return load if subject.device is None else [*load, *on_device_lines(subject.device)]


def _imported(file: str) -> list[str]:
    return [
        "import importlib.util",
        "import sys",
        f'spec = importlib.util.spec_from_file_location("audited", {file})',
        'module = sys.modules["audited"] = importlib.util.module_from_spec(spec)',
        "spec.loader.exec_module(module)",
        "names = vars(module)",
    ]


def _spaced(lines: Iterable[str]) -> Iterator[str]:
    """Insert an empty line after each block: the interactive prompt needs it."""
    inside = False
    for line in lines:
        if inside and not line.startswith(" "):
            yield ""
        inside = line.startswith(" ")
        yield line


def _seeded(lines: Iterable[str], seed: int) -> Iterator[str]:
    """Set the random state before each line that runs the subject, outside of code that a compiler may trace."""
    for line in lines:
        if _RUNS.search(line) and not line.startswith((" ", "def ", "class ", "#", "from ", "import ")):
            yield f"torch.manual_seed({seed})"
        yield line


def identifier(name: str, position: int) -> str:
    """Return the variable for a leaf of some name, at some position."""
    cleaned = "".join(ch if ch.isalnum() or ch == "_" else "_" for ch in name).strip("_")
    return cleaned if cleaned.isidentifier() and cleaned not in _TAKEN else f"arg{position}"
