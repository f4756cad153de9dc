"""The process of a candidate: no network, caches of its own, memory that nobody has written, and eyes on what it does.

It is a guard against shortcuts, not against an attacker: a candidate runs with the permissions of who starts the judge.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import inspect
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import cache_from_source
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

_CACHES = (
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "PULLBACK_CACHE_DIR",
    "XDG_CACHE_HOME",
)
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_M_PERTURB, _PATTERN = -6, 0xBF
"""glibc fills memory that it frees with this byte, and memory that it hands out with its complement, 0x40: as a
number, -1.5 or -0.1 in any floating dtype, and 2 to 33."""
_WATCHED = (
    *(torch, torch.nn.functional, torch.autograd, torch.testing, torch.linalg, torch.random, torch.cuda),
    *(time, math, builtins, torch.Tensor, torch.autograd.Function),
)
"""Modules and classes in which a candidate has no reason to replace anything."""
UNWRITTEN = (b"\xbf" * 8, b"\x40" * 8, (0x7FF8DEADBEEF0001).to_bytes(8, "little"))
"""Bytes of memory that nobody has written; the last is the interpreter's NaN."""


def enter(folder: str) -> None:
    """Shut this process off: caches and temporary files in a folder, no network, and no zeros in new memory."""
    for name in _CACHES:
        os.environ[name] = str(Path(folder) / name.lower())
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_PERTURB, _PATTERN)
    _leave_network()


def _leave_network() -> None:
    """Enter a network namespace without interfaces, where the system lets users do so; `Watch` refuses the rest."""
    if sys.platform != "linux":
        return
    user = os.getuid()
    with contextlib.suppress(AttributeError, OSError):
        if ctypes.CDLL(None).unshare(_NEW_USER | _NEW_NETWORK) == 0:
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")


class CalledReferenceError(RuntimeError):
    """The candidate called the reference."""


class Watch:
    """What a candidate does besides computing.

    Attributes:
        seen: one sentence for each kind of shortcut, by its reason.
    """

    def __init__(self, reference_file: Path | None, ours: Sequence[Any]) -> None:
        """Begin to watch: before the candidate is imported.

        Args:
            reference_file: the file of the reference, if the candidate has no reason to read it.
            ours: modules and classes of the judge, in which nothing is to be replaced.
        """
        self.seen: dict[str, str] = {}
        self._files = [] if reference_file is None else _files_of(reference_file.resolve())
        self._owners = (*_WATCHED, *ours)
        self.begin()
        sys.addaudithook(self._hear)

    def begin(self) -> None:
        """Take everything as it is now for the judge's own."""
        self._before = {id(owner): (owner, dict(_names(owner))) for owner in self._owners}

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
            self.seen["network"] = f"it uses the network ({event} {arguments[1:] or arguments})"
            raise PermissionError("the judge allows no network")
        if event != "open" or not isinstance(arguments[0], str):
            return
        if os.path.realpath(arguments[0]) in self._files and not _is_import():
            self.seen["reads-reference"] = f"it reads the source of the reference, {self._files[0]}"

    def patches(self) -> None:
        """Note what has been replaced in PyTorch, in Python, and in the judge."""
        found = []
        for owner, before in self._before.values():
            now = dict(_names(owner))
            name_of = getattr(owner, "__name__", "?")
            replaced = [name for name, value in before.items() if now.get(name) is not value]
            found += [f"{name_of}.{name}" for name in replaced if not _wraps(now.get(name), before[name])]
        if found:
            self.seen["patches"] = f"it replaces {', '.join(sorted(found)[:4])}"

    def guard(self, function: Any) -> None:
        """Have the function, or the forward of the module, raise wherever it is called from."""
        for inner in _functions(function):
            inner.__code__ = _tripwire(inner.__code__)
            inner.__globals__.setdefault("_pullback_judge", self._called)

    def _called(self) -> None:
        self.seen["calls-reference"] = "it calls the reference"
        raise CalledReferenceError("the candidate calls the reference")


def _tripwire(code: CodeType) -> CodeType:
    """Code that tells the judge of a call, with the free variables of other code: a function takes no other code."""
    free = ", ".join(code.co_freevars)
    source = (
        f"def outer({free}):\n"
        "    def inner(*args, **kwargs):\n"
        f"        _ = lambda: ({free}{',' * bool(free)})\n"
        "        _pullback_judge()\n"
        "    return inner\n"
    )
    names: dict[str, Any] = {}
    exec(source, names)
    made: CodeType = names["outer"](*(None for _ in code.co_freevars)).__code__
    return made


def _functions(function: Any) -> Iterator[FunctionType]:
    """The Python functions that a call runs first; those of PyTorch itself are not touched."""
    found = [function, getattr(function, "__func__", None)]
    owner = function if isinstance(function, type) else type(function)
    found += [vars(cls).get(name) for cls in owner.__mro__ for name in ("forward", "__call__")]
    for value in found:
        value = inspect.unwrap(getattr(value, "__func__", value)) if callable(value) else None
        if isinstance(value, FunctionType) and not (value.__module__ or "").startswith(("torch.", "pullback.")):
            yield value


def _files_of(source: Path) -> list[str]:
    """The file of a module, and that of its bytecode."""
    return [str(source), os.path.realpath(cache_from_source(str(source)))]


def _is_import() -> bool:
    """Whether the file that is being opened is opened by an import statement, or by the judge.

    A candidate that asks `importlib` to load a file by its path has no module of the reference to be guarded in.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        if frame.f_code.co_name == "_find_and_load":
            return True
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("pullback.")


def _wraps(function: Any, before: Any) -> bool:
    """Whether PyTorch itself has wrapped a function, as `torch._dynamo` does with some when it is imported."""
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    is_of_torch = Path(file).is_relative_to(Path(torch.__file__).parent)
    return is_of_torch and callable(function) and inspect.unwrap(function) is before


def _names(owner: Any) -> Iterator[tuple[str, Any]]:
    """The functions and classes of a module or class, inherited ones too."""
    for place in reversed(owner.__mro__) if isinstance(owner, type) else [owner]:
        for name, value in list(vars(place).items()):
            if callable(value) or isinstance(value, property | classmethod | staticmethod):
                yield name, value
