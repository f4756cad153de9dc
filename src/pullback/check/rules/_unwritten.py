"""The finding about memory that was allocated and returned, and never written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pullback.check.cases.repro import call_text
from pullback.check.derivative.repeatable import Unwritten
from pullback.check.rules._shown import literals
from pullback.check.trial import standard_cotangents
from pullback.report.model import Evidence, Finding

if TYPE_CHECKING:
    from pullback.check.state import Audit


def unwritten_finding(audit: Audit, where: Unwritten) -> Finding:
    """Report that a gradient, or an output, was never written: a fault, or a reason why the gradient is undecided."""
    at = f"[{', '.join(map(str, where.index))}]" if where.index else ""
    if where.kind == "output":
        return audit.finding(
            "wrong-vjp",
            "warning",
            "inconclusive",
            f"output {where.order}{at} is memory that the forward never wrote: nothing can be said of its gradient, "
            "and no rule that compares values was run",
            case=audit.base,
            evidence=Evidence(worst_index=where.index, where=f"output {where.order}"),
            tail=[
                *_FILLED,
                f"out = fn({call_text(audit.base)})",
                "print('with new memory full of NaN:', out)",
                _AS_USUAL,
            ],
            hint="write all of it, or allocate with zeros in place of empty",
        )
    return audit.finding(
        "wrong-vjp",
        "error",
        "wrong",
        f"the gradient of {audit.names[where.order]}{at} is memory that the backward never wrote",
        case=audit.base,
        evidence=Evidence(worst_index=where.index, where=f"gradient of {audit.names[where.order]}"),
        tail=[
            *_FILLED,
            f"out = fn({call_text(audit.base)})",
            audit.outs,
            f"g = {literals(standard_cotangents(audit.base_run.roots))}",
            f"got = torch.autograd.grad(outs, inputs, g, materialize_grads=True)[{where.order}]",
            f"print('with new memory full of NaN, the gradient is', got{at})",
            _AS_USUAL,
        ],
        hint="write all of it, or allocate with zeros_like in place of empty_like",
    )


_FILLED = ("torch.set_deterministic_debug_mode('warn')  # fills new memory with NaN",)
_AS_USUAL = "torch.set_deterministic_debug_mode('default')"
