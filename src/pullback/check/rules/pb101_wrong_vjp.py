"""wrong-vjp (PB101): the gradient is not the derivative of the forward.

## What it finds
The backward is called with a random cotangent. Its result is compared with a numeric derivative of the forward, first
along random directions and then element by element. The numeric derivative uses central differences with Richardson
extrapolation, and its error bar combines the truncation error with the measured noise of the forward. The gradient is
`wrong` if it is off by more than ten times the error bar. At a kink every value between the one-sided derivatives is
correct.

The rule runs on the example and on its variants: exact zeros; negative, large, tied and whole numbers; sizes 0, 1 and
primes; a matrix with an added middle dimension of size 1 if the forward accepts that as rows too; other strides and
dtypes; one tensor passed twice; an output passed as input; complex values. With `--deep` it also draws random inputs
that combine several of these, and shrinks them.

The forward and backward also run once with new memory filled with NaN. A gradient that was allocated and not written,
in whole or in part, is an error whatever the memory held.

## Why it hurts
Training converges more slowly, or to another solution, and nothing raises.

## Limits
- `inconclusive`: the forward is too noisy to resolve the difference, for example because it computes in float32; or the
  difference vanishes with ten times the iterations, set by an argument called `n_iter`, `max_iter`, `steps` or the
  like. It is also `inconclusive`, as a warning, if the gradient is correct for symmetric matrices only, unless the
  function says "symmetric", "Hermitian" or "positive definite", or reads one triangle only, as `cholesky` does.
- `intended` (severity info): the backward is not a derivative on purpose, and its structure shows it: the forward is
  flat almost everywhere, or returns an input unchanged, or is a clamp whose gradient differs only where it saturates.
  If the forward is smooth and only words say so (straight-through, surrogate, approximate, reversal or scaling, in the
  name or a docstring), the finding is `intended` as a warning, since words excuse a mistake as well. Neither excuses
  NaN on a given example.
- `unstable` (a warning): the gradient is not finite at a special point, or if all labels are those of ignored elements.
  At tiny values it is an info.
- A warning with the size of the difference: it is below 1e-4 of the derivative, or below 1e-7 of the largest element of
  the gradient. Iterations that stop early and small constants in a denominator leave such differences.
- A warning instead of an error: the forward may accept or broadcast the shape by accident; the variant lacks a property
  of the example (rows of length 1, sorted rows); the gradient is off by a part of the derivative and the forward
  iterates for as long as its values require, so it may not have converged; the input is the scale or bound of a
  quantiser, beside an estimate for the quantised values; or the function writes twice to one place because indices
  repeat.
- One warning for all inputs that may not be valid inputs. Guessed inputs also give a warning if the gradient is correct
  for another guess; the audit then goes on with that guess.
- If the forward returns memory that it never wrote, only that is reported, and no rule compares values. It is an error
  where an interpreted Triton kernel wrote part of a differentiable output, else a warning. Memory that interpreted
  kernels leave unwritten on a guessed call of several arguments is a warning: these may not fit each other.
- A gradient that is `None` is PB107. If PB107 does not run, this rule reports it; it too is a warning if the example
  was guessed.
- Sampling proves nothing about values that were not sampled.

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

## In the source: scatter-without-accumulation (PB812)
If the function cannot be run, this rule looks for `grad[index] += …` or `-= …` in a backward, where `index` is a saved
tensor, and for `index_put_` with a saved index and without `accumulate`. `+=` on an indexed tensor reads, adds and
writes once per place, so if an index occurs twice, one of the two terms is lost. Embeddings and gathered rows then
train on part of their gradient. (If the function can be run, repeated indices are tried.) It is a warning: a match
proves that terms are lost if an index occurs twice, but a mask, or indices that are all different, are fine. A name
counts as an index if it is unpacked from `ctx.saved_tensors` and nothing negates it or calls it a mask.

### Bad
```python
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return cuda_kernels.gather(x, index)

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        gx = g.new_zeros(ctx.shape)
        gx[index] += g
        return gx, None
```

### Good
```python
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return cuda_kernels.gather(x, index)

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).index_add(0, index, g), None
```
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from pullback.check.case import Case
from pullback.check.cases.layouts import contiguous
from pullback.check.cases.repro import bind, call_text
from pullback.check.cases.sizes import keeps_sizes, resized
from pullback.check.cases.values import TINY, all_ignored
from pullback.check.derivative.agreement import difference, show, subscript
from pullback.check.derivative.compare_input import Comparison
from pullback.check.derivative.diagnosis import (
    cause,
    converges,
    grows,
    is_coarse,
    may_approximate,
    may_not_converge,
    overwrites,
    wrong_off_symmetric,
)
from pullback.check.derivative.first_order import FirstOrder
from pullback.check.derivative.intent import Intent, flat_in, severity_of
from pullback.check.derivative.repeatable import Unwritten
from pullback.check.find.kernels import is_unwritten
from pullback.check.find.source import FunctionSource
from pullback.check.kernel_runs import storing_line
from pullback.check.rules._kernels import MAY_MISFIT, at_line, may_misfit, shown_line
from pullback.check.rules._reproduction import gradient_and_quotient
from pullback.check.rules._rule import Rule, SourceMatch
from pullback.check.rules._source import saved, text
from pullback.check.trial import Raised, forward, standard_cotangents, vjp
from pullback.report.model import Evidence, Finding, Severity

if TYPE_CHECKING:
    from pullback.check.audit import Audit


def _run(audit: Audit) -> Iterator[Finding]:
    if audit.unwritten is not None:
        if not audit.varied:
            yield _unwritten(audit, audit.unwritten)
        return
    base = audit.base_result
    wrong = [] if base is None else [(base, c) for c in base.wrong]
    first, small = ([x for x in wrong if x[1].is_small is s] for s in (False, True))
    reported: set[int] = set()
    if not audit.varied:
        yield from _disagreements(audit, first + (small if audit.base.captured else []), reported)
        return
    if first and audit.intent is not None:
        yield from _disagreements(audit, list(_not_numbers(audit)), reported)
        return
    reported.update(c.input_index for result, c in first if audit.intent_of(result, c) is None)
    telling_first = sorted(audit.results(), key=lambda r: r.case.extreme or r.case.doubtful)
    results = sorted(telling_first, key=lambda r: any(not t.numel() for t in r.case.tensors))
    wrong = [(result, c) for result in results for c in result.wrong]
    yield from _disagreements(audit, sorted(small + wrong, key=lambda x: x[1].is_small), reported)
    yield from _of_all(audit, base)


def _not_numbers(audit: Audit) -> Iterator[tuple[FirstOrder, Comparison]]:
    """Yield the comparisons with NaN on the first ordinary variant that has one, if the example has none."""
    if audit.base_result is None or any(math.isnan(c.got) for c in audit.base_result.wrong):
        return
    for result in audit.results():
        is_nan = any(g is not None and bool(g.isnan().any()) for g in result.gradients)
        if is_nan and not (result.case.extreme or result.case.doubtful):
            fresh = audit.compare(result.case)
            yield from ((fresh, c) for c in fresh.wrong if math.isnan(c.got)) if fresh is not None else ()
            return


def _disagreements(
    audit: Audit, wrong: Sequence[tuple[FirstOrder, Comparison]], reported: set[int]
) -> Iterator[Finding]:
    """Yield a finding for each input without one so far, and record it as reported; after a warning, an error too.

    For inputs that may be invalid one finding is enough: it is about the domain of the function.
    """
    is_doubted = bool(audit.base.required_property)  # which the finding mentions
    warned: set[int] = set()
    causes: set[str] = set()  # of warnings, each reported once: other inputs are off for the same reason
    for result, comparison in wrong:
        input_index, is_doubtful = comparison.input_index, result.case.doubtful
        if (
            input_index in reported
            or (is_doubted and is_doubtful)
            or (input_index in warned and not any(c is comparison for c in result.severe))
        ):
            continue
        found = _disagreement(audit, result, comparison)
        if found is not None and found.severity == "warning":
            shared = "a small difference" if comparison.is_small else result.case.label
            if shared in causes:
                warned.add(input_index)
                continue
            causes.add(shared)
        is_doubted = is_doubted or is_doubtful
        is_intended = found is not None and _intent(audit, result, comparison) is not None
        if found is not None and found.severity == "error":
            reported.add(input_index)
        elif input_index in warned:
            continue
        elif not is_intended:
            warned.add(input_index)
        if found is not None:
            yield found
        if is_intended and audit.intent is not None:
            return
    reported |= warned


def _of_all(audit: Audit, base: FirstOrder | None) -> Iterator[Finding]:
    """Yield the findings that need the example and all variants together."""
    if base is None:
        if audit.base_run.roots:
            yield _of_excess_lanes(audit) or _inconclusive(audit, "the output is not finite on the example")
        return
    compared = [c for result in (base, *audit.variants) for c in result.comparisons if c.compared]
    undecided = bool(base.comparisons) and all(c.status == "inconclusive" for c in compared)
    if undecided and audit.intent is not None and audit.intent.sign != "rounded":
        yield _intended(audit, audit.intent, "info", base, base.comparisons[0])
    elif undecided:
        why = "the forward is too noisy, or not finite near the inputs tried, to tell whether the gradient is right"
        yield _inconclusive(audit, why, audit.evidence(base, base.comparisons[0]))
    if audit.intent is None and not audit.base.required_property:
        yield from _off_symmetric(audit, base)
    yield from _of_ignored(audit)


def _of_ignored(audit: Audit) -> Iterator[Finding]:
    """Report gradients that are not finite if all labels are ignored, where the value is not, either.

    Such a batch is a part of a packed one. The gradient of PyTorch's losses is 0 there, also where their value is 0/0.
    """
    if (case := all_ignored(audit.base)) is None:
        return
    try:
        run = forward(audit.subject, case)
        if not run.roots or all(bool(out.isfinite().all()) for out in run.roots):
            return
        gradients = vjp(run, standard_cotangents(run.roots, run.differentiable))
    except Raised:
        return
    named = zip(audit.base.wrt, gradients, strict=True)
    if lost := [case.names[p] for p, g in named if g is not None and not bool(g.isfinite().all())]:
        yield audit.finding(
            "PB101",
            "warning",
            "unstable",
            f"the gradient of {', '.join(lost)} is not finite (with {case.label})",
            case=case,
            tail=[audit.outs, "print(torch.autograd.grad(outs, inputs, [torch.ones_like(o) for o in outs]))"],
            hint="divide by at least 1 where the mean is taken over the elements that are not ignored",
        )


_LANES = "the lanes of a block beyond the size count: mask them after the computation, too, with tl.where"


def _of_excess_lanes(audit: Audit) -> Finding | None:
    """Return the finding that an output is finite only where a size fills the block of an interpreted kernel."""
    base = audit.base
    if not all(bool(t.isfinite().all()) for t in base.tensors):
        return None
    smaller = sorted({size for t in base.tensors for size in t.shape if size > 1})
    for size, block in ((size, block) for block in sorted(audit.blocks) for size in smaller if size < block):
        case = resized(base, {size: block})
        try:
            filled = forward(audit.subject, case).roots if keeps_sizes(base, case) else []
        except Raised:
            continue
        if filled and all(bool(out.isfinite().all()) for out in filled):
            what = f"the output is not finite on the example, and finite with {case.label}"
            return audit.finding("PB101", "error", "wrong", what, case=base, tail=["print(out)"], hint=_LANES)
    return None


def _off_symmetric(audit: Audit, base: FirstOrder) -> Iterator[Finding]:
    found = wrong_off_symmetric(audit, base)
    if found is not None:
        name = audit.names[found.input_index]
        yield audit.finding(
            "PB101",
            "warning",
            "inconclusive",
            f"the gradient of {name} is right for symmetric matrices only: {_message(base, found)}",
            case=base.case,
            evidence=audit.evidence(base, found),
            tail=gradient_and_quotient(audit, base, found, keeps_symmetry=False),
            hint="if others should work too, look for a missing transpose; if not, say 'symmetric' in the docstring",
        )


def _intent(audit: Audit, result: FirstOrder, comparison: Comparison) -> Intent | None:
    """Return the intent behind a disagreement; NaN on an ordinary input is never intended, unless it is our guess."""
    case = result.case
    excused = case.extreme or case.doubtful or (audit.guessed and not case.is_variant)
    return audit.intent_of(result, comparison) if excused or not math.isnan(comparison.got) else None


def _disagreement(audit: Audit, result: FirstOrder, comparison: Comparison) -> Finding | None:
    intent = _intent(audit, result, comparison)
    if intent is not None and intent.sign == "rounded":
        return _inconclusive(audit, f"the gradient cannot be judged: {intent.reason}")
    if intent is not None:
        return _intended(audit, intent, "info" if comparison.flat else severity_of(intent), result, comparison)
    if _is_reported_by_cause(audit, result, comparison) or _is_of_the_values(audit, result, comparison):
        return None
    case = result.case
    if converges(audit, case, comparison.input_index):
        return audit.finding(
            "PB101",
            "warning",
            "inconclusive",
            f"the gradient of {case.names[case.wrt[comparison.input_index]]} is wrong, and right with ten times the "
            "iterations: the forward has not converged",
            case=case,
            evidence=audit.evidence(result, comparison),
            hint="give an example with as many iterations as it needs",
        )
    first = result, comparison
    result, comparison = _smallest(audit, result, comparison)
    is_none = result.gradients[comparison.input_index] is None
    beside_others = not audit.base.is_asked and any(g is not None for g in result.gradients)
    on_base = case.is_variant and _is_none_on_base(audit, comparison)
    constant = is_none and (audit.guessed or beside_others or on_base)
    unwritten = audit.subject.is_interpreted and _is_unwritten(result, comparison)
    unstable = case.extreme or (case.is_variant and not math.isfinite(comparison.got) and not unwritten)
    undefined = overwrites(audit, case)
    beside = _beside_an_estimate(audit, comparison.input_index)
    unsure = case.doubtful or constant or comparison.is_small or undefined or beside
    unsure = unsure or _may_be_right(audit, first, comparison, unstable)
    finding = audit.finding(
        "PB101",
        "info" if case.label == TINY else "warning" if unstable or unsure else "error",
        "unstable" if unstable else "wrong",
        _message(result, comparison) + ": memory that no kernel wrote" * unwritten,
        case=result.case,
        evidence=audit.evidence(result, comparison),
        tail=gradient_and_quotient(audit, result, comparison),
        hint=_DRAWS
        if audit.backward_draws
        else _ONE_WINS
        if undefined
        else _ESTIMATE
        if beside
        else _size_hint(*first, result, comparison) or _hint(audit, result, comparison, _ratio(first[1])),
    )
    return _at_kernel(audit, finding, result, comparison) if audit.subject.is_interpreted else finding


def _at_kernel(audit: Audit, finding: Finding, result: FirstOrder, comparison: Comparison) -> Finding:
    """Locate a finding at the line of a kernel that stores the gradient, if there is one."""
    found = storing_line(audit.subject, result.case, result.cotangents, comparison.input_index)
    if found is None:
        return finding
    kernel, file, line = found
    message = f"{finding.message}; kernel {kernel} stores it ({shown_line(file, line)})"
    return at_line(audit, replace(finding, message=message), file, line)


def _is_unwritten(result: FirstOrder, comparison: Comparison) -> bool:
    """Whether the wrong element of a gradient is memory that no kernel wrote."""
    gradient = result.gradients[comparison.input_index]
    return gradient is not None and comparison.index is not None and bool(is_unwritten(gradient)[comparison.index])


def _may_be_right(audit: Audit, first: tuple[FirstOrder, Comparison], smallest: Comparison, is_unstable: bool) -> bool:
    """Whether a disagreement, on an example and on the smallest one, may come from an approximation or the variant."""
    result, comparison = first
    return (
        _ignores_a_part(audit, result, comparison)
        or _is_of_equal_values(audit, result)
        or may_not_converge(audit, result, comparison)
        or is_coarse(audit, comparison)
        or may_approximate(audit, comparison)
        or may_approximate(audit, smallest)
        or (not is_unstable and grows(audit, result))
        or (audit.own_intent is not None and audit.own_intent.sign == "identity")  # on the example
    )


def _ignores_a_part(audit: Audit, result: FirstOrder, comparison: Comparison) -> bool:
    """Whether the output ignores what is wrong, of a tensor of another size: a pair of numbers that became many.

    Not if it depends on other elements beyond the size of the example.
    """
    index = comparison.input_index
    shapes = [t.shape for t in audit.base.tensors][index : index + 1]
    t = result.case.tensors[index]
    return (
        comparison.flat and t.shape not in shapes and not any(_depends_beyond(audit, result, index, s) for s in shapes)
    )


def _depends_beyond(audit: Audit, result: FirstOrder, input_index: int, shape: torch.Size) -> bool:
    """Whether an output depends on elements of a tensor beyond a shape of as many dimensions."""
    case, position = result.case, result.case.wrt[input_index]
    t = case.tensors[input_index]
    if t.ndim != len(shape) or audit.draws:
        return False
    beyond = torch.ones(t.shape, dtype=torch.bool, device=t.device)
    beyond[tuple(map(slice, shape))] = False
    changed = torch.where(beyond, t.detach() / 2, t.detach())
    try:
        outputs = forward(audit.subject, case.with_values({position: changed})).outputs
        before = forward(audit.subject, case).outputs
    except Raised:
        return False
    return difference(before, outputs) is not None


def _is_reported_by_cause(audit: Audit, result: FirstOrder, comparison: Comparison) -> bool:
    """Whether the rule of a cause reports a disagreement.

    All but those on complex numbers and on strides look at the example alone. A value that depends on the strides has
    another quotient of differences for contiguous tensors than for these.
    """
    if result.case.layout_only and audit.running(["PB501"]) and _depends_on_strides(audit, result.case):
        return True
    own = audit.explained_by(cause(audit, result, comparison))
    base = audit.base_result
    on_base = base is not None and any(c.input_index == comparison.input_index for c in base.wrong)
    return own is not None and (own.name == "missing-conjugate" or on_base or not result.case.is_variant)


def _is_of_the_values(audit: Audit, result: FirstOrder, comparison: Comparison) -> bool:
    """Whether contiguous tensors of the same values fail as well: equal rows, which have a variant of their own."""
    return result.case.layout_only and _fails(audit, contiguous(result.case), comparison)


def _is_of_equal_values(audit: Audit, result: FirstOrder) -> bool:
    """Whether two tensors of the values of one that was passed twice are not right either: a price as a strike."""
    case = result.case
    first_of: dict[int, int] = {}
    shared = {p: case.values[p].clone() for p in case.wrt if first_of.setdefault(id(case.values[p]), p) != p}
    apart = audit.compare(case.with_values(shared)) if case.is_variant and shared else None
    return apart is not None and any(c.status != "ok" for c in apart.comparisons)


def _is_none_on_base(audit: Audit, comparison: Comparison) -> bool:
    gradients = [] if audit.base_result is None else audit.base_result.gradients
    return comparison.input_index < len(gradients) and gradients[comparison.input_index] is None


_DRAWS = "its backward draws random numbers: say so if that is intended"
_ONE_WINS = (
    "several writes go to one place and the last one wins, which PyTorch does not guarantee (the gradient of its own "
    "ops is wrong too): reject duplicate indices, or document that there are none"
)


_ESTIMATE = (
    "the forward is a staircase in another input, whose gradient is an estimate: if this one's is one too, "
    "declare it, `# pullback: allow[wrong-vjp] reason`"
)


def _beside_an_estimate(audit: Audit, input_index: int) -> bool:
    """Whether an input is smaller than another that the forward is a staircase in: a quantiser's scale or bound."""
    wrong = [] if audit.base_result is None else audit.base_result.wrong
    steps = audit.staircase_inputs.union(c.input_index for c in wrong if flat_in(c))
    if input_index >= len(audit.base.wrt):  # an optional tensor that the example lacks
        return False
    size = audit.base.tensors[input_index].numel()
    return any(other != input_index and audit.base.tensors[other].numel() > size for other in steps)


