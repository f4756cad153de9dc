"""The derivative of an op with a rule, as functions of tensors alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from pullback.bind.call import Call
from pullback.bind.rule import Rule
from pullback.errors import FormulaError
from pullback.op import Op
from pullback.write.definition import Definition


def without_residuals(op: Op) -> Callable[..., Any]:
    """Return the formula of an op, without the residuals that it returns for its rule."""
    if not op._residuals:
        return op._formula

    @functools.wraps(op._formula)
    def value(*args: Any, **kwargs: Any) -> Any:
        return op._formula(*args, **kwargs)[0]

    return value


def add_rule(d: Definition, rule: Rule, call: Call) -> None:
    """Have the derivative of a rule, called as the engine calls it."""
    places = [next(i for i, leaf in enumerate(call.leaves) if leaf is x) for x in call.tensors]
    if any(isinstance(a, list | tuple | dict) for a in call.arguments()[0]):
        raise FormulaError(f"{d.name} cannot be written: its rule takes containers of tensors.")

    def called(function: Callable[..., Any], first: Any, outs: Sequence[Tensor], given: Sequence[Tensor]) -> Any:
        out = tuple(outs) if d.is_tuple else outs[0]

        def rule_of(*args: Any) -> Any:
            saved = (rule.formula(*args)[1],) if rule.residuals else ()
            needs = {"needs": tuple(isinstance(a, Tensor) for a in args)} if rule.wants_needs else {}
            found = function(first(args), out, *saved, *args, **(needs if function is rule.vjp else {}))
            return found if isinstance(found, tuple) else (found,)

        return call.flat(rule_of)(*given)

    if rule.vjp is not None:

        def pull(gs: Sequence[Tensor], outs: Sequence[Tensor], given: Sequence[Tensor]) -> list[Any]:
            found = called(rule.vjp, lambda _: tuple(gs) if d.is_tuple else gs[0], outs, given)  # type: ignore[arg-type]
            return [found[place] for place in places]

        d.pull = pull
    if rule.jvp is not None:

        def push(ts: Sequence[Tensor | None], outs: Sequence[Tensor], given: Sequence[Tensor]) -> list[Any]:
            def tangents(args: Sequence[Any]) -> tuple[Any, ...]:
                every: list[Any] = [None] * len(args)
                for place, t in zip(places, ts, strict=True):
                    every[place] = t
                return tuple(every)

            return list(called(rule.jvp, tangents, outs, given))  # type: ignore[arg-type]

        d.push = push
