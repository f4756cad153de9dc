"""Best-first search for a working call, guided by how far each attempt got and by its error."""

from __future__ import annotations

import heapq
import inspect
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback.check.case import Case, make_case
from pullback.check.cases.guess import candidates, hints_from_calls, names_at_calls
from pullback.check.cases.signature import Blame, Usage, called_function, definition, kept_as_settings, usage
from pullback.check.cases.templates import (
    FAMILIES,
    SHAPES,
    SQUARE,
    SequenceOf,
    Shape,
    TensorOf,
    make_tensor,
    named_families,
)
from pullback.check.find.kernels import is_unwritten, recording
from pullback.check.subject import Subject
from pullback.check.trial import Raised, forward, standard_cotangents, vjp

if TYPE_CHECKING:
    from pullback.check.find.kernels import World


class Score(IntEnum):
    """Progress of a guessed call. An example has at least `BROKEN`."""

    RAISED = 0
    NOT_FINITE = 1
    NO_BACKWARD = 2
    """Its backward raised, perhaps because the call is invalid."""
    BROKEN = 3
    """Its backward raised an error that no arguments avoid."""
    RAN_BACK = 4
    """Every gradient was zero."""
    PERFECT = 5


@dataclass(frozen=True, slots=True)
class Attempt:
    """Result of a guessed call.

    Attributes:
        score: quality of the example.
        reason: why it is not perfect; empty otherwise.
        error: the exception of the forward or the backward.
        is_irregular: whether kernels left the bounds of their tensors, or memory unwritten.
    """

    score: Score
    reason: str = ""
    error: BaseException | None = None
    is_irregular: bool = False

    @property
    def gradients(self) -> int | None:
        """Number of gradients that the backward returned, where the engine expected another number."""
        found = re.search(r"incorrect number of gradients \(expected \d+, got (\d+)\)", self.reason)
        return int(found[1]) if found else None

    @property
    def wants_tensor(self) -> int | None:
        """Position of a non-tensor argument for which the backward returned a gradient: it may have to be a tensor."""
        found = re.search(r"different (?:from|than) None at position (\d+)", self.reason)
        return int(found[1]) - 1 if found else None

    @property
    def wants_shape(self) -> tuple[int, tuple[int, ...]] | None:
        """Which of the tensors got a gradient that the engine refuses, and the shape of that gradient."""
        found = re.search(r"invalid gradient at index (\d+) - got \[([\d, ]*)\]", self.reason)
        return (int(found[1]), tuple(map(int, re.findall(r"\d+", found[2])))) if found else None


_ENVIRONMENT = re.compile(
    r"process group|torch\.distributed|model parallel|(initiali[sz]\w+|destroyed?) .*(distributed|parallel)"
    r"|not compiled with|(?<!is_)CUDA|NVIDIA|\btriton\b|not installed|No module named|from the 'CPU' backend"
    r"|MPS (backend|device)|active drivers|which could not be imported here|UnsupportedError: .* not interpreted",
    re.IGNORECASE,
)
# The engine's messages about a backward that is wrong for every example.
_BROKEN_CONTRACT = re.compile(r"returned an (invalid|incorrect)|returned a gradient different (from|than) None")
_NAMED_TYPE = re.compile(r"'(\w+)' object|not '?(\w+)'?$")


def of_environment(reason: str) -> bool:
    """Whether a call failed for lack of a feature of this machine or process, whatever its arguments.

    A kernel that Triton refuses is none: its message speaks of Triton, but other sizes may do. One that does what the
    interpreter cannot do needs a GPU.
    """
    return _ENVIRONMENT.search(reason) is not None and "KernelError" not in reason


def attempt(subject: Subject, case: Case) -> Attempt:
    """Make the call, forward and backward.

    One whose kernels leave the bounds of their tensors, or memory unwritten, may have arguments that do not fit each
    other: a kernel raises no error for these. It is an example only if there is no other.
    """
    if not subject.is_interpreted:
        return _attempt(subject, case)
    with recording() as world:
        outcome = _attempt(subject, case)
    if outcome.score == Score.PERFECT and _is_outside(world):
        return Attempt(Score.RAN_BACK, "a kernel reads or writes out of bounds", is_irregular=True)
    return outcome


