"""Work in a new interpreter, for a program that cannot be forked: it uses a GPU, or autograd has threads in it.

A subject is sent there by its import path if it has one, else by value, with `cloudpickle`: a class in a notebook, a
closure, a lambda. Only this program writes and reads it, in a file without a name. A fingerprint of its code tells
whether an import there gives the same function.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import io
import json
import linecache
import marshal
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from pullback._torch import custom_op_function, is_custom_op
from pullback.check.runner.process import Channel, settle
from pullback.check.subject import is_made
from pullback.errors import RunnerError

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_OF_KERNELS = ("do_not_specialize", "noinline", "debug")
"""Arguments of `triton.jit` that a kernel is made anew with."""
_NOT_THEIRS = ("torch.", "pullback.", "builtins.")


def fingerprint(obj: Any) -> str:
    """Digest of the code of functions and of the constants that they use, in the user's modules.

    A program may have replaced a method, or set a number that a module holds, after it imported the module.
    """
    return hashlib.sha256("\n".join(_parts(obj, set())).encode()).hexdigest()


def _parts(obj: Any, seen: set[int]) -> Iterator[str]:
    if isinstance(obj, functools.partial):
        yield from _parts(obj.func, seen)
        return
    obj = getattr(obj, "__func__", obj)
    if not isinstance(obj, FunctionType | type):
        obj = type(obj)
    if id(obj) in seen or f"{obj.__module__}.".startswith(_NOT_THEIRS):
        return
    seen.add(id(obj))
    if isinstance(obj, type):
        for cls in obj.__mro__ if not f"{obj.__module__}.".startswith(_NOT_THEIRS) else ():
            if not f"{cls.__module__}.".startswith(_NOT_THEIRS):
                yield from _of_names(vars(cls), [n for n in vars(cls) if not n.startswith("__")], seen)
        return
    function = inspect.unwrap(obj)
    if isinstance(function, FunctionType):
        yield from _of_code(function.__code__, function.__globals__, seen)


def _of_code(code: CodeType, namespace: dict[str, Any], seen: set[int]) -> Iterator[str]:
    yield code.co_code.hex()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_code(constant, namespace, seen)
        else:
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
    yield from _of_names(namespace, code.co_names, seen)


def _of_names(namespace: Any, names: Any, seen: set[int]) -> Iterator[str]:
    for name in sorted(names):
        value = namespace.get(name)
        value = getattr(value, "__func__", value)
        if isinstance(value, _PLAIN):
            yield f"{name} = {value!r}"
        elif isinstance(value, FunctionType | type):
            yield from _parts(value, seen)


class NotPicklableError(RunnerError):
    """The subject of an audit in a new interpreter is, or holds, an object that cannot be pickled."""


Work = Callable[[Channel], None]

_START = (
    "import json, sys; channel, job = int(sys.argv[1]), int(sys.argv[2]); "
    "sys.path[:], sys.argv[:] = json.loads(sys.argv[3]); "
    "from pullback.check.runner.fresh import main; main(channel, job)"
)


@dataclass(frozen=True)
class _Home:
    """The module of a subject, as far as a new interpreter needs it: its file, and the subject's name there.

    Attributes:
        module, file: its name and file; `None` in a notebook.
        name, value: the subject and its name; empty if the module has none for it.
        code: the fingerprint of the subject.
    """

    module: str
    file: str | None
    name: str
    value: object
    code: str

    @classmethod
    def of(cls, obj: object) -> _Home:
        """Describe the module of an object."""
        module, name = _module_of(obj) or sys.modules["__main__"], getattr(obj, "__qualname__", "")
        is_bound = bool(name) and getattr(module, name, None) is obj
        file = getattr(module, "__file__", None)
        return cls(module.__name__, file, name if is_bound else "", obj, fingerprint(obj))

    def rebuild(self) -> None:
        """Register the module in this interpreter, unless it was imported."""
        module = sys.modules.get(self.module)
        if module is None or self.module == "__main__":
            module = sys.modules.setdefault(self.module, ModuleType(self.module))
            if self.file is not None:
                module.__file__ = self.file
            if self.name:
                setattr(module, self.name, self.value)


def packed(value: object, what: str, about: object = None) -> bytes:
    """Return a value as bytes that `unpacked` takes, in another interpreter.

    Args:
        value: anything; for `exec_in_new`, a `Work`.
        what: its subject, for the message.
        about: an object in it whose module's definitions travel by value, too, if no import finds them.

    Raises:
        NotPicklableError: if a part of it cannot be pickled.
    """
    content = None if about is None else _Home.of(about), value
    module, instead = _module_of(about), b""
    try:
        is_found = module is not None and _is_importable(module)
        as_imported = _dumped(content, None if is_found else module)
        if is_found:
            with suppress(Exception):
                instead = _dumped(content, module)
        return pickle.dumps((as_imported, instead))
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise NotPicklableError(
            f"{what} cannot be sent to a new process, which is needed as autograd or CUDA has threads in this one "
            f"({message}); define it at the top of a module, or check before the first backward"
        ) from None


def unpacked(data: bytes) -> Any:
    """Return the value that `packed` was given."""
    as_imported, instead = pickle.loads(data)
    try:
        home, value = pickle.loads(as_imported)
    except (Exception, SystemExit):
        if not instead:
            raise
        home, value = pickle.loads(instead)
    if home is not None and home.code != fingerprint(home.value):  # the program has changed it since the import
        if not instead:
            raise RunnerError(f"an import of {home.module} gives other code than the program has, which cannot be sent")
        home, value = pickle.loads(instead)
    if home is not None:
        home.rebuild()
    return value


def _dumped(content: object, by_value: ModuleType | None) -> bytes:
    """Pickle content: definitions of a given module by value, all others by import path."""
    file = io.BytesIO()
    if by_value is None or by_value.__name__ == "__main__":
        _Pickler(file).dump(content)
        return file.getvalue()
    cloudpickle.register_pickle_by_value(by_value)
    try:
        _Pickler(file).dump(content)
    finally:
        cloudpickle.unregister_pickle_by_value(by_value)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles code objects with their file names, and ops that cannot be imported by value."""

    def reducer_override(self, obj: Any) -> Any:
        """The reduction of an object."""
        if isinstance(obj, CodeType):
            return marshal.loads, (marshal.dumps(obj),)
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType and sys.modules.get(obj.__name__) is obj:
            return importlib.import_module, (obj.__name__,)  # torch.backends.cudnn, whose attributes are settings
        if is_made(obj) and not _is_imported(obj):
            return obj.by_value()
        function = _wrapped(obj)
        if function is not None and _is_imported(function, obj):
            return _imported, (function.__module__, function.__qualname__)
        if _is_kernel(obj):
            return _kernel, (function, {name: getattr(obj, name) for name in _OF_KERNELS})
        return super().reducer_override(obj)


