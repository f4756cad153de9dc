"""A forked process: isolated and limited on the inside; its messages, output and end as its parent sees them.

Changes that the code there makes to its standard streams, signals, process group or memory do not reach the parent.
When the parent dies, so does the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch

from pullback import _torch, settings
from pullback.check.clock import processor_time_of, spent
from pullback.check.find.kernels import hides_gpus
from pullback.errors import RunnerError

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
    """Limit the growth of this process's address space to `extra` bytes, where the system can."""
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
    """True if this build of torch supports an accelerator, whether one is present or not."""
    return torch.accelerator.current_accelerator() is not None


def has_gpu() -> bool:
    """True if this build of torch would find a GPU here. Asks no driver, after which no fork could use CUDA."""
    if hides_gpus():
        return False
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


Cause = Literal["finished", "signal", "exit", "silent", "late"]

_OUTPUT_KEPT = 2000
_OUTPUT_READ = 20_000
_FRAMES_KEPT = 8
_OUR_FOLDER = str(Path(__file__).parent)
_TORCH_FOLDER = str(Path(torch.__file__).parent)
_CHUNK = 65_536
_MOST_CHUNKS = 16
_OMP_PAUSE_SOFT = 1
_STANDARD = 2
"""The last of the file descriptors of the standard streams."""
_IDLE = 0.02
"""Processor share below which a process is waiting; an endless loop takes more even on a busy machine."""


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a process.

    Attributes:
        cause: "finished" (it said so), "signal" (killed by one that we did not send), "exit" (ended without a
            message), "silent" or "late" (killed by us, for silence or for taking too long in all).
        status: the signal's number or the exit status; 0 for the other causes.
        output: the end of its output.
        seconds: how long it ran.
        spent: the part of that which counts.
        was_idle: whether it has waited, rather than worked, since its last message.
    """

    cause: Cause
    status: int
    output: str
    seconds: float
    spent: float
    was_idle: bool = False


def ensure_can_fork() -> None:
    """Check that the platform can fork.

    Raises:
        RunnerError: if it cannot.
    """
    if not hasattr(os, "fork"):
        raise RunnerError(f"an audit needs os.fork, which {sys.platform} lacks; run it under Linux, macOS or WSL")


def fork_is_clean() -> bool:
    """Whether a process forked from this one can run a backward, and use the GPU if there is one: found by trying.

    None can that inherits autograd's threads. In a build for an accelerator these start with a backward on it, or under
    fake tensors (in `torch.compile`), be there an accelerator or not. And CUDA refuses a process whose parent has used
    it, if only for `torch.cuda.is_available()`.
    """
    if torch.cuda.is_initialized():
        return False
    read_end, write_end = _pipe()
    pid = _fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)
            torch.autograd.backward(torch.ones(1, requires_grad=True).sum())
            if has_gpu():
                torch.cuda.init()
            os.write(write_end, b"!")
        finally:
            os._exit(0)
    os.close(write_end)
    is_clean = os.read(read_end, 1) == b"!"
    os.close(read_end)
    with contextlib.suppress(ChildProcessError):  # who ignores SIGCHLD, or waits for any child, has taken it
        os.waitpid(pid, 0)
    return is_clean


def _pipe() -> tuple[int, int]:
    """A pipe whose file descriptors are not those of standard streams, which a daemon has closed."""
    ends = []
    for fd in os.pipe():
        ends.append(fd if fd > _STANDARD else fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _STANDARD + 1))
        if fd <= _STANDARD:
            os.close(fd)
    return ends[0], ends[1]


class Pipe:
    """The reading end of a pipe, non-blocking. `open` is false once no process can write to it."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.open = True

    def read(self) -> bytes:
        """Read available bytes, a bounded number since the writer may never stop."""
        chunks = []
        for _ in range(_MOST_CHUNKS):
            try:
                chunk = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                break
            if not chunk:
                self.open = False
                break
            chunks.append(chunk)
        return b"".join(chunks)