def _size_hint(result: FirstOrder, c: Comparison, small: FirstOrder, small_c: Comparison) -> str:
    """Return the hint for a gradient that is off by the size of a dimension, on an example and on the smallest one."""
    ratio = _ratio(c)
    small_ratio = small_c.got / small_c.expected if small_c.expected else math.nan  # a small example has zeros
    if ratio is None or not abs(ratio - small_ratio) > 1e-6:
        return ""  # the factor does not depend on the size
    for position, x, y in zip(result.case.wrt, result.case.tensors, small.case.tensors, strict=True):
        name = result.case.names[position]
        sizes = [
            (f"the size of dimension {d} of {name}", *nm) for d, nm in enumerate(zip(x.shape, y.shape, strict=False))
        ]
        for what, n, m in [*sizes, (f"the number of elements of {name}", x.numel(), y.numel())]:
            if abs(ratio - n) < 1e-6 * n and abs(small_ratio - m) < 1e-6 * m:
                return f"it is {what} times what it should be: is the 1/N of a mean missing?"
            if abs(ratio * n - 1) < 1e-6 and abs(small_ratio * m - 1) < 1e-6:
                return f"it is too small by a factor of {what}: is there an extra 1/N?"
    return ""


def _ratio(c: Comparison) -> float | None:
    """Return the common factor by which all comparisons are off, judged by the worst of them."""
    if math.isfinite(c.got) and abs(c.expected) > 1e-9 and abs(c.got) > 1e-9 and c.failing == c.compared:
        return c.got / c.expected
    return None


