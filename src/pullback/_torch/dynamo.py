"""Private PyTorch of Dynamo: functions that it must not trace into, its import, its log."""

from __future__ import annotations

import functools
import gc
import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from pullback._torch.private import private
from pullback.errors import RunnerError

_FrameAction = private("torch._C._dynamo.eval_frame._FrameAction")
_FrameExecStrategy = private("torch._C._dynamo.eval_frame._FrameExecStrategy")
_set_code_exec_strategy = private("torch._C._dynamo.eval_frame.set_code_exec_strategy")


_F = TypeVar("_F", bound=Callable[..., Any])


@functools.cache
def import_dynamo() -> None:
    """Import Dynamo, as the first fake tensor of a process does, without the collector.

    The import makes some 400 000 objects and no garbage; collections would take a third of its time. Afterwards
    `freeze` and `unfreeze` move these objects to the oldest generation, where the next collections do not visit them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        importlib.import_module("torch._dynamo")
        if not gc.get_freeze_count():  # else `unfreeze` would undo what the program has frozen
            gc.freeze()
            gc.unfreeze()
    finally:
        if was_enabled:
            gc.enable()


def assume_constant_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function for Dynamo to run during the trace, with its result as a constant.

    Equal to `torch.compiler.assume_constant_result`, which imports Dynamo, for a second. Relies on
    `_dynamo_marked_constant`.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def skip_in_dynamo(function: _F) -> _F:
    """Mark a function for Dynamo to skip, with all that it calls, where it meets it outside of a graph.

    Otherwise Dynamo would compile it after a graph break. `torch.compiler.disable` does the same and imports Dynamo,
    for a second: it is used with a PyTorch that has other names. Relies on
    `torch._C._dynamo.eval_frame.set_code_exec_strategy`, `_FrameExecStrategy` and `_FrameAction`.
    """
    try:
        skip = _FrameAction.SKIP
        _set_code_exec_strategy(function.__code__, _FrameExecStrategy(skip, skip))
    except RunnerError:
        return torch.compiler.disable(function)  # type: ignore[no-any-return]
    return function


@contextmanager
def without_trace_log() -> Iterator[None]:
    """Disable the structured log of PyTorch's compiler, which test runners show below a failing test.

    Relies on the logger "torch.__trace".
    """
    logger = logging.getLogger("torch.__trace")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
