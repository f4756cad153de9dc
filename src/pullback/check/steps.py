"""The steps of an audit, sent before they are done: one that ends the process, or never returns, is then known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pullback.check.case import Case
from pullback.check.cases.repro import script
from pullback.check.events import Events
from pullback.check.subject import Subject
from pullback.report.model import Finding

FIRST_ORDER = "PB1"
"""Family in whose name steps are sent that serve several rules: comparisons, and other facts."""


class StepEvents:
    """Events whose steps follow the variants that a rule calls in the place of the example.

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
        """Take note of a forward that begins."""
        at = self._at
        is_other = at is None or (case is not at and (case.is_variant or at.is_variant))
        if self._example is not None and is_other:
            self._send(subject, case)
        else:
            self.beat()

    def _send(self, subject: Subject, case: Case) -> None:
        self._at = case
        self.step(self._rule, case.describe(), script(subject, case))