def _smallest(audit: Audit, result: FirstOrder, comparison: Comparison) -> tuple[FirstOrder, Comparison]:
    """Shrink the case, and show it with a cotangent of ones if that still fails."""
    if result.case.layout_only or audit.draws or audit.is_slow or audit.takes_long(result.seconds):
        return result, comparison
    smallest = audit.shrink(result.case, lambda case: _fails(audit, case, comparison))
    for unit in (True, False):
        final = audit.compare(smallest, directions=2, unit=unit)
        if final is not None and (kept := [c for c in final.wrong if _is_as_bad(c, comparison)]):
            return final, kept[0]
    return result, comparison


def _fails(audit: Audit, case: Case, like: Comparison) -> bool:
    result = audit.compare(case)
    return result is not None and any(_is_as_bad(c, like) for c in result.wrong)


def _is_as_bad(c: Comparison, like: Comparison) -> bool:
    """Whether it is the same input that is wrong, in the same way, and not by less."""
    alike = math.isfinite(c.got) == math.isfinite(like.got)
    return c.input_index == like.input_index and c.is_small <= like.is_small and alike


def _message(result: FirstOrder, c: Comparison) -> str:
    name = result.case.names[result.case.wrt[c.input_index]]
    at = subscript(c.index)
    right = f"is {show(c.expected)}"
    if c.kink and c.low < c.high:
        right = f"is anything between {show(c.low)} and {show(c.high)}"
    what = f"the gradient of {name}{at} is {show(c.got)}, the derivative of the forward {right}"
    where = "" if not result.case.is_variant else f" (with {result.case.phrase})"
    size = abs(c.gap / max(abs(c.low), abs(c.high), abs(c.got))) if c.is_small else 0.0
    return what + where + (f": a small difference, {size:.1g} of it" if c.is_small else "")


