"""A ruled op for Dynamo, which traces a Function only if its arguments are tensors and constants.

The rule and formula are closed over; containers as arguments or results are refused. The checks of what
the rule returns are those of AOTAutograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pullback.bind.rule import Rule, takes
from pullback.bind.tripwire import tripwire
from pullback.errors import DerivativeError


def compilable(rule: Rule) -> Callable[..., Any]:
    """Return the op as a function that Dynamo traces with its rule."""
    name, formula, vjp, residuals = rule.name, rule.formula, rule.vjp, rule.residuals
    wants_needs = vjp is not None and takes(vjp, "needs")

    class Compilable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            result = formula(*args)
            out, kept = result if residuals else (result, ())
            several = isinstance(out, tuple)
            outputs = tuple(
                tripwire(t, args, name) if t.is_floating_point() else t for t in (out if several else (out,))
            )
            saved = kept if isinstance(kept, tuple) else (kept,)
            tensors = [a for a in args if isinstance(a, Tensor)]
            ctx.rest = [None if isinstance(a, Tensor) else a for a in args]
            ctx.is_tensor = [isinstance(a, Tensor) for a in args]
            ctx.several, ctx.one_kept = several, not isinstance(kept, tuple)
            ctx.counts = (len(tensors), len(tensors) + len(outputs))
            ctx.save_for_backward(*tensors, *outputs, *saved)
            if not all([t.is_floating_point() for t in outputs]):  # noqa: C419 - Dynamo knows no generator here
                ctx.mark_non_differentiable(*[t for t in outputs if not t.is_floating_point()])
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
            given = [tuple(gs) if ctx.several else gs[0], tuple(outputs) if ctx.several else outputs[0]]
            if residuals:
                given.append(kept[0] if ctx.one_kept else tuple(kept))
            assert vjp is not None
            options = {"needs": tuple(ctx.needs_input_grad)} if wants_needs else {}
            result = vjp(*given, *args, **options)
            return result if isinstance(result, tuple) else (result,)

    def call(args: tuple[Any, ...]) -> Any:
        if any(isinstance(a, list | tuple | dict) for a in args):
            raise DerivativeError(f"{name} has a rule and takes containers: torch.compile cannot keep the rule.")
        return Compilable.apply(*args)  # type: ignore[no-untyped-call]

    return call
