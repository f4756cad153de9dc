"""`pullback.AutogradFunction`: a base class in place of `torch.autograd.Function`."""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, UntypedStorage
from torch.autograd import forward_ad

from pullback import _torch, dispatch
from pullback.dispatch import World
from pullback.dtypes import has_derivative
from pullback.errors import FormulaError
from pullback.graph.captures import WITH_CONTEXT
from pullback.guards import (
    DETACHED,
    INTERMEDIATE,
    guard,
    guard_double_backward,
    guard_foreign_results,
    guard_in_graph,
    refuse_transforms,
    with_unknown_derivative,
)
from pullback.op import Op

_METHODS = (
    "forward",
    "setup_context",
    "backward",
    "vjp",
    "jvp",
    "vmap",
    "generate_vmap_rule",
    "clear_saved_tensors_on_access",
)


class _ClassWithMethods(type):
    """A class whose calls follow when a method is given to it later."""

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in _METHODS:
            super().__setattr__("_carried", staticmethod(_calls_of(cls)))


class AutogradFunction(metaclass=_ClassWithMethods):
    """Change the base of a `torch.autograd.Function` to this, and `apply` works in every context or raises.

    With `forward` alone, old style (`forward(ctx, …)`) or new, the derivative is derived from it, for every order
    and mode. Whatever else the class defines (`backward`, `jvp`, `vmap`, `setup_context`) is used, and guarded: a
    transform that would differentiate the forward instead meets a `DerivativeError`, and a backward that
    leaves PyTorch (NumPy, `once_differentiable`) raises when it is differentiated, in every way of asking. A number
    that the forward takes from a tensor and leaves on `ctx`, say by `.item()`, is a constant to second derivatives.
    """

    _is_pullback_function = True

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Call the function.

        Raises:
            FormulaError: if the derivative is derived and `forward` has no derivative.
            DerivativeError: where a transform would lose the derivative that the class defines.
        """
        return cls._carried(*args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        carrier = _calls_of(cls)
        if hasattr(cls, "forward"):  # how messages name it, and where pickle finds it again
            carrier.__name__, carrier.__qualname__ = cls.__name__, f"{cls.__qualname__}._carried"
        cls._carried = staticmethod(carrier)  # type: ignore[method-assign]

    @classmethod
    def _carried(cls, *args: Any, **kwargs: Any) -> Any:
        raise FormulaError(f"{cls.__name__} has no `forward`: derive from pullback.AutogradFunction, and define one.")


def _calls_of(cls: Any) -> Callable[..., Any]:
    """Return the function or op that runs the calls of a class."""
    if not hasattr(cls, "forward"):
        return cls._carried  # type: ignore[no-any-return]
    if hasattr(cls, "backward") or hasattr(cls, "vjp") or hasattr(cls, "jvp"):
        given = {name: getattr(cls, name) for name in _METHODS if hasattr(cls, name)}
        return guarded_calls(cls, given, _signature(cls))
    return Op(_formula(cls), name=cls.__qualname__)


def _old_style(cls: Any) -> bool:
    """Whether `forward` takes a context first: `setup_context` says no; with `forward` alone, the name says yes."""
    if hasattr(cls, "setup_context"):
        return False
    first = next(iter(inspect.signature(cls.forward).parameters), "")
    return hasattr(cls, "backward") or first in {"ctx", "_ctx", "context", "self"}


def _formula(cls: Any) -> Callable[..., Any]:
    """Return `forward` as a function of the inputs alone."""
    forward: Callable[..., Any] = cls.forward
    if not _old_style(cls):
        return forward

    @functools.wraps(forward)
    def formula(*args: Any, **kwargs: Any) -> Any:
        context = _Context(args)
        return context.stopped(forward(context, *args, **kwargs))

    formula.__signature__ = _signature(cls)  # type: ignore[attr-defined]
    setattr(formula, WITH_CONTEXT, forward)
    return formula


def _signature(cls: Any) -> inspect.Signature:
    """Return the parameters of `apply`: those of `forward` without `ctx`."""
    return inspect.Signature(list(inspect.signature(cls.forward).parameters.values())[_old_style(cls) :])


class _Context:
    """The `ctx` of a forward whose backward is derived: nothing need be saved."""

    def __init__(self, args: Sequence[Any]) -> None:
        self.needs_input_grad = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
        self._stopped: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        pass

    save_for_forward = save_for_backward

    def set_materialize_grads(self, value: bool) -> None:
        pass

    def mark_dirty(self, *tensors: Tensor) -> None:
        raise FormulaError("mark_dirty: a forward whose backward is derived does not write to its inputs.")

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        self._stopped = tensors

    def stopped(self, result: Any) -> Any:
        """Return a result with the gradient of outputs marked non-differentiable stopped."""
        leaves, spec = _torch.tree_leaves(result)
        cut = [leaf.detach() if any(leaf is t for t in self._stopped) else leaf for leaf in leaves]
        return _torch.tree_unflatten(cut, spec)


class RecordingContext:
    """The `ctx` of a forward; records what the forward saves on it."""

    def __init__(self, ctx: Any) -> None:
        vars(self).update(__ctx=ctx, __saved=(), __forward=(), __stopped=(), __attributes={})

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["__ctx"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)["__attributes"][name] = value
        setattr(vars(self)["__ctx"], name, value)

    def __delattr__(self, name: str) -> None:
        vars(self)["__attributes"].pop(name, None)
        delattr(vars(self)["__ctx"], name)

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors, as PyTorch does."""
        vars(self)["__saved"] = tensors
        vars(self)["__ctx"].save_for_backward(*tensors)

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for the jvp, as PyTorch does."""
        vars(self)["__forward"] = tensors
        vars(self)["__ctx"].save_for_forward(*tensors)

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Mark outputs, as PyTorch does."""
        vars(self)["__stopped"] = tensors
        vars(self)["__ctx"].mark_non_differentiable(*tensors)


