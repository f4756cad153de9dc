"""C++ source to a function: compiled once, kept on disk, shared by processes.

A compiled kernel is stored in the user's cache under the hash of everything that it depends on. It is loaded only from
a folder that nobody else can write to. A damaged one is rebuilt.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from pullback import caches
from pullback.errors import RunnerError
from pullback.kernels import build as headers

_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fno-lax-vector-conversions", "-w")
"""No contraction and no fast-math: code runs as written. clang++ would convert vectors of one size silently."""
_WHERE_KNOWN = ("-fno-tree-loop-if-convert",)
"""For compilers that know them. g++ (seen in 12, with AVX-512) converts `if (c) v = a / b;` on vectors in a loop to a
masked division whose mask is the number c: one lane of 16 is computed. tests/kernels/test_build.py has it reduced."""
_OF_CAPABILITY = {
    "AVX512": ("avx512.h", ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma", "-mf16c")),
    "AVX2": ("avx2.h", ("-mavx2", "-mfma", "-mf16c")),
}
_INCLUDE = Path(str(resources.files("pullback.kernels") / "include"))
TORCH = Path(torch.__file__).parent
"""Where PyTorch is installed."""
_SECONDS = 120

_loaded: dict[str, Any] = {}
_locks: dict[str, threading.Lock] = {}
_lock = threading.Lock()


@functools.cache
def header() -> str:
    """Return the vector header for this machine.

    Raises:
        RunnerError: if no header supports it.
    """
    return _machine()[0]


def require() -> None:
    """Raise RunnerError if kernels cannot be compiled here."""
    header()
    compiler()


def _machine() -> tuple[str, tuple[str, ...]]:
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in _OF_CAPABILITY:
        raise RunnerError(f"kernels are written for AVX2 and AVX-512, and this processor has {capability}.")
    return _OF_CAPABILITY[capability]


def function_of(source: str, n_pointers: int, n_sizes: int = 2) -> Callable[..., None]:
    """Return the function `run` of a source, which takes pointers and sizes.

    Raises:
        RunnerError: if there is no compiler, it fails, or nothing can be written.
    """
    key = _key(source)
    with _lock:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        if key not in _loaded:
            _loaded[key] = _library(key, source)
        run = _loaded[key].run
    run.argtypes = [ctypes.c_void_p] * n_pointers + [ctypes.c_int64] * n_sizes
    run.restype = None
    return run  # type: ignore[no-any-return]


@functools.cache
def compiler() -> str:
    """Return the path of a C++ compiler.

    Raises:
        RunnerError: if there is none.
    """
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and (found := shutil.which(name)):
            return found
    raise RunnerError("there is no C++ compiler (g++ or clang++, or set CXX)")


@functools.cache
def flags(name: str) -> tuple[str, ...]:
    """Return the flags that a compiler builds kernels with, except those of the processor."""
    return (*_FLAGS, *(flag for flag in _WHERE_KNOWN if _knows(name, flag)))


def _knows(name: str, flag: str) -> bool:
    command = [name, flag, "-fsyntax-only", "-x", "c++", os.devnull]
    try:
        return subprocess.run(command, capture_output=True, timeout=_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@functools.cache
def _surroundings() -> str:
    """Return the cache key's part besides a kernel's source and compiler: PyTorch, flags, processor and headers."""
    parts = [torch.__version__, *_FLAGS, *_WHERE_KNOWN, *_machine()[1]]
    parts += [path.read_text() for path in sorted(_INCLUDE.glob("*.h"))]
    return "\0".join(parts)


def _key(source: str) -> str:
    return hashlib.sha256("\0".join([_surroundings(), *_of_compiler(), source]).encode()).hexdigest()[:32]


def _of_compiler() -> list[str]:
    """Return a fingerprint of a compiler: another version may miscompile other code."""
    at = Path(compiler()).stat()
    return [compiler(), str(at.st_size), str(at.st_mtime_ns)]


def _library(key: str, source: str) -> ctypes.CDLL:
    try:
        folder = caches.root() / "kernels"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"{key}.so"
        if not caches.is_private(folder):
            raise RunnerError(f"{folder} can be written to by others: kernels in it are not run. `chmod 700` it.")
        if (library := _opened(path)) is not None:
            return library
        from filelock import FileLock  # a slow import, not needed for a kernel that exists

        with FileLock(str(folder / f"{key}.lock")):
            if (library := _opened(path)) is not None:  # another process held the lock to compile it
                return library
            _compile(source, path)
        return ctypes.CDLL(str(path))
    except (OSError, RuntimeError) as error:  # there may be no home
        raise RunnerError(f"kernels cannot be kept: {error}") from error


def _opened(path: Path) -> ctypes.CDLL | None:
    """Load a compiled kernel; `None` if it is missing or damaged."""
    try:
        return ctypes.CDLL(str(path)) if path.exists() else None
    except OSError:
        return None


def _compile(source: str, path: Path) -> None:
    """Write a shared library, whole or not at all."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="making-") as made:
        here = Path(made)
        head = "".join(f'#include "{name}"\n' for name in ("types.h", header(), "functions.h", "loop.h"))
        ahead = headers.ahead(head, [_surroundings(), *_of_compiler()], _call_with_flags)
        if ahead is None or not source.startswith(head):
            _link(source, [], here)
        else:
            try:
                _link(source.removeprefix(head), ["-include", str(ahead.absolute())], here)
            except RunnerError:
                _link(source, [], here)
                headers.discard(ahead)
        (here / "kernel.so").replace(path)


