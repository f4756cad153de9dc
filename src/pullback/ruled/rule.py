"""A derivative given as a rule: how a vjp or jvp is called, and checks of its result."""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from pullback import _torch, dispatch
from pullback.call import TENSOR, Tree, described, parameters_of, unaliased
from pullback.dispatch import World
from pullback.dtypes import has_derivative, is_continuous
from pullback.errors import DerivativeError, OptionError, report_internal_error
from pullback.graph.captures import Captures
from pullback.modes import DetachMode, EscapeMode, RandomMode

Untracked = Literal["nothing", "tensors", "all"]
"""Residuals that a second derivative cannot see: none, those in tensors, or all."""


@dataclass(slots=True)
class CallRecord:
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
class DerivativeRule:
    """A given derivative of an op.

    Attributes:
        name: name of the op.
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
        captures: captures of the formula; `None` if not yet determined.
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
    captures: Captures | None = field(default=None, repr=False)

    @property
    def is_given(self) -> bool:
        """Whether there is a vjp or a jvp."""
        return self.vjp is not None or self.jvp is not None

    def with_vjp(self, vjp: Callable[..., Any], linear: bool | None) -> DerivativeRule:
        """Return the rule with a vjp; one that was given before is replaced."""
        require_signature(self, "vjp", vjp)
        needs = takes(vjp, "needs")
        return replace(self, vjp=vjp, linear=linear, wants_needs=needs, idle=unread(vjp), proven={})

    def with_jvp(self, jvp: Callable[..., Any], linear: bool | None) -> DerivativeRule:
        """Return the rule with a jvp; one that was given before is replaced."""
        require_signature(self, "jvp", jvp)
        idle = unread(jvp) if self.vjp is None else self.idle
        return replace(self, jvp=jvp, jvp_linear=linear, idle=idle, proven={})

    def evaluate(self, record: CallRecord, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Run the formula: the tensors of its result, and the residuals."""
        args = record.args.filled(tensors)
        try:
            result = self.formula(*args)
        except RuntimeError as error:
            if _torch.is_storage_error(error):
                raise self._without_values("formula") from error
            raise
        saved: Any = ()
        if self.residuals:
            if not isinstance(result, tuple) or len(result) != 2:
                raise DerivativeError(f"{self.name} has residuals=True: its formula returns (out, saved).")
            result, saved = result
        record.out, outputs = Tree.of(result)
        record.residuals, saved = Tree.of(saved) if self.residuals else (None, [])
        if not outputs:
            forgotten = " A forgotten `return`?" if result is None else ""
            raise DerivativeError(f"{self.name} returns {type(result).__name__}: a formula returns tensors.{forgotten}")
        outputs = unaliased(outputs, tensors)
        record.differentiable = tuple(map(has_derivative, outputs))
        record.autocast = _torch.any_autocast()
        return outputs, saved

    def recomputed_residuals(
        self, record: CallRecord, tensors: Sequence[Tensor], saved: list[Tensor]
    ) -> tuple[list[Tensor], Untracked]:
        """Recompute the residuals where autograd sees how they depend on the inputs.

        Also return which of them remain constants to autograd, namely the saved ones: "tensors", if the formula draws
        random numbers, leaves PyTorch or detaches; "all", if objects or the bits of integers may carry a dependence
        too.
        """
        # The derivative of b(x, r(x), g) by x is ∂b/∂x + ∂b/∂r · dr/dx. The forward saved r as a number, without dr/dx;
        # computed once more from inputs that autograd tracks, it has it.
        assert record.residuals is not None or not saved
        if record.residuals is None or all(type(leaf) in _PLAIN for leaf in record.residuals.template):
            return saved, "nothing"
        strange = any(leaf is not TENSOR and type(leaf) not in _ATOMS for leaf in record.residuals.template)
        is_eager = dispatch.world() is World.EAGER
        live = [t for t in tensors if has_derivative(t) and (t.requires_grad or not is_eager)]
        try:
            with RandomMode() as random, EscapeMode() as escape, DetachMode(live) as detach, torch.enable_grad():
                residuals = self.evaluate(CallRecord(record.args, record.kinds), tensors)[1]
            opaque = random.drew or escape.escaped
            lost = is_eager and not (
                opaque or (_same(residuals, saved) and self._have_graphs(residuals, record, tensors))
            )
        except Exception as error:  # any error of a formula that runs a second time
            report_internal_error(error, self.name)
            return saved, "all" if strange else "tensors"
        cut = [t for t in residuals if detach.is_detached(t)]
        if strange or not all(map(has_derivative, cut)):
            return saved, "all"
        return (saved, "tensors") if opaque or lost or cut else (residuals, "nothing")

    def _have_graphs(self, residuals: Sequence[Tensor], record: CallRecord, tensors: Sequence[Tensor]) -> bool:
        """Whether autograd follows the residuals, or would if all inputs required grad: then they are constants."""
        without = [i for i, t in enumerate(residuals) if has_derivative(t) and not t.requires_grad]
        if not without:
            return True
        live = [t.detach().requires_grad_() if has_derivative(t) and not t.requires_grad else t for t in tensors]
        with torch.enable_grad():
            recomputed = self.evaluate(CallRecord(record.args, record.kinds), live)[1]
        return len(recomputed) == len(residuals) and all(recomputed[i].requires_grad for i in without)

    def pull(
        self,
        record: CallRecord,
        cotangents: Sequence[Tensor | None],
        tensors: Sequence[Tensor | None],
        outputs: Sequence[Tensor | None],
        saved: Sequence[Tensor],
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
            given.append(record.residuals.filled(saved))
        options = {"needs": self._needs(record, needs)} if self.wants_needs else {}
        try:
            result = self.vjp(*given, *args, **options)
        except RuntimeError as error:
            if _torch.is_storage_error(error):
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

    def _gradients(self, record: CallRecord, result: tuple[Any, ...]) -> list[Tensor | None]:
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
                        f"the vjp of {self.name} returned a gradient for `{name}`, where {leaf!r} is not a tensor: "
                        "return None for it."
                    )
        return found

    def push(
        self,
        record: CallRecord,
        tangents: Sequence[Tensor | None],
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
        saved: Sequence[Tensor],
    ) -> list[Tensor | None]:
        """Call the jvp rule: the tangent of each output tensor.

        Raises:
            DerivativeError: if it returns another structure or other shapes than the op.
        """
        assert self.jvp is not None
        assert record.out is not None
        given: list[Any] = [record.args.of_tensors(tangents), record.out.filled(outputs)]
        if record.residuals is not None:
            given.append(record.residuals.filled(saved))
        try:
            pushed_out = self.jvp(*given, *record.args.filled(tensors))
        except RuntimeError as error:
            if _torch.is_storage_error(error):
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

    def _needs(self, record: CallRecord, needs: Sequence[bool]) -> tuple[bool, ...]:
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


