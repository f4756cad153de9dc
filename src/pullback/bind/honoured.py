"""A class with a forward and its derivative, as PyTorch Functions that guard the class's methods.

There are three of them, as for an op with a rule: for plain eager mode, for transforms, for Dynamo.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pullback import _torch
from pullback.bind.hides import Noting, Own, kept_by, note, sources_of
from pullback.bind.once import INTERMEDIATE, UNSEEN, guarded_against_twice, hidden, hidden_if_it_leaves
from pullback.guards import guarded, guarded_in_graphs, refuse_transforms


def honoured(cls: Any, given: dict[str, Any], signature: inspect.Signature) -> Callable[..., Any]:
    """Return the calls of a class that defines its derivative by the methods given, guarded where it could be lost."""
    name = cls.__qualname__
    rule = given.pop("vjp", None) or given.get("backward")
    if rule is not None:
        given["backward"] = _guarded_backward(name, rule)
    if "jvp" in given:
        given["jvp"] = _guarded_jvp(name, given["jvp"])
    wired = {"forward": _wired(name, cls.forward)}
    if "setup_context" in given:
        setup = {"setup_context": _noted_setup(cls.setup_context)}
        eager, transformable = given | setup, given | wired | setup
        if "vmap" not in given:
            transformable.setdefault("generate_vmap_rule", True)
    else:
        eager = given | {"forward": _noted(cls.forward)}
        transformable = given | {"forward": _noted(wired["forward"])}
    eager, transformable = _function(cls, eager), _function(cls, transformable)
    # Dynamo refuses a Function that has a jvp
    compilable = _function(cls, {method: value for method, value in (given | wired).items() if method != "jvp"})

    def apply(*args: Any, **kwargs: Any) -> Any:
        if kwargs:  # PyTorch looks for these names in the code of the forward, which is wrapped here
            args = signature.bind(*args, **kwargs).args
        if torch.compiler.is_compiling():
            refuse_transforms(name)
            return guarded_in_graphs(compilable.apply(*args), args, name)
        if (proxy := next((a for a in args if isinstance(a, torch.fx.Proxy)), None)) is not None:
            return proxy.tracer.create_proxy("call_function", apply, args, {})  # proxy tracers record one op
        plain = all(type(a) in (Tensor, torch.nn.Parameter) for a in args if isinstance(a, Tensor))
        return (eager if plain and _torch.is_plain_eager() else transformable).apply(*args)

    functools.update_wrapper(apply, cls.forward)
    apply.__signature__ = signature  # type: ignore[attr-defined]
    return apply


def _function(cls: type, given: dict[str, Any]) -> Any:
    """Return a Function with these methods as static methods: those of a class are bound to it already."""
    given = {name: staticmethod(value) if callable(value) else value for name, value in given.items()}
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (torch.autograd.Function,), {**given, **names, "_is_pullback_part": True})


def _wired(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def wired(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        if isinstance(result, Tensor):
            return guarded(result, args, name)
        return tuple(guarded(t, args, name) if isinstance(t, Tensor) else t for t in result)

    return wired


def _noted(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Record whether an old-style forward saves a computed value, hiding its dependence on the inputs from autograd."""

    @functools.wraps(forward)
    def noted(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        noting = Noting(ctx)
        result = forward(noting, *args, **kwargs)
        note(noting, (*args, *kwargs.values()), result)
        return result

    return noted


def _noted_setup(setup: Callable[..., Any]) -> Callable[..., Any]:
    """Record the same for a `setup_context`."""

    @functools.wraps(setup)
    def noted(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        noting = Noting(ctx)
        setup(noting, inputs, output)
        note(noting, inputs, output)

    return noted


def _guarded_jvp(name: str, jvp: Callable[..., Any]) -> Callable[..., Any]:
    """Let a jvp be differentiated by forward mode around it, which PyTorch turns off: it would find no tangent."""

    @functools.wraps(jvp)
    def guarded_jvp(ctx: Any, *tangents: Any) -> Any:
        own = Own(ctx)
        sources = sources_of(own)
        with _torch.forward_grad_enabled():
            pushed = jvp(_Primals(own), *tangents)
            if not sources:
                return pushed
            results = hidden(
                name, pushed if isinstance(pushed, tuple) else (pushed,), list(map(_primal, sources)), INTERMEDIATE
            )
        return tuple(results) if isinstance(pushed, tuple) else results[0]

    return guarded_jvp


class _Primals:
    """A `ctx` whose tensors have lost the tangent that its jvp is asked for, and no other."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        return _primal(getattr(self._ctx, name))


def _primal(value: Any) -> Any:
    if isinstance(value, Tensor):
        return forward_ad.unpack_dual(value).primal
    if isinstance(value, tuple | list | dict):
        leaves, spec = _torch.tree_leaves(value)
        return _torch.tree_unflatten(list(map(_primal, leaves)), spec) if not spec.is_leaf() else value
    return value


def _guarded_backward(name: str, backward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(backward)
    def twice_guarded(ctx: Any, *cotangents: Any) -> Any:
        if torch.compiler.is_compiling():
            return backward(ctx, *cotangents)
        own = Own(ctx)
        if not torch.is_grad_enabled():
            return backward(own, *cotangents)
        sources = sources_of(own)

        def pull(gs: Sequence[Tensor | None]) -> list[Tensor | None]:
            gradients = backward(own, *gs)
            return list(gradients) if isinstance(gradients, tuple | list) else [gradients]

        if _torch.autograd_alone_records():
            saved = [t for t in kept_by(own) if t is not None]
            return tuple(guarded_against_twice(name, pull, cotangents, saved, INTERMEDIATE if sources else ""))
        known = [*kept_by(own), *cotangents]
        gradients = hidden_if_it_leaves(name, lambda: pull(cotangents), known)
        why = INTERMEDIATE
        if _torch.is_once_differentiable(backward):  # which transforms pass over
            sources, why = [*sources, *(t for t in kept_by(own) if t is not None)], UNSEEN
        return tuple(hidden(name, gradients, [*sources, *cotangents], why) if sources else gradients)

    return twice_guarded
