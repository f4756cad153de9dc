"""An op whose derivative is given by a rule: three Functions, for plain eager mode, for transforms, for Dynamo.

Each carries the rule. Their constraints differ: in plain eager mode `setup_context` would make a call three times
slower; Dynamo refuses a Function that defines `jvp`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pullback import _torch, dispatch
from pullback.call import Tree
from pullback.dtypes import has_derivative
from pullback.errors import DerivativeError
from pullback.guards import (
    RESIDUAL,
    guard,
    guard_double_backward,
    guard_foreign_results,
    refuse_transforms,
    with_unknown_derivative,
)
from pullback.ruled.captured import require_unwritten, value_of
from pullback.ruled.dynamo import compilable
from pullback.ruled.linearity import objection, pull_by_transposition, push_by_transposition, zeros_if_none
from pullback.ruled.rule import CallRecord, DerivativeRule


class Ruled:
    """The calls of an op with a rule.

    Args:
        rule: rule of the op.
        bind: assigns the arguments of a call to the formula's parameters.
    """

    table: Any = None
    """No call runs in C++."""

    def __init__(
        self, rule: DerivativeRule, bind: Callable[[tuple[Any, ...], dict[str, Any]], inspect.BoundArguments]
    ) -> None:
        self.rule, self._bind = rule, bind
        self._compilable = compilable(rule) if rule.is_given else None

    def eager(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the formula inside one autograd node, whose backward is the rule."""
        rule = self.rule
        tree, tensors = Tree.of(self._positional(args, kwargs))
        record, needs = CallRecord(tree, [], recording=torch.is_grad_enabled()), False
        for t in tensors:  # one plain loop: this runs at every call
            record.kinds.append((t.shape, t.dtype))
            needs = needs or t.requires_grad
        if needs and record.recording:
            return _structured(record, _apply(rule, record, *tensors))
        return _structured(record, value_of(rule, record, tensors, tracked=False)[0])

    def transformable(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the formula inside a Function that transforms, tracers and modes accept, with the rule.

        Raises:
            DerivativeError: where torch.export meets a rule under a torch.func transform, which it cannot record.
        """
        rule = self.rule
        tree, tensors = Tree.of(self._positional(args, kwargs))
        record = CallRecord(tree, [(t.shape, t.dtype) for t in tensors], recording=torch.is_grad_enabled())
        if dispatch.world().is_compiling:
            refuse_transforms(rule.name)
        below = [_torch.unwrapped(t) for t in tensors if has_derivative(t) and _torch.is_differentiated(t)]
        before = [(t, _torch.version_of(t)) for t in below]
        results = _as_tuple(_Transformable.apply(rule, record, *tensors))  # type: ignore[no-untyped-call]
        require_unwritten(rule, before)
        return _structured(record, results[: len(record.differentiable)])

    subclassed = transformable

    def compiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a Function that Dynamo traces, with the rule."""
        args = self._positional(args, kwargs)
        assert self._compilable is not None
        return self._compilable(args)

    def recorded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Refuse: the derivative of the recorded ops would be that of the formula."""
        raise dispatch.lost_in_symbolic_trace(self.rule.name)

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return the arguments of a call by position, as a rule takes them."""
        rule = self.rule
        if not rule.is_given:
            raise DerivativeError(
                f"{rule.name} has residuals=True, which is for rules: give one by `op.vjp(rule)`, or leave it out."
            )
        if not kwargs and len(args) == len(rule.parameters):
            return args
        bound = self._bind(args, kwargs)
        if bound.kwargs:
            raise DerivativeError(
                f"{rule.name} is called with {', '.join(bound.kwargs)} by keyword alone: a rule takes its "
                "inputs by position. Name them in the signature, without `**`."
            )
        return bound.args


def _structured(record: CallRecord, outputs: Sequence[Tensor]) -> Any:
    assert record.out is not None
    return record.out.filled(outputs)


def _as_tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


class _Eager(torch.autograd.Function):
    """Plain eager mode."""

    @staticmethod
    def forward(ctx: Any, rule: DerivativeRule, record: CallRecord, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs, saved = value_of(rule, record, tensors, tracked=False)
        ctx.rule, ctx.record = rule, record
        if rule.vjp is None:  # asked here, since compiled autograd, which may run the backward, cannot
            ctx.set_materialize_grads(False)
            record.refusal = objection(rule, "jvp", record, tensors, outputs, saved, ctx.needs_input_grad[2:])
        if rule.idle and not rule.residuals:  # residuals may have to be computed again, from all inputs
            ctx.save_for_backward(*_saved_by_need(rule, record, tensors, outputs))
        else:
            ctx.save_for_backward(*tensors, *outputs, *saved)
        if not all(record.differentiable):
            dead = [out for out, yes in zip(outputs, record.differentiable, strict=True) if not yes]
            ctx.mark_non_differentiable(*dead)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *_backward(ctx, cotangents, ctx.needs_input_grad[2:])


_apply = _torch.eager_apply(_Eager)


class _Transformable(torch.autograd.Function):
    """Transforms and tracers: new style, batched by its own ops, and a tripwire for those who check inside."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rule: DerivativeRule, record: CallRecord, *tensors: Tensor) -> tuple[Tensor, ...]:
        is_traced = _torch.in_proxy_tracing() or _torch.in_jit_tracing()  # a mode would change the graph
        outputs, saved = value_of(rule, record, tensors, tracked=not is_traced)
        return (*(guard(out, tensors, rule.name) for out in outputs), *(t.detach() for t in saved))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        rule, record, *tensors = inputs
        n_outputs = len(record.differentiable)
        ctx.rule, ctx.record = rule, record
        ctx.set_materialize_grads(rule.vjp is not None)
        ctx.save_for_backward(*tensors, *output)
        ctx.save_for_forward(*tensors, *output)
        dead = [out for out, yes in zip(output[:n_outputs], record.differentiable, strict=True) if not yes]
        ctx.mark_non_differentiable(*dead, *output[n_outputs:])

    @staticmethod
    @_torch.skip_in_dynamo
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *_backward(ctx, cotangents[: len(ctx.record.differentiable)], ctx.needs_input_grad[2:])

    @staticmethod
    def jvp(ctx: Any, _rule: Any, _record: Any, *tangents: Tensor) -> tuple[Tensor | None, ...]:
        record: CallRecord = ctx.record
        if ctx.rule.vjp is None:  # it is given zeros, as its cotangents are not
            inputs = _saved(ctx)[0]
            tangents = tuple(
                zeros_if_none(t, x) if has_derivative(x) else t for t, x in zip(tangents, inputs, strict=True)
            )
        push = push_by_transposition if ctx.rule.jvp is None else DerivativeRule.push
        with _torch.forward_grad_enabled():
            tensors, outputs, saved = ([forward_ad.unpack_dual(t).primal for t in group] for group in _saved(ctx))
            saved, reason = _tracked_residuals(ctx.rule, record, tensors, saved)
            pushed = guard_foreign_results(
                ctx.rule.name,
                lambda: push(ctx.rule, record, tangents, tensors, outputs, saved),
                [*tensors, *outputs, *saved, *tangents],
                reason,
            )
        live = zip(pushed, outputs, record.differentiable, strict=True)
        return (*(zeros_if_none(t, out) if yes else None for t, out, yes in live), *(None for _ in saved))


def _backward(ctx: Any, cotangents: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor | None]:
    rule: DerivativeRule = ctx.rule
    record: CallRecord = ctx.record
    tensors, outputs, saved = _saved(ctx)
    live: Sequence[Tensor | None] = cotangents
    if not all(record.differentiable):
        live = [g if yes else None for g, yes in zip(cotangents, record.differentiable, strict=True)]
    recording, compiling = torch.is_grad_enabled(), dispatch.world().is_compiling
    differentiated = (recording or _torch.in_dual_level()) and not compiling
    reason = ""
    if differentiated:
        saved, reason = _tracked_residuals(rule, record, tensors, saved)

    pull = pull_by_transposition if rule.vjp is None else DerivativeRule.pull
    if not differentiated or _torch.in_proxy_tracing():
        gradients = pull(rule, record, live, tensors, outputs, saved, needs)
        if compiling:  # a graph states which results share memory
            return gradients
        there = [t for t in (*tensors, *outputs, *saved) if t is not None]
        return [_unaliased(g, there) for g in gradients] if there else gradients

    def pulled(gs: Sequence[Tensor | None]) -> list[Tensor | None]:
        return pull(rule, record, gs, tensors, outputs, saved, needs)

    sources = [t for t in (*tensors, *outputs, *saved) if t is not None]
    if recording and _torch.only_autograd_records():
        return guard_double_backward(rule.name, pulled, live, sources, reason)
    return guard_foreign_results(rule.name, lambda: pulled(live), [*sources, *live], reason)


def _unaliased(g: Tensor | None, others: Sequence[Tensor]) -> Tensor | None:
    """Return a gradient, copied if it aliases a residual: PyTorch may store it in `.grad` and accumulate into it."""
    if g is not None:
        for t in others:
            if _torch.share_storage(g, t):
                return g.clone()
    return g


def _tracked_residuals(
    rule: DerivativeRule, record: CallRecord, tensors: Sequence[Tensor], saved: list[Tensor]
) -> tuple[list[Tensor], str]:
    """Return the residuals as functions of the inputs; where that is impossible, their derivative raises an error.

    If more than tensors is hidden, the derivative of the rule's result must raise too: the reason is returned as well.
    """
    residuals, reason = rule.recomputed_residuals(record, tensors, saved)
    if reason != "nothing":
        residuals = with_unknown_derivative(rule.name, residuals, tensors, RESIDUAL)
    return residuals, RESIDUAL if reason == "all" else ""


def _saved(ctx: Any) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    record: CallRecord = ctx.record
    n_inputs, n_outputs, saved = len(record.kinds), len(record.differentiable), ctx.saved_tensors
    return saved[:n_inputs], saved[n_inputs : n_inputs + n_outputs], saved[n_inputs + n_outputs :]


def _saved_by_need(
    rule: DerivativeRule, record: CallRecord, tensors: Sequence[Tensor], outputs: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return the inputs and the outputs, without those that the rule never reads.

    The transpose of a jvp reads their shapes, so an expanded scalar replaces each of them.
    """
    idle = rule.idle
    saved: list[Tensor | None] = list(tensors)
    for i, owner in enumerate(record.args.owners()):
        if owner + 2 in idle:  # after g and out
            saved[i] = _stand_in(tensors[i]) if rule.vjp is None else None
    if 1 not in idle:
        saved += outputs
    elif rule.vjp is None:
        saved += map(_stand_in, outputs)
    else:
        saved += [None] * len(outputs)
    return saved


def _stand_in(t: Tensor) -> Tensor:
    return t.new_zeros(()).fill_(_sentinel(t)).expand(t.shape)


def _sentinel(t: Tensor) -> float:
    """Return a value that would show, were it read."""
    return float("nan") if has_derivative(t) else 0
