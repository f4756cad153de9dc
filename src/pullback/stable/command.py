"""`pullback accuracy`: from the command line to a measurement."""

from __future__ import annotations

import contextlib
import functools
import math
import multiprocessing
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

import torch

from pullback.check.find.discover import loaded
from pullback.check.find.target import similar
from pullback.check.runner.pool import usable_cores
from pullback.errors import OptionError, TargetError
from pullback.stable.accuracy import Progress, accuracy_of
from pullback.stable.formats import DTYPES
from pullback.stable.result import Accuracy

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?inf"
_COMPARED = re.compile(rf"\s*([^\W\d]\w*)\s*(>=|<=|>|<)\s*({_NUMBER})\s*")
_BETWEEN = re.compile(rf"\s*([^\W\d]\w*)\s*=\s*({_NUMBER})\s*:\s*({_NUMBER})\s*")


def run(
    target: str,
    dtypes: Iterable[str],
    order: int,
    domain: Iterable[str],
    exhaustive: bool,
    jobs: int | None,
    resume: str | None,
    seed: int,
    on_progress: Progress,
) -> Accuracy:
    """Measure a function with the options of the command line.

    Raises:
        PullbackError: if it cannot be measured so.
    """
    loader, chosen, limits = functools.partial(load, target), dtypes_of(dtypes), domain_of(domain)
    with _pool(jobs if exhaustive else 1) as executor, _interrupted_between(executor, on_progress) as on_progress:
        return accuracy_of(
            loader,
            dtype=chosen,
            order=order,
            domain=limits,
            exhaustive=exhaustive,
            executor=executor,
            resume=resume,
            seed=seed,
            on_progress=on_progress,
        )


def load(target: str) -> Callable[..., Any]:
    """Import the function of a target "FILE:NAME" or "MODULE:NAME"; its prints go to standard error.

    Raises:
        TargetError: if there is no such function, or it cannot be imported.
    """
    found = loaded(target)
    if not callable(found):
        raise TargetError(f"{target} is of type {type(found).__name__}: accuracy is of functions")
    function: Callable[..., Any] = found
    return function


def dtypes_of(names: Iterable[str]) -> list[torch.dtype] | None:
    """Return the dtypes of these names; `None` for none."""
    known = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
    chosen = [name.strip() for names_ in names for name in names_.split(",")]
    for name in chosen:
        if name not in known:
            raise OptionError(f"there is no dtype {name!r} to measure in{similar(name, known)}")
    return [known[name] for name in chosen] or None


def domain_of(texts: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Return the intervals of conditions such as "x>0" and "y=0:1"; those on one variable hold together."""
    domain: dict[str, tuple[float, float]] = {}
    for text in (part for texts_ in texts for part in texts_.split(",")):
        name, low, high = _limits(text)
        before = domain.get(name, (-math.inf, math.inf))
        domain[name] = max(before[0], low), min(before[1], high)
    return domain


def _limits(text: str) -> tuple[str, float, float]:
    if match := _BETWEEN.fullmatch(text):
        return match[1], float(match[2]), float(match[3])
    match = _COMPARED.fullmatch(text)
    if match is None:
        raise OptionError(f"a domain is written as 'x>0', 'x<=2' or 'x=0:1', not {text!r}")
    name, sign, end = match[1], match[2], float(match[3])
    if sign in (">", "<"):
        end = math.nextafter(end, math.inf if sign == ">" else -math.inf)
    return (name, end, math.inf) if sign[0] == ">" else (name, -math.inf, end)


@contextlib.contextmanager
def _interrupted_between(executor: Executor | None, on_progress: Progress) -> Iterator[Progress]:
    """Provide a progress that raises after Ctrl-C, where processes work: they are waited for under locks.

    KeyboardInterrupt in the middle of `concurrent.futures.wait` can leave one locked for good, on which the executor
    then waits to shut down. A second Ctrl-C raises at once.
    """
    if executor is None:
        yield on_progress
        return
    asked: list[bool] = []

    def ask(*_: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)

    def between(done: int, total: int) -> None:
        on_progress(done, total)
        if asked:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield between
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _pool(jobs: int | None) -> Iterator[Executor | None]:
    """Provide processes, as many as there are cores by default; `None` where one is enough."""
    jobs = jobs or usable_cores()
    if jobs == 1:
        yield None
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads can hang
    with ProcessPoolExecutor(jobs, context, torch.set_num_threads, (1,)) as executor:
        # Ctrl-C is for this process, which ends the others: they ignore what this process ignores when they begin, each
        # with a submission that finds no idle one.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        for _ in range(jobs):
            executor.submit(torch.get_num_threads)
        signal.signal(signal.SIGINT, before)
        yield executor
