"""Example inputs that the user gives: with the call of `check`, or by the function that `--inputs` names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sized
from functools import partial
from typing import Any

from pullback.check.find.resolve import load_function
from pullback.check.find.target import parse_target
from pullback.check.subject import Given, Inputs
from pullback.errors import OptionError, TargetError

_WITHOUT_GPU = re.compile(r"not compiled with CUDA enabled|Found no NVIDIA driver")
"""Matches what PyTorch says where a tensor is to be made on a GPU and there is none."""


def constant_inputs_for(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Given:
    """Return a function that gives every subject the same example call, or none if it is empty."""
    inputs = [(args, dict(kwargs))] if args or kwargs else None
    return lambda subject: inputs


def loader(spec: str | None) -> Callable[[], Given]:
    """Return a loader of the function "FILE:function"; without a spec, subjects get no examples.

    Raises:
        OptionError: if there is no such file.
    """
    if spec is None:
        return partial(constant_inputs_for, (), {})
    try:
        parse_target(spec)
    except TargetError as error:
        raise OptionError(f"--inputs {spec}: {error}") from None
    return partial(from_function, spec)


def from_function(spec: str) -> Given:
    """Load the function "FILE:function", and return the function that calls it for a subject; see `examples`."""
    given = examples(spec)
    return lambda subject: given(subject.target, subject.name)


def examples(spec: str) -> Callable[[Any, str], Inputs | None]:
    """Load the function "FILE:function", which runs the file, and return the function that calls it for a target.

    Raises:
        OptionError: if it cannot be loaded.
    """
    try:
        function = load_function(spec)
    except TargetError as error:
        raise OptionError(f"--inputs {spec}: {error}") from None

    def given(target: Any, name: str) -> Inputs | None:
        try:
            values = _called(function, target)
            return None if values is None else _pairs(values)
        except _NotPairsError as error:
            raise OptionError(f"--inputs {spec}: for {name}, {error}") from None
        except Exception as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            called = f"{getattr(function, '__name__', 'FUNCTION')}({name})"
            remedy = " Leave out device=: the audit moves the tensors." if _WITHOUT_GPU.search(said) else ""
            what = f"for {name}, it raised {said}. It was called as {called}.{remedy}"
            raise OptionError(f"--inputs {spec}: {what}") from None

    return given


def _called(function: Callable[..., Any], target: Any) -> Any:
    """Call the function with the target; or, if it takes nothing, take what it returns for the arguments of a call."""
    if inspect.signature(function).parameters:
        return function(target)
    values = function()
    is_call = values is not None and not _has_pairs(values)
    return [(values if isinstance(values, tuple | list) else (values,), {})] if is_call else values


def _has_pairs(values: Any) -> bool:
    pairs = list(values) if isinstance(values, tuple | list) else []
    return bool(pairs) and all(isinstance(p, tuple | list) and len(p) == 2 and isinstance(p[1], Mapping) for p in pairs)


class _NotPairsError(Exception):
    """The function returned something other than (args, kwargs) pairs."""


def _pairs(values: Any) -> Inputs:
    if not isinstance(values, Iterable) or isinstance(values, str | Mapping):
        raise _NotPairsError(f"expected an iterable of (args, kwargs) pairs, got {type(values).__name__}")
    pairs = list(values)
    if not pairs and isinstance(values, Sized):  # a generator may have no example for this subject
        raise _NotPairsError(f"it returned an empty {type(values).__name__}: return None to have inputs guessed")
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise _NotPairsError(f"expected (args, kwargs) pairs, got an item of type {type(pair).__name__}")
        if not isinstance(pair[0], tuple | list) or not isinstance(pair[1], Mapping):
            got = f"({type(pair[0]).__name__}, {type(pair[1]).__name__})"
            raise _NotPairsError(f"expected each item to be a tuple of arguments and a dict of keywords, got {got}")
    return [(tuple(args), dict(kwargs)) for args, kwargs in pairs]
