"""Measurements of a function besides its findings: its state in each context, and data for plots."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch

from pullback.check.contexts.eager import base_setting
from pullback.check.numeric.accuracy import slopes, ulp_errors
from pullback.check.rules import Rule, all_rules
from pullback.check.rules._rule import COLUMNS, Column
from pullback.report.model import ContextResult, ContextState, Finding, GradientCurve, Measurements, UlpErrors

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_DRAWING = "the gradient along a line"
"""Step after all rules, as reported to the runner."""


def measure(audit: Audit, done: Collection[str], reported: Sequence[Finding]) -> Measurements:
    """The context row of a subject, and the data of those plots that show one of its findings.

    Args:
        audit: the audit of the subject.
        done: ids of the rules that were completed.
        reported: all findings, including allowed ones.
    """
    plots = _slopes(audit, reported), _errors(audit, reported)
    is_interpreted = audit.subject.is_interpreted
    return Measurements(context_row(audit, done, reported), *plots, audit.guessed, is_interpreted)


def _slopes(audit: Audit, reported: Sequence[Finding]) -> tuple[GradientCurve, ...]:
    shows = any(f.rule.startswith(("PB1", "PB3")) and f.verdict != "unsupported" for f in reported)
    if not shows or _DRAWING in audit.skip or not audit.has_time():
        return ()
    function = audit.numbers.elementwise
    if function is None:
        return ()
    with audit.events.of_first_order(_DRAWING, audit.subject, audit.base):
        return tuple(slopes(function))


def _errors(audit: Audit, reported: Sequence[Finding]) -> tuple[UlpErrors, ...]:
    if not any(f.rule.startswith("PB3") for f in reported):
        return ()
    known = [(dtype, audit.numbers.known(dtype)) for dtype in _DTYPES]
    return tuple(found for dtype, sweep in known if sweep is not None for found in ulp_errors(dtype, sweep))


def context_row(audit: Audit, done: Collection[str], reported: Sequence[Finding]) -> tuple[ContextResult, ...]:
    """The state of each context.

    Args:
        audit: the audit of the subject.
        done: ids of the rules that were completed.
        reported: all findings, including allowed ones.
    """
    return tuple(_context(audit, column, done, reported) for column in COLUMNS)


def _context(audit: Audit, column: Column, done: Collection[str], reported: Sequence[Finding]) -> ContextResult:
    leading, *others = [rule for rule in all_rules() if rule.column == column]
    ids = {rule.id for rule in (leading, *others)}
    findings = [finding for finding in reported if finding.rule in ids]
    if state := _state(findings, leading if column == "eager" else None):
        return ContextResult(column, state)
    compared = leading.compared or (lambda audit: base_setting(audit) is not None)
    was_tried = leading.id in done and audit.backward_works and compared(audit)
    return ContextResult(column, "ok" if was_tried else "not tried")


def _state(findings: Sequence[Finding], only: Rule | None) -> ContextState | None:
    """The state of a context by its findings; `None` if none of them affects it.

    Args:
        findings: findings of the rules about the context.
        only: the rule whose infos count, if not all do: an info of the contract about complex numbers or broadcasting
            says nothing about ordinary gradients.
    """
    if any(f.severity == "error" for f in findings):
        return "error"
    if any(f.severity == "warning" and f.verdict != "inconclusive" for f in findings):
        return "warning"
    if any(f.verdict == "wrong" and f.of_pytorch for f in findings):
        return "warning"
    verdicts = {f.verdict for f in findings if only is None or f.rule == only.id}
    for state in ("inconclusive", "intended", "unsupported"):
        if state in verdicts:
            return state
    return None
