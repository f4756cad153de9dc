"""A rule's view of one subject: the facts, the comparison on every variant, and constructors of findings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from pullback.check.case import Case
from pullback.check.cases.call_samples import functions_inside
from pullback.check.cases.iterations import more_iterations
from pullback.check.cases.repro import script
from pullback.check.cases.shrink import shrink
from pullback.check.clock import Stopwatch
from pullback.check.derivative import intent
from pullback.check.derivative.agreement import equal_or_nan
from pullback.check.derivative.compare_input import Comparison
from pullback.check.derivative.first_order import FirstOrder
from pullback.check.derivative.intent import Intent
from pullback.check.derivative.second_order import SecondOrder, second_order
from pullback.check.facts import ExampleFacts
from pullback.check.kernel_runs import is_as_valid, steered_variants
from pullback.check.numeric.accuracy import AccuracyFacts
from pullback.check.rules import Rule, rule_named, selected
from pullback.check.trial import SEED, Raised, forward
from pullback.report.model import Evidence, Finding, Location, Severity, Verdict

_BEFORE_LATE = 0.6
"""Share of the budget for the example and its variants; the rest is for late rules."""
_VARIANTS_SHARE = 0.2
"""Share of the budget that variants get even if the example took more than its own."""
_WEIGHTS_SHARE = 0.2
"""Share of the budget for comparing the gradients of weights."""
_SHRINK_SECONDS = 1.0
"""Some three comparisons of a wrong gradient with 15 elements, on a slow processor."""


class Audit(ExampleFacts):
    """A rule's view of one subject: facts about its example, comparisons on variants and other examples, findings.

    Attributes:
        varied: whether rules run on the variants now.
        ran_out: whether the time ended before all variants were compared.
    """

    varied = False
    ran_out = False

    def on(self, base: Case) -> Audit:
        """Return an audit of the same subject with another example."""
        other = Audit(self.subject, self.options, base, [], self.events, self.skip, self.guessed)
        other.__dict__["intent"] = self.intent  # of generic values; a small example may look like an identity
        return other

    def running(self, rules: Sequence[str]) -> list[str]:
        """Those of `rules`, by id, that run on this subject: their findings need no duplicate from another rule."""
        chosen = {rule.id for rule in self.applying}
        return [rule for rule in rules if rule in chosen]

    @functools.cached_property
    def applying(self) -> list[Rule]:
        """The selected rules that apply to this kind of subject."""
        return [rule for rule in selected(self.options) if self.subject.kind in rule.kinds]

    def explained_by(self, cause: str) -> Rule | None:
        """The rule that reports a cause, as in `Rule.explains`, if it runs on this subject."""
        return next((rule for rule in self.applying if cause and rule.explains == cause), None)

    def elapsed(self) -> float:
        """Seconds that count since the audit of this subject began."""
        return self.clock.seconds()

    def has_time(self, share: float = 1.0) -> bool:
        """Whether less than `share` of the budget is spent."""
        return self.elapsed() < share * self.options.budget

    @functools.cached_property
    def numbers(self) -> AccuracyFacts:
        """Accuracy of value and gradient."""
        return AccuracyFacts(self)

    @functools.cached_property
    def second(self) -> SecondOrder | None:
        """Result of double backward on the working example; `None` where there is no backward, or it fails."""
        if not self.backward_works or not self.base_run.roots:
            return None
        found = second_order(self, self.intent)
        longer = more_iterations(self.base) if found.status == "wrong" else None
        if (
            longer is not None
            and self.is_valid(longer)
            and second_order(self.on(longer), self.intent).status in ("ok", "inconclusive")
        ):
            found = replace(found, status="inconclusive", unconverged=True)
        return found

    def results(self) -> list[FirstOrder]:
        """The comparisons that a rule examines now: on the example, or on its variants."""
        if self.varied:
            return self.variants
        return [] if self.base_result is None else [self.base_result]

    @functools.cached_property
    def variants(self) -> list[FirstOrder]:
        """The comparison on every variant, within its share of the budget, and in depth on others.

        An input whose gradient is wrong on one ordinary case is not compared on those that follow.
        """
        return list(self._compare_all())

    def _compare_all(self) -> Iterator[FirstOrder]:
        skip_inputs: set[int] = set()
        doubtful: set[int] = set()  # wrong on a case that may be no valid input: settles only others of that sort
        if self.base_result is not None:
            skip_inputs.update(c.input_index for c in self.base_result.wrong if not c.is_small)
        share = max(_BEFORE_LATE, self.elapsed() / self.options.budget + _VARIANTS_SHARE)
        for case, numeric in steered_variants(self):
            if not self.has_time(share) or self._would_be_late():
                self.ran_out = True
                return
            if self.leaves_out(case) or intent.of_option(self.subject, case) is not None:
                continue
            others = skip_inputs | doubtful if case.doubtful else skip_inputs
            in_time = functools.partial(self.has_time, max(share, 1.0))
            with self.events.of_first_order(case.describe(), self.subject, case):
                result = self.compare(case, numeric=numeric, skip_inputs=others, should_continue=in_time)
            if result is not None:
                skip_inputs.update(c.input_index for c in result.severe)
                doubtful.update(c.input_index for c in result.wrong if case.doubtful and not c.is_small)
                yield result
        if self.options.deep:
            from pullback.check.drawn import smallest_drawn  # here, since only audits in depth need hypothesis

            drawn = smallest_drawn(self, skip_inputs | doubtful)
            yield from () if drawn is None else (drawn,)

    def _would_be_late(self) -> bool:
        """Whether one more comparison, at the pace of the first, would exceed the budget by far."""
        budget = self.options.budget
        return self.pace > _VARIANTS_SHARE * budget and self.elapsed() + self.pace > budget

    @functools.cached_property
    def weighted(self) -> Audit | None:
        """The audit of the subject as a function of its weights, too; `None` where it has none."""
        if self.with_weights is None:
            return None
        subject, call = self.with_weights
        audit = Audit(subject, self.options, call, [], self.events, self.skip, self.guessed)
        is_right = self.base_result is not None and not self.base_result.wrong
        audit.compared_before = 0 if is_right and call.is_varied else len(self.base.wrt)
        if self.intent is not None:
            audit.__dict__["intent"] = self.intent
        audit.clock = self.clock
        end = self.elapsed() / self.options.budget + _WEIGHTS_SHARE
        audit.should_continue = lambda: audit.has_time(end)
        return audit

    @functools.cached_property
    def inside(self) -> list[Audit]:
        """Audits of the Functions that a callable calls, each on its arguments in the working example."""
        found = functions_inside(self.subject, self.base)
        return [Audit(subject, self.options, case, [], self.events, self.skip) for subject, case in found]

    @property
    def is_native(self) -> bool:
        """Whether it is a callable in which no custom function runs."""
        return self.subject.kind == "callable" and not self.subject.is_made and not self.inside

    @functools.cached_property
    def intent(self) -> Intent | None:
        """Why the backward is not the derivative on purpose, if the subject or a Function inside it shows a sign.

        A Function inside it that deliberately deviates excuses no mistake in another one. One that injects a gradient
        excuses nothing: the gradient is the derivative of the surrounding code, or wrong. Where there is no time to
        compare each of them, all are taken to be wrong.
        """
        if self.own_intent is not None:
            return self.own_intent
        if self.base_result is None or not self.base_result.wrong:
            return None
        if self.is_slow:
            found = [(inner.subject.name, inner.own_intent) for inner in self.inside]
        else:
            found = [
                (inner.subject.name, None if inner.injects else inner.intent)
                for inner in self.inside
                if inner.base_result is not None and inner.base_result.wrong
            ]
        if not found:
            return None if any(inner.injects for inner in self.inside) else self.stop_gradient()
        reasons = [replace(why, reason=f"{why.reason} ({name}, which it calls)") for name, why in found if why]
        reasons.sort(key=lambda why: why.sign != "worded")  # the weakest
        return reasons[0] if reasons and len(reasons) == len(found) else None

    @functools.cached_property
    def injects(self) -> bool:
        """Whether it returns a gradient for an input that its outputs do not depend on."""
        result = self.base_result
        for c in [] if result is None else result.wrong:
            p = self.base.wrt[c.input_index]
            other = self.base.with_values({p: 1 - 3 * self.base.values[p]})
            if result is not None and result.gradients[c.input_index] is not None and self.is_valid(other):
                outputs = forward(self.subject, other).outputs
                if len(outputs) == len(self.base_run.outputs) and all(
                    map(equal_or_nan, outputs, self.base_run.outputs)
                ):
                    return True
        return False

    @functools.cached_property
    def any_intent(self) -> Intent | None:
        """Why the backward is not the derivative on purpose, if that shows on any ordinary case."""
        if self.intent is not None or self.base_result is None:
            return self.intent
        ordinary = (result for result in (self.base_result, *self.variants) if not result.case.extreme)
        found = (self._bound(result) for result in ordinary)
        return next((reason for reason in found if reason is not None), None)

    def intent_of(self, result: FirstOrder, comparison: Comparison) -> Intent | None:
        """Why a disagreement is intended, if there is a sign of it."""
        flat = (
            intent.flat_in(comparison)
            if result is self.base_result or comparison.input_index in self.staircase_inputs
            else None
        )
        reason = self.intent
        is_own = reason is not None and reason is self.own_intent and reason.sign == "identity"
        if is_own and not intent.is_unchanged(result.run, result.case.tensors):
            reason = None
        return reason or flat or self._bound(result) or intent.of_option(self.subject, result.case)

    def _bound(self, result: FirstOrder) -> Intent | None:
        found = intent.bound(result, self.subject.name)
        return None if found and self.nonlinearity is None and intent.is_one_sided(result) else found

    @property
    def is_slow(self) -> bool:
        """Whether one comparison takes longer than shrinking may."""
        return self.takes_long(self.pace)

    def takes_long(self, seconds: float) -> bool:
        """Whether a comparison that took so long leaves no time to repeat it on smaller cases."""
        return seconds > 2 * _SHRINK_SECONDS

    def shrink(self, case: Case, fails: Callable[[Case], bool]) -> Case:
        """Return the smallest case found for which `fails` holds, within a second or a single trial.

        It keeps to the domain of the example, unless `case` does not, and for kernels to sizes that fit each other.
        """
        clock, trials = Stopwatch(), 0

        def has_time() -> bool:  # for one more trial that takes as long as the mean of those before
            return trials == 0 or clock.seconds() * (trials + 1) / trials < _SHRINK_SECONDS

        def guarded_fails(candidate: Case) -> bool:
            nonlocal trials
            trials += 1
            self.events.beat()
            try:
                is_valid = case.doubtful or (self.domain.holds(candidate) and is_as_valid(self, case, candidate))
                return is_valid and fails(candidate)
            except Raised:
                return False

        return shrink(case, guarded_fails, has_time)

    def finding(
        self,
        rule: str,
        severity: Severity,
        verdict: Verdict,
        message: str,
        *,
        case: Case | None = None,
        evidence: Evidence | None = None,
        tail: Sequence[str] = (),
        mask: Sequence[bool] | None = None,
        hint: str = "",
        line: int | None = None,
    ) -> Finding:
        """Build a finding of a rule, by its id or name, about this subject; `case` and `tail` make its reproduction."""
        found = rule_named(rule)
        assert found is not None
        return Finding(
            subject=self.subject.name,
            rule=found.id,
            name=found.name,
            severity=severity,
            verdict=verdict,
            message=message,
            location=self._location(line, found.blames),
            evidence=evidence,
            reproduce=self._script(case, tail, mask) if case is not None else "",
            hint=hint,
            context=found.context,
            of_pytorch=found.of_pytorch,
        )

    def _location(self, line: int | None, method: str) -> Location:
        """Return the given line, else that of a method, else that of the whole subject."""
        source, location = self.subject.source, self.subject.location
        if line is None and source is not None and method in source.methods:
            line = source.methods[method].lineno
        return Location(location.file, line) if line else location

    def _script(self, case: Case, tail: Sequence[str], mask: Sequence[bool] | None) -> str:
        try:
            seed = SEED if self.draws or self.backward_draws else None
        except Raised:
            seed = None
        return script(self.subject, case, tail, mask, seed)

    def evidence(self, result: FirstOrder, comparison: Comparison) -> Evidence:
        """Return the numbers of one disagreement."""
        name = result.case.names[result.case.wrt[comparison.input_index]]
        return Evidence(
            expected=comparison.expected,
            got=comparison.got,
            error_bar=comparison.bar,
            worst_index=comparison.index,
            where=f"gradient of {name}",
            dtype=str(result.case.tensors[comparison.input_index].dtype).removeprefix("torch."),
            failing=comparison.failing,
            directions=comparison.compared,
        )
