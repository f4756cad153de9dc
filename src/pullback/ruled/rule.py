"""A derivative given as a rule: how a vjp or jvp is called, and checks of its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from pullback import _torch
from pullback.bind.gradients import checked, wrong_number
from pullback.bind.tree import TENSOR, Tree, apart, described
from pullback.bind.watch import Cutting, Draws, Leaving
from pullback.dtypes import has_derivative
from pullback.errors import DerivativeError, tell_mistake
from pullback.graph.reads import Reads

Hides = Literal["nothing", "tensors", "all"]
"""Residuals that a second derivative cannot see: none, those in tensors, or all."""


@dataclass(slots=True)
class Record:
    """Non-tensor state of one call of a ruled op, for its rule.

    Attributes:
        args: the arguments.
        kinds: shape and dtype of the input tensors.
        recording: whether autograd, and no tracer, records the call of the op.
        out: the result.
        residuals: residuals that the formula returned.
        differentiable: which of the output tensors have a derivative.
        autocast: whether autocast was on.
        refusal: why the jvp may not be transposed, empty if it may; `None` if not yet checked.
    """

    args: Tree
    kinds: list[tuple[torch.Size, torch.dtype]]
    recording: bool = field(default=False, repr=False)  # `torch.jit.trace` compares the graphs of two calls as text
    out: Tree | None = None
    residuals: Tree | None = None
    differentiable: tuple[bool, ...] = ()
    autocast: bool = False
    refusal: str | None = None


@dataclass(slots=True)
class Rule:
    """A given derivative of an op.

    Attributes:
        name: of the op.
        formula: computes the value, and with `residuals` also the rule's residuals.
        parameters: names of the formula's parameters.
        vjp: `(g, out, [saved,] *inputs, [needs=])` to the gradients of the inputs.
        jvp: `(tangents, out, [saved,] *inputs)` to the tangent of `out`.
        residuals: whether the formula returns `(out, saved)`.
        linear: whether the vjp is linear in the cotangent: yes, no, or to be proven when it matters.
        jvp_linear: whether the user declared the jvp linear in the tangents: yes, or to be proven when it matters.
        proven: results of these proofs, for each kind of call.
        wants_needs: whether the vjp has a parameter `needs`.
        idle: positions of the parameters that the vjp never reads, or the jvp if there is no vjp.
        reads: of the formula besides its arguments; `None` if not yet determined.
    """

    name: str
    formula: Callable[..., Any]
    parameters: tuple[str, ...]
    residuals: bool = False
    vjp: Callable[..., Any] | None = None
    jvp: Callable[..., Any] | None = None
    linear: bool | None = None
    jvp_linear: bool | None = None
    proven: dict[Any, Any] = field(default_factory=dict)
    wants_needs: bool = False
    idle: set[int] = field(default_factory=set)
    reads: Reads | None = field(default=None, repr=False)

    def evaluate(self, record: Record, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Run the formula: the tensors of its result, and the residuals."""
        args = record.args.filled(tensors)
        try:
            result = self.formula(*args)
        except RuntimeError as error:
            if _torch.has_no_memory(error):
                raise self._without_values("formula") from error
            raise
        saved: Any = ()
        if self.residuals:
            if not isinstance(result, tuple) or len(result) != 2:
                raise DerivativeError(f"{self.name} has residuals=True: its formula returns (out, saved).")
            result, saved = result
        record.out, outputs = Tree.of(result)
        record.residuals, kept = Tree.of(saved) if self.residuals else (None, [])
        if not outputs:
            forgotten = " A forgotten `return`?" if result is None else ""
            raise DerivativeError(f"{self.name} returns {type(result).__name__}: a formula returns tensors.{forgotten}")
        outputs = apart(outputs, tensors)
        record.differentiable = tuple(map(has_derivative, outputs))
        record.autocast = _torch.any_autocast()
        return outputs, kept

    def again(self, record: Record, tensors: Sequence[Tensor], kept: list[Tensor]) -> tuple[list[Tensor], Hides]:
        """Recompute the residuals where autograd sees how they depend on the inputs.

        Also return which of them remain constants to autograd, namely the saved ones: "tensors", if the formula draws
        random numbers, leaves PyTorch or detaches; "all", if objects or the bits of integers may carry a dependence
        too.
        """
        assert record.residuals is not None or not kept
        if record.residuals is None or all(type(leaf) in _PLAIN for leaf in record.residuals.template):
            return kept, "nothing"
        strange = any(leaf is not TENSOR and type(leaf) not in _ATOMS for leaf in record.residuals.template)
        is_eager = _torch.is_plain_eager()
        live = [t for t in tensors if has_derivative(t) and (t.requires_grad or not is_eager)]
        try:
            with Draws() as draws, Leaving() as leaving, Cutting(live) as cutting, torch.enable_grad():
                residuals = self.evaluate(Record(record.args, record.kinds), tensors)[1]
            opaque = draws.seen or leaving.left
            lost = is_eager and not (
                opaque or (_same(residuals, kept) and self._have_graphs(residuals, record, tensors))
            )
        except Exception as error:  # any error of a formula that runs a second time
            tell_mistake(error, self.name)
            return kept, "all" if strange else "tensors"
        cut = [t for t in residuals if cutting.is_cut(t)]
        if strange or not all(map(has_derivative, cut)):
            return kept, "all"
        return (kept, "tensors") if opaque or lost or cut else (residuals, "nothing")

    def _have_graphs(self, residuals: Sequence[Tensor], record: Record, tensors: Sequence[Tensor]) -> bool:
        """Whether autograd follows the residuals, or would if all inputs required grad: then they are constants."""
        without = [i for i, t in enumerate(residuals) if has_derivative(t) and not t.requires_grad]
        if not without:
            return True
        live = [t.detach().requires_grad_() if has_derivative(t) and not t.requires_grad else t for t in tensors]
        with torch.enable_grad():
            again = self.evaluate(Record(record.args, record.kinds), live)[1]
        return len(again) == len(residuals) and all(again[i].requires_grad for i in without)

    def pull(
        self,
        record: Record,
        cotangents: Sequence[Tensor | None],
        tensors: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        kept: Sequence[Tensor],
        needs: Sequence[bool],
    ) -> list[Tensor | None]:
        """Call the vjp rule: one gradient for each tensor among the inputs.

        Raises:
            DerivativeError: if it returns the wrong number, structure, shape or dtype of gradients.
        """
        assert self.vjp is not None
        assert record.out is not None
        args = record.args.filled(tensors)
        given: list[Any] = [record.out.of_tensors(cotangents), record.out.filled(outputs)]
        if record.residuals is not None:
            given.append(record.residuals.filled(kept))
        options = {"needs": self._needs(record, needs)} if self.wants_needs else {}
        try:
            result = self.vjp(*given, *args, **options)
        except RuntimeError as error:
            if _torch.has_no_memory(error):
                raise self._without_values("vjp") from error
            raise
        if result is None:
            nothing = f"({', '.join(['None'] * len(args))}{',' * (len(args) == 1)})"
            raise self._returned_none("vjp", "gradient", nothing)
        if not isinstance(result, tuple):
            if record.args.flat and len(args) > 1 and not isinstance(result, Tensor):
                kind = type(result).__name__
                raise DerivativeError(f"the vjp of {self.name} returned a {kind}: return a tuple of gradients.")
            result = (result,)
        elif len(args) == 1 and len(result) != 1 and not record.args.flat:
            result = (result,)
        if len(result) != len(args):
            raise wrong_number(self.name, self.parameters, result, args)
        found = self._gradients(record, result)
        return found if all(needs) else [g if need else None for g, need in zip(found, needs, strict=True)]

    def _gradients(self, record: Record, result: tuple[Any, ...]) -> list[Tensor | None]:
        tree = record.args
        marks = tree.template if tree.flat else tree.filled([TENSOR] * len(record.kinds))
        kinds = iter(record.kinds)
        found: list[Tensor | None] = []
        for i, mark in enumerate(marks):
            gradient = result[i]
            if mark is TENSOR and (gradient is None or isinstance(gradient, Tensor)):  # the usual case, at little cost
                shape, dtype = kind = next(kinds)
                if gradient is not None and (gradient.dtype != dtype or gradient.shape != shape or dtype not in _REAL):
                    gradient = checked(self.name, self._argument_name(i), kind, gradient, record.autocast)
                found.append(gradient)
                continue
            if gradient is None and tree.flat:
                continue
            name = self._argument_name(i)
            leaves, spec = _torch.tree_leaves(mark)
            gradients, given = _torch.tree_leaves(gradient)
            if gradient is None:
                gradients = [None] * len(leaves)
            elif given != spec:
                raise DerivativeError(
                    f"the vjp of {self.name} returned {described(gradient)} for `{name}`, which is {described(mark)}: "
                    "return gradients in the structure of the input."
                )
            for leaf, g in zip(leaves, gradients, strict=True):
                if leaf is TENSOR:
                    found.append(checked(self.name, name, next(kinds), g, record.autocast))
                elif g is not None:
                    raise DerivativeError(
                        f"the vjp of {self.name} returned a gradient for `{name}`, where {leaf!r} is no tensor: return "
                        "None for it."
                    )
        return found

    def push(
        self,
        record: Record,
        tangents: Sequence[Tensor | None],
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
        kept: Sequence[Tensor],
    ) -> list[Tensor | None]:
        """Call the jvp rule: the tangent of each output tensor.

        Raises:
            DerivativeError: if it returns another structure or other shapes than the op.
        """
        assert self.jvp is not None
        assert record.out is not None
        given: list[Any] = [record.args.of_tensors(tangents), record.out.filled(outputs)]
        if record.residuals is not None:
            given.append(record.residuals.filled(kept))
        try:
            pushed_out = self.jvp(*given, *record.args.filled(tensors))
        except RuntimeError as error:
            if _torch.has_no_memory(error):
                raise self._without_values("jvp") from error
            raise
        if pushed_out is None:
            raise self._returned_none("jvp", "tangent", "zeros")
        result, spec = _torch.tree_leaves(pushed_out)
        if spec != record.out.spec:
            raise DerivativeError(
                f"the jvp of {self.name} returned {described(pushed_out)}, the op "
                f"{described(record.out.filled([TENSOR] * len(outputs)))}: return the tangent in the structure of the "
                "output."
            )
        pushed = [t for t, leaf in zip(result, record.out.template, strict=True) if leaf is TENSOR]
        for tangent, out in zip(pushed, outputs, strict=True):
            if tangent is not None and not isinstance(tangent, Tensor):
                raise DerivativeError(
                    f"the jvp of {self.name} returned {tangent!r} for an output of shape {tuple(out.shape)}: return a "
                    "tensor of its shape and dtype, or None where the output does not move."
                )
            if tangent is not None and (
                tangent.shape != out.shape or (has_derivative(out) and tangent.dtype != out.dtype)
            ):
                raise DerivativeError(
                    f"the jvp of {self.name} returned shape {tuple(tangent.shape)}, {tangent.dtype} for an output of "
                    f"shape {tuple(out.shape)}, {out.dtype}: a tangent has the shape and dtype of its output."
                )
        return pushed

    def _returned_none(self, what: str, named: str, instead: str) -> DerivativeError:
        return DerivativeError(
            f"the {what} of {self.name} returned None: a forgotten `return`? Where there is no {named}, return "
            f"{instead}."
        )

    def _without_values(self, what: str) -> DerivativeError:
        return DerivativeError(
            f"the {what} of {self.name} computes outside of PyTorch (NumPy, a kernel), where the tensors of a "
            "transform have no values. Call the op outside of the transform, or write it in torch ops."
        )

    def _needs(self, record: Record, needs: Sequence[bool]) -> tuple[bool, ...]:
        """Return for each argument whether any of its tensors needs a gradient."""
        marks = record.args.of_tensors(needs)
        return tuple(any(leaf is True for leaf in _torch.tree_leaves(mark)[0]) for mark in marks)

    def _argument_name(self, i: int) -> str:
        return self.parameters[i] if i < len(self.parameters) else f"argument {i}"


_REAL = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
"""The dtypes that most gradients have, with which they need no other look."""
_PLAIN = frozenset({int, bool, str, type(None)})
"""Residuals that depend on no input's value, unless the formula does what it must not."""
_ATOMS = _PLAIN | {float, complex, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, slice}
"""Residuals other than tensors; numbers among them are constants to a second derivative."""


def _same(new: Sequence[Tensor], old: Sequence[Tensor]) -> bool:
    """Whether tensors are equal, NaN to NaN: a read of the formula may have changed between two calls."""
    return len(new) == len(old) and all(
        a.shape == b.shape and torch.allclose(a.detach(), b.detach(), rtol=0, atol=0, equal_nan=True)
        for a, b in zip(new, old, strict=True)
    )