def save_sources(recording: RecordingContext, inputs: Sequence[Any], output: Any) -> None:
    """Save the inputs of a forward that hides a dependence: the error at the second derivative needs an edge to them.

    They follow the forward's own saved tensors, and their number is stored.
    """
    recorded = vars(recording)
    ctx, saved, forward = recorded["__ctx"], recorded["__saved"], recorded["__forward"]
    kept = (*saved, *forward, *recorded["__attributes"].values())
    ctx._has_sources = _has_hidden_dependence(kept, inputs, output, recorded["__stopped"])
    if ctx._has_sources:
        sources = [x for x in inputs if isinstance(x, Tensor) and has_derivative(x)]
        ctx._n_sources = len(sources)
        ctx.save_for_backward(*saved, *sources)
        ctx.save_for_forward(*(forward or saved), *sources)  # vmap wants as many as for backward


class OwnContext:
    """A `ctx` in the state that its forward left, without the inputs that `save_sources` added.

    Saved tensors are unpacked once, lazily: checkpoint, and hooks that free what they return, allow no second time.
    """

    def __init__(self, ctx: Any) -> None:
        vars(self).update(__ctx=ctx, __kept=None)

    def __getattr__(self, name: str) -> Any:
        if name in {"saved_tensors", "saved_variables"}:
            kept = all_saved(self)
            return kept[: len(kept) - _n_sources(self)]
        return getattr(vars(self)["__ctx"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["__ctx"], name, value)


def all_saved(own: OwnContext) -> tuple[Tensor | None, ...]:
    """Return all that is saved, the inputs that `save_sources` added included."""
    inside = vars(own)
    if inside["__kept"] is None:
        inside["__kept"] = inside["__ctx"].saved_tensors
    return inside["__kept"]  # type: ignore[no-any-return]


def sources_of(own: OwnContext) -> list[Tensor]:
    """Return the inputs that `save_sources` added to a forward's saved tensors: none if the forward hides nothing."""
    n = _n_sources(own)
    return [t for t in all_saved(own)[-n:] if t is not None] if n else []


def _n_sources(own: OwnContext) -> int:
    ctx = vars(own)["__ctx"]
    return ctx._n_sources if getattr(ctx, "_has_sources", False) else 0


def _has_hidden_dependence(kept: Sequence[Any], inputs: Sequence[Any], output: Any, stopped: Sequence[Tensor]) -> bool:
    """Whether numbers are kept that are neither inputs nor differentiable outputs.

    They may be in structures, objects and closures. Integers and masks do not count: they have no derivative.
    """
    real = [value for value in _leaves(kept) if _is_real(value)]
    if not real:
        return False
    outputs = [t for t in _leaves(output) if not any(t is s for s in stopped)]
    known = [*_leaves(inputs), *outputs]
    return any(not any(value is k for k in known) for value in real)


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the values inside a value, through objects a few levels deep; each object is opened once."""
    seen: set[int] = set()
    waiting = [(value, 0)]
    while waiting:
        value, depth = waiting.pop()
        within = _contents(value) if depth < _DEEPEST else None
        if within is None:
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            waiting += [(item, depth + 1) for item in within]


_DEEPEST = 6
"""Levels that are opened: an object may lead to half of a program."""


def _contents(value: Any) -> Iterable[Any] | None:
    """Return the values inside a structure, an object or a closure; `None` for others, and for modules.

    The parameters of a module are known to autograd; its buffers are not looked at.
    """
    match value:
        case Tensor() | np.ndarray() | UntypedStorage() | torch.nn.Module() | type() | ModuleType():
            return None
        case Mapping():
            return list(value.values())
        case list() | tuple() | set() | frozenset() | deque():
            return value
        case partial():
            return [value.func, *value.args, *value.keywords.values()]
        case FunctionType():
            return [*inspect.getclosurevars(value).nonlocals.values(), *(value.__defaults__ or ())]
        case MethodType() | BuiltinMethodType():
            return [value.__self__]
    held = list(vars(value).values()) if hasattr(value, "__dict__") else []
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return held + [getattr(value, name) for name in slots if hasattr(value, name)] or None


def _is_real(value: Any) -> bool:
    if isinstance(value, Tensor):
        return has_derivative(value)
    return isinstance(value, UntypedStorage) or (isinstance(value, np.ndarray) and value.dtype.kind in "fc")


def guarded_calls(cls: Any, given: dict[str, Any], signature: inspect.Signature) -> Callable[..., Any]:
    """Return the calls of a class that defines its derivative by the methods given, guarded where it could be lost."""
    name = cls.__qualname__
    rule = given.pop("vjp", None) or given.get("backward")
    if rule is not None:
        given["backward"] = _guarded_backward(name, rule)
    if "jvp" in given:
        given["jvp"] = _guarded_jvp(name, given["jvp"])
    wired = {"forward": _tripwired(name, cls.forward)}
    if "setup_context" in given:
        setup = {"setup_context": _recorded_setup(cls.setup_context)}
        eager, transformable = given | setup, given | wired | setup
        if "vmap" not in given:
            transformable.setdefault("generate_vmap_rule", True)
    else:
        eager = given | {"forward": _recorded_forward(cls.forward)}
        transformable = given | {"forward": _recorded_forward(wired["forward"])}
    eager, transformable = _function(cls, eager), _function(cls, transformable)
    # Dynamo refuses a Function that has a jvp
    compilable = _function(cls, {method: value for method, value in (given | wired).items() if method != "jvp"})

    def apply(*args: Any, **kwargs: Any) -> Any:
        if kwargs:  # PyTorch looks for these names in the code of the forward, which is wrapped here
            args = signature.bind(*args, **kwargs).args
        if dispatch.world().is_compiling:
            refuse_transforms(name)
            return guard_in_graph(compilable.apply(*args), args, name)
        world = dispatch.world(args)
        if world is World.SYMBOLIC:
            proxy = next(a for a in args if isinstance(a, torch.fx.Proxy))
            return proxy.tracer.create_proxy("call_function", apply, args, {})  # proxy tracers record one op
        return (eager if world is World.EAGER else transformable).apply(*args)

    functools.update_wrapper(apply, cls.forward)
    apply.__signature__ = signature  # type: ignore[attr-defined]
    return apply


def _function(cls: type, given: dict[str, Any]) -> Any:
    """Return a Function with these methods as static methods: those of a class are bound to it already."""
    given = {name: staticmethod(value) if callable(value) else value for name, value in given.items()}
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (torch.autograd.Function,), {**given, **names, "_is_pullback_part": True})


def _tripwired(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def wired(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        if isinstance(result, Tensor):
            return guard(result, args, name)
        return tuple(guard(t, args, name) if isinstance(t, Tensor) else t for t in result)

    return wired


def _recorded_forward(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Record whether an old-style forward saves a computed value, hiding its dependence on the inputs from autograd."""

    @functools.wraps(forward)
    def recorded(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        recording = RecordingContext(ctx)
        result = forward(recording, *args, **kwargs)
        save_sources(recording, (*args, *kwargs.values()), result)
        return result

    return recorded


def _recorded_setup(setup: Callable[..., Any]) -> Callable[..., Any]:
    """Record the same for a `setup_context`."""

    @functools.wraps(setup)
    def recorded(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        recording = RecordingContext(ctx)
        setup(recording, inputs, output)
        save_sources(recording, inputs, output)

    return recorded


def _guarded_jvp(name: str, jvp: Callable[..., Any]) -> Callable[..., Any]:
    """Let a jvp be differentiated by forward mode around it, which PyTorch turns off: it would find no tangent."""

    @functools.wraps(jvp)
    def guarded_jvp(ctx: Any, *tangents: Any) -> Any:
        own = OwnContext(ctx)
        sources = sources_of(own)
        with _torch.forward_grad_enabled():
            pushed = jvp(_PrimalContext(own), *tangents)
            if not sources:
                return pushed
            results = with_unknown_derivative(
                name, pushed if isinstance(pushed, tuple) else (pushed,), list(map(_primal, sources)), INTERMEDIATE
            )
        return tuple(results) if isinstance(pushed, tuple) else results[0]

    return guarded_jvp


class _PrimalContext:
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
    def guarded_backward(ctx: Any, *cotangents: Any) -> Any:
        if dispatch.world().is_compiling:
            return backward(ctx, *cotangents)
        own = OwnContext(ctx)
        if not torch.is_grad_enabled():
            return backward(own, *cotangents)
        sources = sources_of(own)

        def pull(gs: Sequence[Tensor | None]) -> list[Tensor | None]:
            gradients = backward(own, *gs)
            return list(gradients) if isinstance(gradients, tuple | list) else [gradients]

        if _torch.only_autograd_records():
            saved = [t for t in all_saved(own) if t is not None]
            return tuple(guard_double_backward(name, pull, cotangents, saved, INTERMEDIATE if sources else ""))
        known = [*all_saved(own), *cotangents]
        gradients = guard_foreign_results(name, lambda: pull(cotangents), known)
        why = INTERMEDIATE
        if _torch.is_once_differentiable(backward):  # which transforms pass over
            sources, why = [*sources, *(t for t in all_saved(own) if t is not None)], DETACHED
        return tuple(with_unknown_derivative(name, gradients, [*sources, *cotangents], why) if sources else gradients)

    return guarded_backward
