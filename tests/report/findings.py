"""Findings and reports that the tests of reports share."""

from dataclasses import replace

from pullback.check.rules import rule_named
from pullback.report.model import (
    ContextResult,
    Evidence,
    Finding,
    GradientCurve,
    Location,
    Measurements,
    SubjectResult,
    UlpErrors,
    status_of,
)
from pullback.report.report import Report

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


def of_rule(finding, id_):
    """The finding as one of another rule."""
    rule = rule_named(id_)
    return replace(finding, rule=rule.id, name=rule.name, context=rule.context, of_pytorch=rule.of_pytorch)


INFO = of_rule(replace(ERROR, severity="info", verdict="unsupported", evidence=None), "PB405")
OF, DTYPES = ("value", "gradient of x"), ("float64", "float32", "bfloat16", "float16")
UNAUDITED = replace(ERROR, rule="PB001", severity="warning", verdict="unaudited")


MEASURED = Measurements(
    contexts=(
        ContextResult("eager", "error"),
        ContextResult("func.grad", "unsupported"),
        ContextResult("export", "not tried"),
    ),
    slopes=(GradientCurve("x", (-1.0, 0.0, 1.0), (2.0, None, 3.0), (1.0, None, 1.0), (1.0, None, 1.5)),),
    errors=tuple(
        UlpErrors(of, dtype, (-2.0, 0.5, 90.0), (0.5, 1e12, None), of == "value") for of in OF for dtype in DTYPES
    ),
)


def report(*findings, allowed=0, measured=None):
    """A report on one function."""
    result = SubjectResult("Square", Location("ops.py", 12), status_of(findings), 3, 0.5, measured or Measurements())
    return Report((result,), findings, allowed)
