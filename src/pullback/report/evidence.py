"""The numbers behind a finding as text: on one line, or as separate blocks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pullback.report.clean import clean_line
from pullback.report.model import Evidence

_LONG_VALUE = 60


def numbers_of(evidence: Evidence | None) -> str:
    """Return the expected value, the actual one and the place on one line; empty if they do not fit."""
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
    """Yield a heading and the text for each value that needs several lines."""
    if evidence is None:
        return
    for name, value in (("expected", evidence.expected), ("got", evidence.got)):
        if isinstance(value, str) and _is_long(value):
            yield (name if numbers_of(evidence) else _place(evidence) or name), value


def inputs_in(script: str) -> str:
    """Return on one line the tensors that a script passes to the function, and how, if it passes more; or nothing."""
    try:
        body = ast.parse(script).body
    except SyntaxError:
        return ""
    found: list[str] = []
    for statement in body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            continue
        name, value = statement.targets[0].id, statement.value
        if name == "out":
            given = [*value.args, *value.keywords] if isinstance(value, ast.Call) else []
            if found and not all(isinstance(one, ast.Name) for one in given):
                found.insert(0, ast.unparse(value))  # what is cut off at the end are numbers
            break
        if isinstance(value, ast.Call) and ast.unparse(value.func).endswith(".requires_grad_"):
            value = value.func.value  # type: ignore[attr-defined]
        if isinstance(value, ast.Call) and ast.unparse(value.func).startswith("torch."):
            is_plain = ast.unparse(value.func) == "torch.tensor"
            found.append(f"{name} = {ast.unparse(value.args[0] if is_plain else value)}")
    return ", ".join(found)


def _is_long(value: float | str) -> bool:
    return isinstance(value, str) and (len(value) > _LONG_VALUE or "\n" in value)


def _place(evidence: Evidence) -> str:
    """Return where the worst element is and how often the two disagree, as far as known."""
    index = "" if evidence.worst_index is None else f"at {list(evidence.worst_index)} of "
    where = clean_line(evidence.where or "") or ("the tensor" if index else "")
    dtype = f", {clean_line(evidence.dtype)}" if evidence.dtype and where else evidence.dtype or ""
    share = f"({evidence.failing} of {evidence.directions} fail)" if evidence.failing is not None else ""
    return " ".join(part for part in (f"{index}{where}{dtype}", share) if part)


def _value(value: float | str) -> str:
    return clean_line(value) if isinstance(value, str) else f"{value:.10g}"
