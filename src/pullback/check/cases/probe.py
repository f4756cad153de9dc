"""Search for a working example of a function without one: guess, try, keep the best.

The parameters get ranked guesses (`guess.py`); the errors of the trials say which of them to change (`search.py`),
within bounds on their number and on time.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pullback.check.case import Case, is_differentiable
from pullback.check.cases.guess import is_same_argument
from pullback.check.cases.search import Attempt, CallSearch, Score, attempt, of_environment
from pullback.check.cases.signature import argument_lists
from pullback.check.clock import Stopwatch
from pullback.check.events import Events
from pullback.check.subject import Subject
from pullback.check.trial import forgive_memory, incidents
from pullback.errors import FormulaError

_MAX_TRIALS = 1500
_MAX_SECONDS = 4.0
_AFTER_BROKEN = 100
"""Further trials after a call whose backward seems to fail for all arguments: the call may have been invalid."""
_ALWAYS = 5
"""Number of equal backward errors, without any other, after which all arguments are assumed to fail."""
_AFTER_ENVIRONMENT = 20
"""Failures for lack of a GPU, a process group or a package after which the search stops."""
_AFTER_MEMORY = 5
"""Calls that exhaust memory after which the search stops."""
_AFTER_REFUSED = 20
"""Refusals by an op's formula, regardless of arguments, after which the search stops."""


@dataclass
class FoundExample:
    """Result of a search for an example.

    Attributes:
        case: the best working example, or `None`: its backward runs, or fails for all arguments.
        trials: number of calls tried.
        reasons: exceptions of the trials, the most frequent first.
        lacks: a missing feature of this machine or process, as a trial reported it; empty if nothing.
        broken: the same call with tensors of other shapes, if the backward failed there as it might for all arguments:
            the shapes may be invalid, or the function at fault.
    """

    case: Case | None = None
    trials: int = 0
    reasons: list[str] = field(default_factory=list)
    lacks: str = ""
    broken: Case | None = None


class _Trials:
    """Makes guessed calls, keeps the best and counts their exceptions."""

    def __init__(self, subject: Subject, events: Events, flawed: Callable[[Case], bool]) -> None:
        self.subject = subject
        self.flawed = flawed
        self.events = events
        self.score = Score.RAISED
        self.case: Case | None = None
        self.is_irregular = False
        self.broken: Case | None = None
        self.count = 0
        self.limit = _MAX_TRIALS
        self.clock = Stopwatch()
        self.reasons: Counter[str] = Counter()
        self.lacking: Counter[str] = Counter()
        self.refused = 0
        self.of_backward: Counter[str] = Counter()

    @property
    def over(self) -> bool:
        """Whether to stop: an example is found, a limit is reached, or an exit or a lack of memory occurred."""
        spent = self.count >= self.limit or self.clock.seconds() > _MAX_SECONDS or self.refused >= _AFTER_REFUSED
        met = incidents()
        stopped = "exit" in met or len(met) >= _AFTER_MEMORY or self.lacking.total() >= _AFTER_ENVIRONMENT
        return spent or self.score == Score.PERFECT or stopped

    def make(self, case: Case) -> Attempt:
        """Make one call. After the first whose backward is broken, only a few more follow."""
        self.count += 1
        self.events.step("", f"a guessed call, {case.describe()}", "")
        outcome = attempt(self.subject, case)
        if outcome.score >= Score.RAN_BACK and self.flawed(case):
            outcome = Attempt(Score.BROKEN, "backward returned a gradient of another shape than its input's")
        self.reasons[outcome.reason] += bool(outcome.reason)
        self.lacking[outcome.reason] += of_environment(outcome.reason)
        self.refused += isinstance(outcome.error, FormulaError)
        if outcome.score >= Score.NO_BACKWARD:
            self.of_backward[outcome.reason] += 1
        if outcome.score > self.score and not self._conceals_fault(case):
            self.score, self.case, self.is_irregular = outcome.score, case, outcome.is_irregular
            if outcome.score == Score.BROKEN:
                self.broken = case
                self.limit = min(self.limit, self.count + _AFTER_BROKEN)
        return outcome

    @property
    def works(self) -> bool:
        """Whether the best call is an example: also if every backward that began raised the same."""
        always = self.score == Score.NO_BACKWARD and len(self.of_backward) == 1
        return self.score >= Score.BROKEN or (always and self.of_backward.total() >= _ALWAYS)

    def _conceals_fault(self, case: Case) -> bool:
        """Whether a broken backward may run only because all sizes are the same, or its tensors of another kind.

        So may kernels that are irregular with floats: with a mask for a weight, they compute no gradient of it.
        """
        if self.case is not None and self.is_irregular:
            return _of_lesser_kinds(case, self.case)
        if self.case is None or self.score != Score.BROKEN:
            return False
        return (_uniform(case) and not _uniform(self.case)) or _of_lesser_kinds(case, self.case)


