"""The audit of one subject: it looks for a working example, then runs each rule on it and on its variants.

It runs inside a separate process (`runner/`).
"""

from __future__ import annotations

import functools
import inspect
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch

from pullback.check import trial
from pullback.check.audit import Audit
from pullback.check.case import Case
from pullback.check.cases.search import of_environment
from pullback.check.clock import Stopwatch
from pullback.check.derivative.agreement import show
from pullback.check.derivative.first_order import FirstOrder
from pullback.check.events import AuditEnd, Events, StepEvents
from pullback.check.find.stand_ins import NEEDED
from pullback.check.measure import measure
from pullback.check.optional_arguments import with_all_optional
from pullback.check.purity.memory import Memory
from pullback.check.rules import Rule, all_rules, allow_keys, rule_named, rule_of, selected, selected_static
from pullback.check.rules._reproduction import gradient_and_quotient
from pullback.check.subject import Inputs, Options, Subject, device_of, to_cpu
from pullback.check.trial import Raised, take_incidents
from pullback.check.variants import variants_of
from pullback.check.weights import given_call, kept
from pullback.check.working_example import LACKS, prepare
from pullback.report.model import Finding, Location
from pullback.report.text import ranges

_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_UNIMPORTED = re.compile(r"\bcould not be imported: ")
_UNDEFINED_AT_IMPORT = re.compile(r"\bcould not be imported: NameError: name '(\w+)' is not defined")
_UNDEFINED = re.compile(r"(most often|do not work:) forward raised NameError: ")
_OF_A_KERNEL = re.compile(r"KernelError: (\w+) \(([^()]+:\d+)\)")
_OF_A_GPU = re.compile("cuda|nvidia|triton|gpu|mps|active drivers|not interpreted", re.IGNORECASE)


def run_audit(
    subject: Subject,
    options: Options,
    inputs: Inputs | None,
    events: Events,
    skip: frozenset[str] = frozenset(),
) -> AuditEnd:
    """Run every selected rule on `subject` and report what they find to `events`.

    Args:
        subject: what to audit; one without a target gets its static rules and a warning.
        options: which rules, the seed and the budget.
        inputs: examples of a call; the first that works is varied. By default one is looked for.
        events: receives steps and findings.
        skip: ids of rules, and descriptions of cases, that brought a process down: they are left out.
    """
    warnings.simplefilter("ignore")
    sink = _Sink(subject, events)
    chosen = [rule for rule in selected(options) if rule.id not in skip]
    for finding in static_findings(subject, options, runs=True):
        sink(finding)
    if subject.target is None:
        return _unaudited(subject, options, sink, subject.why_unaudited)
    audit, why = _prepared(subject, options, inputs, events, skip)
    for finding in _incidents(subject):
        sink(finding)
    if audit is None:
        return _unaudited(subject, options, sink, why)
    try:
        return _audited(audit, chosen, sink)
    except Raised as error:
        return _unaudited(subject, options, sink, f"what runs at first does not run again: {error}")


def _audited(audit: Audit, chosen: list[Rule], sink: _Sink) -> AuditEnd:
    """Run the rules that apply to a subject with a working example."""
    if audit.base.required_property and any(rule.proves == 1 for rule in audit.applying):
        sink(_only_in_domain(audit))
    chosen = [rule for rule in chosen if audit.subject.kind in rule.kinds]
    if audit.base.captured:  # nothing but weights is differentiated
        chosen = [rule for rule in chosen if rule.of_weights != "never"]
    if audit.unwritten is not None:
        why = "the function returns memory that it never wrote"
        chosen = _for_random_values(audit, chosen, sink, "unwritten memory", why)
    elif audit.run_difference is not None and not audit.run_difference.is_rounding:
        chosen = _for_random_values(
            audit, chosen, sink, "values that differ", "two runs from the same random state differ"
        )
    if audit.subject.device is not None:
        chosen = [rule for rule in chosen if not rule.needs_cpu]
        sink(_on_device(audit, audit.subject.device))
    if audit.subject.is_interpreted:
        chosen = [rule for rule in chosen if not rule.compiles]
        sink(_without_compilers(audit))
    left_out = _run_rules(audit, chosen, sink)
    _run_inside(audit, sink)
    if uncompared := _left_out(audit):
        why = "another one is wrong, and each comparison takes seconds"
        sink(_not_compared(audit, uncompared, why, "mend that one, and audit again"))
    late = [f"{', '.join(left_out)} could run"] if left_out else []
    if audit.ran_out:
        late.append("all variants of the inputs were compared")
    if late:
        sink(_over_budget(audit, ", and before ".join(late)))
    done = {rule.id for rule in chosen}.difference(left_out)
    return AuditEnd(audit.cases, sink.allowed, measure(audit, done, sink.reported))


