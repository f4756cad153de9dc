"""Events of a running audit: its steps and findings. The runner turns these into messages.

A step is sent before it is done: one that ends the process, or never returns, is then known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from pullback.check.case import Case
from pullback.check.cases.repro import script
from pullback.check.subject import Subject
from pullback.report.model import Finding, Measurements


class Events(Protocol):
    """Receives the events of one audit. Every call is also a sign of life."""

    def step(self, rule: str, what: str, reproduce: str) -> None:
        """A step begins: `rule` on `what`, reproducible by `reproduce`. It is kept in case of a crash."""
        ...

    def beat(self) -> None:
        """The audit is alive (called often; must be cheap)."""
        ...

    def finding(self, finding: Finding) -> None:
        """Something was found."""
        ...


class Progress(Protocol):
    """Receives the progress many times a second: the number done, the total, and the current step."""

    def __call__(self, done: int, total: int, doing: str = "") -> None:
        """Report the progress."""
        ...


@dataclass(frozen=True, slots=True)
class AuditEnd:
    """Result of a finished audit, besides its findings.

    Attributes:
        cases: number of cases that it ran.
        allowed: number of findings silenced by an allow comment.
        measured: its measurements.
    """

    cases: int
    allowed: int
    measured: Measurements = field(default_factory=Measurements)


FIRST_ORDER = "PB1"
"""Family under which steps are sent that serve several rules: comparisons, and other facts."""


class StepEvents:
    """Events with a step for each variant that a rule calls instead of the example.

    A process that ends in a variant is then not held against the example.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._rule = ""
        self._example: tuple[Subject, Case] | None = None
        self._at: Case | None = None

    def step(self, rule: str, what: str, reproduce: str) -> None:
        """Send a step."""
        self._events.step(rule, what, reproduce)

    def beat(self) -> None:
        """Send a sign of life."""
        self._events.beat()

    def finding(self, finding: Finding) -> None:
        """Send a finding."""
        self._events.finding(finding)

    @contextmanager
    def of_rule(self, rule: str, subject: Subject, example: Case) -> Iterator[None]:
        """Send that a rule begins; while it runs, send each variant that it calls."""
        outer = self._rule, self._example
        self._rule, self._example = rule, (subject, example)
        self._send(subject, example)
        try:
            yield
        finally:
            self._rule, self._example = outer

    @contextmanager
    def of_first_order(self, what: str, subject: Subject, case: Case) -> Iterator[None]:
        """Send a step that serves several rules; while it runs, none of them is named."""
        outer, self._example = self._example, None
        self.step(FIRST_ORDER, what, script(subject, case))
        try:
            yield
        finally:
            self._example, self._at = outer, None

    def calling(self, subject: Subject, case: Case) -> None:
        """Record that a forward begins."""
        at = self._at
        is_other = at is None or (case is not at and (case.is_variant or at.is_variant))
        if self._example is not None and is_other:
            self._send(subject, case)
        else:
            self.beat()

    def _send(self, subject: Subject, case: Case) -> None:
        self._at = case
        self.step(self._rule, case.describe(), script(subject, case))
