"""Measures a function of one variable at every float32 number, in chunks that any executor runs."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import closing
from functools import reduce
from importlib.metadata import version
from operator import add
from pathlib import Path

import torch

from pullback.errors import OptionError
from pullback.stable.chunk import Part, Task, chunks_of, measure_chunk
from pullback.stable.formula import Formula
from pullback.stable.ledger import Ledger
from pullback.stable.summary import Summary

_IN_FLIGHT = 256
"""Chunks that an executor holds at once: enough for a cluster, few enough to stop soon."""


def sweep(
    task: Task,
    *,
    executor: Executor | None = None,
    resume: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    chunks: Iterable[int] | None = None,
) -> Part:
    """Measure chunks, by default all of the domain.

    Args:
        task: the measurement.
        executor: runs the chunks; without one they run here, in sequence.
        resume: the file of finished chunks; by default one in the user's cache directory, removed at the end.
        on_progress: called with the number of finished chunks and of all.
        chunks: which ones.

    Raises:
        OptionError: if the file is of another measurement, or the function cannot be sent to another process.
    """
    wanted, key = list(chunks_of(task.domain) if chunks is None else chunks), key_of(task)
    ledger = Ledger(resume or _cached(key), key)
    left = [chunk for chunk in wanted if chunk not in ledger.done]
    if on_progress is not None:
        on_progress(len(wanted) - len(left), len(wanted))
    # Closed at once when interrupted: leaving an executor waits for everything that has not been cancelled.
    with closing(_here(task, left) if executor is None else _spread(task, left, executor)) as results:
        for done, (chunk, part) in enumerate(results, len(wanted) - len(left) + 1):
            ledger.add(chunk, part)
            if on_progress is not None:
                on_progress(done, len(wanted))
    if resume is None:
        ledger.remove()
    nothing = Part(tuple(Summary() for _ in task.terms))
    return reduce(add, (ledger.done[chunk] for chunk in wanted), nothing)


def key_of(task: Task) -> str:
    """Return the identity of a measurement: a hash of versions, formula, executed code and domain."""
    order = max(len(quantity.by) for quantity in task.terms)
    code = Formula(task.load(), task.args).code(torch.float32, order)
    parts = [version("pullback"), torch.__version__, code, task.domain, task.terms, task.references]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _cached(key: str) -> Path:
    """Return the file of a measurement in the user's cache directory, in a folder for the user alone."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "pullback" / "sweeps"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise OptionError(f"{folder}: {error.strerror}; name another file with resume") from error
    return folder / f"{key[:16]}.jsonl"


def _here(task: Task, chunks: list[int]) -> Generator[tuple[int, Part], None, None]:
    for chunk in chunks:
        yield chunk, measure_chunk(task, chunk)


def _spread(task: Task, chunks: list[int], executor: Executor) -> Generator[tuple[int, Part], None, None]:
    """Yield chunks as an executor finishes them."""
    waiting = iter(chunks)
    running: dict[Future[Part], int] = {}
    try:
        while True:
            for chunk in waiting:
                running[executor.submit(measure_chunk, task, chunk)] = chunk
                if len(running) >= _IN_FLIGHT:
                    break
            if not running:
                return
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                yield running.pop(future), _result(future)
    finally:
        for future in running:
            future.cancel()


def _result(future: Future[Part]) -> Part:
    try:
        return future.result()
    except (pickle.PicklingError, AttributeError) as error:
        if "pickle" not in str(error):
            raise
        advice = "define the function at the top level of a module that the other processes can import"
        raise OptionError(f"the function cannot be sent to another process ({error}): {advice}") from error
