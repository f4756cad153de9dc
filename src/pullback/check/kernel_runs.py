"""Runs of a subject whose Triton kernels are interpreted, on its example and on calls that lead them elsewhere.

A fault in a branch of a kernel, or in the second round of a loop, does not show until some call gets there. The ways
that kernels take are recorded, and variants of the example that take new ones are looked for, and come first.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback._torch import storage_of
from pullback.check.case import Case
from pullback.check.cases import sizes, values
from pullback.check.cases.search import leaves_bounds
from pullback.check.clock import Stopwatch
from pullback.check.find.kernels import is_unwritten, recording, uses_triton
from pullback.check.trial import Raised, forward, standard_cotangents, vjp
from pullback.check.variants import variants_of
from pullback.dtypes import has_integers

if TYPE_CHECKING:
    from pullback.check.facts import ExampleFacts
    from pullback.check.find.kernels import Way, World
    from pullback.check.subject import Subject

Place = tuple[str, int]
"""File and line of an access."""
Store = tuple[str, str, int]
"""Kernel, file and line of a store."""

_SHARES = (0.2, 0.4)
"""Shares of the budget that are spent when the variants of the example have run, and the variants of these."""
_MOST = 0.1
"""Share of the budget that a run may take: a kernel for each row takes longer with each row, and goes no new way."""


@dataclass(frozen=True)
class Results:
    """The results of one forward and backward.

    Attributes:
        case: the call.
        outputs: the outputs that are part of the graph.
        gradients: the gradient of each input; `None` if the backward raised.
    """

    case: Case
    outputs: list[Tensor]
    gradients: list[Tensor | None] | None

    @property
    def results(self) -> list[Tensor | None]:
        """Outputs and gradients."""
        return [*self.outputs, *(self.gradients or ())]

    def name_of(self, index: int) -> str:
        """Return the name of the result at an index, for messages."""
        count = len(self.outputs)
        if index < count:
            return f"output {index}"
        return f"gradient of {self.case.names[self.case.wrt[index - count]]}"


@dataclass(frozen=True)
class KernelRun(Results):
    """One forward and backward, in a world of its own.

    Attributes:
        world: what the kernels did.
        new: the ways through kernels that no earlier run took, and its lines and kinds of irregular accesses.
        numeric: the case that the numeric derivative is taken on, as `variants_of` gives it.
    """

    world: World
    new: frozenset[Way] = frozenset()
    numeric: Case | None = None


def run_once(subject: Subject, case: Case) -> Results:
    """Run forward and backward.

    Raises:
        Raised: if the forward does.
    """
    run = forward(subject, case)
    cotangents = standard_cotangents(run.roots, run.differentiable)
    outputs = [out.detach().clone() for out in run.roots]
    try:
        gradients = vjp(run, cotangents)
    except Raised:  # another rule's matter
        gradients = None
    return Results(case, outputs, gradients)


def storing_line(subject: Subject, case: Case, cotangents: Sequence[Tensor], input_index: int) -> Store | None:
    """The line of a kernel that stores the gradient of an input; `None` if no kernel does, or several lines do."""
    with recording(traces=True) as world, suppress(Raised):
        gradient = vjp(forward(subject, case), cotangents)[input_index]
        if gradient is not None and gradient.layout is torch.strided:
            _, lines = world.stores.get(storage_of(gradient), (gradient, set()))
            return min(lines) if len(lines) == 1 else None
    return None


def run_in_world(audit: ExampleFacts, case: Case, **settings: Any) -> KernelRun | None:
    """Run forward and backward in a new world with some settings; `None` if the forward raises."""
    with recording(**settings) as world, suppress(Raised):
        found = run_once(audit.subject, case)
        return KernelRun(case, found.outputs, found.gradients, world)
    return None


def compiled_cases(audit: ExampleFacts) -> Iterator[Case]:
    """Yield calls whose kernels run on a GPU: the example, and its first variants of other sizes and layouts."""
    if audit.subject.device is None or not uses_triton(audit.subject.target):
        return
    yield audit.base
    kinds = {_kind(audit.base)}
    for case, _ in variants_of(audit):
        if not (case.extreme or audit.leaves_out(case) or _kind(case) in kinds) and sizes.keeps_sizes(audit.base, case):
            kinds.add(_kind(case))
            yield case


def kernel_runs(audit: ExampleFacts) -> tuple[KernelRun, ...]:
    """Run the example, and its variants of other shapes, layouts and options while the budget allows.

    Variants whose sizes may not fit each other are left out: kernels check nothing, so what they do there shows no
    fault.
    """
    return _searched(audit).found if audit.subject.is_interpreted else ()


@functools.lru_cache(maxsize=2)
def _searched(audit: ExampleFacts) -> _Search:
    search = _Search(audit)
    search.found = tuple(search.runs())
    return search


class _Search:
    """Runs of calls, each of another kind than those before.

    Attributes:
        found: the runs.
        misfits: labels of the calls with sizes that do not fit each other.
    """

    def __init__(self, audit: ExampleFacts) -> None:
        self._audit = audit
        self._start = audit.clock.seconds()
        self._kinds = {_kind(audit.base)}
        self._ways: set[Way] = set()
        self._outside: frozenset[Place] = frozenset()
        self._unfit: list[set[tuple[int, int]]] = []
        self._costs: dict[tuple[int, ...], tuple[int, float]] = {}
        self.found: tuple[KernelRun, ...] = ()
        self.misfits: set[str] = set()

    def runs(self) -> Iterator[KernelRun]:
        """Yield the runs; those of variants of variants only if they take new ways."""
        base = run_in_world(self._audit, self._audit.base)
        if base is None or not base.world.launches:
            return
        base = self._noted(base)
        self._outside = _outside(base)
        yield base
        found = [base]
        for case, numeric in variants_of(self._audit):
            if not self._has_time(_SHARES[0]):
                break
            if (run := self._run(case, numeric)) is not None:
                yield run
                if run.new and numeric is None:
                    found.append(run)
        queues = deque(_further(self._audit, run) for run in found)
        while queues and self._has_time(_SHARES[1]):
            queue = queues.popleft()  # in turn, so that the example does not take all the time
            for case in islice(queue, 1):
                queues.append(queue)
                if (more := self._run(case)) is not None and more.new:
                    yield more
                    queues.append(_further(self._audit, more))

    def _has_time(self, share: float) -> bool:
        return self._audit.clock.seconds() < self._start + share * self._audit.options.budget

    def _expected(self, case: Case) -> float:
        """Seconds of a run, from those of the last one in which the same sizes changed; 0 if there was none."""
        change = sizes.changes(self._audit.base, case)
        before, seconds = self._costs.get(_changed(change), (1, 0.0))
        return seconds * max(change.values(), default=1) / before

    def _run(self, case: Case, numeric: Case | None = None) -> KernelRun | None:
        audit, kind = self._audit, _kind(case)
        is_given = any(case is given for given in audit.given)  # then its sizes fit
        is_kept = is_given or sizes.keeps_sizes(audit.base, case)
        if case.extreme or kind in self._kinds or audit.leaves_out(case) or not is_kept:
            return None
        if not is_given and self._expected(case) > _MOST * audit.options.budget:
            return None
        self._kinds.add(kind)
        clock = Stopwatch()
        with audit.events.of_first_order(case.describe(), audit.subject, case):
            run = run_in_world(audit, case)
        change = sizes.changes(audit.base, case)
        self._costs[_changed(change)] = (max(change.values(), default=1), clock.seconds())
        if run is None:
            return None
        fitting = run if is_given else self._with_room(run)
        if fitting is not run:
            self.misfits.add(case.label)
        if fitting is None:
            return None
        self._kinds.add(_kind(fitting.case))
        return replace(self._noted(fitting), numeric=numeric if fitting is run else None)

    def _with_room(self, run: KernelRun) -> KernelRun | None:
        """Return a run, or one with a further size changed if the kernels leave the bounds for want of it.

        So ⌈log₂ 70⌉ levels are too few for 129 steps, and with more of them the kernels stay within; and 1 level is too
        few for 70 steps, which 1 step shows; and 65 channels have no halves, but 66 have. A kernel that lacks a mask
        leaves the bounds whatever the other sizes are. `None` if the further size, too, belongs to others, or if no
        size helps everywhere: 1 level is too few for any steps where the first chunk alone has 7.
        """
        audit, places = self._audit, _outside(run) - self._outside
        if not places:
            return run
        if run.case.layout_only:  # no size is too small: the strides are not those that the kernels take
            self._outside |= places
            return run
        changed = {(size, new) for size, new in sizes.changes(audit.base, run.case).items() if new != size}
        if any(unfit <= changed for unfit in self._unfit):
            return None
        helps = False
        for other in _remedies(audit.base, run.case):
            audit.events.beat()
            case = sizes.resized(run.case, other)
            more = run_in_world(audit, replace(case, label=f"{run.case.label}, {case.label}"))
            if more is None or not more.world.launches:
                continue
            left = _outside(more) - self._outside
            if not _goes_to(more, places):  # it avoids that code, as a fast path does whose condition forgets a size
                continue
            if not left:
                return more if sizes.keeps_sizes(audit.base, more.case) else None
            helps |= not places <= left
        if helps:
            self._unfit += [changed] if changed else []
            return None
        self._outside |= places  # as no other size is at fault
        return run

    def _noted(self, run: KernelRun) -> KernelRun:
        irregular = {(one.file, one.line, one.kind) for one in run.world.irregularities}
        new = frozenset((run.world.ways | irregular) - self._ways)
        self._ways |= new
        return replace(run, new=new)


def _changed(change: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(size for size, new in change.items() if new != size)


def _remedies(base: Case, case: Case) -> Iterator[dict[int, int]]:
    """Yield further changes of sizes, for want of one of which the kernels of a variant may leave the bounds."""
    change = sizes.changes(base, case)
    kept = sorted(size for size, new in change.items() if new == size > 1)
    grown = [new for size, new in change.items() if new > size]
    shrunk = {size: new for size, new in change.items() if new < size}
    if even := sizes.made_even(base, case):
        yield even
    longest = max(grown, default=0)
    yield from ({size: 2 * size + 1} for size in kept)  # odd, so that no block becomes full which was not
    yield from ({size: 2 * longest + 1} for size in kept if size < longest // 2)  # a table of positions
    yield from ({size: 1} for size in (*kept, *grown) if shrunk and size > min(shrunk))  # which may be a function of it
    of_first = {size for t in base.tensors[:1] for size in t.shape}
    bounds = [(new, size) for size, new in shrunk.items() if size not in of_first]  # of a table, or of weights
    yield from ({size: new} for new, bound in bounds for size in kept if new < size <= bound)


def _further(audit: ExampleFacts, run: KernelRun) -> Iterator[Case]:
    """Yield variants of the call of a run: sizes of 1, beyond lengths in the source, around blocks; other numbers."""
    source = audit.subject.source
    lengths = run.world.blocks | (sizes.lengths_in(source.file) if source else frozenset())
    found = chain(
        sizes.single(run.case),
        sizes.beyond(run.case, lengths),
        sizes.around_blocks(run.case, run.world.blocks),
        values.other_numbers(run.case, audit.words),
    )
    before = f"{run.case.label}, " if run.case.is_variant else ""
    return (replace(case, label=before + case.label) for case in found)


def steered_variants(audit: ExampleFacts) -> Iterator[tuple[Case, Case | None]]:
    """Yield what `variants_of` does, but first the calls that lead interpreted kernels where the example does not."""
    first = [run for run in kernel_runs(audit)[1:] if run.new]
    known = {run.case.label for run in first} - {case.label for case in audit.given}
    misfits = _searched(audit).misfits if audit.subject.is_interpreted else set()
    yield from ((given, None) for given in audit.given)
    yield from ((run.case, run.numeric) for run in first if run.case.label in known)
    for case, numeric in variants_of(audit):
        if case.label in known | misfits or any(case is given for given in audit.given):
            continue
        if (fitted := _fitted(audit, case)) is not None:
            yield fitted, numeric


def _fitted(audit: ExampleFacts, case: Case) -> Case | None:
    """Return a variant, as doubtful if its sizes break a relation of the example's; `None` if kernels show that.

    Kernels check nothing. With sizes that do not fit each other they leave the bounds, and read what is not theirs,
    from which no gradient is right; or they leave results unwritten; or what they compute may be meaningless.
    """
    before, after = audit.base.all_tensors, case.all_tensors
    if not audit.subject.is_interpreted or all(before[p].shape == after[p].shape for p in before.keys() & after.keys()):
        return case
    is_empty = any(t.shape and not t.numel() for t in after.values()) and _is_empty_throughout(audit, case)
    are_guesses = audit.guessed and any(map(_may_point, audit.base.values))  # they fit the example by chance
    fits = is_empty or (sizes.fit(audit.base, case) and not are_guesses)
    even = sizes.made_even(audit.base, case)
    if _grows_a_one(before, after) and not audit.leaves_out(case) and _has_excess(audit, case):
        return None
    if (even or not (fits and sizes.keeps_ratios(audit.base, case))) and not audit.leaves_out(case):
        with audit.events.of_first_order(case.describe(), audit.subject, case):
            run = run_in_world(audit, case)
            if run is not None and _outside(run) and not (fits and even and _leaves_bounds(audit, case, even)):
                return None
            if run is not None and not fits and _is_unwritten(run):
                return None
    return case if fits or (not are_guesses and sizes.is_parted(audit.base, case)) else replace(case, doubtful=True)


def _is_empty_throughout(audit: ExampleFacts, case: Case) -> bool:
    """Whether the outputs of an empty call are empty, too: a filter with no taps is no input, but no rows are one."""
    try:
        return not any(out.numel() for out in forward(audit.subject, case).outputs)
    except Raised:
        return True


def _grows_a_one(before: Mapping[int, Tensor], after: Mapping[int, Tensor]) -> bool:
    dims = ((a, b) for p in before.keys() & after.keys() for a, b in zip(before[p].shape, after[p].shape, strict=False))
    return any(old == 1 < new for old, new in dims)


def _has_excess(audit: ExampleFacts, case: Case) -> bool:
    """Whether an input has elements that no kernel reads, and of whose gradient none writes an element.

    A dimension may be 1 for good, as that of a state for each sequence: kernels pass over it, and what is beyond its
    first element is no input. Of several heads that share a key, each is read.
    """
    with audit.events.of_first_order(case.describe(), audit.subject, case):
        run = run_in_world(audit, case)
        if run is None or run.gradients is None:
            return False
        unwritten = {p: is_unwritten(g) for p, g in zip(case.wrt, run.gradients, strict=True) if g is not None}
        moved = {
            p: torch.where(mask, case.values[p] + 1, case.values[p]) for p, mask in unwritten.items() if mask.any()
        }
        other = run_in_world(audit, case.with_values(moved)) if moved else None
    return other is not None and all(map(torch.equal, run.outputs, other.outputs))


def is_as_valid(audit: ExampleFacts, before: Case, after: Case) -> bool:
    """Whether a call is as valid as the one that it was made from; kernels do not refuse sizes that fit no longer."""
    if not audit.subject.is_interpreted or _shapes(before) == _shapes(after):
        return True
    if not sizes.fit(replace(before, doubtful=False), replace(after, doubtful=False)):
        return False
    return not leaves_bounds(audit.subject, after) or leaves_bounds(audit.subject, before)


def _shapes(case: Case) -> dict[int, torch.Size]:
    return {p: t.shape for p, t in case.all_tensors.items()}


def _may_point(value: object) -> bool:
    """Whether an argument holds whole numbers, which may be indices or offsets."""
    return isinstance(value, Tensor) and has_integers(value) and value.dtype != torch.bool


def _leaves_bounds(audit: ExampleFacts, case: Case, change: dict[int, int]) -> bool:
    run = run_in_world(audit, sizes.resized(case, change))
    return run is not None and bool(_outside(run))


def _is_unwritten(run: KernelRun) -> bool:
    """Whether a result holds memory that no kernel wrote."""
    return any(t is not None and bool(is_unwritten(t).any()) for t in run.results)


def _outside(run: KernelRun) -> frozenset[Place]:
    """Return the places where kernels leave the bounds."""
    return frozenset((one.file, one.line) for one in run.world.irregularities if one.kind == "out-of-bounds")


def _goes_to(run: KernelRun, places: Iterable[Place]) -> bool:
    """Whether a run goes the way of each `if` around some places in kernels."""
    return all(_branches_around(place) <= run.world.ways for place in places)


@functools.cache
def _branches_around(place: Place) -> frozenset[Way]:
    file, line = place
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return frozenset()
    ways = [
        (node.lineno, way)
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        for way, body in (("true", node.body), ("false", node.orelse))
        if body and body[0].lineno <= line <= (body[-1].end_lineno or line)
    ]
    return frozenset((file, number, way) for number, way in ways)


def _kind(case: Case) -> tuple[Any, ...]:
    """Return the layouts and options of a call: kernels depend on these, besides the elements of its tensors."""
    return tuple(
        (tuple(v.shape), v.stride() if v.layout is torch.strided else v.layout)
        if isinstance(v, Tensor)
        else (type(v), v if isinstance(v, bool | int | float | str | None) else id(v))
        for v in case.values
    )
