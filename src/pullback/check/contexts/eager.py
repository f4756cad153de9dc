"""The subject as a pure function of tensors, for a transform to act on, with its results in eager mode.

The composition rules ask one question of many contexts: is the gradient there the one that eager mode gives?
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pullback._torch import tree_flatten, tree_unflatten
from pullback.check.case import Case, copy_tensor
from pullback.check.cases import layouts
from pullback.check.derivative.agreement import TensorDifference, difference
from pullback.check.derivative.sampler import random_like
from pullback.check.subject import Subject
from pullback.check.trial import Raised, forward, guarded, reseed, vjp

if TYPE_CHECKING:
    from pullback.check.audit import Audit
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pullback.check.audit import Audit
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pullback.check.cases.sizes import resized
from pullback.report.model import Finding

if TYPE_CHECKING:
    from pullback.check.audit import Audit

Pure = Callable[..., tuple[Tensor, ...]]
"""Tensors to the differentiable outputs. Changes none of its arguments."""

Slots = tuple[tuple[int, ...], ...]
"""For each argument of a pure function, the positions among a case's leaves that hold it."""


def slots_of(case: Case, positions: Sequence[int]) -> Slots:
    """Return the given positions, those that hold the very same tensor together."""
    slots: list[list[int]] = []
    for position in positions:
        twin = next((slot for slot in slots if case.values[slot[0]] is case.values[position]), None)
        if twin is None:
            slots.append([position])
        else:
            twin.append(position)
    return tuple(map(tuple, slots))


def pure(call: Callable[..., Any], case: Case, slots: Slots, outputs: Sequence[int]) -> Pure:
    """Return `call` on a case as a function of the tensors at `slots` that returns the given tensor outputs.

    Tracers can follow it, since everything that can be computed beforehand is.
    """
    moved = {position for slot in slots for position in slot}
    copied = case.non_leaf
    values = tuple(None if position in moved else value for position, value in enumerate(case.values))
    others = [position for position, value in enumerate(values) if isinstance(value, Tensor)]
    count = len(slots)
    arrange = _arranger(case)

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        leaves: list[Any] = list(values)
        for position in others:
            leaves[position] = leaves[position].clone()
        for input_index in range(count):
            tensor = tensors[input_index].clone() if copied else tensors[input_index]
            for position in slots[input_index]:
                leaves[position] = tensor
        args, kwargs = arrange(leaves)
        result = call(*args, **kwargs)
        outs = tensors_in(result)
        return tuple(outs[position] for position in outputs)

    return function


def _arranger(case: Case) -> Callable[[list[Any]], tuple[Any, dict[str, Any]]]:
    """Return the function from leaves to `(args, kwargs)`, without pytrees if nothing is nested."""
    spec = case.spec
    args, kwargs = tree_unflatten(list(range(len(case.values))), spec)
    if not all(isinstance(leaf, int) for leaf in (*args, *kwargs.values())):

        def nested(leaves: list[Any]) -> tuple[Any, dict[str, Any]]:
            rebuilt: tuple[Any, dict[str, Any]] = tree_unflatten(leaves, spec)
            return rebuilt

        return nested

    def flat(leaves: list[Any]) -> tuple[Any, dict[str, Any]]:
        return [leaves[position] for position in args], {key: leaves[p] for key, p in kwargs.items()}

    return flat


def tensors_in(result: Any) -> list[Tensor]:
    """Return every tensor of a result, in order."""
    if isinstance(result, Tensor):
        return [result]
    nested = not isinstance(result, tuple | list) or any(isinstance(v, tuple | list | dict) for v in result)
    values = tree_flatten(result)[0] if nested else result
    return [value for value in values if isinstance(value, Tensor)]


_known: WeakKeyDictionary[Audit, list[EagerReference]] = WeakKeyDictionary()
_COTANGENT_SEED = 3
# 840 eps of float32.
_ROUNDING = 1e-4
"""Relative difference that other kernels, or float32 inside a float64 call, may make. A gradient that a
transform loses or mistakes differs by far more."""