def _hint(audit: Audit, result: FirstOrder, c: Comparison, ratio: float | None) -> str:
    """Return the hint for a smallest example, where an example that was not made smaller is off by a ratio."""
    ratio = _ratio(c) if ratio is None else ratio  # zeros that came with shrinking are off by nothing
    for factor in (-1.0, 2.0, 0.5, -2.0, -0.5):
        if ratio is not None and abs(ratio - factor) < 1e-6:
            return f"it is {factor:g} times what it should be: look for a lost sign or factor"
    if c.is_small:
        return (
            "if forward or backward iterates, approximates or adds a small constant, see whether a tighter one "
            "removes the difference; if not, look for a missing term"
        )
    if result.case.layout_only:
        reader = "the forward" if _depends_on_strides(audit, result.case) else "the backward"
        return f"it is right for contiguous tensors: {reader} reads memory in the wrong order"
    if result.case.doubtful:
        return "support such inputs in the backward, or refuse them in the forward"
    on_base = [] if audit.base_result is None else audit.base_result.comparisons
    if result.case.is_variant and any(b.input_index == c.input_index and b.status == "ok" for b in on_base):
        return f"it is right on the example, and wrong with {result.case.phrase}"
    return "re-derive the backward from the formula of the forward"


def _depends_on_strides(audit: Audit, case: Case) -> bool:
    """Whether the forward gives other values for the same inputs in contiguous tensors."""
    try:
        expected = [out.detach() for out in forward(audit.subject, contiguous(case)).outputs]
        got = [out.detach() for out in forward(audit.subject, case).outputs]
    except Raised:
        return False
    return difference(expected, got) is not None


