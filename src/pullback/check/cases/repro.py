"""A failing case as code that a user can paste and run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from pullback._torch import tree_unflatten
from pullback.check import device
from pullback.check.case import Case
from pullback.check.cases.spelling import GAP, is_long, literal, needed, spelled
from pullback.check.subject import Subject

_RUNS = re.compile(r"\b(fn|call|gradient_at|value_at|grad|backward|vjp|jvp|compiled|module)\(")
"""A line of a script that runs the subject."""
_IMPORTS_BY_NAME = re.compile(r"torch\.(compile|export)|pickle")
"""Features that need the function's module to be in `sys.modules`."""
ALTERED = "# other values than the audit's, which are too many to print"
NO_LITERAL = f"# {GAP} stands for"
"""Remarks in a script that is not the failing case itself."""
_TAKEN = ("out", "outs", "fn", "held", "holding", "torch", "inputs", "g", "call", "value_at", "gradient_at", "names")


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
    lines = [*sorted(imports), *(line for line in load if line not in imports)]
    lines += _holding(case, names)
    bound: set[str] = set()
    for position, value in enumerate(case.values):
        if isinstance(value, Tensor) and names[position] not in bound:
            order = case.wrt.index(position) if position in case.wrt else None
            asks = order is not None and (mask is None or mask[order])
            other = f"  {ALTERED}" if is_long(value) else ""
            if position in case.held:
                lines += _filled(names[position], value, asks, other)
            else:
                lines.append(f"{names[position]} = {literal(value)}{'.requires_grad_()' if asks else ''}{other}")
            bound.add(names[position])
        elif not isinstance(value, Tensor) and GAP in spelled(value):
            lines.append(f"{NO_LITERAL} {case.names[position]}, of type {type(value).__name__}, which has no literal")
    if not tail or any(re.search(r"\binputs\b", line) for line in tail):
        lines.append(f"inputs = [{', '.join(names[p] for p in case.wrt)}]")
    lines.append(f"out = fn({call_text(case)})")
    lines += tail
    return "\n".join(_spaced(lines if seed is None else _seeded(lines, seed)))


def _holding(case: Case, names: Mapping[int, str]) -> list[str]:
    """Return the lines that find the tensors a subject holds, and let a function of all inputs replace them."""
    if not case.held:
        return []
    held = ", ".join(f"{names[p]}={h.text}" for p, h in case.held.items())
    given = sum(p not in case.held for p in case.wrt)
    moved = ", ".join(f'held["{names[p]}"]' for p in case.wrt if p in case.held)
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


def _filled(name: str, value: Tensor, asks: bool, other: str) -> list[str]:
    return [f'{name} = held["{name}"].requires_grad_({asks})', f"{name}.data = {literal(value)}{other}"]


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
    decorated = ["@holding"] if case.held else []
    return [*decorated, f"def {name}(inputs{also and f', {also}'}):", *(f"    {line}" for line in (*call, *body))]


def bind_outs(result: object, asked: str = "o.requires_grad") -> str:
    """Return the line that binds `outs` to the tensors of `out`, a result like this one, for which `asked` holds."""
    if isinstance(result, Tensor):
        return "outs = [out]"
    if isinstance(result, tuple | list) and all(isinstance(value, Tensor) for value in result):
        return f"outs = [o for o in out if {asked}]"
    leaves = "torch.utils._pytree.tree_leaves(out)"
    return f"outs = [o for o in {leaves} if isinstance(o, torch.Tensor) and {asked}]"


def _named(case: Case, moved: Mapping[str, str]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the arguments with stand-ins for the leaves, whose `repr` is their source."""
    names = variables(case)
    leaves = []
    for position, value in enumerate(case.values):
        copied = ".clone()" if case.non_leaf and position in case.wrt else ""
        name = moved.get(names[position], names[position] + copied)
        leaves.append(_Name(name if isinstance(value, Tensor) else spelled(value)))
    args, kwargs = tree_unflatten(leaves, case.spec)
    held = {case.paths[p][1] for p in case.held}
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
    return load if subject.device is None else [*load, *device.lines(subject.device)]


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
    """Insert an empty line after each block, without which Python's prompt does not take the next line."""
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