def run_alone(subject: Subject, options: Options, inputs: Inputs | None, events: Events, rule: str, what: str) -> bool:
    """Run a single step of an audit: a rule, or the variant with that description.

    Args:
        subject, options, inputs, events: as of `run_audit`.
        rule, what: the step, as they were sent to `events`.

    Returns:
        Whether it was run; not if it is another kind of step.
    """
    warnings.simplefilter("ignore")
    audit, _ = _prepared(subject, options, inputs, events, frozenset())
    if audit is None:
        return False
    if (found := rule_named(rule)) is not None and found.runtime is not None:
        with suppress(Raised):
            list(found.runtime(audit))
        return True
    for case, numeric in variants_of(audit):
        if case.describe() == what:
            audit.compare(case, numeric=numeric)
            return True
    return False


def _prepared(
    subject: Subject, options: Options, inputs: Inputs | None, events: Events, skip: frozenset[str]
) -> tuple[Audit | None, str]:
    """The audit with a working example, or the reason why there is none."""
    steps = StepEvents(events)
    trial.set_on_call(steps.calling)
    events.step("", "looking for a working example", "")
    calls = list(inputs or ())
    if (device := device_of(calls)) is not None:
        subject, calls = replace(subject, device=device), to_cpu(calls)
    given = [given_call(subject, args, kwargs) for args, kwargs in calls]
    memory = Memory(subject)
    audit, why = prepare(subject, options, given, steps, skip, presents=subject.is_interpreted)
    if audit is not None:
        audit.memory = memory
    return audit, why


def static_findings(subject: Subject, options: Options, runs: bool = False) -> list[Finding]:
    """Findings from the source alone. None of the audited code is run.

    Args:
        subject: the audited function.
        options: which rules.
        runs: leave out what the runtime half of a rule measures on a function that runs.
    """
    if subject.source is None:
        return []
    return [
        Finding(
            subject.name, rule.id, rule.name, match.severity, "wrong", match.message,
            Location(subject.location.file, match.line), hint=match.hint, alias=rule.alias.id if rule.alias else "",
        )
        for rule in selected_static(options, runs)
        if rule.static is not None
        for match in rule.static(subject.source)
    ]  # fmt: skip


def unaudited(subject: Subject, why: str) -> Finding:
    """The warning that a subject could not be run, with the reason and the remedy."""
    hint = f"give example inputs: `--inputs {_own_inputs(subject)}`, or pullback.check(fn, *inputs) from Python"
    if missing := NEEDED.search(why) or _NO_MODULE.search(why):
        hint = f"install {missing[1]}, or build it if it is an extension of the package"
        if missing[1].partition(".")[0] == "triton":
            hint = "its Triton kernels can be interpreted without a GPU: pip install triton"
    elif _UNDEFINED.search(why):
        hint = "define that name where the function is defined: no inputs can help"
    elif absent := _UNDEFINED_AT_IMPORT.search(why):
        hint = f"define {absent[1]}, or import it"
    elif _UNIMPORTED.search(why):
        hint = "make its module importable here: what runs at import belongs under `if __name__ == '__main__':`"
    elif why.startswith(LACKS):
        in_program = "audit it in a program that sets that up, with `pullback run`"
        hint = "audit it on a machine with a GPU" if _OF_A_GPU.search(why) else in_program
    is_given = why.startswith("the given inputs do not work")
    if is_given and "not interpreted" in why:
        hint = "the interpreter has no such operation: audit it on a machine with a GPU"
    elif is_given and of_environment(why):
        hint = "the audit runs in a process of its own: let the function set up there what it needs (a process group)"
    elif is_given and (at := _OF_A_KERNEL.search(why)):
        hint = f"the kernel {at[1]} cannot run on these inputs, or not at all: look at {at[2]}"
    elif is_given:
        one = "at least one of them a floating-point or complex tensor on the CPU"
        hint = f"give arguments that the function accepts, {one}"
    rule = rule_named("unaudited")
    assert rule is not None
    return Finding(
        subject=subject.name,
        rule=rule.id,
        name=rule.name,
        severity="error" if is_given and not of_environment(why) else "warning",
        verdict="unaudited",
        message=f"not audited: {why}",
        location=subject.location,
        hint=hint,
    )


_INPUTS = re.compile(r"(get_|example_|make_|sample_)?inputs")