def _intended(audit: Audit, intent: Intent, severity: Severity, result: FirstOrder, comparison: Comparison) -> Finding:
    return audit.finding(
        "PB101",
        severity,
        "intended",
        f"the backward is not the derivative of the forward, apparently on purpose: {intent.reason}",
        evidence=audit.evidence(result, comparison),
        hint=_declare(intent.sign),
    )


def _declare(sign: str) -> str:
    if sign == "declared":
        return "nothing to do; `# pullback: allow[wrong-vjp] reason` on the class hides this line"
    if sign == "cut":
        return "if the cut is not intended, stay in torch operations on tensors; if it is, say so in the docstring"
    if sign == "worded":
        return "words may refer to something else: if it is intended, declare it: `# pullback: allow[wrong-vjp] reason`"
    return "if so, say it: 'straight-through' or 'surrogate' in the docstring, or `# pullback: allow[wrong-vjp] reason`"


def _inconclusive(audit: Audit, why: str, evidence: Evidence | None = None) -> Finding:
    hint = "give inputs of a wider dtype, or larger and away from singular points"
    return audit.finding("PB101", "info", "inconclusive", why, evidence=evidence, hint=hint)


def _unwritten(audit: Audit, where: Unwritten) -> Finding:
    """Report that a gradient, or an output, was never written: a fault, or a reason why the gradient is undecided."""
    finding = _memory(audit, where)
    if may_misfit(audit):
        finding = replace(finding, severity="warning", verdict="inconclusive", hint=MAY_MISFIT)
    return finding


