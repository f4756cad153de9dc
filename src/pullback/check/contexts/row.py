"""Where a function is differentiated, and how it fared there: the findings of the rules about contexts in one row."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch

from pullback.check.contexts.dropped import may_drop
from pullback.check.contexts.transforms import base_setting, settings
from pullback.report.groups import OF_PYTORCH
from pullback.report.measured import Context, ContextState
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.state import Audit

_RULES = {
    "eager": ("PB1",),
    "double backward": ("PB401", "PB402", "PB403", "PB404"),
    "func.grad": ("PB405",),
    "func.vmap": ("PB406",),
    "func.jvp": ("PB407",),
    "func.jacrev": ("PB408",),
    "compile": ("PB409",),
    "compile of func": ("PB415",),
    "export": ("PB410",),
    "checkpoint": ("PB411",),
    "saved hooks": ("PB412",),
    "autocast": ("PB413",),
    "copies": ("PB414",),
}


def row(audit: Audit, done: Collection[str], told: Sequence[Finding]) -> tuple[Context, ...]:
    """Return the state of each context.

    Args:
        audit: of the subject.
        done: ids of the rules that were completed.
        told: all findings, including allowed ones.
    """
    return tuple(
        Context(name, _state([f for f in told if f.rule.startswith(rules)]) or _unless_idle(audit, done, name))
        for name, rules in _RULES.items()
    )


def _state(findings: Sequence[Finding]) -> ContextState | None:
    """Return the state of a context by its findings; `None` if none of them affects it."""
    if any(f.severity == "error" for f in findings):
        return "error"
    if any(f.severity == "warning" and f.verdict != "inconclusive" for f in findings):
        return "warning"
    if any(f.verdict == "wrong" and f.rule in OF_PYTORCH for f in findings):
        return "warning"
    # Of the contract an info about complex numbers or broadcasting is no word on ordinary gradients.
    verdicts = {f.verdict for f in findings if f.rule == "PB101" or not f.rule.startswith("PB1")}
    for state in ("inconclusive", "intended", "unsupported"):
        if state in verdicts:
            return state
    return None


def _unless_idle(audit: Audit, done: Collection[str], name: str) -> ContextState:
    return "ok" if _was_tried(audit, done, name) else "not tried"


def _was_tried(audit: Audit, done: Collection[str], name: str) -> bool:
    """Whether the rule of a context ran and had something to compare: most look for a steady eager gradient first."""
    first = "PB101" if name == "eager" else _RULES[name][0]
    if first not in done or not audit.backward_works:
        return False
    match first:
        case "PB101":
            return True
        case "PB401":
            return audit.second is not None and audit.second.status == "ok"
        case "PB410" | "PB415":
            return base_setting(audit) is not None and may_drop(audit)
        case "PB413":
            return any(all(x.dtype == torch.float32 for x in setting.inputs) for setting in settings(audit))
        case _:
            return base_setting(audit) is not None
