"""The sixth part of the labels: packages that were chosen and read after the last part had been worked on.

They were chosen by field, before anything was known of them but that they hold custom functions and install as pure
Python. Here is what their proofs share beside `labels.fresh`, `labels.blind` and `labels.last`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labels.fresh import Make, called, far, gradients, linear, prepared


def argument_gets_none(make: Make, position: int) -> bool:
    """Whether an argument gets no gradient, though the output changes with it."""
    function, arguments, which = prepared(make)
    before = linear(called(function, arguments))
    index = which[position]
    changed = [a + 0.1 if i == index else a for i, a in enumerate(arguments)]
    after = linear(called(function, changed))
    return gradients(make)[position] is None and not torch.allclose(before, after)


def weights_get_none(make: Make, weights: Callable[[Any], list[Tensor]]) -> bool:
    """Whether `torch.autograd.grad` gives nothing to weights that the call holds, and their `.grad` is written to."""
    target, arguments = make()
    held = weights((target, arguments))
    function = target.apply if isinstance(target, type) else target
    given = [a.detach().clone().requires_grad_() if _is_floating(a) else a for a in arguments]
    leaves = [a for a in given if _is_floating(a)]
    found = torch.autograd.grad(linear(called(function, given)), [*leaves, *held], allow_unused=True)
    return all(g is None for g in found[len(leaves) :]) and all(w.grad is not None for w in held)


def nothing_is_trained_without(make: Make) -> bool:
    """Whether the output needs no gradient where the arguments need none, though weights that the call holds do."""
    target, arguments = make()
    function = target.apply if isinstance(target, type) else target
    return not any(y.requires_grad for y in called(function, [_detached(a) for a in arguments]))


def second_order_of(function: Any, arguments: tuple[Any, ...], position: int = 0) -> tuple[Tensor, Tensor]:
    """First and second derivatives of a fixed nonlinear number of the outputs, in the dtype of the arguments."""
    given = [a.detach().clone().requires_grad_() if _is_floating(a) else a for a in arguments]
    leaf = [a for a in given if _is_floating(a)][position]
    value = linear([torch.tanh(y) for y in called(function, given)]) + leaf.square().sum()
    (first,) = torch.autograd.grad(value, leaf, create_graph=True)
    (second,) = torch.autograd.grad(linear([first], 3), leaf)
    return first.detach(), second


def second_differs(make: Make, reference: Callable[..., Any], position: int = 0) -> bool:
    """Whether first derivatives are those of a reference in PyTorch's operations, and second ones are not."""
    function, arguments, _ = prepared(make, None)
    found = second_order_of(function, tuple(arguments), position)
    expected = second_order_of(reference, tuple(arguments), position)
    return not far(found[0], expected[0], 0.01) and far(found[1], expected[1], 0.01)


def _is_floating(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value
