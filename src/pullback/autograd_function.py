"""`pullback.AutogradFunction`: a base class in place of `torch.autograd.Function`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pullback import _torch
from pullback.bind.hides import hides
from pullback.bind.once import guarded_against_twice
from pullback.bind.tripwire import guarded
from pullback.errors import FormulaError
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


class _Watched(type):
    """A class whose calls follow when a method is given to it later."""

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in _METHODS:
            super().__setattr__("_carried", staticmethod(_carrier(cls)))


class AutogradFunction(metaclass=_Watched):
    """Change the base of a `torch.autograd.Function` to this, and `apply` works in every context or refuses.

    With `forward` alone, old style (`forward(ctx, …)`) or new, the derivative is derived from it, for every order
    and mode. What the class defines besides (`backward`, `jvp`, `vmap`, `setup_context`) is honoured, and guarded: a
    transform that would differentiate the forward instead meets a `DerivativeError`, and a backward that
    leaves PyTorch (NumPy, `once_differentiable`) raises when it is differentiated, in every way of asking.
    """

    _is_pullback_function = True

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Call the function.

        Raises:
            FormulaError: if the derivative is derived and `forward` does what has none.
            DerivativeError: where a transform would lose the derivative that the class defines.
        """
        return cls._carried(*args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        carrier = _carrier(cls)
        if hasattr(cls, "forward"):  # how messages name it, and where pickle finds it again
            carrier.__name__, carrier.__qualname__ = cls.__name__, f"{cls.__qualname__}._carried"
        cls._carried = staticmethod(carrier)  # type: ignore[method-assign]

    @staticmethod
    def _carried(*args: Any, **kwargs: Any) -> Any:
        raise FormulaError("AutogradFunction is a base: derive from it, and define `forward`.")


def _carrier(cls: Any) -> Callable[..., Any]:
    """Return what carries out the calls of a class."""
    if not hasattr(cls, "forward"):
        return cls._carried  # type: ignore[no-any-return]
    if hasattr(cls, "backward") or hasattr(cls, "vjp") or hasattr(cls, "jvp"):
        return _honoured(cls)
    return Op(_formula(cls))


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
    return formula


def _signature(cls: Any) -> inspect.Signature:
    """Return the parameters of `apply`: those of `forward` without a `ctx`."""
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
        """Return a result with the gradient of what was marked non-differentiable stopped."""
        leaves, spec = _torch.tree_leaves(result)
        cut = [leaf.detach() if any(leaf is t for t in self._stopped) else leaf for leaf in leaves]
        return _torch.tree_unflatten(cut, spec)


def _honoured(cls: Any) -> Callable[..., Any]:
    """Return the calls of a class that defines its derivative, guarded where it could be lost."""
    given = {name: inspect.getattr_static(cls, name) for name in _METHODS if hasattr(cls, name)}
    rule = given.pop("vjp", None) or given.get("backward")
    if rule is not None:
        given["backward"] = staticmethod(_guarded_backward(cls.__qualname__, getattr(rule, "__func__", rule)))
    if "jvp" in given:
        given["jvp"] = staticmethod(_with_outer_tangents(getattr(given["jvp"], "__func__", given["jvp"])))
    if "setup_context" in given:
        noting = {"setup_context": staticmethod(_noted_setup(cls.setup_context))}
    else:
        noting = {"forward": staticmethod(_noted(cls.forward))}
    eager = _function(cls, given | noting)
    given["forward"] = staticmethod(_wired(cls.__qualname__, cls.forward))
    if "setup_context" in given and "vmap" not in given:
        given.setdefault("generate_vmap_rule", True)
    transformable = _function(cls, given)
    given.pop("jvp", None)  # Dynamo refuses a Function that has one
    compilable = _function(cls, given)

    signature = _signature(cls)

    def apply(*args: Any, **kwargs: Any) -> Any:
        if kwargs:  # PyTorch looks for these names in the code of the forward, which is wrapped here
            args = signature.bind(*args, **kwargs).args
        if torch.compiler.is_compiling():
            return compilable.apply(*args)
        plain = all(type(a) in (Tensor, torch.nn.Parameter) for a in args if isinstance(a, Tensor))
        return (eager if plain and _torch.is_plain_eager() else transformable).apply(*args)

    functools.update_wrapper(apply, cls.forward)
    apply.__signature__ = signature  # type: ignore[attr-defined]
    return apply


def _function(cls: type, given: dict[str, Any]) -> Any:
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
    """Note whether an old-style forward keeps what it computed: autograd does not see that it depends on the inputs."""

    @functools.wraps(forward)
    def noted(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        result = forward(ctx, *args, **kwargs)
        _note(ctx, (*args, *kwargs.values()), result)
        return result

    return noted


def _noted_setup(setup: Callable[..., Any]) -> Callable[..., Any]:
    """Note the same of a `setup_context`."""

    @functools.wraps(setup)
    def noted(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        setup(ctx, inputs, output)
        _note(ctx, inputs, output)

    return noted


def _note(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    """Keep the inputs of a forward that hides something: an error at the second derivative needs a way to them."""
    ctx._hides = hides(ctx, inputs, output)
    ctx._sources = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad] if ctx._hides else []


def _with_outer_tangents(jvp: Callable[..., Any]) -> Callable[..., Any]:
    """Let a jvp be differentiated by forward mode around it, which PyTorch turns off: it would find no tangent."""

    @functools.wraps(jvp)
    def wrapped(ctx: Any, *tangents: Any) -> Any:
        with _torch.forward_grad_enabled():
            return jvp(_Primals(ctx), *tangents)

    return wrapped


class _Primals:
    """A `ctx` whose tensors have lost the tangent that its jvp is asked for, and no other."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._ctx, name)
        return tuple(map(_primal, value)) if isinstance(value, tuple) else _primal(value)


def _primal(value: Any) -> Any:
    return forward_ad.unpack_dual(value).primal if isinstance(value, Tensor) else value


def _guarded_backward(name: str, backward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(backward)
    def twice_guarded(ctx: Any, *cotangents: Any) -> Any:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not _torch.is_plain_eager():
            return backward(ctx, *cotangents)
        saved = [t for t in (*ctx.saved_tensors, *getattr(ctx, "_sources", ())) if t is not None]

        def pull(gs: Sequence[Tensor | None]) -> list[Tensor | None]:
            gradients = backward(ctx, *gs)
            return list(gradients) if isinstance(gradients, tuple | list) else [gradients]

        return tuple(guarded_against_twice(name, pull, cotangents, saved, getattr(ctx, "_hides", False)))

    return twice_guarded
