"""Measurements of a function besides its findings: its state in each context, and data for plots."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch

from pullback.check.contexts.row import row
from pullback.check.numeric.curves import slopes, ulp_errors
from pullback.report.measured import Measured, Slope, UlpErrors
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.state import Audit

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_DRAWING = "the gradient along a line"
"""Step after all rules, as reported to the runner."""


def measure(audit: Audit, done: Collection[str], told: Sequence[Finding]) -> Measured:
    """Return the data for plots of a subject: only those that show one of its findings.

    Args:
        audit: of the subject.
        done: ids of the rules that were completed.
        told: all findings, including allowed ones.
    """
    return Measured(row(audit, done, told), _slopes(audit, told), _errors(audit, told), audit.guessed)


def _slopes(audit: Audit, told: Sequence[Finding]) -> tuple[Slope, ...]:
    shows = any(f.rule.startswith(("PB1", "PB3")) and f.verdict != "unsupported" for f in told)
    if not shows or _DRAWING in audit.skip or not audit.has_time():
        return ()
    function = audit.numbers.elementwise
    if function is None:
        return ()
    with audit.events.of_first_order(_DRAWING, audit.subject, audit.base):
        return tuple(slopes(function))


def _errors(audit: Audit, told: Sequence[Finding]) -> tuple[UlpErrors, ...]:
    if not any(f.rule.startswith("PB3") for f in told):
        return ()
    known = [(dtype, audit.numbers.known(dtype)) for dtype in _DTYPES]
    return tuple(found for dtype, sweep in known if sweep is not None for found in ulp_errors(dtype, sweep))
