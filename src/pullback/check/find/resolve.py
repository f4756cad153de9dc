"""The resolver of targets: from "FILE:NAME" or "MODULE:NAME" to the object of that name.

Every command, option and API that takes a target resolves it here: all report errors in one wording, and suggest the
nearest existing names.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from pullback.check.find.importing import import_root, imported
from pullback.check.find.modules import Home, home_of_module, in_package
from pullback.check.find.objects import attribute, public_callables
from pullback.check.find.target import Target, parse_target, similar
from pullback.errors import TargetError


@dataclass(frozen=True, slots=True)
class Resolution:
    """A target after its import.

    Attributes:
        target: the parsed target.
        root: its module, imported as far as possible.
        obj: the object of its name; `None` if it has no name, or there is no such object.
        owner: the module that has the object: `root` or a submodule.
        expression: the object in the names of `owner`, e.g. "Outer.Op".
    """

    target: Target
    root: Home
    obj: Any
    owner: Home
    expression: str

    @property
    def module(self) -> ModuleType:
        """The imported module.

        Raises:
            TargetError: if it cannot be imported, or not as far as to define the object.
        """
        if self.root.module is None or (self.root.why and self.target.name and self.obj is None):
            raise TargetError(f"{self.target.where} {self.root.why}; run it with python to see where")
        return self.root.module

    def required(self, names: Collection[str]) -> Any:
        """Return the object.

        Args:
            names: those that may be meant instead, for the message.

        Raises:
            TargetError: if the target has no name, or there is no object of that name.
        """
        where = self.target.where
        if not self.target.name:
            raise TargetError(f"name a function of {where}, as in {where}:NAME{similar('', names)}")
        if self.obj is None:
            raise TargetError(no_such_name(self.target, self.root, names))
        return self.obj


def resolve(spec: str) -> Resolution:
    """Parse a target, import it, and look its name up; a dotted name may lead through submodules.

    Raises:
        TargetError: if there is no such file or module, or it is not valid Python.
    """
    target = parse_target(spec)
    root = import_root(target)
    if root.module is None or not target.name:
        return Resolution(target, root, None, root, "")
    obj: Any = root.module
    parts = target.name.split(".")
    owner, expression = root, target.name
    for position, part in enumerate(parts):
        obj = _member(obj, part)
        if isinstance(obj, ModuleType) and in_package(obj.__name__, root.name):
            owner = replace(home_of_module(obj), setup=root.setup)
            expression = ".".join(parts[position + 1 :])
    return Resolution(target, root, obj, owner, expression)


def load_object(spec: str, functions: bool = False) -> Any:
    """Return the object of "FILE:NAME" or "MODULE:NAME"; what its import prints goes to standard error.

    Args:
        spec: its NAME may be dotted.
        functions: whether a message lists the Functions of the module, too, besides other callables.

    Raises:
        TargetError: if there is no object of that name, or it cannot be imported.
    """
    with contextlib.redirect_stdout(sys.stderr):
        resolved = resolve(spec)
    return resolved.required(public_callables(resolved.module, functions))


def load_function(spec: str) -> Callable[..., Any]:
    """Return the function of "FILE:NAME" or "MODULE:NAME", as `load_object`.

    Raises:
        TargetError: if there is no function of that name, or it cannot be imported.
    """
    found = load_object(spec)
    if not callable(found):
        raise TargetError(f"{spec} is of type {type(found).__name__}: give a function")
    function: Callable[..., Any] = found
    return function


def no_such_name(target: Target, root: Home, names: Collection[str]) -> str:
    """Return the message for a name that a target does not have, with the nearest of `names`."""
    why = root.why or (f"{', '.join(root.absent)} could not be imported" if root.absent else "")
    return f"no {target.name!r} in {target.where}{f' ({why})' if why else ''}{similar(target.name, names)}"


def _member(obj: Any, name: str) -> Any:
    """Return an attribute, or a submodule that is not imported yet; `None` if there is neither."""
    value = attribute(obj, name)
    if value is None and isinstance(obj, ModuleType) and hasattr(obj, "__path__"):
        value = imported(Home(f"{obj.__name__}.{name}", None, obj.__name__)).module
    return value
