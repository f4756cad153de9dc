"""Shapes of the outputs on the example at another size, or the error of a forward that raises there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pullback.check.cases.growth import Growth
from pullback.check.trial import Raised, forward
from pullback.report.model import Finding, Severity

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def shape_finding(
    audit: Audit, rule: str, growth: Growth, n: int, what: str, refused: str, wrong: str, same_rank: Severity
) -> Finding | None:
    """Return the finding that a forward raises at size `n`, or gives outputs of unexpected shapes; `None` if neither.

    Args:
        audit: the audit of the subject.
        rule: the id.
        growth: the law of the shapes.
        n: the size.
        what: the phrase for that size.
        refused: hint for a forward that raises.
        wrong: hint for unexpected shapes.
        same_rank: severity of unexpected shapes with the expected numbers of dimensions.
    """
    case, expected = growth.at(n), growth.shapes(n)
    try:
        got = [tuple(out.shape) for out in forward(audit.subject, case).outputs]
    except Raised as error:
        return audit.finding(rule, _severity_of(error), "unsupported", f"{what}, {error}", case=case, hint=refused)
    if expected is None or got == expected:
        return None
    return audit.finding(
        rule,
        same_rank if [*map(len, got)] == [*map(len, expected)] else "warning",
        "wrong",
        f"{what}, the outputs have shapes {got}; those at other sizes call for {expected}",
        case=case,
        tail=["print(out)"],
        hint=wrong,
    )


def _severity_of(error: Raised) -> Severity:
    """Severity of an error: "info" if a forward rejects an argument, or an index no longer fits."""
    if isinstance(error.error, IndexError):
        return "info" if "out of bounds" in str(error.error) else "warning"
    if _TOO_SMALL.search(str(error.error)):
        return "info"
    refuses = isinstance(error.error, ValueError | TypeError | NotImplementedError | AssertionError)
    return "info" if refuses or error.is_deliberate else "warning"


_TOO_SMALL = re.compile(r"must be non-negative|negative dimension|can't be greater than actual input size")
"""Errors of PyTorch for an input that is smaller than a window, a kernel or a difference of some order."""
