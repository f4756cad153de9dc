"""Calls of a Function that its package makes: by the callables that apply it, in docstrings, tests and the README.

A Function that no guess fits is often called in one place, by a function of tensors or a module with a few sizes, which
are easier to guess, and which build the indices, equations and callables that the Function takes. Programs run in a
folder that is deleted afterwards, within limits of time.
"""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import io
import re
import signal
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from pullback.check.case import Case, make_case
from pullback.check.cases.call_samples import CallSamples, functions_inside, recording
from pullback.check.cases.signature import positional_names
from pullback.check.clock import Stopwatch
from pullback.check.find.discover import subject_of
from pullback.check.find.objects import answers, applied_class
from pullback.check.subject import Subject
from pullback.check.trial import forgive_memory

_SECONDS_OF_CALLERS = 8.0
_SIZES = (4, 2, 8)
"""Values of the required parameters of a module."""
_PROGRAM = re.compile(r"^_?(main|run|train|test|demo|example|bench)")
"""Names of functions that are programs."""
_SECONDS_OF_PROGRAMS, _SECONDS_OF_ONE = 8.0, 5.0
"""Limits for all programs together and for one: a test may train a model, or wait for a network."""
_FENCED = re.compile(r"^[ \t]*```[ \t]*(?:\{?\.?(?:python|py)\b[^\n]*)?\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_MOST_FILES = 300
"""Files of tests that are searched for a name."""
_LARGEST = 1 << 20
"""Bytes of a file that is read."""


def call_in_package(subject: Subject, guess: Callable[[Subject], Case | None]) -> Case | None:
    """Return a call of a Function that its package makes; `None` if none is found.

    Sources, in this order: examples in docstrings, which count up to where they raise; callables that apply it, with
    guessed arguments; the README and the tests.

    Args:
        subject: a Function.
        guess: returns a call of a callable that works, if it finds one.
    """
    clock = Stopwatch()
    applying = list(_applying(subject.target))
    examples = (
        partial(_execute, statements, {"torch": torch, **vars(home), "__name__": "__docstring__"})
        for home, value in applying
        for statements in _of_docstrings(value)
    )
    if (case := _first(subject, examples)) is not None:
        return case
    for caller in _callers(applying):
        if clock.seconds() > _SECONDS_OF_CALLERS:
            break
        case = guess(caller)
        forgive_memory()
        for inner, call in functions_inside(caller, case) if case is not None else ():
            if inner.target is subject.target:
                return call
    names = {value.__name__ for _, value in applying}
    return _first(subject, _programs(subject.target.__module__, names), is_one_enough=True)


def _applying(function: type) -> Iterator[tuple[ModuleType, Any]]:
    """Yield the functions and classes of a package whose code names a Function, those of its own module first."""
    package = function.__module__.partition(".")[0]
    homes = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == package and type(m) is ModuleType]
    homes.sort(key=lambda home: home.__name__ != function.__module__)
    yield sys.modules.get(function.__module__, ModuleType(function.__module__)), function
    for home in homes:
        names = {function.__name__} | {n for n, v in list(vars(home).items()) if applied_class(v) is function}
        for value in list(vars(home).values()):
            if answers(value) and getattr(value, "__module__", None) == home.__name__ and value is not function:
                codes = [m.__code__ for m in _functions_of(value)]
                if any(_names_any(code, names) for code in codes):
                    yield home, value


def _functions_of(value: Any) -> list[FunctionType]:
    members = vars(value).values() if isinstance(value, type) else [value]
    return [member for member in members if isinstance(member, FunctionType)]


def _callers(applying: Iterable[tuple[ModuleType, Any]]) -> Iterator[Subject]:
    """Yield what may be called to apply a Function: functions, then modules."""
    classes = []
    for _, value in applying:
        if inspect.isfunction(value) and _computes(value):
            yield subject_of(value)
        elif isinstance(value, type) and issubclass(value, torch.nn.Module):
            classes.append(value)
    for cls in classes:
        if (made := _made(cls)) is not None:
            yield subject_of(made)


