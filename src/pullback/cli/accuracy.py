"""`pullback accuracy`: measured errors of a function, in ulp."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import click

from pullback.cli.console import output_console, progress
from pullback.cli.options import TARGET, domain_of, domain_option, dtype_option, dtypes_of

if TYPE_CHECKING:
    from concurrent.futures import Executor

_Counter = Callable[[int, int], None]
"""Receives the number of points done and their total."""


@click.command(short_help="Measure the errors of a function in ulp.")
@click.argument("target", type=TARGET, metavar="TARGET:NAME")
@dtype_option("Measure in this dtype; by default in float32, float64, bfloat16 and float16.")
@click.option(
    "--order", type=int, default=1, metavar="N", help="Measure derivatives up to order 0, 1 (the default) or 2."
)
@domain_option
@click.option("--exhaustive", is_flag=True, help="Measure at every float32 number, which takes minutes.")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Use N processes for that; by default one per core.")
@click.option(
    "--resume", type=click.Path(dir_okay=False), metavar="FILE", help="Store progress in FILE, and resume from it."
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, metavar="N", show_default=True, help="Seed the random sample."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    metavar="FORM",
    help="Print text (the default) or json.",
)
def accuracy(
    target: str,
    dtypes: tuple[str, ...],
    order: int,
    domain: tuple[str, ...],
    exhaustive: bool,
    jobs: int | None,
    resume: str | None,
    seed: int,
    form: Literal["text", "json"],
) -> None:
    """Measure a pointwise function and its derivatives against exact values, in ulp.

    TARGET:NAME is a function of one to three tensors in a file or a module: ops.py:swish, torch.nn.functional:gelu.
    It is imported and run.
    """
    from pullback.check.find.resolve import load_function
    from pullback.stable.accuracy import accuracy_of
    from pullback.stable.result import LEGEND, render, render_text

    loader, chosen, limits = functools.partial(load_function, target), dtypes_of(dtypes), domain_of(domain)
    with (
        progress("measuring") as on_progress,
        _process_pool(jobs if exhaustive else 1) as executor,
        _deferred_interrupt(executor, on_progress) as count,
    ):
        measured = accuracy_of(
            loader,
            dtype=chosen,
            order=order,
            domain=limits,
            exhaustive=exhaustive,
            executor=executor,
            resume=resume,
            seed=seed,
            on_progress=count,
        )
    if form == "json":
        click.echo(measured.to_json())
        return
    console = output_console()
    if console.is_terminal:
        render(measured, console)
    else:
        click.echo(render_text(measured))
    console.print(LEGEND, style="dim", markup=False, soft_wrap=True, end="")


@contextlib.contextmanager
def _deferred_interrupt(executor: Executor | None, on_progress: _Counter) -> Iterator[_Counter]:
    """Provide a progress callback that raises KeyboardInterrupt after Ctrl-C, if there are worker processes.

    KeyboardInterrupt in the middle of `concurrent.futures.wait` can leave a lock held for good, for which the shutdown
    of the executor then waits. A second Ctrl-C raises at once.
    """
    if executor is None:
        yield on_progress
        return
    requested: list[bool] = []

    def request(*_: Any) -> None:
        if requested:
            raise KeyboardInterrupt
        requested.append(True)

    def advance(done: int, total: int) -> None:
        on_progress(done, total)
        if requested:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, request)
    try:
        yield advance
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _process_pool(jobs: int | None) -> Iterator[Executor | None]:
    """Provide worker processes, one per core by default; `None` for a single job."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    import torch

    from pullback.check.runner.pool import usable_cores

    jobs = jobs or usable_cores()
    if jobs == 1:
        yield None
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads can hang
    with ProcessPoolExecutor(jobs, context, torch.set_num_threads, (1,)) as executor:
        # Ctrl-C is for this process, which ends the others. They ignore SIGINT since they inherit that from here; each
        # starts upon a submission that finds no idle one.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        for _ in range(jobs):
            executor.submit(torch.get_num_threads)
        signal.signal(signal.SIGINT, before)
        yield executor
