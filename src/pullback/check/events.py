"""What an audit tells while it runs: where it is, what it found. The runner turns these into messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from pullback.report.measured import Measured
from pullback.report.model import Finding


class Events(Protocol):
    """Receives the news of one audit. Every call is also a sign of life."""

    def step(self, rule: str, what: str, reproduce: str) -> None:
        """The audit starts something: `rule` on `what`, repeatable by `reproduce`. Kept for a crash."""
        ...

    def beat(self) -> None:
        """The audit is alive (called often; must be cheap)."""
        ...

    def finding(self, finding: Finding) -> None:
        """Something was found."""
        ...


class Progress(Protocol):
    """Receives many times a second how much is done, of how much, and what is being done."""

    def __call__(self, done: int, total: int, doing: str = "") -> None:
        """Take the news."""
        ...


@dataclass(frozen=True, slots=True)
class AuditEnd:
    """How an audit ended.

    Attributes:
        cases: how many it ran.
        allowed: how many findings an allow comment silenced.
        measured: what it measured besides.
    """

    cases: int
    allowed: int
    measured: Measured = field(default_factory=Measured)
