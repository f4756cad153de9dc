"""Private PyTorch of autograd: saved tensors and their hooks, the backward pass, and custom Functions."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from pullback._torch.private import private

_SingleLevelFunction = private("torch.autograd.function._SingleLevelFunction")
_hooks = private("torch._C._autograd")
_keep_graph = private("torch._C._autograd._get_current_graph_task_keep_graph")
_set_hooks_tracing = private("torch._C._autograd._saved_tensors_hooks_set_tracing")
_storage_use_count = private("torch._C._storage_Use_Count")
_use_count = private("torch.Tensor._use_count")


def retains_graph() -> bool:
    """Whether the running backward pass retains its graph (`retain_graph`); true outside of a backward pass.

    Relies on `torch._C._autograd._get_current_graph_task_keep_graph`.
    """
    return bool(_keep_graph())


def owned_by_node_alone(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether only the node refers to `ctx.saved_tensors[k:]`, tensors that it made for itself.

    These may be overwritten. A hook, another tensor on the same memory, `grad_fn.saved_tensors` and weak references
    count as references, too. Relies on `Tensor._use_count` and `torch._C._storage_Use_Count`.
    """
    return _holders(tensors) == _least_holders() * len(tensors)


def _holders(tensors: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """Reference counts of each tensor and its storage, in Python and C++, and weak references."""
    counts: list[tuple[int, ...]] = []
    for t in tensors:
        storage = t.untyped_storage()
        below = _use_count(t), _storage_use_count(storage._cdata)
        counts.append((sys.getrefcount(t), sys.getrefcount(storage), *below, weakref.getweakrefcount(t)))
    return counts


@functools.cache
def _least_holders() -> list[tuple[int, ...]]:
    """Counts of `_holders` for a tensor that only the node which saved it refers to, measured once."""
    found: list[tuple[int, ...]] = []

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, x * 2)
            return x + 1

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            kept = ctx.saved_tensors
            found.extend(_holders(kept[1:]))
            return g

    with torch.enable_grad(), without_saved_tensors_hooks():
        Probe.apply(torch.zeros(1, requires_grad=True)).backward()  # type: ignore[no-untyped-call]
    return found


@contextmanager
def without_saved_tensors_hooks() -> Iterator[None]:
    """Disable saved-tensor hooks of the caller, for a trace, which saves tensors without data.

    Relies on `torch._C._autograd._saved_tensors_hooks_set_tracing`.
    """
    before = _set_hooks_tracing(True)
    try:
        yield
    finally:
        _set_hooks_tracing(before)


@contextmanager
def without_default_hooks() -> Iterator[None]:
    """Remove saved-tensor hooks of the caller, which disable PyTorch's version check, and any ban on hooks.

    Relies on `torch._C._autograd._top_saved_tensors_default_hooks`, `_pop_…`, `_push_…`, and on
    `_saved_tensors_hooks_get_disabled_error_message`, `_saved_tensors_hooks_enable` and `…_disable`.
    """
    banned = _hooks._saved_tensors_hooks_get_disabled_error_message()
    taken = []
    while (top := _hooks._top_saved_tensors_default_hooks(True)) is not None:
        taken.append(top)
        _hooks._pop_saved_tensors_default_hooks()
    if banned is not None:
        _hooks._saved_tensors_hooks_enable()
    try:
        yield
    finally:
        for pack, unpack in reversed(taken):
            _hooks._push_saved_tensors_default_hooks(pack, unpack)
        if banned is not None:
            _hooks._saved_tensors_hooks_disable(banned)


def eager_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """The `apply` of an old-style Function for plain eager mode, without the check for transforms (1 µs).

    Relies on `torch.autograd.Function.apply` calling its base's `apply` when no transform is running.
    """
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


def defines_method(function: type[torch.autograd.Function], name: str) -> bool:
    """Whether a Function defines a method itself, or inherits it from a base that is not PyTorch's.

    Relies on `torch.autograd.function` being the module of the classes that define stubs of it.
    """
    return any(name in vars(cls) and cls.__module__ != "torch.autograd.function" for cls in function.__mro__)


def is_once_differentiable(function: Any) -> bool:
    """Whether a backward is decorated with `torch.autograd.function.once_differentiable`.

    Relies on the qualified name of the code of its wrapper.
    """
    code = getattr(function, "__code__", None)
    return code is not None and code.co_qualname.startswith(once_differentiable.__name__ + ".")


def observe_functions(note: Callable[[type, tuple[Any, ...]], None]) -> Callable[[], None]:
    """Call `note` with each applied custom Function and its arguments; return a function that ends this.

    It works for every alias of `apply`. `torch.autograd.Function.apply`, which Dynamo recognises, is unchanged. If it
    is written in Python, it calls its base. Relies on `torch.autograd.function._SingleLevelFunction` being that base,
    which does not define `apply`, and on `torch._C._FunctionBase.apply`. If it is written in C++, from PyTorch 2.15 on,
    the methods that it calls are observed: see `_observe_contexts`.
    """
    if not isinstance(vars(torch.autograd.Function).get("apply"), classmethod):
        return _observe_contexts(note)
    base: Any = _SingleLevelFunction
    before = vars(base).get("apply")

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        note(cls, args)
        return (before.__get__(None, cls) if before else super(base, cls).apply)(*args, **kwargs)

    base.apply = classmethod(apply)

    def end() -> None:
        if before is None:
            del base.apply
        else:
            base.apply = before

    return end


_Note = Callable[[type, tuple[Any, ...]], None]


_notes: list[_Note] = []


_observed: list[tuple[Any, str, Any]] = []


def _observe_contexts(note: _Note) -> Callable[[], None]:
    """Observe the first method of each custom Function that gets a context: `setup_context`, or else `forward`.

    Functions that are defined later are observed, too. Relies on `_forward_cls` of a context's class, the Function that
    is applied, and on `torch.autograd.function.FunctionMeta.__init__`.
    """
    if not _notes:
        pending: list[Any] = torch.autograd.Function.__subclasses__()
        for cls in pending:
            pending += [sub for sub in cls.__subclasses__() if sub not in pending]
            _observe(cls)
        meta: Any = torch.autograd.function.FunctionMeta
        init = meta.__init__
        _observed.append((meta, "__init__", init))

        def init_observed(cls: Any, *args: Any, **kwargs: Any) -> None:
            init(cls, *args, **kwargs)
            _observe(cls)

        meta.__init__ = init_observed
    _notes.append(note)

    def end() -> None:
        _notes.remove(note)
        while _observed and not _notes:
            setattr(*_observed.pop())

    return end


def _observe(cls: Any) -> None:
    name = "setup_context" if defines_method(cls, "setup_context") else "forward"
    if isinstance(own := vars(cls).get(name), staticmethod):
        _observed.append((cls, name, own))
        setattr(cls, name, _noting(own.__func__, name == "setup_context"))


def _noting(method: Callable[..., Any], are_together: bool) -> staticmethod[..., Any]:
    """Wrap a method to call all `_notes` first, except while Dynamo traces, which must not refer to them."""

    @functools.wraps(method)
    def called(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            _note_all(type(ctx), args[0] if are_together and args else args)
        return method(ctx, *args, **kwargs)

    return staticmethod(called)


def _note_all(context: Any, args: tuple[Any, ...]) -> None:
    applied: Any = getattr(context, "_forward_cls", None)
    for note in reversed(_notes) if applied is not None else ():
        note(applied, args)
