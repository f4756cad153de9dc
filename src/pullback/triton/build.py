"""Triton source to a kernel: every use of Triton, which may not be installed.

Triton reads the source of a kernel from a file, and caches its binary itself. The file is stored in the user's cache
under the hash of its text, for Triton and for profilers. The text is executed, not the file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from pullback import caches
from pullback.errors import RunnerError

_made: dict[str, ModuleType] = {}
_lock = threading.Lock()


def require() -> None:
    """Raise RunnerError if there is no Triton."""
    try:
        importlib.import_module("triton")
    except ImportError as error:
        raise RunnerError(
            "there is no Triton, which kernels for GPUs are compiled by: PyTorch's builds for CUDA and ROCm bring it "
            "along (`pip install triton` where it is missing)"
        ) from error


def options() -> dict[str, Any]:
    """Return the compile options of every kernel: no contraction, and functions that keep subnormal numbers."""
    return {"enable_fp_fusion": False} | ({} if torch.version.hip else {"enable_reflect_ftz": False})


def kernel_of(source: str) -> Any:
    """Return the kernel `run` of a source, which Triton has not compiled yet.

    Raises:
        RunnerError: if there is no Triton, or the source cannot be kept.
    """
    require()
    key = hashlib.sha256(source.encode()).hexdigest()[:32]
    with _lock:
        if key not in _made:
            _made[key] = _module(key, source)
    return _made[key].run


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which Triton compiles and launches for a device, on that device's current stream."""
    return torch.accelerator.device_index(device.index)


def compile_ahead(kernel: Any, device: torch.device, arguments: Sequence[Any]) -> None:
    """Compile a kernel for a device.

    Args:
        kernel: a result of `kernel_of`.
        device: a GPU.
        arguments: arguments of a launch, with a dtype in place of each tensor.

    Raises:
        RunnerError: if it cannot.
    """
    try:
        with on(device):
            kernel.warmup(*arguments, grid=(1,), **options())
    except Exception as error:  # of Triton, of the assembler, or since there is no driver
        first, *_ = f"{type(error).__name__}: {error}".splitlines()
        raise RunnerError(f"Triton cannot compile a kernel ({first})") from error


def launcher(kernel: Any, arguments: Sequence[Any], programs: int) -> Callable[..., None]:
    """Return the launch of a kernel on arguments like these, for use within `on` their device.

    `kernel[grid]` inspects every argument of every launch to choose the specialisation, which takes a good part of its
    time. This launch is bound to the specialisation for these arguments. It must be given tensors of the same dtypes
    and device, aligned to 16 bytes exactly where these are, and the same numbers. On AMD GPUs more facts decide: there
    each launch is inspected.
    """
    grid = (programs, 1, 1)
    compiled = None if torch.version.hip else kernel.warmup(*arguments, grid=grid, **options())
    if compiled is None:  # Triton's interpreter compiles nothing
        return functools.partial(kernel[grid], **options())
    launch: Callable[..., None] = compiled[grid]
    return launch


def _module(key: str, source: str) -> ModuleType:
    try:
        folder = caches.root() / "sources"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"{key}.py"
        if not caches.is_private(folder):
            raise RunnerError(f"{folder} can be written to by others: kernels in it are not run. `chmod 700` it.")
        if not _holds(path, source):
            _write(path, source)
    except (OSError, RuntimeError) as error:  # there may be no home
        raise RunnerError(f"kernels cannot be kept: {error}") from error
    module = ModuleType(f"pullback_triton_{key}")
    module.__file__ = str(path)
    exec(compile(source, str(path), "exec"), vars(module))
    return module


def _holds(path: Path, source: str) -> bool:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8") == source
    return False


def _write(path: Path, source: str) -> None:
    """Write a file whole or not at all; whoever writes it at the same time writes the same."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="making-") as made:
        here = Path(made, path.name)
        here.write_text(source, encoding="utf-8")
        here.replace(path)
