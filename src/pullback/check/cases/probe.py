"""Finding one working example of a function that comes without any: guess, try, keep the best.

The signature's parameters get ranked guesses (`guess.py`), the tensors a shape family; combinations are
tried in the order of the sum of the ranks, within bounds on their number and on time.
"""

from __future__ import annotations

import heapq
import inspect
import itertools
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pullback._torch import custom_op_function, is_dispatched_op, op_parameters
from pullback.check.case import Case, make_case
from pullback.check.cases.guess import TensorOf, candidates, hints_from_calls
from pullback.check.events import Events
from pullback.check.subject import Subject
from pullback.check.trial import Raised, forward, incidents, standard_cotangents, vjp

_MAX_TRIALS = 600
_MAX_SECONDS = 4.0

Shape = tuple[int, ...]
# Shapes by position of a tensor among the tensors; the last entry serves all that follow.
_FAMILIES: tuple[tuple[Shape, ...], ...] = (
    ((3, 5),),
    ((3, 5), (4, 5), (4,)),
    ((3, 5), (5, 4), (4,)),
    ((5,),),
    ((3, 5), (5,)),
    ((2, 3, 5),),
    ((4, 4),),
    ((2, 3, 6, 6), (4, 3, 3, 3), (4,)),
    ((2, 3, 6, 6), (3,)),
    ((2, 4, 3), (2, 3, 5)),
    ((2, 3, 8), (4, 3, 3), (4,)),
    ((),),
    ((3, 5), ()),
    ((2, 5, 3),),
)  # fmt: skip


@dataclass
class Probe:
    """What probing found.

    Attributes:
        case: the best working example, or `None`: its backward runs, or fails whatever it is given.
        trials: how many combinations were tried.
        reasons: what the trials raised, the most frequent first.
    """

    case: Case | None = None
    trials: int = 0
    reasons: list[str] = field(default_factory=list)


def probe(subject: Subject, generator: torch.Generator, events: Events) -> Probe:
    """Look for a working example of `subject`: a call that runs forward and backward with finite outputs."""
    result = Probe()
    best = -1
    reasons: Counter[str] = Counter()
    deadline = time.monotonic() + _MAX_SECONDS
    for case in _proposals(subject, generator):
        if result.trials >= _MAX_TRIALS or time.monotonic() > deadline:
            break
        result.trials += 1
        events.step("", f"a guessed call, {case.describe()}", "")
        score, reason = _score(subject, case)
        reasons[reason] += bool(reason)
        if incidents():
            break
        if score > best:
            best, result.case = score, case
        if score == _PERFECT:
            break
    if best < _RUNS_BACK:
        result.case = None
    result.reasons = [reason for reason, _ in reasons.most_common(3) if reason]
    return result


_RUNS, _FINITE, _RUNS_BACK, _PERFECT = 1, 2, 3, 4
_BUGS = (NameError, RecursionError)
# What the engine says of a backward that is wrong whatever the example: looking on would find a stranger one. (Not
# where a whole number was guessed: it may have to fit a size.)
_BROKEN_CONTRACT = re.compile(r"returned an (invalid|incorrect)|returned a gradient different (from|than) None")


def _score(subject: Subject, case: Case) -> tuple[int, str]:
    """Say how good an example is, and what keeps it from being perfect."""
    try:
        run = forward(subject, case)
    except Raised as error:
        return 0, str(error)
    roots = run.roots
    if not roots or not case.wrt:
        return 0, "forward gave no differentiable output"
    if not all(bool(torch.isfinite(root).all()) for root in roots):
        return _RUNS, "forward gave values that are not finite"
    try:
        grads = vjp(run, standard_cotangents(roots))  # ones give 0 where outputs sum to 1
    except Raised as error:
        counts = any(isinstance(v, int) and not isinstance(v, bool) and abs(v) > 1 for v in case.values)
        broken = _BROKEN_CONTRACT.search(str(error)) and not counts
        return _PERFECT if broken or isinstance(error.error, _BUGS) else _FINITE, str(error)
    moves = any(g is not None and bool((g != 0).any()) for g in grads)
    return (_PERFECT, "") if moves else (_RUNS_BACK, "every gradient was zero")