def _computes(function: Callable[..., Any]) -> bool:
    """Whether a function may be one of tensors, and no program."""
    return bool(inspect.signature(function).parameters) and _PROGRAM.match(function.__name__) is None


def _names_any(code: CodeType, names: Collection[str]) -> bool:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return any(name in names for name in code.co_names) or any(_names_any(c, names) for c in inner)


def _required(parameters: Iterable[inspect.Parameter]) -> list[inspect.Parameter]:
    return [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _made(cls: type[torch.nn.Module]) -> torch.nn.Module | None:
    """An instance of a module class with small sizes, in eval mode, which draws no random numbers."""
    required = _required(inspect.signature(cls).parameters.values())
    for size in _SIZES:
        given = {p.name: 0.5 if p.annotation in (float, "float") else size for p in required}
        with suppress(Exception):
            return cls(**given).eval()
    return None


class _Enough(BaseException):
    """Ends a program whose call was recorded, or that takes too long. No test catches it."""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """End what runs in the main thread, unless it waits for something that is not Python, after some seconds."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise _Enough

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _first(subject: Subject, programs: Iterable[Callable[[], Any]], is_one_enough: bool = False) -> Case | None:
    """Run programs, in a folder that is deleted, until one has called a Function with something to differentiate.

    With `is_one_enough` a program ends at its first such call.
    """
    clock, samples = Stopwatch(), CallSamples()

    def note(function: type, args: tuple[Any, ...]) -> None:
        samples.record(function, args)
        if is_one_enough and function is subject.target and _called(subject, samples) is not None:
            raise _Enough

    quiet = io.StringIO()
    with (
        recording(note),
        tempfile.TemporaryDirectory(prefix="pullback-example-") as folder,
        chdir(folder),
        redirect_stdout(quiet),
        redirect_stderr(quiet),
    ):
        for program in programs:
            if clock.seconds() > _SECONDS_OF_PROGRAMS:
                break
            outcomes = getattr(sys.modules.get("_pytest.outcomes"), "OutcomeException", SystemExit)  # as of a skip
            with suppress(Exception, SystemExit, outcomes, _Enough), _limited(_SECONDS_OF_ONE):
                program()
            if (case := _called(subject, samples)) is not None:
                return case
    return None


def _called(subject: Subject, samples: CallSamples) -> Case | None:
    """Return the smallest of the calls of a Function that has something to differentiate."""
    if subject.target not in samples.functions:
        return None
    for args, kwargs in samples.of(subject.target) or ():
        case = make_case(args, kwargs, positional_names(subject), "example", nested=False)
        if case.wrt:
            return case
    return None


def _execute(statements: Iterable[str], names: dict[str, Any]) -> None:
    clock = Stopwatch()
    for statement in statements:
        if clock.seconds() > _SECONDS_OF_PROGRAMS:
            return
        exec(compile(statement, "<example>", "exec"), names)


def _of_docstrings(value: Any) -> Iterator[list[str]]:
    """Yield the statements of each example in the docstring of a value, and of a class in those of its methods."""
    members = vars(value).values() if isinstance(value, type) else ()
    for owner in (value, *members):
        text = getattr(owner, "__doc__", None)
        if isinstance(text, str):
            yield from _of_text(text)


def _of_text(text: str) -> Iterator[list[str]]:
    with suppress(ValueError):  # an inconsistent indentation
        if session := [example.source for example in doctest.DocTestParser().get_examples(text)]:
            yield session
    for block in _FENCED.findall(text):
        if ">>>" not in block:
            yield [textwrap.dedent(block)]


def _programs(module: str, names: Collection[str]) -> Iterator[Callable[[], Any]]:
    """Yield the examples of a README, and then the tests of a package, that hold a name."""
    top = module.partition(".")[0]
    where = getattr(sys.modules.get(top), "__file__", None)
    if where is None:
        return
    home = Path(where).parent if Path(where).name == "__init__.py" else None
    root = Path(where).parent if home is None else home.parent
    roots = [root, root.parent] if root.name == "src" else [root]
    for folder in roots:
        for statements in _of_text(_text(folder / "README.md")):
            if any(name in statement for name in names for statement in statements):
                yield partial(_execute, statements, {"torch": torch, "__name__": "__readme__"})
    for path in _files_of_tests([*roots, *([home] if home else [])], lone=home is None):
        text = _text(path)
        if top in text and any(name in text for name in names):
            yield from _tests_in(path, names)


def _text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8") if path.stat().st_size <= _LARGEST else ""
    return ""


def _files_of_tests(roots: Iterable[Path], lone: bool) -> Iterator[Path]:
    """Yield `test_*.py` and `*_test.py` in folders of tests, and beside a lone module, in the order of their names."""
    found: set[Path] = set()
    for root in roots:
        for pattern in ("test_*.py", "*_test.py"):
            folders = [root / "tests", root / "test"]
            found.update(path for folder in folders if folder.is_dir() for path in folder.rglob(pattern))
            found.update(root.glob(pattern) if lone else ())
    yield from sorted(found)[:_MOST_FILES]


def _tests_in(path: Path, names: Collection[str]) -> Iterator[Callable[[], Any]]:
    """Yield the import of a file of tests, and then its tests, those first whose source holds a name."""
    held: list[ModuleType] = []
    yield partial(_import, path, held)
    tests = [test for module in held for test in _tests_of(module)]

    def is_near(test: Callable[[], Any]) -> bool:
        with suppress(OSError, TypeError):
            return any(name in inspect.getsource(inspect.unwrap(_function_of(test))) for name in names)
        return False

    yield from sorted(tests, key=lambda test: not is_near(test))


def _import(path: Path, held: list[ModuleType]) -> None:
    """Execute a file of tests as a module, with its folder on the path, as pytest does, and hold it."""
    name = f"pullback_example_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    held.append(module)


def _tests_of(module: ModuleType) -> Iterator[Callable[[], Any]]:
    """Yield the tests of a module that can be called without pytest's fixtures, as functions of nothing."""
    for name, value in [item for item in vars(module).items() if answers(item[1])]:
        if inspect.isfunction(value) and name.startswith("test") and (given := _given(value)) is not None:
            yield partial(value, **given)
        if isinstance(value, type) and value.__module__ == module.__name__:
            for member, method in list(vars(value).items()):
                if member.startswith("test") and inspect.isfunction(method):
                    yield partial(_call_method, value, member, method)


def _call_method(cls: type, name: str, method: Callable[..., Any]) -> None:
    """Call a test that is a method, of `unittest` or of a plain class."""
    given = _given(method, skipped=1)
    if given is None:
        return
    test = cls(name) if hasattr(cls, "assertEqual") else cls()
    for prepare in ("setUp", "setup_method"):
        with suppress(AttributeError):
            getattr(test, prepare)()
    getattr(test, name)(**given)


def _given(test: Callable[..., Any], skipped: int = 0) -> dict[str, Any] | None:
    """Return the first values of a parametrised test, or nothing for one without; `None` where more is asked for."""
    given: dict[str, Any] = {}
    try:
        for mark in getattr(test, "pytestmark", ()):
            if mark.name == "parametrize":
                given |= _first_row(*mark.args[:2])
        parameters = list(inspect.signature(test).parameters.values())[skipped:]
    except (ValueError, TypeError, IndexError, StopIteration):  # marks of another form
        return None
    return given if {p.name for p in _required(parameters)} <= given.keys() else None


def _first_row(names: str | Iterable[str], rows: Iterable[Any]) -> dict[str, Any]:
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    row: Any = next(iter(rows))  # of none there is no test
    if hasattr(row, "marks"):  # pytest.param(…)
        return dict(zip(names, row.values, strict=True))
    return dict(zip(names, [row] if len(names) == 1 else row, strict=True))


def _function_of(test: Callable[[], Any]) -> Callable[..., Any]:
    function = test.args[-1] if isinstance(test, partial) and test.args else getattr(test, "func", test)
    return function