def _link(source: str, included: list[str], folder: Path) -> None:
    """Write a shared library that may not be whole.

    OpenMP is not linked: the functions are those that PyTorch has loaded, so that there is one pool of threads.
    """
    (folder / "kernel.cpp").write_text(source)
    _call_with_flags(["-c", "kernel.cpp", "-o", "kernel.o", *included], folder)
    _call(["-shared", "kernel.o", "-o", "kernel.so", f"-L{TORCH / 'lib'}", "-ltorch_cpu"], folder)


def _call_with_flags(arguments: list[str], folder: Path) -> None:
    includes = [f"-I{_INCLUDE}", f"-I{TORCH / 'include'}"]
    _call([*flags(compiler()), *_machine()[1], *includes, "-DTHREADS", *arguments], folder)


def _call(arguments: list[str], folder: Path) -> None:
    name = compiler()
    try:
        done = subprocess.run([name, *arguments], cwd=folder, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise RunnerError(f"{name} took more than {_SECONDS} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["?"]
        raise RunnerError(f"{name} failed: {lines[0].strip()}")


_useless: set[Path] = set()
"""Headers that failed in this process, which does not try them again."""


def folder() -> Path:
    """Return where they are kept."""
    return caches.root() / "headers"


def ahead(text: str, parts: Sequence[str], compile_in: Callable[[list[str], Path], None]) -> Path | None:
    """Return a precompiled header; `None` where there can be none, and a kernel has to parse the text.

    Args:
        text: text of the header.
        parts: further dependences, for the hash.
        compile_in: runs the compiler with given arguments in a folder.
    """
    key = hashlib.sha256("\0".join([text, *parts]).encode()).hexdigest()[:32]
    header = folder() / f"{key}.h"
    if header in _useless:
        return None
    try:
        header.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not caches.is_private(header.parent):
            return None
        if not _made(header).exists():
            _make(header, text, compile_in)
    except (OSError, RunnerError):
        _useless.add(header)
        return None
    return header


def discard(header: Path) -> None:
    """Remove one that is damaged: the next process makes it again."""
    _useless.add(header)
    _made(header).unlink(missing_ok=True)


def _made(header: Path) -> Path:
    return header.with_suffix(".h.gch")


def _make(header: Path, text: str, compile_in: Callable[[list[str], Path], None]) -> None:
    from filelock import FileLock  # here, since it takes a while

    with FileLock(str(header.with_suffix(".lock"))):
        if _made(header).exists():
            return
        with tempfile.TemporaryDirectory(dir=header.parent, prefix="making-") as made:
            here = Path(made)
            (here / "all.h").write_text(text)
            (here / "all.h").replace(header)  # clang++ remembers where the text lay when it was compiled
            compile_in(["-x", "c++-header", str(header.absolute()), "-o", "all.h.gch"], here)
            (here / "all.h.gch").replace(_made(header))
