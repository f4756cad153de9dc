"""Measurements of one function besides its findings: plain numbers of bounded size, plotted by the report page.

A number that is not finite, or unknown, is `None`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

ContextState = Literal["ok", "unsupported", "intended", "inconclusive", "warning", "error", "not tried"]
Numbers = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Context:
    """A context of differentiation, such as "func.vmap", and the function's result in it.

    Findings that a comment allows or a baseline lists count like any other. A refusal is "unsupported".
    """

    name: str
    state: ContextState


@dataclass(frozen=True, slots=True)
class Slope:
    """The gradient along one input of an elementwise function, beside numeric derivatives of its forward.

    Attributes:
        by: the input; others are held at their value in the example.
        at: its values.
        got: the gradient.
        low, high: range of the numeric derivative: ten error bars around it; at a kink all between its two sides.
    """

    by: str
    at: Numbers
    got: Numbers
    low: Numbers
    high: Numbers


@dataclass(frozen=True, slots=True)
class UlpErrors:
    """The largest error in each part of the range of an elementwise function of one input.

    Attributes:
        of: "value" or "gradient of x".
        dtype: in which it is computed.
        at: where the error is largest, in each part.
        ulp: that error; `None` where NaN, an infinity or 0 is computed that is not right.
        exact: whether it is held against exact values; else against a float64 run of the same function.
    """

    of: str
    dtype: str
    at: Numbers
    ulp: Numbers
    exact: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """All of it, and whether it was on inputs that the audit guessed."""

    contexts: tuple[Context, ...] = ()
    slopes: tuple[Slope, ...] = ()
    errors: tuple[UlpErrors, ...] = ()
    guessed: bool = False


def measured_from_dict(data: dict[str, Any]) -> Measured:
    """Rebuild it from the plain data that `dataclasses.asdict` gives, also after a way through JSON."""
    return Measured(
        tuple(Context(**one) for one in data["contexts"]),
        tuple(Slope(**_tuples(one)) for one in data["slopes"]),
        tuple(UlpErrors(**_tuples(one)) for one in data["errors"]),
        data.get("guessed", False),  # of an earlier version
    )


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
