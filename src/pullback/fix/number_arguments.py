"""Numbers among the arguments of a forward: where they occur in its derivative.

A derivative is traced with numbers as constants. It is traced at several values of each argument; if the texts differ
in numbers alone, and each of these is the same simple expression of the argument at every value, the expression is
written. At special values, such as the exponent 2, the text may have another form; it then has to compute the same.
"""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from pullback.fix.patch import CannotFixError, NewBackward, SavedValue

_FACTORS = (1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
_SHIFTS = (0.0, -1.0, 1.0, -2.0, 2.0, 0.5, -0.5)
_NUMBER_TOLERANCE = 1e-9
"""Relative, in double precision."""
_MIN_VALUES = 3
"""Values at which an expression other than the argument itself must fit: two determine it, a third confirms it."""
_GRADIENT_TOLERANCE = 1e-4
"""In single precision; a wrong form of a derivative is off by far more."""
_TOKEN = re.compile(r"\s+|-?\d[\w.]*(?:(?<=e)[+-]\d+)?|[A-Za-z_]\w*|.")

Derive = Callable[[Sequence[Any]], NewBackward]
"""Derives the backward at a call, with the non-tensor arguments as constants."""


@dataclass(frozen=True, slots=True)
class NonTensor:
    """A non-tensor argument.

    Attributes:
        position: among the arguments.
        name: the parameter of the forward.
        variable: its name in the backward.
    """

    position: int
    name: str
    variable: str


def with_variables(
    derive: Derive, call: Callable[..., Any], args: Sequence[Any], non_tensors: Sequence[NonTensor], ctx: str
) -> NewBackward:
    """Derive a backward that reads each non-tensor argument in place of a constant.

    Args:
        derive: derives it with constants.
        call: the forward.
        args: arguments of the example.
        non_tensors: those that hold no tensor.
        ctx: name of the context.

    Raises:
        CannotFixError: if the derivative has another form at other values.
    """
    example, args = list(args), list(args)
    for a in non_tensors:  # all at generic values before the text is compared
        args[a.position] = _generic_value(a, derive, args)
    base = derive(args)
    tokens = _tokens(base)
    changes: dict[int, str] = {}
    used: list[NonTensor] = []
    for a in non_tensors:
        own = _expressions(a, tokens, _derived_at_values(a, derive, args))
        if changes.keys() & own.keys():
            raise CannotFixError(f"a number in its derivative depends on {a.name} and on another argument")
        changes |= own
        used += [a] if own else []
    body = "".join(changes.get(i, token) for i, token in enumerate(tokens)).split("\n")
    opening = [f"{a.variable} = {ctx}.{a.variable}" for a in used]
    saved = [SavedValue("value", "input", a.position, a.name, a.variable) for a in used]
    backward = replace(base, body=(*opening, *body), saved=(*base.saved, *saved))
    if not gradients_agree(backward, derive(example), call, example):
        raise CannotFixError("its derivative has another form for other values of its arguments")
    exceptions = [text for a in non_tensors if (text := _exceptions(a, backward, derive, call, args))]
    return replace(backward, valid_for=", ".join([*filter(None, [backward.valid_for]), *exceptions]))


def _generic_value(a: NonTensor, derive: Derive, args: Sequence[Any]) -> Any:
    """A value of an argument at which the derivative has its most frequent form."""
    forms: dict[str, list[Any]] = defaultdict(list)
    for value, backward in _derived_at_values(a, derive, args).items():
        forms["".join("0" if _is_number(token) else token for token in _tokens(backward))].append(value)
    if not forms or len(max(forms.values(), key=len)) < 2:
        raise CannotFixError(f"its derivative is known for {a.name}={args[a.position]!r} alone")
    return max(forms.values(), key=len)[0]


def _derived_at_values(a: NonTensor, derive: Derive, args: Sequence[Any]) -> dict[Any, NewBackward]:
    """The backwards at several values of an argument."""
    found: dict[Any, NewBackward] = {}
    for value in _values(args[a.position]):
        try:
            found[value] = derive(_with_value(args, a, value))
        except Exception:  # any error of a formula at a value that it does not take
            continue
    return found


def _values(value: Any) -> list[Any]:
    """An argument's value and others, for floats ones that equal no other constant; empty if it is not a number."""
    if isinstance(value, bool):
        return [value, not value]
    if isinstance(value, int):
        return list(dict.fromkeys([value, value + 1, value - 1, 0, -1, 3, 4, 5]))
    if isinstance(value, float):
        return [value * factor + shift for factor, shift in ((0.83, 0.117), (1.31, 0.371), (0.57, 0.0), (1.13, 0.0))]
    return []


def _expressions(a: NonTensor, tokens: list[str], found: Mapping[Any, NewBackward]) -> dict[int, str]:
    """Expressions for the numbers that depend on an argument, by their positions among the tokens."""
    texts = {value: text for value, one in found.items() if _equal_but_for_numbers(text := _tokens(one), tokens)}
    return {
        i: _expression(a, {value: float(text[i]) for value, text in texts.items()})
        for i in range(len(tokens))
        if len({text[i] for text in texts.values()}) > 1
    }


def _expression(a: NonTensor, numbers: Mapping[Any, float]) -> str:
    """An expression `factor * a + shift` or `1 / a` that equals the numbers at all values of an argument.

    Raises:
        CannotFixError: if there is none.
    """
    has_enough = len(numbers) >= _MIN_VALUES
    for factor in _FACTORS if has_enough else (1.0,):
        for shift in _SHIFTS if has_enough else (0.0,):
            if all(_close(factor * v + shift, n) for v, n in numbers.items()):
                return _affine(a.variable, factor, shift)
    if has_enough and all(v and _close(1 / v, n) for v, n in numbers.items()):
        return f"(1 / {a.variable})"
    raise CannotFixError(f"its derivative has numbers that depend on {a.name} in a way that is not simple")


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= _NUMBER_TOLERANCE * max(1.0, abs(b))


def _affine(name: str, factor: float, shift: float) -> str:
    scaled = {1.0: name, -1.0: f"-{name}"}.get(factor, f"{factor:g} * {name}")
    text = scaled if not shift else f"{scaled} {'-' if shift < 0 else '+'} {abs(shift):g}"
    return text if text == name else f"({text})"


def _exceptions(a: NonTensor, backward: NewBackward, derive: Derive, call: Callable[..., Any], args: list[Any]) -> str:
    """Values of an argument, special ones among them, at which a backward is not right; empty if none is known."""
    value = args[a.position]
    special = [float(v) for v in (0, 1, 2, -1)] if isinstance(value, float) else []
    wrong = []
    for other in dict.fromkeys([*_values(value), *special]):
        there = [_with_zero(x) if isinstance(x, Tensor) else x for x in _with_value(args, a, other)]
        try:
            right = derive(there)
        except Exception:  # any error of a formula at a value that it does not take
            continue
        if not gradients_agree(backward, right, call, there):
            wrong.append(repr(other))
    return f"{a.name} other than {', '.join(wrong)}" if wrong else ""


def _with_zero(x: Tensor) -> Tensor:
    """A copy of a tensor with a zero as its first element, where powers and quotients are special."""
    x = x.detach().clone(memory_format=torch.contiguous_format)
    x.reshape(-1)[:1] = 0
    return x


def _with_value(args: Sequence[Any], a: NonTensor, value: Any) -> list[Any]:
    return [value if i == a.position else x for i, x in enumerate(args)]


def _tokens(backward: NewBackward) -> list[str]:
    return _TOKEN.findall("\n".join(backward.body))


def _equal_but_for_numbers(a: Sequence[str], b: Sequence[str]) -> bool:
    if len(a) != len(b):
        return False
    return all(x == y or (_is_number(x) and _is_number(y)) for x, y in zip(a, b, strict=True))


def _is_number(token: str) -> bool:
    return token.removeprefix("-")[:1].isdigit()


def gradients_agree(a: NewBackward, b: NewBackward, call: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether the texts of two backwards return the same gradients at a call, non-finite elements included."""
    with torch.no_grad():
        result = call(*args)
    outs = result if isinstance(result, tuple) else (result,)
    try:
        pairs = list(zip(_gradients(a, args, outs), _gradients(b, args, outs), strict=True))
    except Exception:  # any error of a text that is right at other values
        return False
    return all(
        torch.allclose(x, y, rtol=_GRADIENT_TOLERANCE, atol=_GRADIENT_TOLERANCE, equal_nan=True) for x, y in pairs
    )


def _gradients(backward: NewBackward, args: Sequence[Any], outs: Sequence[Tensor]) -> list[Tensor]:
    """Run the text of a backward."""
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    body = textwrap.indent("\n".join(backward.body), "    ")
    exec(f"def backward({', '.join(backward.parameters)}):\n{body}", scope)
    tensors = [_residual(one, args, outs) for one in backward.saved if one.kind == "tensor"]
    ctx = SimpleNamespace(saved_tensors=tensors, needs_input_grad=[isinstance(a, Tensor) for a in args])
    for one in backward.saved:
        if one.attribute:
            setattr(ctx, one.attribute, _residual(one, args, outs))
    weights = [torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).reshape(out.shape) for out in outs]
    with torch.no_grad():
        found = scope["backward"](ctx, *weights)
    return [g for g in (found if isinstance(found, tuple) else (found,)) if g is not None]


def _residual(one: SavedValue, args: Sequence[Any], outs: Sequence[Tensor]) -> Any:
    value = (args if one.origin == "input" else outs)[one.position]
    return value.shape if one.kind == "shape" else value.detach() if isinstance(value, Tensor) else value
