"""Events of a running audit: its steps and findings. The runner turns these into messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from pullback.report.measured import Measured
from pullback.report.model import Finding


class Events(Protocol):
    """Receives the news of one audit. Every call is also a sign of life."""

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
        """Take the news."""
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
    measured: Measured = field(default_factory=Measured)
