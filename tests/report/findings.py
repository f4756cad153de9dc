"""Findings and reports that the tests of reports share."""

from dataclasses import replace

from pullback.report.model import Evidence, Finding, Location, Report, SubjectResult, status_of

ERROR = Finding(
    subject="Square",
    rule="PB101",
    name="wrong-vjp",
    severity="error",
    verdict="wrong",
    message="The gradient is not the derivative.",
    location=Location("ops.py", 12),
    evidence=Evidence(2.0, float("nan"), 1e-9, (0, 3), "gradient of x", "float64", 5, 8),
    reproduce="fn(1)",
    hint="Look again.",
)
INFO = replace(ERROR, rule="PB405", name="func-grad-differs", severity="info", verdict="unsupported", evidence=None)
UNAUDITED = replace(ERROR, rule="PB001", severity="warning", verdict="unaudited")


def report(*findings, allowed=0):
    """A report on one function."""
    result = SubjectResult("Square", Location("ops.py", 12), status_of(findings), 3, 0.5)
    return Report((result,), findings, allowed)
