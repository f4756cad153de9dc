"""A call as a pure function of some of its tensors, in a form that transforms and tracers can follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from pullback._torch import tree_flatten, tree_unflatten
from pullback.check.case import Case

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
        for order in range(count):
            tensor = tensors[order].clone() if copied else tensors[order]
            for position in slots[order]:
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
