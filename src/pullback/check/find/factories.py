"""Creates a Function that is defined inside another function, by calling the latter with guessed arguments."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

from pullback.check.find.importing import guarded
from pullback.check.find.live import Function, applied_class, attribute, live_functions
from pullback.check.find.places import Home
from pullback.check.find.source import FunctionSource, source_of

_NEVER_CALLED = re.compile(r"(main|train|test|run|demo)(_.*|s|ing|ning)?")

_INTEGERS = re.compile(r"k|n|num|bits?|nbits|n_bits|num_bits|bit_?width|dims?|axis|order|levels|size|n_.*|num_.*")
_FLOATS = re.compile(
    r"alpha|beta|gamma|lambd|lambda_|lam|delta|sigma|tau|slope|scale|eps|epsilon|temperature|temp|t|threshold|thr"
    r"|thresh|width|weight|factor|coeff?|strength|momentum|decay|negative_slope|min|max|low|high"
)
_VALUES = {"int": 2, "float": 1.0, "bool": False, "str": ""}


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
