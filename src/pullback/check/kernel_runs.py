"""Runs of a subject whose Triton kernels are interpreted, on its example and on calls that lead them elsewhere.

A fault in a branch of a kernel, or in the second round of a loop, does not show until some call gets there. The ways
that kernels take are recorded, and variants of the example that take new ones are looked for, and come first.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.cases import sizes, values
from pullback.check.find.kernels import recording
from pullback.check.trial import Raised, forward, standard_cotangents, vjp
from pullback.check.variants import variants_of

if TYPE_CHECKING:
    from pullback.check.facts import ExampleFacts
    from pullback.check.find.kernels import Way, World

_SHARES = (0.2, 0.4)
"""Shares of the budget that are spent when the variants of the example have run, and the variants of these."""


@dataclass(frozen=True)
class KernelRun:
    """One forward and backward, in a world of its own.

    Attributes:
        case: the call.
        outputs: the outputs that are part of the graph.
        gradients: the gradient of each input; `None` if the backward raised.
        world: what the kernels did.
        new: the ways through kernels that no earlier run took, and its lines and kinds of irregular accesses.
        numeric: the case that the numeric derivative is taken on, as `variants_of` gives it.
    """

    case: Case
    outputs: list[Tensor]
    gradients: list[Tensor | None] | None
    world: World
    new: frozenset[Way] = frozenset()
    numeric: Case | None = None

    @property
    def results(self) -> list[Tensor | None]:
        """Outputs and gradients."""
        return [*self.outputs, *(self.gradients or ())]

    def name_of(self, index: int) -> str:
        """Return what the result at an index is, for messages."""
        count = len(self.outputs)
        if index < count:
            return f"output {index}"
        return f"gradient of {self.case.names[self.case.wrt[index - count]]}"


def run_in_world(audit: ExampleFacts, case: Case, **settings: Any) -> KernelRun | None:
    """Run forward and backward in a new world with some settings; `None` if the forward raises."""
    with recording(**settings) as world:
        try:
            run = forward(audit.subject, case)
        except Raised:
            return None
        cotangents = standard_cotangents(run.roots, run.differentiable)
        outputs = [out.detach().clone() for out in run.roots]
        try:
            gradients = vjp(run, cotangents)
        except Raised:  # another rule's matter
            gradients = None
    return KernelRun(case, outputs, gradients, world)


@functools.lru_cache(maxsize=2)
def kernel_runs(audit: ExampleFacts) -> tuple[KernelRun, ...]:
    """Run the example, and its variants of other shapes, layouts and options while the budget allows.

    Variants whose sizes may not fit each other are left out: kernels check nothing, so what they do there shows no
    fault.
    """
    if not audit.subject.is_interpreted:
        return ()
    return tuple(_Search(audit).runs())


class _Search:
    """Runs of calls, each of another kind than those before."""

    def __init__(self, audit: ExampleFacts) -> None:
        self._audit = audit
        self._start = audit.clock.seconds()
        self._kinds = {_kind(audit.base)}
        self._ways: set[Way] = set()

    def runs(self) -> Iterator[KernelRun]:
        """Yield the runs; those of variants of variants only if they take new ways."""
        base = run_in_world(self._audit, self._audit.base)
        if base is None or not base.world.launches:
            return
        base = self._noted(base)
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

    def _run(self, case: Case, numeric: Case | None = None) -> KernelRun | None:
        audit, kind = self._audit, _kind(case)
        if case.extreme or kind in self._kinds or audit.leaves_out(case) or not sizes.keeps_sizes(audit.base, case):
            return None
        self._kinds.add(kind)
        with audit.events.of_first_order(case.describe(), audit.subject, case):
            run = run_in_world(audit, case)
        return None if run is None else replace(self._noted(run), numeric=numeric)

    def _noted(self, run: KernelRun) -> KernelRun:
        irregular = {(one.file, one.line, one.kind) for one in run.world.irregularities}
        new = frozenset((run.world.ways | irregular) - self._ways)
        self._ways |= new
        return replace(run, new=new)


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
    yield from ((given, None) for given in audit.given)
    yield from ((run.case, run.numeric) for run in first if run.case.label in known)
    for case, numeric in variants_of(audit):
        if case.label in known or any(case is given for given in audit.given) or _misfits(audit, case):
            continue
        yield _doubted(audit, case), numeric


def _misfits(audit: ExampleFacts, case: Case) -> bool:
    """Whether a variant's sizes do not fit each other, since kernels that check nothing leave the bounds with them.

    They then read what is not theirs, from which no gradient is right.
    """
    if not audit.subject.is_interpreted or sizes.keeps_ratios(audit.base, case) or audit.leaves_out(case):
        return False
    with audit.events.of_first_order(case.describe(), audit.subject, case):
        run = run_in_world(audit, case)
    return run is not None and any(one.kind == "out-of-bounds" for one in run.world.irregularities)


def _doubted(audit: ExampleFacts, case: Case) -> Case:
    """Return a variant, as doubtful if it breaks a relation between sizes that interpreted kernels may rely on."""
    before, after = audit.base.all_tensors, case.all_tensors
    kept = all(before[p].shape == after[p].shape for p in before.keys() & after.keys())
    is_empty = any(t.shape and not t.numel() for t in after.values())
    if kept or is_empty or not audit.subject.is_interpreted or sizes.fit(audit.base, case):
        return case
    return replace(case, doubtful=True)


def _kind(case: Case) -> tuple[Any, ...]:
    """Return the layouts and options of a call: kernels depend on these, besides the elements of its tensors."""
    return tuple(
        (tuple(v.shape), v.stride() if v.layout is torch.strided else v.layout)
        if isinstance(v, Tensor)
        else (type(v), v if isinstance(v, bool | int | float | str | None) else id(v))
        for v in case.values
    )
