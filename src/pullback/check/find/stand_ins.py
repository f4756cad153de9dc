"""Stands in for modules that cannot be imported, so that functions which do not need them can be audited.

Every attribute of a stand-in is a stand-in, too. During an import it may be called, used as a decorator or subclassed,
which top-level code does. Any other use, and any later one, raises `AbsentError`: no result depends on a stand-in.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any, Never

NEEDED = re.compile(r"it needs ([\w.]+), which could not be imported here")
_NOT_THERE = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
_NO_MODULE = re.compile(r"No module named '([\w.]+)'$")
_KEPT = frozenset({"torch", "pullback", "numpy"})
"""Packages that no stand-in may take the place of; parts of them that are missing may have one."""
_ENDS = SystemExit, OSError
"""Exceptions of a script whose arguments or files are not there."""
_importing = [0]


class AbsentError(ImportError):
    """Something that was stood in for is needed after all."""


class AbsentObject:
    """Something of a module that is not there: its name is all that is known of it."""

    def __init__(self, name: str, module: str) -> None:
        self._name, self._module = name, module

    def _needed(self, *_: Any) -> Never:
        raise AbsentError(f"it needs {self._module}, which could not be imported here")

    def __getattr__(self, name: str) -> AbsentObject:
        if name.startswith("__") and name.endswith("__"):  # of protocols, which are asked for without being used
            raise AttributeError(name)
        return AbsentObject(f"{self._name}.{name}", self._module)

    def __call__(self, *_: Any, **__: Any) -> AbsentObject:
        """Give another one, during an import."""
        return AbsentObject(self._name, self._module) if _importing[0] else self._needed()

    def __mro_entries__(self, _: Any) -> tuple[type]:
        return (type(self._name.rpartition(".")[2], (), {"__init__": lambda made, *_, **__: self._needed()}),)

    def __instancecheck__(self, _: object) -> bool:
        return False  # of a class that is not there

    def __repr__(self) -> str:
        return f"<in place of {self._name}>"

    __iter__ = __len__ = __bool__ = __int__ = __float__ = __index__ = __getitem__ = __enter__ = _needed
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _needed
    __eq__ = __ne__ = _needed
    __hash__ = object.__hash__
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __contains__ = _needed


class _AbsentModule(ModuleType):
    """A module that is not there."""

    def __init__(self, name: str, absent: str) -> None:
        super().__init__(name)
        self._absent = absent

    def __getattr__(self, name: str) -> AbsentObject:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return AbsentObject(f"{self.__name__}.{name}", self._absent)


class _Finder(MetaPathFinder, Loader):
    """Finder of stand-ins for some modules and their submodules, active during an import."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._lent: list[tuple[ModuleType, str]] = []

    @property
    def names(self) -> tuple[str, ...]:
        """The modules, and names in modules, that are stood in for."""
        return tuple(self._names)

    def add(self, name: str) -> bool:
        """Install a stand-in for a module or a name in one; return whether that was possible."""
        if name in self._names or name in _KEPT:
            return False
        self._names[name] = None
        owner, _, last = name.rpartition(".")
        there = sys.modules.get(owner)
        if there is not None and not isinstance(there, _AbsentModule) and not hasattr(there, last):
            setattr(there, last, AbsentObject(name, name))
            self._lent.append((there, last))
        for known in [module for module in sys.modules if f"{module}.".startswith(f"{name}.")]:
            del sys.modules[known]
        return True

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find a module that is stood in for."""
        return ModuleSpec(name, self, is_package=True) if self._absent(name) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make it."""
        return _AbsentModule(spec.name, self._absent(spec.name))

    def exec_module(self, module: ModuleType) -> None:
        """Leave it empty."""

    def _absent(self, module: str) -> str:
        return next((name for name in self._names if f"{module}.".startswith(f"{name}.")), "")

    def __enter__(self) -> _Finder:
        sys.meta_path.insert(0, self)
        _importing[0] += 1
        return self

    def __exit__(self, *_: object) -> None:
        _importing[0] -= 1
        sys.meta_path.remove(self)
        for module, name in self._lent:
            delattr(module, name)
        for known in [name for name, module in sys.modules.items() if isinstance(module, _AbsentModule)]:
            del sys.modules[known]


def import_without(
    do: Callable[[], ModuleType], wanted: str
) -> tuple[ModuleType | None, BaseException | None, tuple[str, ...]]:
    """Import a module, with stand-ins for its missing imports.

    Args:
        do: imports it.
        wanted: its name.

    Returns:
        The module, or `None`; if there is none, its first exception, or the last if no stand-in can have caused that;
        and the missing imports.
    """
    first: BaseException | None = None
    with _Finder() as finder:
        while True:
            try:
                return do(), None, finder.names
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                first = first or error
                names = list(_missing(error, wanted))
                last = error
            if not any(map(finder.add, names)):  # the first that has no stand-in yet
                return None, last if isinstance(last, _ENDS) else first, finder.names


def _missing(error: BaseException, wanted: str) -> Iterator[str]:
    """Yield the modules, or names in one, whose absence may have made an import fail, the likeliest first."""
    if isinstance(error, AbsentError):
        return
    if not isinstance(error, ImportError) and (match := _NO_MODULE.match(str(error))):
        yield match[1]  # raised anew as another exception
    if (name := _missing_by_type(error, wanted)) is not None:
        yield name


def _missing_by_type(error: BaseException, wanted: str) -> str | None:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return None if f"{wanted}.".startswith(f"{error.name}.") else error.name
    if isinstance(error, ImportError) and (match := _NOT_THERE.match(str(error))):
        return f"{match[2]}.{match[1]}"
    names = list(_modules_of(error))
    tops = [name.partition(".")[0] for name in names]
    own = wanted.partition(".")[0]
    if own in tops:
        after = tops[len(tops) - tops[::-1].index(own) :]
        foreign = [top for top in after if top not in _KEPT and top not in sys.stdlib_module_names]
        return next(iter(foreign), None) or _failing_part(error, wanted)
    return None


def _failing_part(error: BaseException, wanted: str) -> str | None:
    """Return the other module of the same package whose top level fails: it compiles a kernel, or asks for a GPU."""
    trace = error.__traceback__
    begun = [frame.f_globals for frame, _ in walk_tb(trace) if frame.f_code.co_name == "<module>"]
    last = str(begun[-1].get("__name__", "")) if begun else ""
    is_other = last.partition(".")[0] == wanted.partition(".")[0] and not f"{wanted}.".startswith(f"{last}.")
    return last if is_other else None


def _modules_of(error: BaseException) -> Iterator[str]:
    """Yield the modules whose code was running when an error was raised, the outermost first."""
    trace = error.__traceback__
    while trace is not None:
        yield str(trace.tb_frame.f_globals.get("__name__", ""))
        trace = trace.tb_next


def bare_package(name: str, folder: Path) -> None:
    """Make Python know a package whose `__init__` is not run."""
    spec = spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert spec is not None  # of a file that ends in .py
    module = sys.modules[name] = module_from_spec(spec)
    owner, _, last = name.rpartition(".")
    if owner:
        setattr(sys.modules[owner], last, module)
