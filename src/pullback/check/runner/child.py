"""The inside of a forked process: isolated from its parent, and limited.

Changes that the code here makes to its standard streams, signals, process group or memory do not reach the parent. When
the parent dies, so does this process.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import torch

from pullback import _torch, settings

GIBIBYTE = 2**30

_PR_SET_PDEATHSIG = 1


class Channel:
    """The writing end of a pipe that carries one JSON object a line."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._pid = os.getpid()

    def send(self, event: str, **content: Any) -> None:
        """Write one message at once, so that it survives a crash."""
        if os.getpid() != self._pid:  # a fork made by the audited code must not send messages
            return
        line = json.dumps({"event": event, **content}).encode() + b"\n"
        while line:
            line = line[os.write(self.fd, line) :]


def become_child(work: Callable[[Channel], None], channel: int, output: int, parent: int) -> NoReturn:
    """Run `work` in this freshly forked process, then end the process.

    Args:
        work: the function to run; `SystemExit` sets the exit status, any other exception prints and exits with 1.
        channel: file descriptor for messages of `work`.
        output: file descriptor for standard output and error.
        parent: process id of the parent.
    """
    status = 1
    try:
        torch.set_num_threads(1)  # first: the parent's thread pools do not exist here, and using them hangs
        _isolate(output, parent)
        settle()
        gc.freeze()  # a collection would otherwise copy every page shared with the parent
        work(Channel(channel))
        status = 0
    except SystemExit as stop:
        status = _exit_status(stop)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def settle() -> None:
    """Set interpreter-wide settings for an audit, whatever the calling program has set."""
    torch.set_num_threads(1)
    # `torch.cuda.is_available()`, which many modules ask as they are imported, then leaves forks the use of CUDA.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if settings.chosen() is None:  # the formula is audited; with kernels, each kind of case would wait for a compiler
        settings.set_backend("eager")
    faulthandler.enable(file=2, all_threads=False)
    # A test suite that turns warnings into errors would otherwise make the audited code raise.
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    torch.set_grad_enabled(True)


@contextmanager
def ordinary_modes() -> Iterator[None]:
    """Leave the modes that the calling program may be in: inference mode, saved-tensor hooks, a default device."""
    is_usual = torch.get_default_device().type == "cpu"
    device = nullcontext() if is_usual else torch.device("cpu")
    with torch.inference_mode(False), _torch.without_default_hooks(), device:
        yield


def limit_memory(extra: int) -> None:
    """Let this process's address space grow by `extra` bytes and no further, where the system has a way."""
    if not Path("/proc/self/statm").exists() or has_gpu():  # a GPU's driver maps all of its memory at once
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + extra
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def has_accelerator() -> bool:
    """True if this build of torch is for an accelerator, be one here or not."""
    return torch.accelerator.current_accelerator() is not None


def has_gpu() -> bool:
    """True if this build of torch would find a GPU here; asks no driver: no fork survives that."""
    nodes = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
    return torch.backends.cuda.is_built() and any(Path(node).exists() for node in nodes)


def _isolate(output: int, parent: int) -> None:
    """Detach this process from the parent's terminal, streams, signals and settings."""
    os.setsid()
    _die_with(parent)
    _redirect(output)
    # The handlers of the parent's program, its clean-up among them, are not to run here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _forbid_core_dump()


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends for any reason."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the request
        os._exit(1)


def _redirect(output: int) -> None:
    """Point the standard streams elsewhere, both the file descriptors and Python's objects."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - lives as long as the process
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _forbid_core_dump() -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def _exit_status(stop: SystemExit) -> int:
    """Return the status that Python would exit with."""
    if stop.code is None:
        return 0
    return stop.code & 0xFF if isinstance(stop.code, int) else 1