def _own_inputs(subject: Subject) -> str:
    """Return FILE:NAME of a function in the subject's file that may give its inputs, as `--inputs` takes it."""
    module = inspect.getmodule(subject.target)
    for name, value in list(vars(module).items()) if module is not None else ():
        if isinstance(value, FunctionType) and _INPUTS.fullmatch(name) and value.__module__ == vars(module)["__name__"]:
            return f"{subject.location.file}:{name}"
    return "FILE:function"


def _unaudited(subject: Subject, options: Options, sink: _Sink, why: str) -> AuditEnd:
    """Report that a subject could not be run, and the findings of its static rules."""
    sink(unaudited(subject, why))
    for finding in static_findings(subject, options):
        sink(finding)
    return AuditEnd(0, sink.allowed)


class _Sink:
    """Forwards findings, without duplicates and those that an allow comment silences."""

    def __init__(self, subject: Subject, events: Events) -> None:
        self.subject = subject
        self.events = events
        self.allowed = 0
        self.seen: set[tuple[Any, ...]] = set()
        self.reported: list[Finding] = []

    def __call__(self, finding: Finding) -> None:
        key = (finding.rule, finding.verdict, finding.message)
        if key in self.seen:
            return
        self.seen.add(key)
        self.reported.append(finding)
        if self.subject.source is not None and self.subject.source.allows(*allow_keys(finding)):
            self.allowed += 1
            return
        self.events.finding(finding)

    def has_reported(self, rule: Rule) -> bool:
        """Whether a rule has found something."""
        return any(finding.rule == rule.id for finding in self.reported)


def _only_in_domain(audit: Audit) -> Finding:
    fit = audit.base.required_property
    result = audit.refuted
    assert result is not None
    with_gradient = [c for c in result.wrong if result.gradients[c.input_index] is not None]
    worst = max(with_gradient or result.wrong, key=lambda c: c.weight)
    name = result.case.names[result.case.wrt[worst.input_index]]
    is_of_shapes = "dimension" in fit or "size 1" in fit
    inputs = zip(result.case.wrt, result.case.tensors, strict=True)
    shapes = " and ".join(f"{result.case.names[p]} of shape {tuple(t.shape)}" for p, t in inputs)
    where = f"for {shapes}" if is_of_shapes else "for one of them"
    numbers = f"{where} the gradient of {name} is {show(worst.got)}, and the derivative of the forward"
    what = f"the gradient is right for {fit}, and wrong for other guesses: {numbers} {show(worst.expected)}"
    fault = "look for a missing transpose" if fit.endswith("matrices") else "this is a bug"
    others = "other shapes" if is_of_shapes else "other inputs"
    hint = f"if {others} are valid, {fault}; if not, say so in the docstring and give --inputs"
    return audit.finding(
        "wrong-vjp",
        "warning",
        "inconclusive",
        what,
        case=result.case,
        evidence=audit.evidence(result, worst),
        tail=gradient_and_quotient(audit, result, worst),
        hint=hint,
    )


def _for_random_values(audit: Audit, chosen: Sequence[Rule], sink: _Sink, cause: str, why: str) -> list[Rule]:
    """The rules that still apply to a function whose values are random, for a cause that one of them reports."""
    kept = [rule for rule in chosen if rule.explains == cause or not rule.needs_repeatable]
    others = [rule for rule in chosen if rule not in kept and rule.runtime is not None]
    if others and audit.explained_by(cause) is None:
        sink(replace(_undecided(audit, others[0], why), severity="warning"))  # else there would be no finding
    return kept


def _run_rules(audit: Audit, chosen: Sequence[Rule], sink: _Sink) -> list[str]:
    """Run the rules; return the ids of those for which the budget left no time.

    Rules with one or a few runs come first, the most informative before the rest; then the variants of the example,
    then slow rules, if one as slow as the slowest so far would end in time. On the example the contract rules run
    whatever the budget is.
    """
    running = [rule for rule in chosen if rule.runtime is not None]
    left_out = []
    for rule in sorted((rule for rule in running if not rule.late), key=_priority):
        if rule.is_of_contract or _is_of_its_kernels(audit, rule) or audit.has_time(_OVERDRAFT if rule.early else 1.0):
            _run_rule(audit, rule, sink)
        else:
            left_out.append(rule.id)
    _run_on_weights(audit, running, sink)
    _run_on_optional(audit, running, sink)
    audit.varied = True
    slowest = 0.0
    for rule in (rule for rule in running if (rule.varies or rule.late) and rule.id not in left_out):
        before = audit.elapsed()
        if rule.varies or _is_of_its_kernels(audit, rule) or before + slowest < audit.options.budget:
            _run_rule(audit, rule, sink)
            slowest = max(slowest, audit.elapsed() - before if rule.late else 0.0)
        else:
            left_out.append(rule.id)
    _run_on_weights_of_variants(audit, running, sink)
    return left_out


