"""A ruled op for Dynamo, which traces a Function only if its arguments are tensors and constants.

The rule and formula are closed over; containers as arguments or results are refused. Forward mode is absent:
Dynamo refuses a Function that defines `jvp`. A rule given as a jvp is transposed as it is traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.bind.gradients import checked, wrong_number
from pullback.bind.linear import require_linear_jvp
from pullback.bind.rule import Rule
from pullback.bind.tripwire import tripwire
from pullback.dtypes import has_derivative
from pullback.errors import DerivativeError


def compilable(rule: Rule) -> Callable[..., Any]:
    """Return the op as a function that Dynamo traces with its rule."""
    name, formula, residuals, parameters = rule.name, rule.formula, rule.residuals, rule.parameters
    pull = _by_vjp(rule.vjp, rule.wants_needs) if rule.vjp is not None else _by_jvp(rule.jvp)
    unproven = rule.vjp is None and not rule.jvp_linear

    @_torch.constant_while_compiling
    def prove(kinds: list[Any]) -> None:
        """Run while Dynamo traces."""
        require_linear_jvp(rule, kinds)

    class Compilable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            result = formula(*args)
            out, kept = result if residuals else (result, ())
            several = isinstance(out, tuple)
            outputs = tuple(_guarded(t, args, name) for t in (out if several else (out,)))
            saved = kept if isinstance(kept, tuple) else (kept,)
            tensors = [a for a in args if isinstance(a, Tensor)]
            ctx.rest = [None if isinstance(a, Tensor) else a for a in args]
            ctx.is_tensor = [isinstance(a, Tensor) for a in args]
            ctx.several, ctx.one_kept = several, not isinstance(kept, tuple)
            ctx.counts = (len(tensors), len(tensors) + len(outputs))
            ctx.save_for_backward(*tensors, *outputs, *saved)
            if not all([has_derivative(t) for t in outputs]):  # noqa: C419 - Dynamo knows no generator here
                ctx.mark_non_differentiable(*[t for t in outputs if not has_derivative(t)])
            return outputs if several else outputs[0]

        @staticmethod
        def backward(ctx: Any, *gs: Any) -> Any:
            n_tensors, border = ctx.counts
            saved = list(ctx.saved_tensors)
            tensors, outputs, kept = saved[:n_tensors], saved[n_tensors:border], saved[border:]
            args, k = [], 0
            for rest, is_tensor in zip(ctx.rest, ctx.is_tensor, strict=True):
                args.append(tensors[k] if is_tensor else rest)
                k += is_tensor
            given = [tuple(outputs) if ctx.several else outputs[0]]
            if residuals:
                given.append(kept[0] if ctx.one_kept else tuple(kept))
            result = pull(tuple(gs) if ctx.several else gs[0], [*given, *args], args, ctx.needs_input_grad)
            _check(name, parameters, result, args)
            return result

    def call(args: tuple[Any, ...]) -> Any:
        if any(isinstance(a, list | tuple | dict) for a in args):
            raise DerivativeError(
                f"the derivative given for {name} would be lost: torch.compile keeps the rule of an op only if its "
                "arguments are tensors and plain values. To keep it, pass the tensors of the container one by one, or "
                "call the op outside of the compiled function."
            )
        if unproven:
            prove([_kind(a) for a in args])
        return Compilable.apply(*args)  # type: ignore[no-untyped-call]

    return call


def _kind(a: Any) -> Any:
    """Return shape, dtype and device of a tensor; sizes as numbers, which Dynamo takes for constants."""
    return (tuple([len([0] * n) for n in a.shape]), a.dtype, a.device) if isinstance(a, Tensor) else a


def _guarded(t: Any, args: tuple[Any, ...], name: str) -> Tensor:
    if not isinstance(t, Tensor):
        raise DerivativeError(
            f"the derivative given for {name} would be lost: torch.compile keeps the rule of an op only if it returns "
            "a tensor or a tuple of tensors. To keep it, return a tuple, or call the op outside of the compiled "
            "function."
        )
    return tripwire(t, args, name) if has_derivative(t) else t


def _by_vjp(vjp: Callable[..., Any], wants_needs: bool) -> Callable[..., Any]:
    def pull(g: Any, given: list[Any], args: list[Any], needs: tuple[bool, ...]) -> tuple[Any, ...]:
        options = {"needs": tuple(needs)} if wants_needs else {}
        result = vjp(g, *given, **options)
        return result if isinstance(result, tuple) else (result,)

    return pull


def _by_jvp(jvp: Callable[..., Any] | None) -> Callable[..., Any]:
    assert jvp is not None

    def pull(g: Any, given: list[Any], args: list[Any], needs: tuple[bool, ...]) -> tuple[Any, ...]:
        moved = [i for i, need in enumerate(needs) if need]
        several = isinstance(g, tuple)
        outputs = given[0] if several else (given[0],)

        def along(*ts: Tensor) -> tuple[Tensor, ...]:
            tangents: list[Any] = [None] * len(args)
            for i, t in zip(moved, ts, strict=True):
                tangents[i] = t
            pushed = jvp(tuple(tangents), *given)
            pairs = zip(pushed if several else (pushed,), outputs, strict=True)
            return tuple([torch.zeros_like(out) if t is None else t for t, out in pairs if has_derivative(out)])

        live = tuple([h for h, out in zip(g if several else (g,), outputs, strict=True) if has_derivative(out)])
        found = torch.func.vjp(along, *[torch.zeros_like(args[i]) for i in moved])[1](live)
        result: list[Any] = [None] * len(args)
        for i, gradient in zip(moved, found, strict=True):
            result[i] = gradient
        return tuple(result)

    return pull


def _check(name: str, parameters: tuple[str, ...], result: tuple[Any, ...], args: list[Any]) -> None:
    if len(result) != len(args):
        raise wrong_number(name, parameters, result, args)
    for i, (g, x) in enumerate(zip(result, args, strict=True)):
        argument = parameters[i] if i < len(parameters) else f"argument {i}"
        if isinstance(x, Tensor):
            checked(name, argument, (x.shape, x.dtype), g, True)
        elif g is not None:
            raise DerivativeError(f"the vjp of {name} returned a gradient for {x!r} in `{argument}`.")
