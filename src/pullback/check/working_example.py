"""The working example of an audit: one of those given, or a guessed one, as little in doubt as can be."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pullback.check.audit import Audit
from pullback.check.case import Case
from pullback.check.cases import layouts, sizes, structure, values
from pullback.check.cases.guess import with_rows
from pullback.check.cases.package_calls import call_in_package
from pullback.check.cases.probe import FoundExample, probe
from pullback.check.cases.search import Score, attempt, leaves_bounds, of_environment, refuses_leaves
from pullback.check.clock import Stopwatch
from pullback.check.derivative.agreement import TensorDifference, difference, equal_or_nan
from pullback.check.derivative.compare_input import Status
from pullback.check.derivative.first_order import FirstOrder
from pullback.check.derivative.recorder import misshapen
from pullback.check.events import Events
from pullback.check.find.kernels import present
from pullback.check.sparse import on_values
from pullback.check.subject import Options, Subject, accelerator
from pullback.check.trial import Raised, forward, is_freed
from pullback.check.weights import with_weights
from pullback.dtypes import has_derivative

LACKS = "it needs what is not here: "
_SHORT = (torch.bfloat16, torch.float16)
_OF_DTYPES = re.compile(r"AssertionError|fp16|bf16|float16|float32|half", re.IGNORECASE)
"""Matches the error of code that may refuse float32."""


def prepare(
    subject: Subject,
    options: Options,
    given: list[Case],
    events: Events,
    skip: frozenset[str],
    presents: bool = False,
) -> tuple[Audit | None, str]:
    """Find the working example; return the audit of it, or why there is none.

    Args:
        subject: the function.
        options: of the audit.
        given: examples of a call; by default one is guessed.
        events: receives each call.
        skip: ids of rules and descriptions of cases to leave out.
        presents: whether interpreted host code that refuses float32 may be shown a shorter dtype for float64, from now
            on: in this process alone.
    """
    if presents:
        present(torch.float32)
    if given:
        subject, first = on_values(subject, given[0])
        given = given if first is given[0] else [first]  # others may have their values elsewhere
    find = partial(_from_given, given=given) if given else _guessed
    find = partial(find, presents=presents)
    found, why = find(subject, options, events=events, skip=skip)
    if found is not None:
        try:
            return _without_buffers(found), why
        except Raised as error:
            return None, f"what runs at first does not run again: {error}"
    if subject.device is not None or subject.is_interpreted or not of_environment(why):
        return None, why
    device = accelerator()  # not before it may be needed: to ask a GPU's driver takes seconds
    return find(replace(subject, device=device), options, events=events, skip=skip) if device else (found, why)


def _without_buffers(audit: Audit) -> Audit:
    """Return the audit without the inputs that the forward changes in place and that get no gradient, as statistics do.

    They were differentiated only because the example does not say which of its inputs require a gradient.
    """
    base, run = audit.base, audit.base_run
    changed = {
        p
        for p, before, after in zip(base.wrt, base.tensors, run.inputs, strict=True)
        if not is_freed(after)
        and not any(out is after for out in run.outputs)
        and before.shape == after.shape
        and not equal_or_nan(before, after)
    }
    result = audit.base_result if changed and not base.captured else None
    if result is None or result.error is not None:
        return audit
    buffers = {p for p, gradient in zip(base.wrt, result.gradients, strict=True) if gradient is None and p in changed}
    if not buffers or len(buffers) == len(base.wrt):
        return audit
    base = replace(base, wrt=tuple(p for p in base.wrt if p not in buffers))
    given = [replace(case, wrt=tuple(p for p in case.wrt if p not in buffers)) for case in audit.given]
    without = Audit(audit.subject, audit.options, base, given, audit.events, audit.skip, audit.guessed)
    without.refuted = audit.refuted
    without.changed_since_first = audit.changed_since_first
    return without


def _guessed(
    subject: Subject, options: Options, events: Events, skip: frozenset[str], presents: bool
) -> tuple[Audit | None, str]:
    generator = torch.Generator().manual_seed(options.seed)
    found = probe(subject, generator, events, lambda case: _misfits(subject, case))
    if presents and found.case is None and any(map(_OF_DTYPES.search, found.reasons)):
        for short in _SHORT:
            present(short)
            shorter = probe(subject, generator, events, lambda case: _misfits(subject, case))
            if shorter.case is not None:
                found = shorter
                break
        else:
            present(torch.float32)
    if subject.is_interpreted and found.case is not None:
        rows = with_rows(found.case)
        if attempt(subject, rows).score >= attempt(subject, found.case).score:
            found.case = rows
    if found.case is None and not found.lacks and subject.kind == "function":
        called = call_in_package(subject, lambda caller: probe(caller, generator, events).case)
        if called is not None:
            subject, case = on_values(subject, replace(called, label="example"))
            found.case = case if attempt(subject, case).score >= Score.RAN_BACK else None
    if found.case is None:
        return None, _why_no_example(found)
    is_doubted = found.broken is not None and not subject.is_interpreted  # a kernel takes shapes that it does not fit
    doubted = [replace(found.broken, label="other shapes", doubtful=True)] if is_doubted and found.broken else []
    case = _settle(subject, found.case)
    if len(case.values) > 1 and leaves_bounds(subject, case):
        case = replace(case, doubtful=True)
    return _in_domain(Audit(subject, options, case, doubted, events, skip, guessed=True)), ""


def _from_given(
    subject: Subject, options: Options, events: Events, skip: frozenset[str], presents: bool, given: list[Case]
) -> tuple[Audit | None, str]:
    before = _outputs(subject, given[0]) if subject.is_interpreted and given else None
    problems = []
    working = []
    of_weights = None
    for case in given:
        try:
            if not forward(subject, _settle(subject, case)).outputs:
                problems.append("the forward returned no tensor")
            elif not case.wrt:
                of_weights = of_weights or with_weights(subject, case)
                problems.append("no argument is a floating or complex tensor")
            else:
                working.append(_settle(subject, case))
        except Raised as error:
            problems.append(str(error))
    if not working and of_weights is not None:
        return Audit(of_weights[0], options, of_weights[1], [], events, skip), ""
    if not working:
        return None, f"the given inputs do not work: {problems[0]}" if problems else "no inputs were given"
    changed = _changed_since(subject, given[0], before) if before is not None else None
    base = _in_float64(subject, working[0], presents)
    is_other = any(a is not b for a, b in zip(base.tensors, working[0].tensors, strict=True))
    audit = Audit(subject, options, base, working if is_other else working[1:], events, skip)
    audit.changed_since_first = changed
    return audit, ""


def _outputs(subject: Subject, case: Case) -> list[Tensor] | None:
    """Return the floating outputs of a call; `None` if it raises."""
    try:
        outputs = forward(subject, case).outputs
    except Raised:
        return None
    return [out.detach().clone() for out in outputs if not is_freed(out) and has_derivative(out)]


def _changed_since(subject: Subject, case: Case, before: list[Tensor]) -> TensorDifference | None:
    """Return where two equal calls differ from an earlier one; `None` if they are not equal, either."""
    second, third = _outputs(subject, case), _outputs(subject, case)
    if second is None or third is None or not len(before) == len(second) == len(third):
        return None
    return None if difference(second, third, rounding=0.0) else difference(before, second)


def _in_float64(subject: Subject, example: Case, presents: bool) -> Case:
    """Return an example in float64 if the function takes it so, and its tensors apart if it takes them so.

    A forward that refuses it may be shown the short dtype of the example for it.
    """
    unshared = example.unshared()
    wide = layouts.widened(unshared)
    if _takes(subject, wide, unshared):
        return wide
    short = next((t.dtype for t in unshared.tensors if t.dtype in _SHORT), None)
    # Where the forward takes float32, and the backward does not, calls in float32 are variants that fail.
    if presents and short is not None and not _runs(subject, wide):
        present(short)
        if _takes(subject, wide, unshared):
            return wide
        present(torch.float32)
    return unshared if _runs(subject, unshared) else example


def _takes(subject: Subject, wide: Case, example: Case) -> bool:
    """Whether an example runs in float64 too: forward, and backward unless that raises in its own dtypes as well."""
    if not _runs(subject, wide):
        return False
    is_wider = [t.dtype for t in wide.tensors] != [t.dtype for t in example.tensors]
    return not (is_wider and _refuses_back(subject, wide) and not _refuses_back(subject, example))


def _runs(subject: Subject, case: Case) -> bool:
    try:
        return bool(forward(subject, case).outputs)
    except Raised:
        return False


def _misfits(subject: Subject, case: Case) -> bool:
    """Whether a backward returned gradients of other shapes: the guessed arguments may not match."""
    parts = [v for v in case.values if isinstance(v, Tensor | int) and not isinstance(v, bool)]
    return subject.kind == "function" and len(parts) > 1 and any(not m.is_broadcast for m in misshapen(subject, case))


_DOUBT_SECONDS = 3.0
"""Limit on the search for a guess on which the gradient is correct."""


def _in_domain(guessed: Audit) -> Audit:
    """Return the audit on another guess, if the gradient is right only there.

    A guessed square matrix is arbitrary. A function of symmetric, positive definite or triangular matrices is undefined
    on others, so a fault found there would be a fault of the guess. The same holds for a function as an argument, whose
    derivative may be built in, for pairs or quaternions, for a parameter that is a number or has a smaller shape, and,
    if the gradient is NaN, for positive inputs.
    """
    wrong = _by_status(guessed.base_result, "wrong")
    if not wrong or guessed.intent is not None:
        return guessed
    clock = Stopwatch()
    assert guessed.base_result is not None
    is_nan = all(math.isnan(c.got) for c in guessed.base_result.wrong)
    positive = values.positive(guessed.base) if is_nan else ()
    for case in (*positive, *_with_labels(guessed), *_other_guesses(guessed.base, wrong)):
        if clock.seconds() > _DOUBT_SECONDS:
            break
        other = guessed.on(case)
        if not other.is_valid(case) or not wrong <= _by_status(other.compare(case, elements=1), "ok"):
            continue
        if wrong <= _by_status(other.base_result, "ok") and not wrong & _by_status(_second_comparison(other), "wrong"):
            other.refuted = guessed.base_result
            return other
    return guessed


def _with_labels(guessed: Audit) -> Iterator[Case]:
    """Yield the guess with zeros and ones in the tensors that get no gradient: labels of a loss."""
    base, result = guessed.base, guessed.base_result
    none = [] if result is None else [p for p, g in zip(base.wrt, result.gradients, strict=True) if g is None]
    floats = {p: base.values[p] for p in none if base.values[p].is_floating_point()}
    if floats:
        words = f"zeros and ones in {' and '.join(base.names[p] for p in floats)}"
        yield base.with_values({p: (t > 0).to(t.dtype) for p, t in floats.items()}, required_property=words)


def _second_comparison(audit: Audit) -> FirstOrder | None:
    """The comparison on a permutation of the example: agreement on one may be a coincidence."""
    base = audit.base
    if any(structure.is_structured(t) for t in base.tensors):
        return None
    generator = torch.Generator().manual_seed(audit.options.seed)
    case = base.map_tensors(lambda t: t.flatten()[torch.randperm(t.numel(), generator=generator)].view(t.shape), "")
    return audit.compare(case) if audit.is_valid(case) else None


def _refuses_back(subject: Subject, case: Case) -> bool:
    return attempt(subject, case).score == Score.NO_BACKWARD


def _by_status(result: FirstOrder | None, status: Status) -> set[int]:
    """Positions of the inputs with a gradient and a given status."""
    found = [] if result is None else [c for c in result.comparisons if c.status == status]
    return {
        result.case.wrt[c.input_index]
        for c in found
        if result is not None and result.gradients[c.input_index] is not None
    }


def _other_guesses(base: Case, wrong: Collection[int]) -> Iterator[Case]:
    """Yield other interpretations of a guessed call, if the gradients of some inputs are wrong.

    The first input is most likely the data: with one row of it, a gradient without its 1/N would be right.
    """
    data = base.wrt[0]
    yield from structure.structured(base)
    yield from values.other_callables(base)
    yield from sizes.other_lengths(base)
    yield from values.with_numbers(base, {data, *wrong})
    for case in sizes.broadcasts(base):
        if case.values[data] is base.values[data]:
            yield replace(case, label=base.label, doubtful=False, required_property=case.label)


def _settle(subject: Subject, case: Case) -> Case:
    """Return the case with inputs that are not leaves, if the function changes them in place."""
    try:
        forward(subject, case)
    except Raised as error:
        if refuses_leaves(error):
            return replace(case, non_leaf=True)
    return case


def _why_no_example(found: FoundExample) -> str:
    if found.lacks:
        return LACKS + found.lacks
    tried = f"{found.trials} guessed calls, none worked"
    return f"{tried}; most often {'; '.join(found.reasons)}" if found.reasons else tried