@dataclass(frozen=True, eq=False)
class EagerReference:
    """A case with a reproducible gradient in eager mode.

    Attributes:
        subject: the function.
        case: the arguments.
        slots: positions of each differentiated tensor; one passed twice counts once.
        inputs: these tensors, detached.
        names: their names.
        outputs: positions of the differentiable outputs among the output tensors.
        form: structure of the result: one tensor, a tuple or list of tensors, or any other.
        fixed_cotangents: one per differentiable output; `cotangents` are copies.
        values: the differentiable outputs, detached.
        gradients: the eager gradient of each input.
    """

    subject: Subject
    case: Case
    slots: Slots
    inputs: tuple[Tensor, ...]
    names: tuple[str, ...]
    outputs: tuple[int, ...]
    form: Literal["tensor", "tensors", "tree"]
    fixed_cotangents: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]

    def function(self) -> Pure:
        """Return the subject as a function of `inputs`."""
        return pure(self.subject.called, self.case, self.slots, self.outputs)

    @property
    def cotangents(self) -> tuple[Tensor, ...]:
        """Fresh copies of the fixed ones, since a backward may write to them."""
        return tuple(map(copy_tensor, self.fixed_cotangents))

    def leaves(self) -> list[Tensor]:
        """Return fresh copies of `inputs` that require grad."""
        return [copy_tensor(t).requires_grad_() for t in self.inputs]

    def loss(self) -> Callable[..., Tensor]:
        """Return a real scalar function of `inputs` whose gradient is `gradients`."""
        function, cotangents = self.function(), self.cotangents

        def loss(*xs: Tensor) -> Tensor:
            total = None
            for g, out in zip(cotangents, function(*xs), strict=True):
                # Re Σ conj(g) out has the gradient g by out, in PyTorch's convention for complex numbers.
                term = (g.conj() * out).real.sum() if out.is_complex() else (g * out).sum()
                total = term if total is None else total + term
            assert total is not None
            return total

        return loss

    def gradient_of(self, function: Pure) -> list[Tensor | None]:
        """Return the gradient that eager mode takes through `function`.

        Raises:
            Raised: if forward or backward raises.
        """
        leaves = self.leaves()
        reseed()
        with guarded("forward"):
            outs = function(*leaves)
        return self.gradient_from(outs, leaves)

    def gradient_from(self, outs: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the gradient of `leaves` from outputs that were computed already.

        Raises:
            Raised: if the backward raises.
        """
        pairs = [(o, g.to(o.dtype)) for o, g in zip(outs, self.cotangents, strict=True) if o.requires_grad]
        if not pairs:
            return [None] * len(leaves)
        with guarded("backward"):
            return list(
                torch.autograd.grad([o for o, _ in pairs], list(leaves), [g for _, g in pairs], allow_unused=True)
            )

    def draws_alike(self) -> bool:
        """Whether a transform draws the random numbers that eager mode draws, from the same state."""
        reseed()
        try:
            with guarded("torch.func.vjp"):
                outs = torch.func.vjp(self.function(), *self.inputs)[0]
        except Raised:
            return True
        return parts(self.values, outs) is None

    def differs(self, got: Sequence[Tensor | None]) -> TensorDifference | None:
        """Return where a gradient of `inputs` is not the eager one, beyond rounding."""
        return parts(self.gradients, got)


def parts(expected: Sequence[Tensor | None], got: Sequence[Tensor | None]) -> TensorDifference | None:
    """Where two lists of tensors differ by more than reordered operations could explain."""
    tensors = [t for t in (*expected, *got) if t is not None]
    wide = all(t.dtype in (torch.float64, torch.complex128) for t in tensors)
    return difference(expected, got, _ROUNDING if wide else None)


def setting_of(subject: Subject, case: Case) -> EagerReference | None:
    """Return the reference results of eager mode on a case; `None` if there are none.

    There are none if forward or backward raises, nothing is differentiable, or a second run differs.
    """
    try:
        run = forward(subject, case)
        generator = torch.Generator().manual_seed(_COTANGENT_SEED)
        cotangents = tuple(random_like(root, generator) for root in run.roots)
        slots = slots_of(case, case.wrt)
        firsts = [case.wrt.index(slot[0]) for slot in slots]
        gradients = vjp(run, cotangents, wrt=[run.inputs[input_index] for input_index in firsts])
    except Raised:
        return None
    if not cotangents:
        return None
    found = EagerReference(
        subject=subject,
        case=case,
        slots=slots,
        inputs=tuple(case.tensors[input_index] for input_index in firsts),
        names=tuple(case.names[slot[0]] for slot in slots),
        outputs=tuple(run.differentiable),
        form=_form(run.result),
        fixed_cotangents=cotangents,
        values=tuple(root.detach() for root in run.roots),
        gradients=tuple(gradients),
    )
    try:
        second = found.gradient_of(found.function())
    except Raised:
        return None
    return None if found.differs(second) else found


def settings(audit: Audit) -> list[EagerReference]:
    """The references of the working example and of the same in float32, where they exist; cached."""
    if audit not in _known:
        singles = (case for case in layouts.other_dtypes(audit.base) if case.label == "float32")
        cases = [audit.base, *singles]
        found = [setting for case in cases if (setting := setting_of(audit.subject, case)) is not None]
        _known[audit] = [setting for setting in found if not audit.draws or setting.draws_alike()]
    return _known[audit]


def base_setting(audit: Audit) -> EagerReference | None:
    """The reference of the working example; `None` if it gives none."""
    found = settings(audit)
    return found[0] if found and found[0].case is audit.base else None


def tensor_slots(setting: EagerReference) -> Slots:
    """Return a slot for every tensor among the arguments, the differentiated ones first."""
    held = {position for slot in setting.slots for position in slot}
    values = setting.case.values
    others = [p for p, value in enumerate(values) if isinstance(value, Tensor) and p not in held]
    return (*setting.slots, *slots_of(setting.case, others))


def _form(result: object) -> Literal["tensor", "tensors", "tree"]:
    if isinstance(result, Tensor):
        return "tensor"
    flat = isinstance(result, tuple | list) and all(isinstance(value, Tensor) for value in result)
    return "tensors" if flat else "tree"


def may_drop(audit: Audit) -> bool:
    """Whether a gradient that a tracer derives from the forward may be compared with that of the backward.

    Not if the backward is wrong by mistake, for the tracer's is then the right one; nor at a kink, where each
    may choose its own.
    """
    result = audit.base_result
    if result is None:
        return True
    if any(comparison.kink for comparison in result.comparisons):
        return False
    return all(audit.intent_of(result, comparison) is not None for comparison in result.wrong)


def is_comparable(audit: Audit) -> bool:
    """Whether there is a repeatable eager gradient with which to compare a tracer's."""
    return base_setting(audit) is not None and may_drop(audit)


_SIZES = (1, 2)


def on_smallest(
    audit: Audit, setting: EagerReference, found: Finding, find: Callable[[EagerReference], Finding | None]
) -> Finding:
    """Return the finding on the first tiny example with one as severe as `found`, or else `found` itself."""
    for case in _tiny(setting.case):
        small = setting_of(audit.subject, case)
        if small is None or all(g is None or not bool(g.any()) for g in small.gradients):
            continue  # with nothing to lose, nothing is lost
        second = find(small)
        return second if second is not None and second.severity == found.severity else found
    return found


def _tiny(case: Case) -> Iterator[Case]:
    sizes = case.sizes - {1}
    for size in _SIZES:
        if any(old > size for old in sizes):
            yield resized(case, {old: size for old in sizes if old > size}).with_values({}, case.label)