_OVERDRAFT = 2.0
"""Part of the budget until which early rules begin: the first derivative of a slow function takes all of it."""


def _is_of_its_kernels(audit: Audit, rule: Rule) -> bool:
    return rule.of_kernels and audit.subject.is_interpreted


def _priority(rule: Rule) -> int:
    return rule.priority


_NAMED = 3
"""Number of weights that a message names."""


def _run_on_weights(audit: Audit, running: Sequence[Rule], sink: _Sink) -> None:
    """Run some rules on the subject as a function of its weights."""
    is_asked = any(rule.of_weights == "always" for rule in audit.applying)
    weighted = audit.weighted if audit.backward_works and is_asked else None
    if weighted is None:
        return
    with kept(weighted.base):
        for rule in sorted(running, key=_priority):
            is_meant = rule.proves == 2 and weighted.intent is not None
            if rule.of_weights == "always" and not is_meant and not _is_settled(rule, sink.reported):
                _run_rule(weighted, rule, sink)
        left_out = [*_left_out(weighted), *weighted.base.left_out]
    if left_out:
        why = "there are too many of them, or no time was left"
        sink(_not_compared(audit, left_out, why, "raise --budget, or give a smaller module"))


def _run_on_optional(audit: Audit, running: Sequence[Rule], sink: _Sink) -> None:
    """Run some rules on the example with tensors for its optional arguments."""
    case = with_all_optional(audit) if audit.backward_works and audit.has_time() else None
    if case is None:
        return
    fuller = audit.on(case)
    fuller.clock = audit.clock
    for rule in sorted(running, key=_priority):
        if rule.of_optional and not sink.has_reported(rule) and audit.has_time():
            _run_rule(fuller, rule, lambda found: sink(replace(found, message=f"{found.message}; with {case.label}")))


_VARIANTS_FOR_WEIGHTS = ("sliced with a step", "transposed", "-> 1", "exact zeros", "all equal")
"""Words in the labels of the variants on which the gradients of weights are compared as well."""


def _run_on_weights_of_variants(audit: Audit, running: Sequence[Rule], sink: _Sink) -> None:
    """Compare the gradients of weights on variants of the inputs, unless they are already known to be wrong."""
    rule = next((rule for rule in running if rule.proves == 1), None)
    if rule is None or audit.weighted is None or not audit.backward_works or sink.has_reported(rule):
        return
    ordinary = [r.case for r in audit.variants if r.wrong == [] and not (r.case.doubtful or r.case.extreme)]
    for words in _VARIANTS_FOR_WEIGHTS:
        case = next((case for case in ordinary if words in case.label), None)
        if case is None or not audit.has_time():
            continue
        other = audit.on(replace(case, label=case.phrase))
        other.clock = audit.clock
        if other.weighted is not None:
            with kept(other.weighted.base):
                _run_rule(other.weighted, rule, sink)
        if sink.has_reported(rule):
            return


def _is_settled(rule: Rule, reported: Sequence[Finding]) -> bool:
    """Whether errors that were found leave nothing to learn from running a rule on weights."""
    return any(finding.severity == "error" and finding.name in rule.settled_by for finding in reported)


def _left_out(audit: Audit) -> list[str]:
    """Names of the inputs of the working example that were not compared for lack of time."""
    found: FirstOrder | None = vars(audit).get("base_result")
    return [] if found is None else [audit.names[k] for k in found.left_out]


def _not_compared(audit: Audit, names: list[str], why: str, hint: str) -> Finding:
    named = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    what = f"the gradients of {named} were not compared: {why}"
    return audit.finding("not-run", "info", "inconclusive", what, hint=hint)


def _run_inside(audit: Audit, sink: _Sink) -> None:
    """Run the rules for Functions on each Function that a callable calls.

    Where the callable means not to be a derivative, each Function has its own gradient looked at, too.
    """
    for inner in audit.inside:
        try:
            _ = inner.base_result
        except Raised:  # its arguments serve for one call: a solver that is released, say
            continue
        inner.clock = audit.clock
        report = functools.partial(_report_of_inner, audit, inner, sink)
        for rule in selected(audit.options):
            is_due = rule.runs_inside or (rule.proves == 1 and audit.intent is not None)
            is_due = is_due and not (rule.compiles and inner.subject.is_interpreted)
            if is_due and rule.id not in audit.skip and audit.has_time():
                _run_rule(inner, rule, report)


