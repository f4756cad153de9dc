"""Several forked processes at once, each watched: one loop, one thread."""

from __future__ import annotations

import os
import selectors
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pullback.check.runner.process import Cause, Channel, Death, Process

MOST_JOBS = 8

_TICK = 0.05
_PATIENCE = 1.0


class PoolTask(Protocol):
    """Work for a sequence of processes, one at a time."""

    @property
    def silence(self) -> float:
        """Counted seconds without a message after which the process is killed."""
        ...

    @property
    def limit(self) -> float:
        """Counted seconds after which a process is killed even if it still sends messages."""
        ...

    @property
    def has_processes(self) -> bool:
        """True if its process starts others, which it ends when it is interrupted."""
        ...

    def work(self, channel: Channel) -> None:
        """Do the work: called in the forked process."""
        ...

    def message(self, message: dict[str, Any]) -> bool:
        """Handle a message of the process; return true if it was the last one."""
        ...

    def over(self, death: Death) -> bool:
        """Record how the process ended; return true if another one is to start."""
        ...


def usable_cores() -> int:
    """Return how many processes to run at once on this machine."""
    affinity = getattr(os, "sched_getaffinity", None)
    return min(MOST_JOBS, len(affinity(0)) if affinity else os.cpu_count() or 1)


def run_tasks(tasks: Sequence[PoolTask], jobs: int, tick: Callable[[], None]) -> None:
    """Run every task in a separate process, up to `jobs` at once.

    However this function ends, by an exception or Ctrl-C, none of its processes is left.

    Args:
        tasks: the tasks.
        jobs: number of concurrent processes.
        tick: called many times a second.

    Raises:
        RunnerError: if the system refuses a new process.
    """
    waiting = deque(tasks)
    with selectors.DefaultSelector() as selector:
        pool = _Pool(selector)
        try:
            while waiting or pool.running:
                while waiting and len(pool.running) < jobs:
                    pool.start(waiting.popleft())
                pool.listen()
                waiting.extendleft(pool.reap())
                tick()
        finally:
            pool.clear()


class _Pool:
    """The processes that run, each with its task."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.running: dict[Process, PoolTask] = {}
        self._finished: set[Process] = set()
        self._selector = selector

    def start(self, task: PoolTask) -> None:
        """Fork a process for a task and listen to it."""
        process = Process(task.work)
        self.running[process] = task
        self._selector.register(process.channel.fd, selectors.EVENT_READ, (process, process.channel))
        self._selector.register(process.output.fd, selectors.EVENT_READ, (process, process.output))

    def listen(self) -> None:
        """Wait briefly for messages and dispatch them."""
        for key, _ in self._selector.select(_TICK):
            process, pipe = key.data
            if pipe is process.output:
                process.keep_output()
            else:
                self._pass_on(process)
            if not pipe.open:
                self._selector.unregister(pipe.fd)

    def reap(self) -> list[PoolTask]:
        """Reap each process that has ended or has to end; return the tasks that need another."""
        restarted = []
        for process, task in list(self.running.items()):
            ended = process.ended()
            if ended:
                self._pass_on(process)  # messages written since the last read
            cause = self._cause_to_kill(process, task)
            if (ended or cause) and task.over(self._remove(process, cause)):
                restarted.append(task)
        return restarted

    def clear(self) -> None:
        """End all processes; those with children may end these first."""
        for process, task in self.running.items():
            if task.has_processes:
                process.interrupt(_PATIENCE)
        while self.running:
            self._remove(next(iter(self.running)), None)

    def _pass_on(self, process: Process) -> None:
        for message in process.receive():
            if self.running[process].message(message):
                self._finished.add(process)

    def _cause_to_kill(self, process: Process, task: PoolTask) -> Cause | None:
        if process in self._finished:
            return "finished"
        if process.ended():
            return None
        if process.spent() > task.limit:
            return "late"
        return "silent" if process.silence() > task.silence else None

    def _remove(self, process: Process, cause: Cause | None) -> Death:
        for fd in (process.channel.fd, process.output.fd):
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
        del self.running[process]
        return process.bury(cause)