def leaves_bounds(subject: Subject, case: Case) -> bool:
    """Whether the kernels of a call leave the bounds of their tensors, forward or backward."""
    if not subject.is_interpreted:
        return False
    with recording() as world:
        _attempt(subject, case)
    return _is_outside(world)


def _is_outside(world: World) -> bool:
    return any(found.kind == "out-of-bounds" for found in world.irregularities)


def _attempt(subject: Subject, case: Case) -> Attempt:
    try:
        run = forward(subject, case)
    except Raised as raised:
        if refuses_leaves(raised) and not case.non_leaf:
            return _attempt(subject, replace(case, non_leaf=True))
        return Attempt(Score.RAISED, str(raised), raised.error)
    roots = run.roots
    if not roots and case.wrt and run.outputs and subject.relaxation is not None:
        return Attempt(Score.PERFECT)  # its relaxation has no derivative, which is a fault to audit
    if not roots or not case.wrt:
        return Attempt(Score.RAISED, "forward gave no differentiable output")
    if subject.is_interpreted and any(bool(is_unwritten(root).any()) for root in roots):
        return Attempt(Score.BROKEN, "forward returned memory that it never wrote")
    if not all(bool(torch.isfinite(_elements(root)).all()) for root in roots):
        return Attempt(Score.NOT_FINITE, "forward gave values that are not finite")
    try:
        grads = vjp(run, standard_cotangents(roots))  # ones give 0 where outputs sum to 1
    except Raised as raised:
        return Attempt(_of_failed_backward(case, raised), str(raised), raised.error)
    if subject.is_interpreted and any(g is not None and bool(is_unwritten(g).any()) for g in grads):
        return Attempt(Score.RAN_BACK, "backward returned memory that it never wrote", is_irregular=True)
    if any(g is not None and bool((_elements(g) != 0).any()) for g in grads):
        return Attempt(Score.PERFECT)
    return Attempt(Score.RAN_BACK, "every gradient was zero")


def refuses_leaves(raised: Raised) -> bool:
    """Whether PyTorch refused to change an input in place, which was a leaf that requires grad."""
    return "leaf" in str(raised.error) and "in-place" in str(raised.error)


def _elements(t: Tensor) -> Tensor:
    return t if t.layout == torch.strided else t.to_dense()


def _of_failed_backward(case: Case, raised: Raised) -> Score:
    text = str(raised)
    if of_environment(text):
        return Score.RAISED
    if isinstance(raised.error, AttributeError | TypeError):
        types = {found for match in _NAMED_TYPE.finditer(text) for found in match.groups() if found}
        return Score.RAISED if types & _guessed_types(case) else Score.NO_BACKWARD
    broken = _BROKEN_CONTRACT.search(text) or isinstance(raised.error, NameError | RecursionError)
    return Score.BROKEN if broken else Score.NO_BACKWARD


def _guessed_types(case: Case) -> set[str]:
    """Names of the classes of the guessed arguments, for which a tensor may be as wrong as a number."""
    return {type(argument).__name__ for argument in case.arguments()[0]}


_PROGRESS = 3.0
"""Weight of one more line of the forward, in steps of the search."""
_FIRST = 1000
"""Weight of the likeliest values in each family of shapes: all of these are tried."""
_RAN = 60
"""Lines credited to a forward that returned."""
_ASKS_FOR_GRADIENTS = re.compile(r"gradient|requires_?grad|differentiab", re.IGNORECASE)
_ASKS_FOR_STRUCTURE = re.compile(
    r"positive[- ]?(semi-?)?definite|singular|cholesky|symmetric|triangular", re.IGNORECASE
)