def exec_in_new(work: bytes, channel: Channel) -> None:
    """Replace this forked process by a new interpreter that does packed work.

    Args:
        work: a `Work`, packed.
        channel: the channel that it is called with.
    """
    job = tempfile.TemporaryFile()  # noqa: SIM115 - the new interpreter reads it
    pickle.dump(_sources_without_file(), job)
    job.write(work)
    job.seek(0)
    for fd in (channel.fd, job.fileno()):
        os.set_inheritable(fd, True)
    program = json.dumps([[str(Path(entry).absolute()) for entry in sys.path], sys.argv])
    os.execv(sys.executable, [sys.executable, "-c", _START, str(channel.fd), str(job.fileno()), program])


def main(channel: int, job: int) -> None:
    """Do the work of a job: called in the new interpreter.

    Args:
        channel, job: file descriptors.
    """
    settle()
    with open(job, "rb") as file:
        linecache.cache.update(pickle.load(file))
        work: Work = unpacked(file.read())
    work(Channel(channel))


def _sources_without_file() -> dict[str, Any]:
    """Return the source of a module without a file from `linecache`: the cells of a notebook."""
    return {name: entry for name, entry in linecache.cache.items() if len(entry) == 4 and not Path(name).exists()}


def _module_of(obj: object) -> ModuleType | None:
    if isinstance(obj, ModuleType):
        return obj
    return sys.modules.get(getattr(obj, "__module__", None) or "")


def _is_imported(named: Any, op: Any = None) -> bool:
    """Whether an op can be imported, which has its own name, or that of another object."""
    module, name = _module_of(named), named.__qualname__
    if module is None or module.__name__ == "__main__" or getattr(module, name, None) is not (op or named):
        return False
    return _is_importable(module)


def _imported(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _wrapped(obj: Any) -> Callable[..., Any] | None:
    """Return the function that a kernel or a custom op was made of, whose name it has in its module."""
    function: Callable[..., Any] | None = obj.fn if _is_kernel(obj) else None
    return custom_op_function(obj) if is_custom_op(obj) else function


def _is_kernel(obj: Any) -> bool:
    """Whether `triton.jit` made an object: it holds a lock, which cannot be pickled."""
    return type(obj).__name__ == "JITFunction" and type(obj).__module__.startswith("triton.")


def _kernel(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Make a kernel anew."""
    from triton import jit  # type: ignore[import-untyped,unused-ignore]

    return jit(function, **options)


def _finders() -> list[Any]:
    """Return the finders that a new interpreter has: Python's own, and those of packages installed for development."""
    own = (BuiltinImporter, FrozenImporter, PathFinder)
    return [*own, *(f for f in sys.meta_path if getattr(f, "__module__", "").startswith("__editable__"))]


def _is_importable(module: ModuleType) -> bool:
    """Whether an import finds a module; `importlib.util.find_spec` consults `sys.modules`, and not the path."""
    package, _, _ = module.__name__.rpartition(".")
    if package and (package not in sys.modules or not _is_importable(sys.modules[package])):
        return False
    path = getattr(sys.modules[package], "__path__", None) if package else None
    if package and path is None:
        return False
    spec = next(filter(None, (finder.find_spec(module.__name__, path) for finder in _finders())), None)
    return spec is not None and spec.origin == getattr(module, "__file__", None)
