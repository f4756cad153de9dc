"""Variants of the working example on which the contract is checked, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.cases import layouts, sizes, values
from pullback.check.derivative.sampler import is_symmetric
from pullback.check.facts import ExampleFacts
from pullback.check.optional_arguments import (
    with_all_optional,
    with_defaults,
    with_numbers,
    with_optional,
    without_optional,
)
from pullback.check.trial import Raised, forward, is_freed


def variants_of(audit: ExampleFacts) -> Iterator[tuple[Case, Case | None]]:
    """Yield every variant of the working example, with the case that its numeric derivative is taken on.

    That is `None` if the derivative is taken on the variant itself.
    """
    base = audit.base
    full = with_defaults(audit)
    options = values.other_numbers(full, audit.words)
    for given in audit.given:
        yield given, None
    optional = with_optional(audit)
    together = with_all_optional(audit) if len(optional) > 1 else None
    for case in (*without_optional(audit), *optional, *filter(None, [together]), *values.some_ignored(full)):
        yield case, None
    yield from _in_domain(audit, with_numbers(audit))
    if audit.blocks:  # each option is a kernel of its own, and kernels take strides for granted
        yield from _in_domain(audit, sizes.parted_sizes(base), options, sizes.around_blocks(base, audit.blocks))
        yield from _other_layouts(audit)
        yield from _in_domain(audit, _switched_past_a_block(audit, full))
    yield from _in_domain(audit, values.other_values(base), values.shared(base, constant_inputs(audit)))
    if not audit.blocks:
        yield from _in_domain(audit, options)
    others = with_one_between(audit), with_another_batch(audit), of_its_own(audit)
    other_sizes = [sizes.uniform_sizes(base), sizes.broadcasts(base)] if audit.blocks else [sizes.other_sizes(base)]
    yield from _in_domain(audit, *other_sizes, *others)
    if not audit.blocks:
        yield from _other_layouts(audit)
    for case in layouts.other_dtypes(base):
        yield case, None
    for case in values.extremes(base):
        yield case, None


def _in_domain(audit: ExampleFacts, *families: Iterable[Case]) -> Iterator[tuple[Case, None]]:
    """Yield cases, each with the traits of the example restored."""
    for case in chain.from_iterable(families):
        if not values.crosses(audit.base, case):
            yield from ((kept, None) for kept in audit.domain.keep(case))


def _switched_past_a_block(audit: ExampleFacts, full: Case) -> Iterator[Case]:
    """Yield the example with another flag or word and more than a block of elements: its branch has loops of its own.

    Sizes that may not fit each other are left out.
    """
    for switched in values.switched(full, audit.words):
        for case in sizes.past_a_block(switched, audit.blocks):
            if sizes.fit(audit.base, case):
                yield case


def _other_layouts(audit: ExampleFacts) -> Iterator[tuple[Case, Case]]:
    """Yield the example in other strides, beside contiguous tensors."""
    for case in () if audit.draws else map(layouts.with_plain_indices, layouts.other_layouts(audit.base)):
        yield case, layouts.contiguous(case)


def constant_inputs(audit: ExampleFacts) -> set[int]:
    """Return the positions of inputs to which the backward gives no gradient on the example.

    If that is a fault, it is reported for the example. No variant passes one tensor as such an input and as another
    argument, since the gradient of the sum would lack a part.
    """
    gradients = audit.base_result.gradients if audit.base_result is not None else []
    return {p for p, gradient in zip(audit.base.wrt, gradients, strict=False) if gradient is None}


def of_its_own(audit: ExampleFacts) -> Iterator[Case]:
    """Yield the example with an output of the forward in place of an input of its shape.

    A projection, a normalisation or a sort is made for numbers near its own outputs, where it changes nothing.
    """
    outputs = [out.detach() for out in audit.base_run.outputs if not is_freed(out)]
    for p in () if audit.draws else audit.base.wrt:
        t, name = audit.base.values[p], audit.base.names[p]
        alike = [out for out in outputs if out.shape == t.shape and out.dtype == t.dtype and not torch.equal(out, t)]
        if alike:
            own = (alike[0] + alike[0].mH) / 2 if is_symmetric(t) else alike[0].clone()  # equal up to rounding
            yield audit.base.with_values({p: own}, f"the output as {name}")


def with_one_between(audit: ExampleFacts) -> Iterator[Case]:
    """Yield the example with a dimension of size 1 in the middle of its only tensor, a matrix.

    The forward must treat it as a batch dimension, with equal values: this finds a function of rows, with any number of
    dimensions, whose backward calls `squeeze()` without a dimension.
    """
    base = audit.base
    if audit.draws or [t.ndim for t in base.all_tensors.values()] != [2]:
        return
    case = base.map_inputs(lambda t: t.unsqueeze(1), "a dimension of size 1 in the middle", doubtful=True)
    try:
        outputs = forward(audit.subject, case).outputs
    except Raised:
        return
    expected = [out.unsqueeze(1) if out.ndim == 2 else out for out in audit.base_run.outputs]
    if len(outputs) == len(expected) and all(map(torch.equal, outputs, expected)):
        yield case


def with_another_batch(audit: ExampleFacts) -> Iterator[Case]:
    """Yield the example with a batch of two matrices for its first one, if the forward treats it as a batch.

    A layer of matrices takes sequences, too, as `torch.nn.functional.linear` does, whose backward may not. It may be by
    accident that the forward takes them.
    """
    base = audit.base
    first = base.wrt[0] if base.wrt else None
    if audit.draws or first is None or base.values[first].ndim != 2 or len(base.all_tensors) < 2:
        return
    matrix = base.values[first]
    case = base.with_values(
        {first: torch.stack([matrix, matrix.flip(0)])}, f"{base.names[first]} of three dimensions", doubtful=True
    )
    try:
        outputs = forward(audit.subject, case).outputs
    except Raised:
        return
    expected = audit.base_run.outputs
    if len(outputs) == len(expected) and all(_is_first_of_two(*pair) for pair in zip(outputs, expected, strict=True)):
        yield case


def _is_first_of_two(out: Tensor, before: Tensor) -> bool:
    return out.shape == (2, *before.shape) and torch.allclose(out[0], before)
