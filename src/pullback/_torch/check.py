"""Private PyTorch that auditing uses: custom ops, hooks into applied Functions, the compiler's log."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from pullback._torch.private import private
from pullback._torch.shared import given_by

_SingleLevelFunction = private("torch.autograd.function._SingleLevelFunction")
_custom_ops = private("torch._library.custom_ops")
_hooks = private("torch._C._autograd")


def custom_ops() -> list[Any]:
    """Return every live result of `torch.library.custom_op`, the oldest first.

    Relies on `torch._library.custom_ops.OPDEFS`, which maps qualified names to `CustomOpDef`s.
    """
    return list(_custom_ops.OPDEFS.values())


def custom_op_function(op: Any) -> Callable[..., Any]:
    """Return the function that `torch.library.custom_op` decorated.

    Relies on `CustomOpDef._init_fn`.
    """
    function: Callable[..., Any] = op._init_fn
    return function


def compile_in_this_process() -> AbstractContextManager[Any]:
    """Return a context in which Inductor starts no worker processes.

    Relies on `torch._inductor.config.patch` and its option `compile_threads`.
    """
    from torch._inductor import config

    patched: AbstractContextManager[Any] = config.patch(compile_threads=1)
    return patched


@contextmanager
def without_trace_log() -> Iterator[None]:
    """Keep PyTorch's compiler from writing to its structured log, which test runners show below a test that fails.

    Relies on the logger "torch.__trace".
    """
    logger = logging.getLogger("torch.__trace")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


@contextmanager
def without_default_hooks() -> Iterator[None]:
    """Take away the caller's saved-tensor hooks, which switch PyTorch's version check off, and the ban on others.

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


def observe_functions(note: Callable[[type, tuple[Any, ...]], None]) -> Callable[[], None]:
    """Call `note` with each applied custom function and its arguments; return a function that stops this.

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
    """Observe the first method of each custom function that gets a context: `setup_context`, or else `forward`.

    Those that are defined later on are observed, too. Relies on `_forward_cls` of a context's class, the function that
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
    name = "setup_context" if given_by(cls, "setup_context") else "forward"
    if isinstance(own := vars(cls).get(name), staticmethod):
        _observed.append((cls, name, own))
        setattr(cls, name, _noting(own.__func__, name == "setup_context"))


def _noting(method: Callable[..., Any], are_together: bool) -> staticmethod[..., Any]:
    """Return a method that calls all `_notes` first, except while Dynamo traces, which must not refer to them."""

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