_SHAPE = re.compile(r"[\[(](?:(?:\*|\.\.\.|[A-Za-z]\w*), ?)*(\d+(?:, ?\d+)*),?[\])]")
_PRODUCT = re.compile(r"\b(\d+)x(\d+)\b")
_SIZE = re.compile(
    r"(?:must have length|last dim\w* should be|channels to be|features) (\d+)|(\d+) (?:channels|features)", re.I
)
_DIMENSIONS = re.compile(r"unpack \(expected (\d)|\b([1-5])-?d\b|\b([1-5])[ -]dim(?:ension)?s?\b", re.IGNORECASE)
_BY_DIMENSIONS: dict[int, Shape] = {1: (5,), 2: (3, 5), 3: (2, 3, 5), 4: (2, 3, 6, 6), 5: (2, 3, 4, 4, 4)}
_SMALLEST, _LARGEST, _MOST_SHAPES = 2, 64, len(SHAPES) + 48
"""Bounds on the sizes that errors ask for, and on the number of shapes."""


def asked_shapes(message: str, current: Shape = ()) -> list[Shape]:
    """Return shapes that an error may ask for: those that it names, and matrices and vectors of the sizes in it.

    Of the shape that a tensor has now, what the message does not speak of is kept: the last size where it asks for a
    number of dimensions, all others where it asks for another last size.
    """
    found: dict[Shape, None] = {}
    for match in _SHAPE.finditer(message):
        sizes = tuple(map(int, match[1].split(",")))
        found |= {sizes: None, (3, *sizes): None}
    for match in _PRODUCT.finditer(message):
        rows, columns = int(match[1]), int(match[2])
        found |= {(3, rows): None, (rows, columns): None, (columns, rows): None, (*current[:-1], rows): None}
    for match in _SIZE.finditer(message):
        size = int(match[1] or match[2])
        found |= {(3, size): None, (size,): None, (2, size, 6, 6): None}
    for match in _DIMENSIONS.finditer(message):
        usual = _BY_DIMENSIONS.get(int(next(filter(None, match.groups()))), ())
        found |= {usual: None, (*usual[:-1], *current[-1:]): None}
    return [shape for shape in found if shape and all(_SMALLEST <= n <= _LARGEST for n in shape)]


@dataclass(frozen=True, slots=True)
class CallChoice:
    """One candidate call.

    Attributes:
        values: for each parameter, the index of its candidate.
        shapes: for each parameter, the index of a shape for that tensor alone; `None` for the family's shape.
        family: index into `FAMILIES`.
        dtype: dtype of the floating tensors.
        differentiated: the parameters that require grad; `None` for every floating tensor.
    """

    values: tuple[int, ...]
    shapes: tuple[int | None, ...]
    family: int = 0
    dtype: torch.dtype = torch.float64
    differentiated: tuple[int, ...] | None = None


