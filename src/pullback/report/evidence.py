"""Findings as both the text and the page show them: grouped by their cause, with numbers, inputs and lines of source.

Findings of one function often have one cause. A wrong backward is also wrong under `torch.func`, compiled and in its
second derivative; a formula that overflows loses digits before it does. Only the first finding of such a group is
reported in full, since fixing it usually removes the others.
"""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pullback.report.model import Evidence, Finding, Location
from pullback.report.text import clean, clean_line

ALTERED = "# other values than the audit's, which are too many to print"
"""Comment in a script, after a tensor that has the audit's shape and dtype but other values."""
_LONG_VALUE = 60
"""Characters of a value that gets a block of its own."""
_LINES_AFTER = 2
_LARGEST_FILE = 1 << 20
"""Bytes."""
_OF_THE_GRADIENT = ("PB1", "PB4", "PB5")
"""Families whose findings with the verdict "wrong" report a wrong gradient."""
_OF_THE_VALUE = ("PB117", "PB121", "PB501")
"""Rules of these families that report a wrong value."""


@dataclass(frozen=True, slots=True)
class Group:
    """Findings with a likely common cause.

    Attributes:
        first: the most severe one; of several, that of the most basic rule.
        also: the others.
    """

    first: Finding
    also: tuple[Finding, ...]


def groups_of(findings: Iterable[Finding]) -> list[Group]:
    """Group the findings of one function by their likely cause, in the order of the first ones."""
    by_cause: dict[str, list[Finding]] = {}
    for finding in findings:
        by_cause.setdefault(_cause(finding), []).append(finding)
    return [Group(first, tuple(also)) for first, *also in by_cause.values()]


def _cause(finding: Finding) -> str:
    is_of_value = finding.rule in _OF_THE_VALUE
    if finding.verdict == "wrong" and not (finding.alias or is_of_value) and finding.rule.startswith(_OF_THE_GRADIENT):
        return "a gradient"
    if finding.verdict == "unstable":
        return "numbers out of range"
    return finding.alias or finding.rule


def numbers_of(evidence: Evidence | None) -> str:
    """Return the expected value, the actual one and their position on one line; empty if they do not fit."""
    if evidence is None:
        return ""
    unit = f" {clean_line(evidence.unit)}" if evidence.unit else ""
    bar = "" if evidence.error_bar is None else f" ± {evidence.error_bar:.2g}"
    labelled = (("expected", evidence.expected, bar), ("got", evidence.got, ""))
    parts = [
        f"{name} {_value(value)}{unit}{error}"
        for name, value, error in labelled
        if value is not None and not _is_long(value)
    ]
    place = _place(evidence)
    return "  ".join([*parts, place] if parts and place else parts)


def blocks_of(evidence: Evidence | None) -> Iterator[tuple[str, str]]:
    """Yield a heading and the text of each value that needs several lines."""
    if evidence is None:
        return
    for name, value in (("expected", evidence.expected), ("got", evidence.got)):
        if isinstance(value, str) and _is_long(value):
            yield (name if numbers_of(evidence) else _place(evidence) or name), value


def inputs_in(script: str) -> str:
    """Return the tensors that a script passes to the function, on one line, after the call if that passes more."""
    try:
        body = ast.parse(script).body
    except SyntaxError:
        return ""
    lines = script.split("\n")
    found: list[str] = []
    for statement in body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            continue
        name, value = statement.targets[0].id, statement.value
        if name == "out":
            given = [*value.args, *value.keywords] if isinstance(value, ast.Call) else []
            if found and not all(isinstance(one, ast.Name) for one in given):
                found.insert(0, ast.unparse(value))  # first, since the end of the line may be cut
            break
        if isinstance(value, ast.Call) and ast.unparse(value.func).endswith(".requires_grad_"):
            value = value.func.value  # type: ignore[attr-defined]
        if isinstance(value, ast.Call) and ast.unparse(value.func).startswith("torch."):
            is_plain = ast.unparse(value.func) == "torch.tensor"
            is_altered = lines[statement.lineno - 1].endswith(ALTERED)
            shown = ast.unparse(value.args[0] if is_plain else value)
            found.append(_unprinted(name, value) if is_altered else f"{name} = {shown}")
    return ", ".join(found)


def _unprinted(name: str, value: ast.Call) -> str:
    """Return the name, shape and dtype of a tensor whose values are not in the script that makes it by this call."""
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call)]
    made = next(call for call in calls if ast.unparse(call.func) in ("torch.randn", "torch.zeros"))
    is_expanded = isinstance(value.func, ast.Attribute) and value.func.attr == "expand"
    shape = ast.unparse((value if is_expanded else made).args[0])
    dtype = ast.unparse(made.keywords[0].value).removeprefix("torch.")
    return f"{name} of shape {shape}, {dtype} (not printed)"


def _is_long(value: float | str) -> bool:
    return isinstance(value, str) and (len(value) > _LONG_VALUE or "\n" in value)


def _place(evidence: Evidence) -> str:
    """Return the position of the worst element and the number of disagreements, as far as they are known."""
    index = "" if evidence.worst_index is None else f"at {list(evidence.worst_index)} of "
    where = clean_line(evidence.where or "") or ("the tensor" if index else "")
    dtype = f", {clean_line(evidence.dtype)}" if evidence.dtype and where else evidence.dtype or ""
    share = f"({evidence.failing} of {evidence.directions} fail)" if evidence.failing is not None else ""
    return " ".join(part for part in (f"{index}{where}{dtype}", share) if part)


def _value(value: float | str) -> str:
    return clean_line(value) if isinstance(value, str) else f"{value:.10g}"


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of source, safe to show.

    Attributes:
        number: counted from 1.
        text: without the newline.
        marked: whether it is the line of the finding.
    """

    number: int
    text: str
    marked: bool


def excerpt(location: Location) -> list[SourceLine]:
    """Return the line of a location and two after it; none if the file cannot be read."""
    if location.file is None or location.line is None:
        return []
    path = Path(location.file)
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_FILE:
            return []
        with tokenize.open(path) as file:
            lines = file.read().splitlines()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return []
    if location.line > len(lines):
        return []
    last = min(len(lines), location.line + _LINES_AFTER)
    return [SourceLine(n, clean(lines[n - 1].rstrip()), n == location.line) for n in range(location.line, last + 1)]
