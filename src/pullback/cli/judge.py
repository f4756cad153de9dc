"""`pullback judge`: a candidate against a formula."""

from __future__ import annotations

from pathlib import Path

import click

from pullback.cli.console import output_console
from pullback.cli.options import TARGET
from pullback.cli.reporting import require_writable


@click.command(short_help="Judge a candidate against a formula.")
@click.argument("candidate", type=TARGET, metavar="CANDIDATE")
@click.argument("reference", type=TARGET, metavar="REFERENCE")
@click.option("--inputs", type=TARGET, metavar="FILE:FUNCTION", help="Take an example call from this function.")
@click.option("--forbid", multiple=True, metavar="NAME", help="Forbid an operator (softmax) or a module.")
@click.option(
    "--json", "file", type=click.Path(dir_okay=False, allow_dash=True), metavar="FILE", help="Write JSON; - is stdout."
)
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Repeat the calls of a run.")
@click.option("--seconds", type=float, default=60.0, show_default=True, metavar="S", help="Limit on all calls.")
@click.option("--memory", type=float, default=8.0, show_default=True, metavar="GIB", help="Limit on memory.")
def judge(
    candidate: str,
    reference: str,
    inputs: str | None,
    forbid: tuple[str, ...],
    file: str | None,
    seed: int | None,
    seconds: float,
    memory: float,
) -> int:
    """Compare CANDIDATE with REFERENCE: values, first derivatives, and whether it takes shortcuts.

    Both are FILE:NAME or MODULE:NAME: a Function, a callable or a module, and a formula in plain PyTorch with the same
    arguments. Both are imported and run, in processes of their own. Exit status: 0 right, 1 wrong or cheats, 2
    inconclusive.
    """
    from pullback.judge.api import judge as judged

    if file != "-":
        require_writable(file)
    verdict = judged(
        candidate, reference, examples=inputs or "", forbid=forbid, seed=seed, seconds=seconds, memory=memory
    )
    if file == "-":
        click.echo(verdict.to_json())
        return verdict.status
    if file is not None:
        try:
            Path(file).write_text(verdict.to_json() + "\n", encoding="utf-8")
        except OSError as error:
            raise click.FileError(file, error.strerror) from None
    first, *rest = str(verdict).splitlines()
    console = output_console()
    console.print(first, style=verdict.style, markup=False, soft_wrap=True)
    console.print("\n".join(rest), markup=False, soft_wrap=True)
    return verdict.status
