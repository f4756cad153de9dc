"""wrong-vjp (PB101): the gradient is not the derivative of the forward.

## What it finds
The backward's product with a random cotangent, compared along random directions and then element by element with a
numeric derivative of the forward: central differences with Richardson extrapolation, with an error bar made of
truncation and of the measured noise of the forward. `wrong` means: beyond ten bars. It runs on the example and on its
variants: exact zeros, negatives, large, tied and whole numbers, sizes 0, 1 and primes, a matrix with a dimension of
size 1 in its middle where the forward takes that as rows too, strides, dtypes, one tensor passed twice, complex
values; with `--deep` also on inputs where several of these meet, drawn at random and shrunk. At a kink every value
between the one-sided derivatives is right. One more forward and backward run with new memory filled with NaN: a
gradient that was allocated and never written, in whole or in part, is an error, whatever the memory held.

## Why it hurts
Training goes on, slower or to another place, and nothing says so.

## Limits
`inconclusive` where the forward is too noisy (float32 inside, say) to see the difference, and where it vanishes with
ten times the iterations, in an argument called `n_iter`, `max_iter`, `steps` or the like. So is, as a warning, what
is right for symmetric matrices only; not where the function says "symmetric", "Hermitian" or "positive definite", or
reads one triangle only, as `cholesky` does. Where the forward returns memory that it never wrote, that is all that is
said: no rule that compares values is run. A backward that is not a derivative on purpose is `intended` (severity
info) if it shows: the name or docstring says straight-through, surrogate, approximate, reversal or scaling; the
forward is flat almost everywhere; it returns an input unchanged; or it is a clamp and differs only where it
saturates. Values beyond the ordinary range, and gradients that are not finite at a special point, count as
`unstable`, a warning; so does, as `wrong`, a shape that the forward happens to take or to broadcast. A gradient that
is `None` is PB107; where that one is not run, this one tells of it, as a warning too where the example was guessed.
Sampling proves nothing about values that were not sampled.

## Bad
```python
class SinSquared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(x) ** 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * torch.sin(x) * torch.cos(torch.sin(x))
```

## Good
```python
class SinSquared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(x) ** 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.sin(2 * x)
```
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.case import Case
from pullback.check.cases.iterations import more_iterations
from pullback.check.derivative.agreement import show
from pullback.check.derivative.compare_input import Comparison
from pullback.check.derivative.diagnosis import cause
from pullback.check.derivative.first_order import FirstOrder
from pullback.check.derivative.off_symmetric import wrong_off_symmetric
from pullback.check.rules._rule import rule
from pullback.check.rules._shown import gradient_and_quotient
from pullback.check.rules._unwritten import unwritten_finding
from pullback.report.model import Evidence, Finding

if TYPE_CHECKING:
    from pullback.check.state import Audit

_OWN_RULES = ("PB106", "PB107", "PB111", "PB116")


def _run(audit: Audit) -> Iterator[Finding]:
    if audit.unwritten is not None:
        yield unwritten_finding(audit, audit.unwritten)
        return
    reported: set[int] = set()
    results = sorted(audit.results(), key=lambda r: r.case.extreme or r.case.doubtful)  # the telling ones first
    for result in results:
        for comparison in result.wrong:
            if comparison.order in reported:
                continue
            found = _disagreement(audit, result, comparison)
            meant = found is not None and audit.intent_of(result, comparison) is not None
            if not meant:
                reported.add(comparison.order)
            if found is not None:
                yield found
            if meant and audit.intent is not None:
                return
    undecided = all(c.status == "inconclusive" for result in results for c in result.comparisons if c.compared)
    base = audit.base_result
    if base is None and audit.base_run.roots:
        yield _inconclusive(audit, "the output is not finite on the example")
    elif undecided and base is not None and base.comparisons:
        why = "the forward is too noisy, or not finite near the inputs tried, to tell whether the gradient is right"
        yield _inconclusive(audit, why, audit.evidence(base, base.comparisons[0]))
    if base is not None and audit.intent is None and not audit.base.is_made_to_fit:
        yield from _off_symmetric(audit, base)


def _off_symmetric(audit: Audit, base: FirstOrder) -> Iterator[Finding]:
    found = wrong_off_symmetric(audit, base)
    if found is not None:
        name = audit.names[found.order]
        yield audit.finding(
            "PB101",
            "warning",
            "inconclusive",
            f"the gradient of {name} is right for symmetric matrices only: {_message(base, found)}",
            case=base.case,
            evidence=audit.evidence(base, found),
            tail=gradient_and_quotient(audit, base, found),
            hint="if others are meant too, look for a missing transpose; if not, say 'symmetric' in the docstring",
        )


def _disagreement(audit: Audit, result: FirstOrder, comparison: Comparison) -> Finding | None:
    intent = audit.intent_of(result, comparison)
    if intent is not None and intent.sign == "rounded":
        return _inconclusive(audit, f"nothing can be said of the gradient: {intent.reason}")
    if intent is not None:
        return audit.finding(
            "PB101",
            "info",
            "intended",
            f"the backward is not the derivative of the forward, on purpose it seems: {intent.reason}",
            evidence=audit.evidence(result, comparison),
            hint=_declare(intent.sign),
        )
    if cause(audit, result, comparison) in audit.running(_OWN_RULES):
        return None
    case = result.case
    if _converges(audit, case, comparison.order):
        return audit.finding(
            "PB101",
            "warning",
            "inconclusive",
            f"the gradient of {case.names[case.wrt[comparison.order]]} is wrong, and right with ten times the "
            "iterations: the forward has not converged",
            case=case,
            evidence=audit.evidence(result, comparison),
            hint="give an example with as many iterations as it needs",
        )
    result, comparison = _smallest(audit, result, comparison)
    constant = audit.guessed and result.gradients[comparison.order] is None  # that it requires grad was our idea
    unstable = case.extreme or (case.is_variant and not math.isfinite(comparison.got))
    return audit.finding(
        "PB101",
        "warning" if unstable or case.doubtful or constant else "error",
        "unstable" if unstable else "wrong",
        _message(result, comparison),
        case=result.case,
        evidence=audit.evidence(result, comparison),
        tail=gradient_and_quotient(audit, result, comparison),
        hint="its backward draws random numbers: say so if that is meant"
        if audit.backward_draws
        else _hint(result, comparison),
    )


def _converges(audit: Audit, case: Case, order: int) -> bool:
    """Whether what is wrong is right once an iteration goes on for longer."""
    longer = more_iterations(case)
    again = None if longer is None else audit.compare(longer)
    return again is not None and any(c.order == order and c.status == "ok" for c in again.comparisons)


def _smallest(audit: Audit, result: FirstOrder, comparison: Comparison) -> tuple[FirstOrder, Comparison]:
    """Shrink the case, and show it with a cotangent of ones if that still fails."""
    if result.case.layout_only or audit.draws:
        return result, comparison
    smallest = audit.shrink(result.case, lambda case: _fails(audit, case, comparison.order))
    for unit in (True, False):
        final = audit.compare(smallest, directions=2, unit=unit)
        if final is not None and (kept := [c for c in final.wrong if c.order == comparison.order]):
            return final, kept[0]
    return result, comparison


def _fails(audit: Audit, case: Case, order: int) -> bool:
    result = audit.compare(case)
    return result is not None and any(c.order == order for c in result.wrong)


def _message(result: FirstOrder, c: Comparison) -> str:
    name = result.case.names[result.case.wrt[c.order]]
    at = f"[{', '.join(map(str, c.index))}]" if c.index else ""
    right = f"is {show(c.expected)}"
    if c.kink and c.low < c.high:
        right = f"is anything between {show(c.low)} and {show(c.high)}"
    what = f"the gradient of {name}{at} is {show(c.got)}, the derivative of the forward {right}"
    where = "" if not result.case.is_variant else f" (with {result.case.label})"
    return what + where


def _hint(result: FirstOrder, c: Comparison) -> str:
    if math.isfinite(c.got) and abs(c.expected) > 1e-9 and abs(c.got) > 1e-9 and c.failing == c.compared:
        ratio = c.got / c.expected
        for factor in (-1.0, 2.0, 0.5, -2.0, -0.5):
            if abs(ratio - factor) < 1e-6:
                return f"it is {factor:g} times what it should be: look for a lost sign or factor"
    if result.case.layout_only:
        return "it is right for contiguous tensors: the backward reads memory in the wrong order"
    if result.case.doubtful:
        return "support such inputs in the backward, or refuse them in the forward"
    if result.case.is_variant:
        return f"look at what the backward does with {result.case.label}"
    return "derive the backward again from the forward's formula"


def _declare(sign: str) -> str:
    if sign == "declared":
        return "nothing to do; `# pullback: allow[wrong-vjp] reason` on the class hides this line"
    return "if so, say it: 'straight-through' or 'surrogate' in the docstring, or `# pullback: allow[wrong-vjp] reason`"


def _inconclusive(audit: Audit, why: str, evidence: Evidence | None = None) -> Finding:
    hint = "give inputs of a wider dtype, or larger and away from singular points"
    return audit.finding("PB101", "info", "inconclusive", why, evidence=evidence, hint=hint)


RULE = rule(__doc__, runtime=_run, blames="backward", shrinks=False)