def _report_of_inner(audit: Audit, inner: Audit, sink: _Sink, finding: Finding) -> None:
    """Report a finding about a Function as one about the callable that calls it."""
    rule = rule_named(finding.rule)
    is_of_both = rule is not None and rule.of_arguments and finding.severity == "warning"
    is_reported = is_of_both and any((f.rule, f.severity) == (finding.rule, finding.severity) for f in sink.reported)
    if finding.verdict != "intended" and not is_reported:  # which was reported for the callable, as are its weights
        sink(replace(finding, subject=audit.subject.name, message=f"in {inner.subject.name}: {finding.message}"))


def _run_rule(audit: Audit, rule: Rule, sink: Callable[[Finding], None]) -> None:
    assert rule.runtime is not None
    try:
        with audit.events.of_rule(rule.id, audit.subject, audit.base):
            clock = Stopwatch()
            found = list(rule.runtime(audit))
            # On a smaller case the comparison of first order comes before the rule.
            is_late = audit.takes_long(clock.seconds() + audit.pace)
            for finding in found if is_late else _smallest(audit, rule, found):
                sink(finding)
    except Raised as error:
        if audit.backward_works:  # else the rules about failing backwards have reported it
            sink(_undecided(audit, rule, str(error)))
    except Exception as error:  # a fault of ours must not end the audit, nor pass for a clean one
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}"
        why = f"Pullback failed ({place}): {type(error).__name__}: {error}"
        sink(_undecided(audit, rule, why, "a bug of Pullback: please report it with this line and the function"))
    for finding in _incidents(audit.subject):
        # A size computed from numbers of every magnitude is arbitrary: it shows no fault on ordinary inputs.
        is_excused = rule.is_of_range or rule.transforms
        sink(replace(finding, severity="warning", verdict="unstable") if is_excused else finding)


def _smallest(audit: Audit, rule: Rule, found: list[Finding]) -> list[Finding]:
    """Findings of the rule on the smallest example that still has one of the same severity."""
    worst = {f.severity for f in found}
    if rule.runtime is None or not rule.shrinks or not worst & {"error", "warning"}:
        return found
    severity = "error" if "error" in worst else "warning"

    failing = [(audit.base, found)]

    def fails(case: Case) -> bool:
        smaller = audit.on(case)
        findings = list(rule.runtime(smaller)) if rule.runtime is not None and smaller.is_valid(case) else []
        if any(f.severity == severity for f in findings):
            failing.append((case, findings))
        return failing[-1][0] is case

    smallest = audit.shrink(audit.base, fails)
    return next(findings for case, findings in failing if case is smallest)


def _undecided(audit: Audit, rule: Rule, why: str, hint: str = "") -> Finding:
    return audit.finding(rule.id, "info", "inconclusive", f"could not be decided: {why}", case=audit.base, hint=hint)


def _on_device(audit: Audit, device: torch.device) -> Finding:
    ids = ranges(rule.id for rule in all_rules() if rule.needs_cpu)
    left_out = f"rules that look at the CPU's memory ({ids}) did not run"
    if audit.subject.kind == "callable" and not isinstance(audit.subject.target, torch.nn.Module):
        left_out += ", and weights that it holds were not compared"
    what = f"the tensors are on {device}: {left_out}"
    return audit.finding("not-run", "info", "ok", what, hint="give inputs on the CPU if it takes them there")


def _without_compilers(audit: Audit) -> Finding:
    ids = ranges(rule.id for rule in all_rules() if rule.compiles)
    what = f"rules that compile or export ({ids}) did not run: the Triton kernels are interpreted on the CPU"
    return audit.finding("not-run", "info", "ok", what, hint="run them on a machine with a GPU")


def _over_budget(audit: Audit, what: str) -> Finding:
    return audit.finding(
        "not-run",
        "info",
        "inconclusive",
        f"the budget of {audit.options.budget:g} s was spent before {what}",
        hint="raise --budget",
    )


def _incidents(subject: Subject) -> Iterator[Finding]:
    """Findings about exits and exhausted memory that the audited code caused in this process."""
    for incident, message in take_incidents():
        rule = rule_of(incident)
        yield Finding(
            subject.name, rule.id, rule.name, "error", "wrong", message, subject.location,
            hint="a function must return or raise an ordinary error",
        )  # fmt: skip