class Process:
    """A running child.

    Attributes:
        pid: its process id, and the id of its process group.
        channel, output: the pipes of its messages and its output.
        started, heard: when it was forked and when it last sent a message, on the monotonic clock.
    """

    def __init__(self, work: Callable[[Channel], None]) -> None:
        """Fork a process that runs `work` and ends.

        Raises:
            RunnerError: if the system refuses a new process.
        """
        _flush()
        parent = os.getpid()
        ends = (*_pipe(), *_pipe())
        try:
            self.pid = _fork()
        except OSError as error:
            _close(*ends)
            raise RunnerError(f"the system refuses a new process: {error.strerror}") from None
        channel, to_channel, output, to_output = ends
        if self.pid == 0:
            become_child(work, to_channel, to_output, parent)
        _close(to_channel, to_output)
        self.channel = Pipe(channel)
        self.output = Pipe(output)
        self.started = self.heard = time.monotonic()
        self._worked: float | None = 0.0
        self._pending = b""
        self._printed = b""
        self._status: int | None = None

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived."""
        *lines, self._pending = (self._pending + self.channel.read()).split(b"\n")
        if lines:
            self.heard, self._worked = time.monotonic(), processor_time_of(self.pid)
        messages = []
        for line in lines:
            with contextlib.suppress(ValueError):  # the audited code may write to any file descriptor
                messages.append(json.loads(line))
        return [message for message in messages if isinstance(message, dict) and "event" in message]

    def spent(self) -> float:
        """Counted seconds since the fork."""
        return spent(time.monotonic() - self.started, processor_time_of(self.pid))

    def silence(self) -> float:
        """Counted seconds since its last message."""
        return spent(time.monotonic() - self.heard, self._worked_since_heard())

    def _is_idle(self) -> bool:
        worked = self._worked_since_heard()
        return worked is not None and worked < _IDLE * (time.monotonic() - self.heard)

    def _worked_since_heard(self) -> float | None:
        worked = processor_time_of(self.pid)
        return None if worked is None or self._worked is None else worked - self._worked

    def keep_output(self) -> None:
        """Read its output; only the end is kept."""
        self._printed = (self._printed + self.output.read())[-_OUTPUT_READ:]

    def ended(self) -> bool:
        """True if it has ended without being killed by us."""
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # other code in this program waits for any child
                pid, status = self.pid, 0
            self._status = status if pid else None
        return self._status is not None

    def bury(self, cause: Cause | None = None) -> Death:
        """Kill the rest of it and of the processes it started, and return how it ended.

        Args:
            cause: why it is killed; `None` if it has ended.
        """
        was_idle = cause == "silent" and self._is_idle()
        counted = self.spent()
        self._kill()
        self.keep_output()
        _close(self.channel.fd, self.output.fd)
        text = _without_other_frames(self._printed.decode(errors="replace"))[-_OUTPUT_KEPT:].strip()
        seconds = time.monotonic() - self.started
        if cause is not None:
            return Death(cause, 0, text, seconds, counted, was_idle)
        code = os.waitstatus_to_exitcode(self._status or 0)
        return Death("signal" if code < 0 else "exit", abs(code), text, seconds, counted)

    def interrupt(self, patience: float) -> None:
        """Ask it to end as Ctrl-C does, and wait up to `patience` seconds for that."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)
        deadline = time.monotonic() + patience
        while not self.ended() and time.monotonic() < deadline:
            self.channel.read()
            self.keep_output()
            time.sleep(0.005)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._status is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # it may not have reached its own group yet
        try:
            _, self._status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            self._status = 0


def _without_other_frames(printed: str) -> str:
    """Cut the traceback that `faulthandler` prints at a crash down to the frames of the audited code."""
    before, heading, frames = printed.rpartition("(most recent call first):\n")
    if not heading:
        return printed
    inner = takewhile(lambda line: line.startswith("  File") and _OUR_FOLDER not in line, frames.splitlines())
    theirs = [line for line in inner if _TORCH_FOLDER not in line]
    return before + heading + "\n".join(theirs[:_FRAMES_KEPT])


def _fork() -> int:
    """Fork without Python's warning about lost threads: the child uses none."""
    _end_openmp_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _end_openmp_threads() -> None:
    """End OpenMP's threads in this process; it starts others when it needs them.

    A forked process does not have them, and would wait for them forever once a function sets a number of threads.
    """
    pause = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)  # of OpenMP 5
    if pause is not None:
        pause(_OMP_PAUSE_SOFT)


def _flush() -> None:
    """Flush buffers, or the child would write a second copy of them."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