def _memory(audit: Audit, where: Unwritten) -> Finding:
    at = subscript(where.index)
    if where.kind == "output":
        is_fault = where.is_left_by_kernel
        unlike = ", unlike its other elements" if is_fault else ""
        return audit.finding(
            "wrong-vjp",
            "error" if is_fault else "warning",
            "wrong" if is_fault else "inconclusive",
            f"output {where.tensor_index}{at} is memory that the forward never wrote{unlike}: "
            "its gradient cannot be judged, and no rule that compares values was run",
            case=audit.base,
            evidence=Evidence(worst_index=where.index, where=f"output {where.tensor_index}"),
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
        f"the gradient of {audit.names[where.tensor_index]}{at} is made from memory that the backward never wrote",
        case=audit.base,
        evidence=Evidence(worst_index=where.index, where=f"gradient of {audit.names[where.tensor_index]}"),
        tail=[
            *_FILLED,
            f"out = fn({call_text(audit.base)})",
            audit.outs,
            bind("g", standard_cotangents(audit.base_run.roots)),
            f"got = torch.autograd.grad(outs, inputs, g, materialize_grads=True)[{where.tensor_index}]",
            f"print('with new memory full of NaN, the gradient is', got{at})",
            _AS_USUAL,
        ],
        hint="write all of it, or allocate with zeros_like in place of empty_like",
    )


