"""A C++ module against PyTorch's headers: compiled once in the background, kept on disk, shared by processes.

It is stored in the user's cache under the hash of everything that it depends on, as kernels are. A call never waits for
it. If anything is missing (a compiler, Python's headers, a writable folder, a PyTorch that it compiles against), there
is not a module, and only `pullback cache info` says so.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shlex
import subprocess
import sysconfig
import tempfile
import threading
import time
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import torch

from pullback import caches
from pullback.errors import RunnerError
from pullback.kernels.build import TORCH, compiler

_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-w")
_LIBRARIES = ("-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10")
_NEVER = float("inf")
_LOOK_EVERY = 0.5
"""Seconds between two checks whether it exists."""
_TRY_AGAIN_AFTER = 86400.0
"""Seconds after a compilation that failed."""

_SCRIPT = """
(
  cd "$1" || exit
  if eval "nice -n 10 $2" >log 2>&1 && eval "nice -n 10 $3" >log 2>&1; then mv -f made.so "$4"; else mv -f log "$5"; fi
  cd / && rm -rf "$1"
) &
"""
"""Compile, link, and install the module, or the log of the failure. The script returns at once; its background part,
which outlives this process, holds the lock by an open file that it inherits."""


class Extension:
    """A C++ module, from one source and the headers beside it.

    Args:
        source: C++ with the function `PyInit_NAME`.
    """

    def __init__(self, source: Path, name: str) -> None:
        self._source, self._name = source, name
        self._lock = threading.Lock()
        self._asked = False
        self._next_look = 0.0
        self.module: ModuleType | None = None

    def ask(self) -> None:
        """Start its compilation in the background, unless it exists or has been started."""
        if not self._asked:
            with self._lock:
                if not self._asked:
                    self._asked = True
                    try:
                        if not self._load():
                            self._start()
                    except (OSError, RuntimeError, RunnerError):  # nowhere to keep it, no compiler
                        self._next_look = _NEVER

    def is_there(self) -> bool:
        """Whether it is loaded; it is, some time after it was asked for."""
        if self.module is not None:
            return True
        if time.monotonic() < self._next_look or not self._asked:
            return False
        with self._lock:
            try:
                return self._load()
            except (OSError, RuntimeError):
                return False

    def wait(self) -> bool:
        """Wait until it is compiled or has failed; return whether it exists."""
        self.ask()
        if self.module is None and self._next_look < _NEVER:
            try:
                os.close(_locked(self._path("lock"), wait=True))
            except OSError:
                return False
            self._next_look = 0.0
        return self.is_there()

    def trouble(self) -> str:
        """Return why it could not be compiled, in one line; empty where nothing is known to be wrong."""
        log = self._path("failed")
        if not log.exists():
            return ""
        lines = log.read_text(errors="replace").splitlines() or ["?"]
        return next((line for line in lines if "error" in line), lines[0]).strip()

    def _load(self) -> bool:
        self._next_look = time.monotonic() + _LOOK_EVERY
        path = self._path("so")
        if self.module is None and path.exists() and caches.is_private(path.parent):
            spec = spec_from_file_location(self._name, path, loader=ExtensionFileLoader(self._name, str(path)))
            assert spec is not None
            assert spec.loader is not None
            try:
                module = module_from_spec(spec)
                spec.loader.exec_module(module)
            except ImportError:  # damaged: made again by the next process
                path.unlink(missing_ok=True)
                return False
            self.module = module
        return self.module is not None

    def _start(self) -> None:
        """Compile it in the background, unless it cannot be, has failed, or another process does.

        Raises:
            OSError: if it cannot be kept.
            RunnerError: if there is no compiler.
        """
        folder, log, name = self._path("so").parent, self._path("failed"), compiler()
        has_failed = log.exists() and time.time() - log.stat().st_mtime < _TRY_AGAIN_AFTER
        no_headers = not (_python_headers() / "Python.h").exists() or bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
        if has_failed or no_headers or os.name != "posix" or platform.python_implementation() != "CPython":
            self._next_look = _NEVER
            return
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not caches.is_private(folder):
            return
        try:
            lock = _locked(self._path("lock"), wait=False)
        except BlockingIOError:  # another process makes it
            return
        try:
            if self._path("so").exists():
                return
            making = tempfile.mkdtemp(dir=folder, prefix="making-")
            compilation = shlex.join([name, *self._flags(), "-c", str(self._source), "-o", "made.o"])
            linking = shlex.join([name, "-shared", "made.o", f"-L{TORCH / 'lib'}", *_LIBRARIES, "-o", "made.so"])
            nothing = subprocess.DEVNULL
            subprocess.run(
                ["/bin/sh", "-c", _SCRIPT, "sh", making, compilation, linking, str(self._path("so")), str(log)],
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
                start_new_session=True,
                pass_fds=[lock],
            )
        finally:
            os.close(lock)

    def _flags(self) -> list[str]:
        abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
        folders = [TORCH / "include", TORCH / "include" / "torch" / "csrc" / "api" / "include", _python_headers()]
        return [*_FLAGS, abi, *(f"-I{folder}" for folder in folders)]

    def _path(self, kind: str) -> Path:
        return caches.root() / "nodes" / f"{self._key}.{kind}"

    @functools.cached_property
    def _key(self) -> str:
        """Everything that it depends on; a PyTorch is identified by version, and its library's size and time."""
        parts = [str(torch.__version__)]
        for path in (TORCH / "lib").glob("libtorch_python.*"):
            parts += [str(path.stat().st_size), str(path.stat().st_mtime_ns)]
        parts += [str(sysconfig.get_config_var("SOABI")), _compiler_or_none(), *_FLAGS, *_LIBRARIES]
        parts += [path.read_text() for path in sorted(self._source.parent.iterdir())]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _python_headers() -> Path:
    return Path(sysconfig.get_path("include"))


def _compiler_or_none() -> str:
    try:
        return compiler()
    except RunnerError:
        return ""


def _locked(path: Path, wait: bool) -> int:
    """Return an open file with a lock on it, which all who inherit it hold together.

    It is the lock that `filelock` takes, which cannot be handed to another process.
    """
    import fcntl  # not on Windows

    at = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(at, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(at)
        raise
    return at
