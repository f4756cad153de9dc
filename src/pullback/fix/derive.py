"""A new backward for a Function, from its forward at one example call."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from pullback import _torch
from pullback.check.subject import Subject
from pullback.errors import PullbackError
from pullback.fix.arguments import Plain, with_arguments
from pullback.fix.body import Backward, Wording
from pullback.fix.model import CannotFixError, Derived
from pullback.fix.outside import changeable
from pullback.fix.ranks import has_other_forms
from pullback.fix.style import Style, rebound_in, style_of
from pullback.write.target import as_op, single_precision_call, spec_of

_TAKEN = {"torch", "F"}


def derive(subject: Subject, args: Sequence[Any]) -> Derived:
    """Return the backward that follows from the forward of a Function.

    Args:
        subject: the Function.
        args: of a call that works.

    Raises:
        CannotFixError: if it cannot be derived, or not as text.
    """
    style = style_of(subject)
    args, _ = single_precision_call(subject.target, tuple(args), {})
    try:
        bound = as_op(subject.target)._signature.bind(*args)
        bound.apply_defaults()  # an argument that the example leaves out is one all the same
        return _for_constants(subject, _derived(subject, style, bound.args))
    except PullbackError as error:
        raise CannotFixError(_reason(subject, str(error))) from error
    except CannotFixError:
        raise
    except Exception as error:  # any error of tracing the author's forward
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise CannotFixError(f"its forward cannot be traced: {reason}") from error


def _for_constants(subject: Subject, derived: Derived) -> Derived:
    """Return the backward with what it takes for a constant and may change among what it is valid for alone."""
    assert subject.source is not None  # its style was read
    held = changeable(subject.target.forward, subject.source.methods["forward"])
    return replace(derived, only=", ".join([derived.only, *held] if derived.only else held))


def _derived(subject: Subject, style: Style, args: Sequence[Any]) -> Derived:
    make = partial(_backward, subject, style)
    first = make(args)

    def plainly(args: Sequence[Any]) -> Derived:
        return make(args).derived()

    narrow = not first.is_elementwise and (_special(first) or has_other_forms(plainly, subject.call, args))

    def guarded(args: Sequence[Any]) -> Derived:
        return make(args).derived(narrow)

    plain = [
        Plain(i, name, _free(name, style))
        for i, (name, a) in enumerate(zip(style.parameters, args, strict=False))
        if not isinstance(a, Tensor)
    ]
    return with_arguments(guarded, subject.call, args, plain, style.ctx) if plain else guarded(args)


def _backward(subject: Subject, style: Style, args: Sequence[Any]) -> Backward:
    for name, a in zip(style.parameters, args, strict=False):
        if not isinstance(a, Tensor) and any(isinstance(leaf, Tensor) for leaf in _torch.tree_leaves(a)[0]):
            raise CannotFixError(f"{name} holds tensors, which autograd does not see")
    d, tensors = spec_of(subject.target, tuple(args), {})
    places = tuple(i for i, a in enumerate(args) if isinstance(a, Tensor))
    count = len(d.outputs(tensors))
    cotangents = style.cotangents if len(style.cotangents) == count else _letters(count)
    d.names = [_free(style.parameters[i], style) for i in places]
    outputs = _outputs(subject, style, count, [style.parameters[i] for i in places])
    return Backward(d, tensors, Wording(style.ctx, cotangents, places, outputs, style.parameters))


def _letters(count: int) -> tuple[str, ...]:
    return ("g",) if count == 1 else tuple(f"g_{i}" for i in range(count))


def _free(name: str, style: Style) -> str:
    """Return a parameter's name, changed if the backward has another use for it."""
    taken = {style.ctx, *(style.cotangents or ("g",)), *_TAKEN}
    while name in taken:
        name += "_"
    return name


def _outputs(subject: Subject, style: Style, count: int, tensors: Sequence[str]) -> tuple[str, ...]:
    """Return the names of outputs that can be saved: in the old style variables, saved just before the return."""
    taken = {style.ctx, *(style.cotangents or _letters(count)), *style.parameters, *_TAKEN}
    if not style.is_old:
        names = ("out",) if count == 1 else tuple(f"out_{i}" for i in range(count))
        return () if taken & set(names) else names
    assert subject.source is not None  # its style was read
    changed = rebound_in(subject.source.methods["forward"]) & set(tensors)
    return () if changed or taken & set(style.outputs) or len(style.outputs) != count else style.outputs


def _special(backward: Backward) -> bool:
    """Whether a text is for some sizes alone: one is a number, or is less than another."""
    for condition in backward.shapes.conditions:
        ordered = any(isinstance(node, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for node in ast.walk(ast.parse(condition)))
        if ordered or (".dim()" not in condition and condition.rpartition("== ")[2][:1] in "(0123456789"):
            return True
    return False


def _reason(subject: Subject, text: str) -> str:
    name = getattr(subject.target, "__name__", subject.name)
    return text.removeprefix(f"{name} cannot be written: ").removesuffix(".")
