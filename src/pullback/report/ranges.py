"""Compact lists of rule ids: consecutive ones as a range."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SHORTEST = 3
"""Ids that make a range."""
_LIST = re.compile(r"PB\d{3}(?:, PB\d{3})+")


def ranges(ids: Iterable[str]) -> str:
    """Return ids in order, without repetition: "PB101–PB103, PB205"."""
    runs: list[list[str]] = []
    for one in sorted(set(ids)):
        if runs and _number(one) == _number(runs[-1][-1]) + 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    parts = [[f"{run[0]}–{run[-1]}"] if len(run) >= _SHORTEST else run for run in runs]
    return ", ".join(part for run in parts for part in run)


def in_ranges(text: str) -> str:
    """Return a text whose lists of ids are in short."""
    return _LIST.sub(lambda found: ranges(found[0].split(", ")), text)


def _number(one: str) -> int:
    return int(one.removeprefix("PB"))