def wrong_number(op: str, parameters: tuple[str, ...], result: Sequence[Any], args: Sequence[Any]) -> DerivativeError:
    """Return the error for more or fewer gradients than arguments."""
    return DerivativeError(
        f"the vjp of {op} returned {len(result)} gradient{'s' * (len(result) != 1)} for {len(args)} "
        f"input{'s' * (len(args) != 1)} ({', '.join(parameters)}): one for each, None where there is none."
    )


def checked(op: str, argument: str, kind: tuple[Sequence[int], torch.dtype], g: Any, cast: bool) -> Tensor | None:
    """Return a gradient of an argument if it has its shape and dtype; with `cast` the engine sees to the dtype.

    Raises:
        DerivativeError: if it has not.
    """
    if g is None:
        return None
    shape, dtype = kind
    if not isinstance(g, Tensor):
        raise DerivativeError(f"the vjp of {op} returned a {type(g).__name__} for `{argument}`, not a tensor or None.")
    if not is_continuous(dtype):
        raise DerivativeError(
            f"the vjp of {op} returned a gradient for `{argument}`, which holds {dtype}: return None."
        )
    if g.shape != shape or (g.dtype != dtype and not cast):
        raise DerivativeError(
            f"the vjp of {op} returned shape {tuple(g.shape)}, {g.dtype} for `{argument}` of shape "
            f"{tuple(shape)}, {dtype}: sum over what was broadcast, and cast back."
        )
    return g


_BY_NAME = frozenset({"locals", "eval", "exec", "vars", "sys", "inspect"})
"""Functions by which a function can read its parameters without naming them."""


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a keyword-only parameter of this name."""
    parameter = inspect.signature(function).parameters.get(name)
    return parameter is not None and parameter.kind is inspect.Parameter.KEYWORD_ONLY


def require_signature(rule: DerivativeRule, what: str, function: Callable[..., Any]) -> None:
    """Raise an `OptionError` if a rule cannot be called as it will be.

    Where the formula has a variable number of parameters, or the rule's own are not known, anything goes.
    """
    if not callable(function):
        raise OptionError(f"the {what} of {rule.name} is {function!r}: it has to be a function.")
    by_name = [p.name for p in parameters_of(rule.formula) if p.kind is p.KEYWORD_ONLY]
    if by_name:
        raise OptionError(
            f"{rule.name} takes {', '.join(by_name)} by keyword alone, and a rule takes its inputs by position: leave "
            "out the `*` of its signature."
        )
    first = "g" if what == "vjp" else "tangents"
    expected = [first, "out", *(["saved"] if rule.residuals else []), *rule.parameters]
    try:
        signature = inspect.signature(function)
    except ValueError:
        return
    if any(p.kind in {p.VAR_POSITIONAL, p.VAR_KEYWORD} for p in parameters_of(rule.formula)):
        return
    options = {"needs": ()} if what == "vjp" and takes(function, "needs") else {}
    try:
        signature.bind(*expected, **options)
    except TypeError as error:
        raise OptionError(
            f"the {what} of {rule.name} is called as ({', '.join(expected)}), and is defined as {signature}: {error}."
        ) from None


def unread(function: Callable[..., Any]) -> set[int]:
    """Return the positions of the parameters that a Python function never reads: these need not be saved.

    Return `None` if unknown: for a method, whose code counts `self`, and for code that can read by name.
    """
    if not isinstance(function, types.FunctionType) or _BY_NAME.intersection(function.__code__.co_names):
        return set()
    code = function.__code__
    read: set[str] = set(code.co_cellvars)
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith("LOAD_FAST") or instruction.opname.startswith("STORE_FAST_LOAD_FAST"):
            names = instruction.argval
            read |= set(names) if isinstance(names, tuple) else {names}
    return {i for i, name in enumerate(code.co_varnames[: code.co_argcount]) if name not in read}
