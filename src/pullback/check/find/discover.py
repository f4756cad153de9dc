"""Finds the custom functions that a target holds. Importing the target executes it."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

from pullback.check.find.importing import import_all, import_root, unimported_root
from pullback.check.find.live import Found, attribute
from pullback.check.find.named import find_attribute, find_given, public_callables
from pullback.check.find.places import Home, home_of_module
from pullback.check.find.search import find_all
from pullback.check.find.target import Target, parse_target, similar
from pullback.check.subject import Subject
from pullback.errors import TargetError


def discover(target: str) -> list[Subject]:
    """Return the custom functions of a target, in the order of their files and lines.

    Args:
        target: a file, a module or a package, or any of these with `:name` of something in it.

    A Function that is only known from its source is a subject without a target; it has the reason.

    Raises:
        TargetError: nothing of that name exists, it cannot be read, or it holds no custom function.
    """
    parsed = parse_target(target)
    root = import_root(parsed)
    is_there = root.module is not None and not (root.why and attribute(root.module, parsed.name) is None)
    if parsed.name and is_there and (found := find_attribute(root, parsed.name)) is not None:
        return [_subject(found, found.name, root.absent)]
    return _subjects(parsed, import_all(root))


def static_subjects(target: str, why: str) -> list[Subject]:
    """Return the Functions that the source of a target defines, each unaudited for the reason `why`.

    Nothing is imported.

    Raises:
        TargetError: as `discover`.
    """
    parsed = parse_target(target)
    return _subjects(parsed, import_all(unimported_root(parsed, why)))


def subjects_of_module(module: ModuleType) -> list[Subject]:
    """Return the custom functions of a module, or of all of a package, that is imported already.

    Raises:
        TargetError: it holds none.
    """
    name = module.__name__
    return _subjects(Target(name, None, name, ""), import_all(home_of_module(module)))


def subject_of(obj: Any) -> Subject:
    """Return the subject of a live object.

    Args:
        obj: an `autograd.Function` class or its `apply`, a custom op, or any other callable.

    Raises:
        TargetError: if it is none of these, or a class that must be constructed first.
    """
    found = find_given(obj)
    return _subject(found, found.name)


def load_inputs(spec: str) -> Callable[[Any], Iterable[Any]]:
    """Import the function that yields inputs, given as "FILE:function".

    Raises:
        TargetError: there is no such file or function, or it cannot be imported.
    """
    parsed = parse_target(spec)
    if not parsed.name:
        raise TargetError(f"inputs are given as FILE:function, e.g. {spec}:inputs; {spec!r} names no function")
    root = import_root(parsed)
    function: Any = getattr(root.module, parsed.name, None)
    if root.module is None or (root.why and not callable(function)):
        raise TargetError(f"{parsed.where} {root.why}; run it with python to see where")
    if not callable(function):
        suggestion = similar(parsed.name, public_callables(root.module))
        raise TargetError(f"no function {parsed.name!r} in {parsed.where}{suggestion}")
    inputs: Callable[[Any], Iterable[Any]] = function
    return inputs


def loaded(target: str, functions: bool = False) -> Any:
    """Import the object of "FILE:NAME" or "MODULE:NAME"; its prints go to standard error.

    Args:
        target: its NAME may be dotted.
        functions: whether a message names the Functions of the module too, beside other callables.

    Raises:
        TargetError: if there is no object of that name, or it cannot be imported.
    """
    parsed = parse_target(target)
    with contextlib.redirect_stdout(sys.stderr):
        root = import_root(parsed)
    if root.module is None or (root.why and not hasattr(root.module, parsed.name.partition(".")[0])):
        raise TargetError(f"{parsed.where} {root.why}; run it with python to see where")
    names = public_callables(root.module, functions)
    if not parsed.name:
        raise TargetError(f"name a function of {parsed.where}, as in {parsed.where}:NAME{similar('', names)}")
    found: Any = root.module
    for part in parsed.name.split("."):
        found = getattr(found, part, None)
    if found is None:
        missing = f" (it imports in vain: {', '.join(root.absent)})" if root.absent else ""
        raise TargetError(f"no {parsed.name!r} in {parsed.where}{missing}{similar(parsed.name, names)}")
    return found


def _subjects(target: Target, homes: Sequence[Home]) -> list[Subject]:
    found = sorted(find_all(homes), key=lambda one: (one.location.file or "", one.location.line or 0, one.name))
    names = _unique_names(found, homes[0].name)
    absent = tuple(dict.fromkeys([*(name for home in homes for name in home.absent), *_failed(homes)]))
    if target.name:
        found_as = [
            (one, name)
            for one, name in zip(found, names, strict=True)
            if target.name in (name, one.name, one.qualname, one.qualname.replace("<locals>.", ""))
        ]
        if not found_as:
            raise TargetError(_no_such_name(target, homes[0], names))
        return [_subject(one, name, absent) for one, name in found_as]
    if not found:
        raise TargetError(_no_function(target, homes))
    return [_subject(one, name, absent) for one, name in zip(found, names, strict=True)]


def _failed(homes: Sequence[Home]) -> list[str]:
    """Return the submodules that could not be imported and whose source shows no Function to report."""
    return [home.name for home in homes if homes[0].module is not None and home.module is None and not home.sources()]


def _subject(found: Found, name: str, absent: tuple[str, ...] = ()) -> Subject:
    return Subject(
        name=name,
        kind=found.kind,
        target=found.target,
        location=found.location,
        source=found.source,
        load=found.load,
        why_unaudited=found.why_unaudited,
        absent=absent,
    )


def _unique_names(found: Sequence[Found], package: str) -> list[str]:
    """Name each subject: by its short name if that is unique, else with its module and scope, else with its line."""
    schemes: list[Callable[[int, Found], str]] = [
        lambda _, one: f"{one.module.removeprefix(package)}.{one.qualname}".removeprefix("."),
        lambda _, one: f"{one.qualname} (line {one.location.line})",
        lambda order, one: f"{one.qualname} (line {one.location.line}, {order})",
    ]
    names = [one.name for one in found]
    for scheme in schemes:
        times = Counter(names)
        names = [
            name if times[name] == 1 else scheme(order, one)
            for order, (name, one) in enumerate(zip(names, found, strict=True))
        ]
    return names


def _no_such_name(target: Target, root: Home, names: Sequence[str]) -> str:
    if root.module is not None and not names:
        names = public_callables(root.module)
    broken = f" ({root.why})" if root.why else ""
    return f"no {target.name!r} in {target.where}{broken}{similar(target.name, names)}"


def _no_function(target: Target, homes: Sequence[Home]) -> str:
    root, *submodules = homes
    looked_for = "class derived from torch.autograd.Function with a forward and a backward or jvp"
    if root.why:
        return f"{target.where} {root.why}, and its source shows no {looked_for}"
    if failed := [home for home in submodules if home.why]:
        more = f", and so {len(failed) - 1} more" if len(failed) > 1 else ""
        return f"no custom function in what can be read of {target.where} ({failed[0].shown} {failed[0].why}{more})"
    if root.absent:
        return f"no custom function in {target.where} (it imports in vain: {', '.join(root.absent)})"
    names = [] if root.module is None else public_callables(root.module)
    example = f" {target.where}:{names[0]}" if names else ""
    return (
        f"no custom function in {target.where}: no {looked_for}, no torch.library.custom_op, no pullback.function; "
        f"to audit another callable, name it:{example or ' TARGET:NAME'}"
    )
