"""Results of a fix, as lines of text for each function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pullback.fix.model import Told


def lines(told: Sequence[Told], written: bool) -> Iterator[str]:
    """Yield a line for each function with a finding, and one with the counts.

    Args:
        told: the results.
        written: whether files were written, or would be.
    """
    for one in told:
        where = f"{one.key.name} ({one.key.file}:{one.key.line})"
        if one.rules:
            unsafe = f"; unsafe: {one.note}" if one.note else ""
            left = f"; not in the new style: {one.remains}" if one.remains else ""
            yield f"{'fixed' if written else 'would fix'} {where}: {', '.join(one.rules)}{unsafe}{left}"
        else:
            flag = "--unsafe-fixes would: " if one.needs_flag else ""
            yield f"not fixed {where}: {flag}{one.note}"
    yield _counted(told, written)


def _counted(told: Sequence[Told], written: bool) -> str:
    fixed = sum(bool(one.rules) for one in told)
    more = sum(one.needs_flag for one in told)
    if not told:
        return "nothing to fix"
    parts = [f"{fixed} function{'s' * (fixed != 1)} {'fixed' if written else 'would be fixed'}"]
    parts += [f"{len(told) - fixed} not"] if fixed < len(told) else []
    parts += [f"{more} of them with --unsafe-fixes"] if more else []
    return ", ".join(parts)