_FILLED = ("torch.set_deterministic_debug_mode('warn')  # fills new memory with NaN",)
_AS_USUAL = "torch.set_deterministic_debug_mode('default')"


_IS_MASK = re.compile(r"mask|keep|kept|inside|valid|positive|selected", re.IGNORECASE)
_HINT = "use index_add, scatter_add or index_put(…, accumulate=True)"


def _static(source: FunctionSource) -> Iterator[SourceMatch]:
    backward = source.methods.get("backward")
    if backward is None or not isinstance(source.node, ast.ClassDef):
        return
    operands = [node.operand for node in ast.walk(backward) if isinstance(node, ast.UnaryOp)]
    negated = {operand.id for operand in operands if isinstance(operand, ast.Name)}
    indices = {name for name in saved(backward) - negated if not _IS_MASK.search(name)}
    for node in ast.walk(backward):
        match node:
            case ast.AugAssign(target=ast.Subscript(slice=ast.Name(id=name))) if name in indices:
                pass
            case ast.Call(func=ast.Attribute(attr="index_put_" | "index_put"), args=[place, _]) if (
                not node.keywords and any(isinstance(n, ast.Name) and n.id in indices for n in ast.walk(place))
            ):
                pass
            case _:
                continue
        yield SourceMatch(node.lineno, f"terms at equal indices are lost: {text(node)}", _HINT, "warning")


RULE = Rule(
    __doc__,
    runtime=_run,
    static=_static,
    blames="backward",
    shrinks=False,
    varies=True,
    column="eager",
    compared=lambda audit: True,
    of_weights="always",
    proves=1,
    explains="unwritten memory",
)