class CallSearch:
    """Proposes calls with one list of parameters, and learns from their results.

    Args:
        subject: the function.
        chosen: its parameters.
        generator: source of the values of tensors.
    """

    def __init__(self, subject: Subject, chosen: Sequence[inspect.Parameter], generator: torch.Generator) -> None:
        self.parameters = chosen
        self.names = [p.name for p in chosen]
        self._subject = subject
        self._generator = generator
        node, function = definition(subject), called_function(subject)
        used: dict[str, Usage] = usage(node, self.names) if node is not None else {}
        self._blame = Blame(node, function.__code__, self.names) if node is not None and function else None
        methods = subject.source.methods if subject.kind == "function" and subject.source is not None else {}
        settings = kept_as_settings(methods, self.names) if "backward" in methods else set()
        self._options = [
            candidates(
                p, hints_from_calls(subject.source, i), used.get(p.name), names_at_calls(subject.source, i),
                p.name in settings,
            )
            for i, p in enumerate(chosen)
        ]  # fmt: skip
        self._has_hint = [
            p.default is not p.empty or bool(hints_from_calls(subject.source, i)) for i, p in enumerate(chosen)
        ]
        self._takes_float64 = subject.is_interpreted  # to its code they look like float32, in which no memory is marked
        self._skip_inputs = False
        self._shapes = list(SHAPES)
        self._order = itertools.count()
        self._tried: set[CallChoice] = set()
        self._queued: dict[CallChoice, float] = {}
        self._queue: list[tuple[float, float, int, CallChoice]] = []
        self._current = (0.0, CallChoice((0,) * len(chosen), (None,) * len(chosen)))
        for family in range(len(FAMILIES)):
            self._push(replace(self._current[1], family=family), _FIRST, family)
        for rank, named in enumerate(named_families(self.names)):  # after the others, unless kernels take any shape
            self._push(self._with_named(named), _FIRST, rank - len(FAMILIES) if subject.is_interpreted else rank + 50)

    def _with_named(self, named: Mapping[int, tuple[TensorOf, Shape]]) -> CallChoice:
        """Return the likeliest choice, but for the parameters that a family names."""
        choice = self._current[1]
        for i, (template, shape) in named.items():
            options = self._options[i]
            if self._has_hint[i] or template not in options:
                continue
            if shape not in self._shapes:
                self._shapes.append(shape)
            values = _with(choice.values, i, options.index(template))
            choice = replace(choice, values=values, shapes=_with(choice.shapes, i, self._shapes.index(shape)))
        return choice

    def propose(self) -> Case | None:
        """Return the most promising call not tried yet, `None` if there is none."""
        while self._queue:
            _, cost, _, choice = heapq.heappop(self._queue)
            if choice in self._tried or (self._skip_inputs and not self._keeps_defaults(choice)):
                continue
            self._tried.add(choice)
            self._current = cost, choice
            return self._realise(choice)
        return None

    def learn(self, outcome: Attempt) -> None:
        """Queue calls that differ in one respect from the last one, chosen by its result."""
        cost, choice = self._current
        if outcome.score >= Score.RAN_BACK and self._keeps_defaults(choice):
            self._skip_inputs = True  # a default is never left once a call with it runs
        lines, blamed = self._blamed(outcome)
        for other, step in self._neighbours(choice, outcome, blamed):
            self._push(other, lines, cost + step)

    def _keeps_defaults(self, choice: CallChoice) -> bool:
        return not any(has_hint and rank for has_hint, rank in zip(self._has_hint, choice.values, strict=True))

    def _blamed(self, outcome: Attempt) -> tuple[int, Sequence[int]]:
        everyone = range(len(self.names))
        if outcome.wants_tensor is not None and outcome.wants_tensor in everyone:
            return _RAN, [outcome.wants_tensor]
        ran = outcome.score > Score.RAISED or outcome.reason.startswith("backward")
        if ran or outcome.error is None or self._blame is None:
            return (_RAN + 20 * outcome.score if outcome.score else _RAN - 10), everyone
        lines, names = self._blame.of(outcome.error)
        return lines, [i for i in everyone if self.names[i] in names] or everyone

    def _push(self, choice: CallChoice, lines: int, cost: float) -> None:
        priority = cost - _PROGRESS * lines
        if choice not in self._tried and priority < self._queued.get(choice, math.inf):
            self._queued[choice] = priority
            heapq.heappush(self._queue, (priority, cost, next(self._order), choice))

    def _neighbours(
        self, choice: CallChoice, outcome: Attempt, blamed: Sequence[int]
    ) -> Iterator[tuple[CallChoice, float]]:
        """Yield the choices that differ in one respect, each with its distance."""
        for i in blamed:
            for rank in range(len(self._options[i])):
                if rank != choice.values[i]:
                    unlikely = isinstance(option := self._options[i][rank], TensorOf) and not option.leads
                    yield replace(choice, values=_with(choice.values, i, rank)), 1 + 0.3 * rank + unlikely
            if isinstance(self._chosen(choice, i), TensorOf | SequenceOf):
                for shape in range(len(SHAPES)):
                    yield replace(choice, shapes=_with(choice.shapes, i, shape)), 1 + 0.25 * shape
        yield from ((other, 0.2) for other in self._as_returned(choice, outcome))
        yield from ((other, 0.4) for other in self._as_asked(choice, outcome, blamed))
        for family in range(len(FAMILIES)):
            yield replace(choice, family=family), 1 + 0.3 * family
        if choice.dtype is torch.float64 and not self._takes_float64:
            yield replace(choice, dtype=torch.float32), 1.5
        if outcome.error is not None and choice.differentiated is None and _ASKS_FOR_GRADIENTS.search(outcome.reason):
            for subset in self._subsets(choice, outcome.reason):
                yield replace(choice, differentiated=subset), 0.5
        if outcome.error is not None and _ASKS_FOR_STRUCTURE.search(outcome.reason):
            yield from ((other, 0.5) for other in self._structured(choice, blamed))

    def _as_returned(self, choice: CallChoice, outcome: Attempt) -> Iterator[CallChoice]:
        """Yield the choice with a tensor of the shape of its gradient, which the engine rejected."""
        index, shape = outcome.wants_shape or (0, None)
        tensors = self._tensors(choice)
        if shape in SHAPES and index < len(tensors):
            yield replace(choice, shapes=_with(choice.shapes, tensors[index], SHAPES.index(shape)))

    def _as_asked(self, choice: CallChoice, outcome: Attempt, blamed: Sequence[int]) -> Iterator[CallChoice]:
        """Yield the choice with a tensor of a shape that the error of a forward names."""
        if outcome.error is None or outcome.score > Score.RAISED:
            return
        for i in blamed:
            if not (isinstance(chosen := self._chosen(choice, i), TensorOf) and chosen.leads):
                continue
            for shape in asked_shapes(outcome.reason, self._shape_of(choice, i)):
                if shape not in self._shapes and len(self._shapes) < _MOST_SHAPES:
                    self._shapes.append(shape)
                if shape in self._shapes:
                    yield replace(choice, shapes=_with(choice.shapes, i, self._shapes.index(shape)))

    def _shape_of(self, choice: CallChoice, i: int) -> Shape:
        """Return the shape that a choice gives the tensor at position `i`."""
        if (own := choice.shapes[i]) is not None:
            return self._shapes[own]
        before = [self._chosen(choice, j) for j in range(i)]
        family = FAMILIES[choice.family]
        return family[min(sum(isinstance(v, TensorOf) and v.leads for v in before), len(family) - 1)]

    def _tensors(self, choice: CallChoice) -> list[int]:
        return [i for i in range(len(self.names)) if isinstance(self._chosen(choice, i), TensorOf)]

    def _subsets(self, choice: CallChoice, reason: str) -> Iterable[tuple[int, ...]]:
        """The tensors that the message does not name, and every single tensor."""
        tensors = self._tensors(choice)
        words = set(re.findall(r"\w+", reason))
        unnamed = tuple(i for i in tensors if self.names[i] not in words)
        alone = [(i,) for i in tensors]
        return dict.fromkeys([unnamed, *alone] if 0 < len(unnamed) < len(tensors) else alone)

    def _structured(self, choice: CallChoice, blamed: Sequence[int]) -> Iterator[CallChoice]:
        for i in blamed:
            value = self._chosen(choice, i)
            for rank, option in enumerate(self._options[i]):
                structured = isinstance(option, TensorOf) and option.kind in SQUARE
                if isinstance(value, TensorOf) and value.kind == "float" and structured:
                    yield replace(choice, values=_with(choice.values, i, rank))

    def _chosen(self, choice: CallChoice, i: int) -> Any:
        return self._options[i][choice.values[i]]

    def _realise(self, choice: CallChoice) -> Case:
        family = FAMILIES[choice.family]
        arguments = []
        tensors = 0
        for i, own in enumerate(choice.shapes):
            value = self._chosen(choice, i)
            shape = family[min(tensors, len(family) - 1)] if own is None else self._shapes[own]
            if isinstance(value, TensorOf):
                tensors += value.leads
                first = family[0] if own is None else None
                value = make_tensor(value.kind, shape, first, choice.dtype, self._generator)
            elif isinstance(value, SequenceOf):
                value = tuple(
                    make_tensor("float", shape, None, choice.dtype, self._generator) for _ in range(value.count)
                )
            arguments.append(value)
        case = make_case(arguments, {}, self.names, "example", nested=self._subject.kind != "function")
        # Tensors in a default are not differentiated.
        made = [i for i in range(len(arguments)) if isinstance(self._chosen(choice, i), TensorOf | SequenceOf)]
        wanted = made if choice.differentiated is None else choice.differentiated
        return replace(case, wrt=tuple(p for p in case.wrt if case.paths[p][1] in wanted))


def _with(items: tuple[Any, ...], i: int, item: Any) -> tuple[Any, ...]:
    return (*items[:i], item, *items[i + 1 :])