def probe(
    subject: Subject,
    generator: torch.Generator,
    events: Events,
    flawed: Callable[[Case], bool] = lambda case: False,
) -> FoundExample:
    """Look for a working example of `subject`: a call that runs forward and backward with finite outputs.

    Args:
        subject: the function.
        generator: source of the values of tensors.
        events: receives each call.
        flawed: whether the gradients of a call that ran have shapes that the engine silently corrects; such a
            call is taken only if none is found that has not.
    """
    trials = _Trials(subject, events, flawed)
    searches = [CallSearch(subject, chosen, generator) for chosen in argument_lists(subject)]
    shortened = False
    while searches and not trials.over:
        for search in list(searches):
            case = search.propose()
            if case is None or trials.over:
                searches.remove(search)
                continue
            outcome = trials.make(case)
            search.learn(outcome)
            if Score.NO_BACKWARD <= outcome.score <= Score.BROKEN:
                _fit_whole_numbers(trials, case)
            count = outcome.gradients
            if count is not None and not shortened and _may_be_left_out(search, count):
                searches.insert(0, CallSearch(subject, search.parameters[:count], generator))
                shortened = True
    result = FoundExample(trials.case if trials.works else None, trials.count)
    if result.case is not None:
        forgive_memory()
    result.reasons = [reason for reason, _ in trials.reasons.most_common(3) if reason]
    result.broken = trials.broken if _differ_in_shapes(result.case, trials.broken) else None
    result.lacks = next((reason for reason, _ in trials.lacking.most_common(1) if of_environment(reason)), "")
    return result


def _uniform(case: Case) -> bool:
    return len({size for t in case.tensors for size in t.shape}) < 2


def _of_lesser_kinds(case: Case, other: Case) -> bool:
    """Whether a case has integers where another has floats, or a mask where it has none, or vice versa."""
    pairs = zip(case.values, other.values, strict=False)
    both = [(a, b) for a, b in pairs if isinstance(a, Tensor) and isinstance(b, Tensor)]
    masks = any((a.dtype == torch.bool) != (b.dtype == torch.bool) for a, b in both)
    return masks or any(is_differentiable(b) and not is_differentiable(a) for a, b in both)


def _differ_in_shapes(case: Case | None, other: Case | None) -> bool:
    if case is None or other is None or case is other or len(case.values) != len(other.values):
        return False
    pairs = list(zip(case.values, other.values, strict=True))
    both = [isinstance(a, Tensor) and isinstance(b, Tensor) for a, b in pairs]
    return all(tensors or is_same_argument(a, b) for tensors, (a, b) in zip(both, pairs, strict=True))


def _may_be_left_out(search: CallSearch, count: int) -> bool:
    rest = search.parameters[count:]
    return count > 0 and bool(rest) and all(p.default is not p.empty for p in rest)


def _fit_whole_numbers(trials: _Trials, case: Case) -> None:
    """Try the call with each integer argument set to each size of its tensors, which a number of steps must match."""
    for other in fitted(case):
        if trials.over or trials.make(other).score >= Score.RAN_BACK:
            return


def fitted(case: Case) -> Iterator[Case]:
    """Yield the case with each of its whole-number arguments set to each size of its tensors."""
    sizes = dict.fromkeys(s for v in case.values if isinstance(v, Tensor) for s in v.shape)
    whole = [p for p, v in enumerate(case.values) if isinstance(v, int) and not isinstance(v, bool)]
    for position, size in itertools.product(whole, sizes):
        if case.values[position] != size:
            yield case.with_values({position: size})
