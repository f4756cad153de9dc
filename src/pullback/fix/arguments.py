"""Backwards of functions with numbers among their arguments: where a number occurs in the derivative.

A derivative is traced with numbers as constants. It is traced for several values of each; if the texts differ in
numbers alone, and each of these is the same simple expression of the argument every time, that expression is written.
At special values, such as a power of 2, the text may differ; it has to compute the same.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pullback.fix.model import CannotFixError, Derived, Kept
from pullback.fix.same import same

_FACTORS = (1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
_SHIFTS = (0.0, -1.0, 1.0, -2.0, 2.0, 0.5, -0.5)
_CLOSE = 1e-9
_ENOUGH = 3
"""Numbers that an expression has to give to be believed, if it is more than the argument itself."""
_TOKEN = re.compile(r"\s+|-?\d[\w.]*(?:(?<=e)[+-]\d+)?|[A-Za-z_]\w*|.")


@dataclass(frozen=True, slots=True)
class Plain:
    """A non-tensor argument.

    Attributes:
        position: among the arguments.
        name: of the parameter.
        variable: its name in the backward.
    """

    position: int
    name: str
    variable: str


def with_arguments(
    derive: Callable[[Sequence[Any]], Derived],
    call: Callable[..., Any],
    args: Sequence[Any],
    plain: Sequence[Plain],
    ctx: str,
) -> Derived:
    """Return a backward that reads each plain argument instead of a constant.

    Args:
        derive: derives the backward for a call, with the plain arguments as constants.
        call: the forward.
        args: of the example.
        plain: its non-tensor arguments.
        ctx: name of the context.

    Raises:
        CannotFixError: if the derivative has another form for other values.
    """
    example, args = list(args), list(args)
    for p in plain:  # each to a value that is nothing special, before any is looked at
        args[p.position] = _ordinary(p, derive, args)
    base = derive(args)
    tokens = _tokens(base)
    changes: dict[int, str] = {}
    used: list[Plain] = []
    for p in plain:
        mine = _changes(p, tokens, _texts(p, derive, args))
        if changes.keys() & mine.keys():
            raise CannotFixError(f"its derivative mixes {p.name} with another argument in one number")
        changes |= mine
        used += [p] if mine else []
    body = "".join(changes.get(i, token) for i, token in enumerate(tokens)).split("\n")
    opened = [f"{p.variable} = {ctx}.{p.variable}" for p in used]
    kept = [Kept("value", "input", p.position, p.name, p.variable) for p in used]
    derived = replace(base, body=(*opened, *body), kept=(*base.kept, *kept))
    if not same(derived, derive(example), call, example):
        raise CannotFixError("its derivative takes another form for other values of its arguments")
    left = [text for p in plain if (text := _exceptions(p, derived, derive, call, args))]
    return replace(derived, only=", ".join([derived.only, *left] if derived.only else left))


def _ordinary(p: Plain, derive: Callable[[Sequence[Any]], Derived], args: Sequence[Any]) -> Any:
    """Return a value of an argument for which the derivative has the form that it has for most."""
    forms: dict[str, list[Any]] = defaultdict(list)
    for value, text in _texts(p, derive, args).items():
        forms["".join("0" if _is_number(token) else token for token in _tokens(text))].append(value)
    if not forms or len(max(forms.values(), key=len)) < 2:
        raise CannotFixError(f"its derivative is known for {p.name}={args[p.position]!r} alone")
    return max(forms.values(), key=len)[0]


def _texts(p: Plain, derive: Callable[[Sequence[Any]], Derived], args: Sequence[Any]) -> dict[Any, Derived]:
    """Return the texts for several values of an argument."""
    found: dict[Any, Derived] = {}
    for value in _values(args[p.position]):
        try:
            found[value] = derive(_with(args, p, value))
        except Exception:  # any error of a formula for a value that it does not take
            continue
    return found


def _values(value: Any) -> list[Any]:
    """Return an argument's value and others, for floats ones that no other constant equals; none if not a number."""
    if isinstance(value, bool):
        return [value, not value]
    if isinstance(value, int):
        return list(dict.fromkeys([value, value + 1, value - 1, 0, -1, 3, 4, 5]))
    if isinstance(value, float):
        return [value * factor + shift for factor, shift in ((0.83, 0.117), (1.31, 0.371), (0.57, 0.0), (1.13, 0.0))]
    return []


def _changes(p: Plain, tokens: list[str], found: Mapping[Any, Derived]) -> dict[int, str]:
    """Return the positions of numbers that depend on an argument, and their expressions."""
    texts = {value: text for value, derived in found.items() if _alike(text := _tokens(derived), tokens)}
    return {
        i: _expression(p, {value: float(text[i]) for value, text in texts.items()})
        for i in range(len(tokens))
        if len({text[i] for text in texts.values()}) > 1
    }


def _expression(p: Plain, numbers: Mapping[Any, float]) -> str:
    """Return an expression of an argument that equals these numbers.

    Raises:
        CannotFixError: if there is none.
    """
    known = len(numbers) >= _ENOUGH
    for factor in _FACTORS if known else (1.0,):
        for shift in _SHIFTS if known else (0.0,):
            if all(_close(factor * v + shift, n) for v, n in numbers.items()):
                return _spelled(p.variable, factor, shift)
    if known and all(v and _close(1 / v, n) for v, n in numbers.items()):
        return f"(1 / {p.variable})"
    raise CannotFixError(f"its derivative has numbers that depend on {p.name} in a way that is not simple")


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= _CLOSE * max(1.0, abs(b))


def _spelled(name: str, factor: float, shift: float) -> str:
    scaled = {1.0: name, -1.0: f"-{name}"}.get(factor, f"{factor:g} * {name}")
    text = scaled if not shift else f"{scaled} {'-' if shift < 0 else '+'} {abs(shift):g}"
    return text if text == name else f"({text})"


def _exceptions(
    p: Plain, derived: Derived, derive: Callable[[Sequence[Any]], Derived], call: Callable[..., Any], args: list[Any]
) -> str:
    """Return the values of an argument, special ones among them, for which the text is not right; empty if none."""
    value = args[p.position]
    special = [float(v) for v in (0, 1, 2, -1)] if isinstance(value, float) else []
    wrong = []
    for other in dict.fromkeys([*_values(value), *special]):
        there = [_with_zero(a) if isinstance(a, Tensor) else a for a in _with(args, p, other)]
        try:
            right = derive(there)
        except Exception:  # any error of a formula for a value that it does not take
            continue
        if not same(derived, right, call, there):
            wrong.append(repr(other))
    return f"{p.name} other than {', '.join(wrong)}" if wrong else ""


def _with_zero(x: Tensor) -> Tensor:
    """Return a tensor with a zero in the first place, where powers and quotients are special."""
    x = x.detach().clone(memory_format=torch.contiguous_format)
    x.reshape(-1)[:1] = 0
    return x


def _with(args: Sequence[Any], p: Plain, value: Any) -> list[Any]:
    return [value if i == p.position else a for i, a in enumerate(args)]


def _tokens(derived: Derived) -> list[str]:
    return _TOKEN.findall("\n".join(derived.body))


def _alike(a: Sequence[str], b: Sequence[str]) -> bool:
    """Whether two texts are equal except for numbers."""
    if len(a) != len(b):
        return False
    return all(x == y or (_is_number(x) and _is_number(y)) for x, y in zip(a, b, strict=True))


def _is_number(token: str) -> bool:
    return token.removeprefix("-")[:1].isdigit()