def parameters(subject: Subject) -> list[inspect.Parameter]:
    """Return the parameters that a caller of the subject passes (without `ctx`)."""
    if subject.kind == "function":
        cls = subject.target
        old_style = cls.setup_context is torch.autograd.Function.setup_context
        found = list(inspect.signature(cls.forward).parameters.values())
        return found[1:] if old_style else found
    if is_dispatched_op(subject.target):
        return op_parameters(subject.target)
    function = custom_op_function(subject.target) if subject.kind == "op" else subject.target
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]


def positional_names(subject: Subject) -> list[str]:
    """Return the names of the positional parameters, for messages."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters(subject) if p.kind in kinds]


def _proposals(subject: Subject, generator: torch.Generator) -> Iterator[Case]:
    """Yield calls, those of each number of arguments in turn."""
    pending = [_calls(subject, chosen, generator) for chosen in _parameter_lists(subject)]
    for calls in itertools.zip_longest(*pending):
        yield from (call for call in calls if call is not None)


def _calls(subject: Subject, chosen: Sequence[inspect.Parameter], generator: torch.Generator) -> Iterator[Case]:
    ranked = [candidates(p, hints_from_calls(subject.source, i)) for i, p in enumerate(chosen)]
    names = [p.name for p in chosen]
    for dtype in (torch.float64, torch.float32):
        for family, values in _by_total_rank(ranked):
            args = _realise(values, _FAMILIES[family], dtype, generator)
            yield make_case(args, {}, names, "example", nested=subject.kind != "function")


def _parameter_lists(subject: Subject) -> Iterator[list[inspect.Parameter]]:
    """Yield the positional parameters, `*args` unrolled to one, two or three of them."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    fixed = [p for p in parameters(subject) if p.kind in kinds]
    variadic = [p for p in parameters(subject) if p.kind is inspect.Parameter.VAR_POSITIONAL]
    if not variadic:
        yield fixed
        return
    sites = subject.source.call_sites if subject.source else ()
    counts = [len(site.arguments) - len(fixed) for site in sites]
    for count in dict.fromkeys([c for c in counts if c > 0] + [1, 2, 3]):
        more = [inspect.Parameter(f"{variadic[0].name}_{i}", kinds[1]) for i in range(count)]
        yield [*fixed, *more]


def _by_total_rank(ranked: Sequence[Sequence[Any]], limit: int = 400) -> Iterator[tuple[int, list[Any]]]:
    """Yield (family, values): every family with the likeliest values, then by the sum of the ranks of the choices."""
    axes = [len(_FAMILIES), *(len(options) for options in ranked)]
    queue = [(0, (family, *(0 for _ in ranked))) for family in range(len(_FAMILIES))]
    seen = {ranks for _, ranks in queue}
    for _ in range(limit):
        if not queue:
            return
        _, ranks = heapq.heappop(queue)
        yield ranks[0], [options[rank] for options, rank in zip(ranked, ranks[1:], strict=True)]
        for axis, size in enumerate(axes):
            following = (*ranks[:axis], ranks[axis] + 1, *ranks[axis + 1 :])
            if following[axis] < size and following not in seen:
                seen.add(following)
                heapq.heappush(queue, (sum(following), following))


def _realise(
    values: Sequence[Any], shapes: tuple[Shape, ...], dtype: torch.dtype, generator: torch.Generator
) -> list[Any]:
    made: list[Any] = []
    tensors = 0
    for value in values:
        if isinstance(value, TensorOf):
            shape = shapes[min(tensors, len(shapes) - 1)]
            tensors += value.kind in ("float", "positive", "binary")
            value = _tensor(value, shape, shapes[0], dtype, generator)
        made.append(value)
    return made


def _tensor(wanted: TensorOf, shape: Shape, first: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Make a tensor with values that float32 holds exactly, away from whole numbers and zero."""
    if wanted.kind == "index":
        return torch.randint(0, 3, first[:1], generator=generator)
    if wanted.kind == "mask":
        return torch.rand(first, generator=generator) < 0.6
    if wanted.kind == "binary":
        return (torch.rand(shape, generator=generator) < 0.5).to(dtype)
    t = (torch.randn(shape, generator=generator) * 256).round() / 256 + 1 / 1024
    return (t.abs() + 0.1 if wanted.kind == "positive" else t).to(dtype)
