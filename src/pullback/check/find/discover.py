"""Subjects of a target: the custom functions of a file, a module, a package or a live object.

Importing a target executes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from pullback.check.find.importing import import_all, unimported_root
from pullback.check.find.kernels import is_interpreted, is_kernel
from pullback.check.find.modules import Home, home_of_module
from pullback.check.find.objects import Discovered, describe, find_given, is_function, public_callables
from pullback.check.find.resolve import Resolution, no_such_name, resolve
from pullback.check.find.search import find_all
from pullback.check.find.target import Target, parse_target
from pullback.check.subject import Subject, is_carried
from pullback.errors import TargetError


def discover(target: str) -> list[Subject]:
    """Return the custom functions of a target, in the order of their files and lines.

    Args:
        target: a file, a module or a package, or any of these with `:name` of something in it.

    A Function that is only known from its source is a subject without a target; it has the reason.

    Raises:
        TargetError: nothing of that name exists, it cannot be read, or it holds no custom function.
    """
    resolved = resolve(target)
    if resolved.obj is not None:
        found = _describe_named(resolved)
        return [_subject(found, found.name, resolved.root.absent)]
    return _subjects(resolved.target, import_all(resolved.root))


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


def _describe_named(resolved: Resolution) -> Discovered:
    """Describe the object that a target names.

    Raises:
        TargetError: if it is of a kind that cannot be audited.
    """
    name, owner, obj = resolved.target.name, resolved.owner, resolved.obj
    found = describe(obj, owner, f"{resolved.root.shown}:{name}")
    expression = resolved.expression + (".apply" if is_function(obj) or is_carried(obj) else "")
    return replace(found, name=name, load=owner.load(expression, name, found.location))


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
            raise TargetError(no_such_name(target, homes[0], names or _callables(homes[0])))
        return [_subject(one, name, absent) for one, name in found_as]
    if not found:
        raise TargetError(_no_function(target, homes))
    return [_subject(one, name, absent) for one, name in zip(found, names, strict=True)]


def _failed(homes: Sequence[Home]) -> list[str]:
    """Return the submodules that could not be imported and whose source shows no Function to report."""
    return [home.name for home in homes if homes[0].module is not None and home.module is None and not home.sources()]


def _subject(found: Discovered, name: str, absent: tuple[str, ...] = ()) -> Subject:
    return Subject(
        name=name,
        kind=found.kind,
        target=found.target,
        location=found.location,
        source=found.source,
        load=found.load,
        why_unaudited=found.why_unaudited,
        absent=absent,
        is_interpreted=is_interpreted(found.target),
    )


def _unique_names(found: Sequence[Discovered], package: str) -> list[str]:
    """Name each subject: by its short name if that is unique, else with its module and scope, else with its line."""
    schemes: list[Callable[[int, Discovered], str]] = [
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


def _callables(home: Home) -> list[str]:
    return [] if home.module is None else public_callables(home.module)


def _no_function(target: Target, homes: Sequence[Home]) -> str:
    root, *submodules = homes
    if root.why:
        return f"{target.where} {root.why}, and its source shows no class derived from torch.autograd.Function"
    if failed := [home for home in submodules if home.why]:
        more = f", and so {len(failed) - 1} more" if len(failed) > 1 else ""
        return f"no custom function in what can be read of {target.where} ({failed[0].shown} {failed[0].why}{more})"
    if root.absent:
        return f"no custom function in {target.where} ({', '.join(root.absent)} could not be imported)"
    names = _callables(root)
    if not names and root.module is not None and any(map(is_kernel, vars(root.module).values())):
        return f"no custom function in {target.where}, only Triton kernels: name the function that launches them"
    name = next(iter(names), "NAME")
    return f"no custom function in {target.where}. To audit another callable: {target.where}:{name}"
