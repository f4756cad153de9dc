"""Definition of a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pullback.check.find.source import FunctionSource
from pullback.check.pages import page_of
from pullback.check.subject import Kind
from pullback.report.model import Severity

if TYPE_CHECKING:
    from pullback.check.state import Audit
    from pullback.report.model import Finding

Runtime = Callable[["Audit"], Iterator["Finding"]]
"""Looks at a subject that runs."""


@dataclass(frozen=True, slots=True)
class SourceMatch:
    """A match of a static rule: the line, the fault and the remedy."""

    line: int
    message: str
    hint: str
    severity: Severity = "error"


Static = Callable[[FunctionSource], Iterator[SourceMatch]]
"""Reads the source alone. Nothing was run: the page says what a match can and cannot prove."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One property.

    Attributes:
        id: permanent, e.g. "PB101".
        name: reads as "allow NAME".
        summary: the first line of its page.
        page: what it finds, why it hurts, its limits, a bad and a good example.
        runtime: runs the subject; `None` for a rule of the runner or of the source alone.
        static: reads the source; `None` if the source cannot show the fault.
        kinds: the subjects that it applies to.
        shrinks: whether the runner may look for a smaller example by running the rule again; not if that is
            slow, or if the rule does it itself.
        stands_for: id of the rule that measures the same property on a function that runs; then this one, which proves
            less, is skipped.
        blames: the method of a Function at fault, whose line a finding gets; empty for the whole Function.
        varies: it examines variants of the example too. It runs on the example first, and later on these.
        late: it takes a hundred runs, or a compiler: it comes after all others, and after the variants.
    """

    id: str
    name: str
    summary: str
    page: str
    runtime: Runtime | None = None
    static: Static | None = None
    kinds: tuple[Kind, ...] = ("function", "op", "callable")
    shrinks: bool = True
    stands_for: str = ""
    blames: str = ""
    varies: bool = False
    late: bool = False

    @property
    def family(self) -> str:
        """The id's first digit, e.g. "PB1"."""
        return self.id[:3]


def rule(
    page: str | None,
    runtime: Runtime | None = None,
    static: Static | None = None,
    kinds: tuple[Kind, ...] = ("function", "op", "callable"),
    shrinks: bool = True,
    stands_for: str = "",
    blames: str = "",
    varies: bool = False,
    late: bool = False,
) -> Rule:
    """Build a rule from its page, whose first line is `name (PBnnn): summary`."""
    told = page_of(page)
    return Rule(
        told.id, told.name, told.summary, told.text, runtime, static, kinds, shrinks, stands_for, blames, varies, late
    )
