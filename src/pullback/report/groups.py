"""Findings of one function that probably have one cause: the leading one, and its consequences.

A wrong backward is also wrong under `torch.func`, compiled and in its second derivative; a formula that overflows loses
digits before it does. Only the first is reported in full; mending it usually removes the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pullback.report.model import Finding

_OF_THE_GRADIENT = ("PB1", "PB4", "PB5")
"""Families whose findings of verdict "wrong" say that a gradient is wrong."""


@dataclass(frozen=True, slots=True)
class Group:
    """Findings with a likely common cause.

    Attributes:
        first: the most severe, and of these the one of the most basic rule.
        also: the others.
    """

    first: Finding
    also: tuple[Finding, ...]


def groups_of(findings: Iterable[Finding]) -> list[Group]:
    """Return the findings of one function by their likely cause, in the order of those that lead."""
    by_cause: dict[str, list[Finding]] = {}
    for finding in findings:
        by_cause.setdefault(_cause(finding), []).append(finding)
    return [Group(first, tuple(also)) for first, *also in by_cause.values()]


def _cause(finding: Finding) -> str:
    if finding.verdict == "wrong" and not finding.alias and finding.rule.startswith(_OF_THE_GRADIENT):
        return "a gradient"
    if finding.verdict == "unstable":
        return "numbers out of range"
    return finding.alias or finding.rule
