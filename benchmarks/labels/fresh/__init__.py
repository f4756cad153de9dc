"""The third part of the labels: packages that nobody had looked at when both halves of the others had been.

They were chosen by field, before anything was known of them but that they hold custom functions and install as pure
Python. Here is what their proofs share, in plain PyTorch: `make` returns a Function or callable, and its arguments.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Make = Callable[[], tuple[Any, tuple[Any, ...]]]


def prepared(make: Make, dtype: torch.dtype | None = torch.float64) -> tuple[Any, list[Any], list[int]]:
    """The callable of a call, its arguments in a dtype, and which of them are differentiable."""
    target, arguments = make()
    found = [cast(a, dtype) if _is_real(a) else a for a in arguments]
    return (
        (target.apply if isinstance(target, type) else target),
        found,
        [i for i, a in enumerate(found) if _is_real(a)],
    )


def gradients(make: Make, dtype: torch.dtype | None = torch.float64) -> list[Tensor | None]:
    """The gradients of a fixed linear function of the outputs."""
    function, arguments, which = prepared(make, dtype)
    leaves = [arguments[i].requires_grad_() for i in which]
    return list(torch.autograd.grad(linear(called(function, arguments)), leaves, allow_unused=True))


def called(function: Any, arguments: Sequence[Any]) -> list[Tensor]:
    """The real or complex outputs of a call, from a fixed state of the generator."""
    torch.manual_seed(0)
    outputs = function(*arguments)
    return [y for y in (outputs if isinstance(outputs, tuple | list) else (outputs,)) if _is_real(y)]


def linear(outputs: Sequence[Tensor], seed: int = 1) -> Tensor:
    """A fixed linear function of some tensors."""
    generator = torch.Generator().manual_seed(seed)
    terms = []
    for y in outputs:
        y = torch.view_as_real(y) if y.is_complex() else y
        terms.append((y.double() * torch.randn(y.shape, generator=generator, dtype=torch.float64)).sum())
    return torch.stack(terms).sum()


def differences(f: Callable[[Tensor], Tensor], x: Tensor, eps: float = 1e-5) -> Tensor:
    """The gradient of the number `f(x)` by central differences."""
    flat, out = x.detach().reshape(-1), []
    for i in range(flat.numel()):
        step = torch.zeros_like(flat)
        step[i] = eps
        out.append((f((flat + step).view_as(x)) - f((flat - step).view_as(x))).detach() / (2 * eps))
    return torch.stack(out).view_as(x)


def far(found: Tensor | None, expected: Tensor, tolerance: float) -> bool:
    """Whether a gradient, where there is one, differs from what it should be by a part of that."""
    found = torch.zeros_like(expected) if found is None else found
    return not bool((found - expected).abs().max() <= tolerance * expected.abs().max())


def first_is_wrong(
    make: Make, position: int, tolerance: float = 0.01, dtype: Any = torch.float64, eps: float = 1e-5
) -> bool:
    """Whether the gradient of a differentiable argument differs from central differences."""
    function, arguments, which = prepared(make, dtype)
    index = which[position]

    def value(x: Tensor) -> Tensor:
        return linear(called(function, [x if i == index else a for i, a in enumerate(arguments)]))

    expected = differences(value, arguments[index], eps)
    return far(gradients(make, dtype)[position], expected, tolerance)


def second_is_wrong(make: Make, position: int = 0, tolerance: float = 0.01) -> bool:
    """Whether a second derivative differs from differences of first ones, and nothing is said; float64."""
    function, arguments, which = prepared(make)

    def first(x: Tensor, create_graph: bool) -> tuple[Tensor, Tensor]:
        given = [x.detach().clone() if i == which[position] else a for i, a in enumerate(arguments)]
        leaf = [given[i].requires_grad_() for i in which][position]
        value = linear([torch.tanh(y) for y in called(function, given)])
        # The square of the argument keeps a graph where the function itself loses it.
        value = value + leaf.square().sum()
        return leaf, linear(torch.autograd.grad(value, leaf, create_graph=create_graph), 3)

    leaf, number = first(arguments[which[position]], True)
    (found,) = torch.autograd.grad(number, leaf)
    (added,) = torch.autograd.grad(linear([2 * leaf], 3), leaf)
    expected = differences(lambda x: first(x, False)[1], arguments[which[position]]) - added
    return far(found - added, expected, tolerance) and bool(expected.abs().max() > 1e-5)


def raises(run: Callable[[], Any], *texts: str) -> bool:
    """Whether a run ends with an error that says one of some texts."""
    try:
        run()
    except Exception as error:
        return any(text in str(error) for text in texts)
    return False


def second_raises(make: Make, *texts: str) -> bool:
    """Whether double backward ends with an error that says one of some texts."""
    return raises(lambda: second_is_wrong(make), *texts)


def raises_when_frozen(make: Make, free: int, *texts: str) -> bool:
    """Whether the backward fails where one argument alone requires a gradient."""
    function, arguments, which = prepared(make)
    arguments[which[free]].requires_grad_()
    return raises(lambda: linear(called(function, arguments)).backward(), *texts)


def raises_in_autocast(make: Make, *texts: str) -> bool:
    """Whether the backward fails after a forward under autocast."""
    function, arguments, which = prepared(make, torch.float32)
    leaves = [arguments[i].requires_grad_() for i in which]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = linear(called(function, arguments))
    return raises(lambda: torch.autograd.grad(value, leaves, allow_unused=True), *texts)


def raises_in_checkpoint(make: Make, *texts: str) -> bool:
    """Whether the backward fails under activation checkpointing."""
    function, arguments, which = prepared(make)
    leaves = [arguments[i].requires_grad_() for i in which]
    value = linear(called(lambda *args: checkpoint(function, *args, use_reentrant=False), arguments))
    return raises(lambda: torch.autograd.grad(value, leaves, allow_unused=True), *texts)


def second_backward_differs(make: Make) -> bool:
    """Whether a second backward over a retained graph gives other gradients, and nothing is said."""
    function, arguments, which = prepared(make)
    leaves = [arguments[i].requires_grad_() for i in which]
    value = linear(called(function, arguments))
    before = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
    after = torch.autograd.grad(value, leaves, allow_unused=True)
    return any(b is not None and far(a, b, 0.01) for a, b in zip(after, before, strict=True))


def output_change_is_unnoticed(make: Make) -> bool:
    """Whether a change of the output in place silently changes the gradient."""
    found = []
    for in_place in (False, True):
        function, arguments, which = prepared(make)
        leaves = [arguments[i].requires_grad_() for i in which]
        outputs = called(function, arguments)
        value = linear([y.mul_(2) if in_place else y * 2 for y in outputs])
        found.append(torch.autograd.grad(value, leaves))
    return any(far(a, b, 0.01) for a, b in zip(*found, strict=True))


def input_change_is_unnoticed(make: Make, position: int) -> bool:
    """Whether a change of an argument between forward and backward silently changes the gradients."""
    function, arguments, which = prepared(make)
    leaves = [arguments[i].requires_grad_() for i in which]
    value = linear(called(function, arguments))
    with torch.no_grad():
        arguments[position].mul_(2)
    found = torch.autograd.grad(value, leaves, allow_unused=True)
    return any(far(a, b, 0.01) for a, b in zip(found, gradients(make), strict=True) if a is not None and b is not None)


def is_kept(make: Make) -> bool:
    """Whether the outputs live on when nothing holds them, until the garbage collector runs."""
    function, arguments, which = prepared(make)
    for i in which:
        arguments[i].requires_grad_()
    gc.collect()
    gc.disable()
    try:
        alive = [weakref.ref(y) for y in called(function, arguments)]
        return any(reference() is not None for reference in alive)
    finally:
        gc.enable()
        gc.collect()


def cast(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A copy of a tensor, in a dtype if it is real."""
    return x.detach().clone() if dtype is None or x.is_complex() else x.detach().clone().to(dtype)


def _is_real(value: object) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
