"""Search for the custom functions of modules: live ones, ones only in the source, and those that factories make.

A Function defined inside another function exists once the latter, its factory, is called: with guessed arguments.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pullback import _torch
from pullback.check.find.importing import guarded
from pullback.check.find.modules import Home, home_of_module, in_package
from pullback.check.find.objects import (
    Discovered,
    Function,
    answers,
    applied_class,
    attribute,
    find_callable,
    find_carried,
    find_function,
    find_op,
    is_function,
    live_functions,
)
from pullback.check.find.source import FunctionSource, source_of
from pullback.check.subject import is_carried, is_made

_NOT_THERE = (
    "not there once the module is imported: it is defined under a condition that does not hold here, or its "
    "name was given to something else since"
)
_NEVER_CALLED = re.compile(r"(main|train|test|run|demo)(_.*|s|ing|ning)?")
_INTEGERS = re.compile(r"k|n|num|bits?|nbits|n_bits|num_bits|bit_?width|dims?|axis|order|levels|size|n_.*|num_.*")
_FLOATS = re.compile(
    r"alpha|beta|gamma|lambd|lambda_|lam|delta|sigma|tau|slope|scale|eps|epsilon|temperature|temp|t|threshold|thr"
    r"|thresh|width|weight|factor|coeff?|strength|momentum|decay|negative_slope|min|max|low|high"
)
_VALUES = {"int": 2, "float": 1.0, "bool": False, "str": ""}


def find_all(homes: Sequence[Home]) -> list[Discovered]:
    """Return the Functions and ops of some modules; for a module that is not imported, the Functions in its source.

    Ops are those of `torch.library` and of `pullback.function`.

    Functions that only exist for others to derive from are left out. To find a Function defined inside another
    function, the enclosing function is called if its arguments can be guessed.
    """
    live = _find_live(homes) if homes[0].module is not None else []
    present: set[tuple[str, Any]] = {one.definition for one in live}
    present |= {(one.module, one.qualname) for one in live if one.source is None}
    return [*(one for one in live if not one.hidden), *_find_missing(homes, present)]


def _find_live(homes: Sequence[Home]) -> list[Discovered]:
    """Return the Functions and ops of these modules; the first may be the package of the others.

    A class that a factory makes repeatedly is taken once, and in addition each time that a module has a name for it.
    """
    gc.collect()
    found: list[Discovered] = []
    for cls in live_functions():
        if in_package(cls.__module__, homes[0].name):
            home = _home_of(cls.__module__, homes)
            one = find_function(cls, home)
            found.append(one if one.bound else replace(one, load=_load_among_all(cls, home)))
    for op in _live_ops(homes):
        module = _torch.custom_op_function(op).__module__
        if in_package(module, homes[0].name):
            home = _home_of(module, homes)
            one = find_op(op, home)
            named = (
                one.load
                if not one.load.startswith("#")
                else home.load_unnamed(f"torch.ops.{one.name.replace('::', '.')}")
            )
            found.append(replace(one, load=named))
    for made in _live_made(homes):
        if in_package(made.__module__, homes[0].name):
            home = _home_of(made.__module__, homes)
            found.append(find_carried(made, home) if is_carried(made) else find_callable(made, home))
    return list(_without_copies(found))


def _live_ops(homes: Sequence[Home]) -> list[Any]:
    """Return the custom ops of this process, including those of modules that have been replaced."""
    ops = [*_torch.custom_ops(), *filter(_torch.is_custom_op, _values(homes))]
    return list({id(op): op for op in ops}.values())


def _live_made(homes: Sequence[Home]) -> list[Any]:
    """Return objects made by Pullback that these modules name, except methods, which need a self."""
    return list({id(made): made for made in _values(homes) if is_made(made) or is_carried(made)}.values())


def _values(homes: Sequence[Home]) -> list[Any]:
    """Return the values of the variables of modules, except objects that refuse to be asked for their class."""
    values = (value for home in homes if home.module is not None for value in vars(home.module).values())
    return [value for value in values if answers(value)]


def _home_of(module: str, homes: Sequence[Home]) -> Home:
    listed = next((home for home in homes if home.name == module), None)
    if listed is not None or module not in sys.modules:
        return listed or homes[0]
    return replace(home_of_module(sys.modules[module]), setup=homes[0].setup)


def _without_copies(found: list[Discovered]) -> Iterator[Discovered]:
    seen: set[tuple[str, int]] = set()
    for one in sorted(found, key=lambda one: not one.bound):
        if one.bound or one.definition not in seen:
            yield one
        seen.add(one.definition)


def _find_missing(homes: Sequence[Home], present: set[tuple[str, Any]]) -> Iterator[Discovered]:
    """Yield the Functions of the source that are not present: made by a factory call, or not at all."""
    for home in homes:
        calls: dict[str, FactoryCall] = {}
        for source in home.sources():
            here = {(os.path.realpath(source.file), source.line), (home.name, source.qualname)}
            if here & present or not (source.defines("forward") and source.defines("backward", "vjp", "jvp")):
                continue
            if _is_no_function(attribute(home.module, source.qualname)):
                continue
            if not source.factories or home.module is None:
                yield _unaudited(source, home, home.why or _NOT_THERE)
                continue
            factory = source.qualname.partition(".<locals>")[0]
            if factory not in calls:
                calls[factory] = call_factory(home, source)
            yield _from_factory(source, home, calls[factory])


def _load_among_all(cls: Function, home: Home, making: str = "") -> str:
    """Return the lines that bind `fn` to a Function without a name: it is found among all subclasses, once made."""
    before = "def derived(cls):\n    return [cls, *(each for one in cls.__subclasses__() for each in derived(one))]\n"
    found = f"next(c for c in derived(torch.autograd.Function) if c.__qualname__ == {json.dumps(cls.__qualname__)})"
    return home.load_unnamed(f"{found}.apply", making, before)


def _is_no_function(obj: Any) -> bool:
    """Whether the source misled: the class exists and derives from something else called Function."""
    return isinstance(obj, type) and not is_function(obj)


def _from_factory(source: FunctionSource, home: Home, call: FactoryCall) -> Discovered:
    cls = makes(call, source)
    if cls is None:
        target = f"{home.shown}:NAME" if home.loose else f"{home.name}:NAME"
        return _unaudited(
            source,
            home,
            f"defined inside {call.expression}, {call.why or 'which was called but did not define it'}; "
            f"call that yourself and give the result as {target}, or audit the class with pullback.check(…)",
        )
    found = find_function(cls, home)
    expression = call.reaches(cls)
    if expression is not None:
        return replace(found, load=home.load(expression, expression, found.location))
    if call.why:
        return replace(
            found, load=f"# fn = the Function {cls.__name__!r} made by {call.expression} at {found.location}"
        )
    return replace(found, load=_load_among_all(cls, home, call.expression))


def _unaudited(source: FunctionSource, home: Home, why: str) -> Discovered:
    return Discovered(
        target=None,
        kind="function",
        name=source.name,
        module=home.name,
        qualname=source.qualname,
        location=home.location(source.file, source.node.lineno),
        source=source,
        why_unaudited=why,
    )


@dataclass(frozen=True, slots=True)
class FactoryCall:
    """Result of an attempt to call a factory.

    Attributes:
        expression: the call, e.g. "make(k=2)"; in the form of the definition, "make(k, f)", if it was not called.
        made: the Functions defined since.
        returned: its result.
        why: why it was not called, or its exception; empty if it returned.
    """

    expression: str
    made: tuple[Function, ...] = ()
    returned: Any = None
    why: str = ""

    def reaches(self, cls: Function) -> str | None:
        """Return the expression that gives `cls.apply`, if the result is `cls` or `cls.apply`."""
        if self.returned is cls:
            return f"{self.expression}.apply"
        return self.expression if applied_class(self.returned) is cls else None


def call_factory(home: Home, source: FunctionSource) -> FactoryCall:
    """Call the outermost function around a Function's definition, if its required arguments can be guessed.

    This runs the user's code; an exception is caught. Functions with a name like main, train, test, run or demo are not
    called.
    """
    path = source.qualname.partition(".<locals>")[0]
    factory = attribute(home.module, path)
    parameters = _parameters(factory)
    if parameters is None:
        return FactoryCall(f"{path}(…)", why="which was not called")
    arguments = {p.name: guess(p) for p in parameters if p.default is p.empty}
    if None in arguments.values() or _NEVER_CALLED.fullmatch(path.rpartition(".")[2]):
        return FactoryCall(f"{path}({', '.join(p.name for p in parameters)})", why="which was not called")
    expression = f"{path}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
    returned: list[Any] = []
    before = set(live_functions())
    failure = guarded(lambda: returned.append(factory(**arguments)))
    made = tuple(cls for cls in live_functions() if cls not in before)
    if failure:
        return FactoryCall(expression, made, why=f"which raised {failure}")
    return FactoryCall(expression, made, returned[0])


def guess(parameter: inspect.Parameter) -> Any:
    """Return a plain value for a required parameter, by its annotation or else its name; or `None`."""
    annotation = parameter.annotation
    if annotation is not parameter.empty:
        return _VALUES.get(annotation if isinstance(annotation, str) else getattr(annotation, "__name__", ""))
    name = parameter.name.lower()
    if name in ("dim", "axis"):
        return -1
    if _INTEGERS.fullmatch(name):
        return 2
    return 1.0 if _FLOATS.fullmatch(name) else None


def makes(call: FactoryCall, source: FunctionSource) -> Function | None:
    """Return the class among those made that `source` defines."""
    for cls in call.made:
        found = source_of(cls)
        if found is not None and (found.line, found.qualname) == (source.line, source.qualname):
            return cls
    return None


def _parameters(factory: Any) -> list[inspect.Parameter] | None:
    """Return the parameters of a function that can be called by keyword, and `None` for anything else."""
    if not inspect.isroutine(factory) or inspect.iscoroutinefunction(factory):
        return None
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return None
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return None if any(p.kind is p.POSITIONAL_ONLY for p in named) else named
