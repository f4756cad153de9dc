"""What the rules about double backward share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pullback.check.cases.repro import literal
from pullback.check.derivative.agreement import show
from pullback.check.find.syntax import decorator_names
from pullback.check.trial import standard_cotangents
from pullback.report.model import Evidence, Finding

if TYPE_CHECKING:
    from pullback.check.state import Audit


def is_once_differentiable(audit: Audit) -> bool:
    """Whether the backward is decorated with `once_differentiable`, by its source or by what it raises."""
    source = audit.subject.source
    backward = source.methods.get("backward") if source else None
    if backward is not None and "once_differentiable" in decorator_names(backward):
        return True
    return audit.second is not None and "once_differentiable" in str(audit.second.error or "")


def silently_wrong(audit: Audit, rule: str, hint: str, because: str = "") -> Finding:
    """Build the finding of a second derivative that is wrong without an error."""
    second = audit.second
    assert second is not None
    if second.changed:
        message, evidence = second.changed, None
    else:
        what = "double backward" if second.composite else "double backward, at a fixed cotangent,"
        message = (
            f"{what} by {second.way} gives {show(second.got)}; "
            f"the derivative of the gradient is {show(second.expected)}"
        )
        evidence = Evidence(
            second.expected,
            second.got,
            second.bar,
            where="<u, H v>",
            dtype="float64",
            failing=1,
            directions=1,
        )
    weights = ", ".join(literal(w) for w in standard_cotangents(audit.base_run.roots))
    loss = "w * o * o" if second.composite else "w * o"
    return audit.finding(
        rule,
        "error",
        "wrong",
        message + because,
        case=audit.base,
        evidence=evidence,
        tail=[
            "outs = [o for o in (out if isinstance(out, (tuple, list)) else [out]) if o.requires_grad]",
            f"loss = sum(({loss}).sum() for w, o in zip([{weights}], outs))",
            "first = torch.autograd.grad(loss, inputs, create_graph=True, allow_unused=True)",
            "penalty = loss + sum(g.sum() for g in first if g is not None)",
            "print(torch.autograd.grad(penalty, inputs, allow_unused=True))",
        ],
        hint=hint,
    )
