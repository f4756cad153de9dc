"""A ruled op for Dynamo, which traces a Function only if its arguments are tensors and constants.

The rule and formula are closed over; containers as arguments or results are refused. Forward mode is absent:
Dynamo refuses a Function that defines `jvp`. A rule given as a jvp is transposed as it is traced.

Dynamo passes a Function zeros as the cotangent of an output that the loss does not use, and 0 · ∞ is NaN. So each
output of an op with a jvp comes from a separate Function, whose backward runs only if the output is used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.dtypes import has_derivative
from pullback.errors import DerivativeError
from pullback.guards import guard_in_graph, refuse_transforms, tripwire
from pullback.ruled.captured import check_captures, may_capture_or_write
from pullback.ruled.linearity import require_linear_jvp
from pullback.ruled.rule import DerivativeRule, checked, wrong_number


def compilable(rule: DerivativeRule) -> Callable[..., Any]:
    """Return the op as a function that Dynamo traces with its rule."""
    apply = _by_jvp(rule) if rule.vjp is None else _by_vjp(rule)
    name, is_transposed = rule.name, rule.vjp is None

    @_torch.assume_constant_result
    def prove(kinds: list[Any]) -> None:
        """Run while Dynamo traces."""
        require_linear_jvp(rule, kinds)

    @_torch.assume_constant_result
    def is_suspect() -> bool:
        """Run while Dynamo traces."""
        return may_capture_or_write(rule.formula)

    @_torch.assume_constant_result
    def check(kinds: list[Any], live: list[bool]) -> None:
        """Run while Dynamo traces."""
        check_captures(rule, kinds, live)

    def call(args: tuple[Any, ...]) -> Any:
        if any(isinstance(a, list | tuple | dict) for a in args):
            raise DerivativeError(
                f"the derivative given for {name} would be lost: torch.compile keeps the rule of an op only if its "
                "arguments are tensors and plain values. To keep it, pass the tensors of the container one by one, or "
                "call the op outside of the compiled function."
            )
        refuse_transforms(name)
        if is_transposed:
            prove([_kind(a) for a in args])
        if torch.is_grad_enabled() and is_suspect() and all(a is None or isinstance(a, _KNOWN) for a in args):
            check([_kind(a) for a in args], [isinstance(a, Tensor) and a.requires_grad for a in args])
        return guard_in_graph(apply(*args), args, name)

    return call


_A_SIZE = 10**6
"""A number below may be a size of a tensor, which Dynamo follows as a symbol."""
_KNOWN = (Tensor, bool, int, float, str)
"""Arguments that Dynamo passes on as constants, tensors by their kind."""


def _by_vjp(rule: DerivativeRule) -> Callable[..., Any]:
    """Return an op with a vjp, as one Function."""
    name, formula, residuals, parameters = rule.name, rule.formula, rule.residuals, rule.parameters
    vjp: Callable[..., Any] = rule.vjp  # type: ignore[assignment]
    wants_needs = rule.wants_needs

    class Compilable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            result = formula(*args)
            out, saved = result if residuals else (result, ())
            ctx.shapes = several, one_kept = isinstance(out, tuple), not isinstance(saved, tuple)
            outputs = tuple(tripwire(t, args, name) if _is_live(t, name) else t for t in (out if several else (out,)))
            _save(ctx, (*args, *outputs, *((saved,) if one_kept else saved)))
            ctx.counts = len(args), len(args) + len(outputs)
            if not all([has_derivative(t) for t in outputs]):  # noqa: C419 - Dynamo knows no generator here
                ctx.mark_non_differentiable(*[t for t in outputs if not has_derivative(t)])
            return outputs if several else outputs[0]

        @staticmethod
        def backward(ctx: Any, *gs: Any) -> Any:
            saved, (n_args, border), (several, one_kept) = _saved(ctx), ctx.counts, ctx.shapes
            args, given = saved[:n_args], [_lone_or_tuple(saved[n_args:border], not several)]
            if residuals:
                given.append(_lone_or_tuple(saved[border:], one_kept))
            options = {"needs": tuple(ctx.needs_input_grad)} if wants_needs else {}
            found = vjp(_lone_or_tuple(gs, not several), *given, *args, **options)
            result = found if isinstance(found, tuple) else (found,)
            _check(name, parameters, result, args)
            return result

    _give_ctx(Compilable)
    return Compilable.apply


def _by_jvp(rule: DerivativeRule) -> Callable[..., Any]:
    """Return an op with a jvp, as a Function for each output."""
    name, formula, residuals, parameters = rule.name, rule.formula, rule.residuals, rule.parameters
    jvp: Callable[..., Any] = rule.jvp  # type: ignore[assignment]

    class Output(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, i: int, counts: tuple[int, int], shapes: tuple[bool, bool], *given: Any) -> Any:
            _save(ctx, given)
            ctx.i, ctx.counts, ctx.shapes = i, counts, shapes
            return tripwire(given[i], given[counts[1] :], name)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            saved, (n_outputs, border), (several, one_kept) = _saved(ctx), ctx.counts, ctx.shapes
            outputs, args = saved[:n_outputs], saved[border:]
            given = [_lone_or_tuple(outputs, not several)]
            if residuals:
                given.append(_lone_or_tuple(saved[n_outputs:border], one_kept))
            moved = [i for i, need in enumerate(ctx.needs_input_grad[3 + border :]) if need]

            def along(*ts: Tensor) -> Tensor:
                tangents: list[Any] = [None] * len(args)
                for i, t in zip(moved, ts, strict=True):
                    tangents[i] = t
                pushed = jvp(tuple(tangents), *given, *args)
                t = pushed[ctx.i] if several else pushed
                return torch.zeros_like(outputs[ctx.i]) if t is None else t

            found = torch.func.vjp(along, *[torch.zeros_like(args[i]) for i in moved])[1](g)
            result: list[Any] = [None] * len(args)
            for i, gradient in zip(moved, found, strict=True):
                result[i] = gradient
            _check(name, parameters, tuple(result), args)
            return (None,) * (3 + border) + tuple(result)

    _give_ctx(Output)

    def apply(*args: Any) -> Any:
        with torch.no_grad():
            result = formula(*args)
        out, saved = result if residuals else (result, ())
        several, one_kept = isinstance(out, tuple), not isinstance(saved, tuple)
        outputs, saved = out if several else (out,), (saved,) if one_kept else saved
        counts, given = (len(outputs), len(outputs) + len(saved)), (*outputs, *saved, *args)
        made = [
            Output.apply(i, counts, (several, one_kept), *given)  # type: ignore[no-untyped-call]
            if _is_live(t, name)
            else t
            for i, t in enumerate(outputs)
        ]
        return tuple(made) if several else made[0]

    return apply


def _give_ctx(function: Any) -> None:
    """Have the forward of a Function get `ctx` wherever Dynamo calls it.

    Where nothing requires grad, Dynamo leaves `ctx` out if a forward has as many parameters as there are arguments,
    `*args` counted as one. The signature that it asks for has none.
    """
    function.forward.__signature__ = inspect.Signature()


def _save(ctx: Any, values: tuple[Any, ...]) -> None:
    ctx.rest = [None if isinstance(value, Tensor) else value for value in values]
    ctx.is_tensor = [isinstance(value, Tensor) for value in values]
    ctx.save_for_backward(*[value for value in values if isinstance(value, Tensor)])


def _saved(ctx: Any) -> list[Any]:
    tensors, values, k = list(ctx.saved_tensors), [], 0
    for rest, is_tensor in zip(ctx.rest, ctx.is_tensor, strict=True):
        values.append(tensors[k] if is_tensor else rest)
        k += is_tensor
    return values


def _lone_or_tuple(values: Sequence[Any], is_one: bool) -> Any:
    return values[0] if is_one else tuple(values)


def _kind(a: Any) -> Any:
    """Return shape, dtype and device of a tensor, or a plain value; sizes as numbers, Dynamo's constants."""
    if isinstance(a, Tensor):
        return (tuple([len([0] * n) for n in a.shape]), a.dtype, a.device)
    return len([0] * a) if isinstance(a, int) and not isinstance(a, bool) and 0 < a < _A_SIZE else a


def _is_live(t: Any, name: str) -> bool:
    """Whether an output has a derivative."""
    if not isinstance(t, Tensor):
        raise DerivativeError(
            f"the derivative given for {name} would be lost: torch.compile keeps the rule of an op only if it returns "
            "a tensor or a tuple of tensors. To keep it, return a tuple, or call the op outside of the compiled "
            "function."
        )
    return has_derivative(t)


def _check(name: str, parameters: tuple[str, ...], result: tuple[Any, ...], args: list[Any]) -> None:
    if len(result) != len(args):
        raise wrong_number(name, parameters, result, args)
    for i, (g, x) in enumerate(zip(result, args, strict=True)):
        argument = parameters[i] if i < len(parameters) else f"argument {i}"
        if isinstance(x, Tensor):
            checked(name, argument, (x.shape, x.dtype), g, True)
        elif g is not None:
            raise DerivativeError(
                f"the vjp of {name} returned a gradient for `{argument}`, where {x!r} is not a tensor: return None."
            )
