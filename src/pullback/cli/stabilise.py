"""`pullback stabilise`: the certificates of a module's ops, written beside it."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from pullback.cli.console import output_console, progress
from pullback.cli.options import TARGET, domain_of, domain_option, dtype_option, dtypes_of
from pullback.errors import FormulaError, OptionError, TargetError

if TYPE_CHECKING:
    from rich.console import Console

    from pullback.stable.certificate import Certificate
    from pullback.stable.sampling import Domain

_Wide = Literal["never", "where-needed", "always"]


@click.command(short_help="Search for accurate forms of ops.")
@click.argument("target", type=TARGET, metavar="TARGET[:NAME]")
@dtype_option("Make forms for inputs of this dtype; by default float32.")
@click.option(
    "--wide",
    type=click.Choice(["never", "where-needed", "always"]),
    default="where-needed",
    metavar="WHEN",
    help="Compute in float64 for float32: never, where-needed (the default) or always.",
)
@domain_option
def stabilise(target: str, dtypes: tuple[str, ...], wide: _Wide, domain: tuple[str, ...]) -> None:
    """Search for accurate forms of the derived ops of a module, and write them beside it.

    TARGET is a file or a module, optionally with the name of an op: ops.py, package.ops:swish. It is imported and run.
    The results are stored in ops.stable.toml. Keep that file under version control: it is used without a search.
    """
    from pullback.stable.oracle.balls import ball_type

    ball_type()  # raises if python-flint, an extra, is not installed
    with progress("searching") as on_progress:
        renewal = renew(target, dtypes, wide, domain, on_progress)
    _print(renewal, output_console())


@dataclass(frozen=True, slots=True)
class Renewal:
    """Result of `pullback stabilise` for a module.

    Attributes:
        path: the file that was written; `None` if there was nothing to write.
        made: the new certificates.
        left: ops and parts of ops that stay as written, each with the reason.
    """

    path: Path | None
    made: tuple[Certificate, ...]
    left: tuple[tuple[str, str], ...]

    @property
    def rows(self) -> list[tuple[str, str, str, str]]:
        """Op, dtype, quantity and measured errors of each form."""
        from pullback.stable.certificate import label

        return [(c.name, c.dtype, label(by), form.measured) for c in self.made for by, form in c.forms.items()]


def renew(
    target: str,
    dtypes: Iterable[str],
    wide: _Wide,
    domain: Iterable[str],
    on_progress: Callable[[int, int], None],
) -> Renewal:
    """Search for the stable forms of the ops of a module, or of one of them, and write them beside it.

    Raises:
        PullbackError: for an invalid target or option.
    """
    import torch

    from pullback.stable.certificate import load, path_beside
    from pullback.stable.search.certify import certify_parts

    source, ops = _ops(target)
    limits, wanted = domain_of(domain), dtypes_of(dtypes) or [torch.float32]
    path = path_beside(source)
    with _readable():
        load(path)
    made: list[Certificate] = []
    left: list[tuple[str, str]] = []
    domains = _domains(ops, limits)
    jobs = [(name, op, dtype) for name, op in ops.items() for dtype in wanted]
    for done, (name, op, dtype) in enumerate(jobs):
        on_progress(done, len(jobs))
        try:
            found, parts_left = certify_parts(op, dtype, wide, domains[name])
        except FormulaError as error:
            left.append((name, str(error)))
            continue
        made += found
        left += parts_left
        _add(path, found)  # at once: an interruption loses no finished op
    on_progress(len(jobs), len(jobs))
    return Renewal(path if made else None, tuple(made), tuple(dict.fromkeys(left)))


def _domains(ops: Mapping[str, Any], domain: Domain) -> dict[str, Domain]:
    """Return each op's part of a domain: ops of a module need not have the same variables."""
    if len(ops) == 1:
        return dict.fromkeys(ops, domain)
    variables = {name: inspect.signature(op).parameters for name, op in ops.items()}
    for variable in domain:
        if not any(variable in known for known in variables.values()):
            raise OptionError(f"no op has a variable {variable!r} for the domain")
    return {name: {v: ends for v, ends in domain.items() if v in known} for name, known in variables.items()}


def _add(path: Path, found: Sequence[Certificate]) -> None:
    """Merge certificates into the file as it is now: another search may have written meanwhile."""
    from pullback.stable.certificate import load, save

    with _readable():
        kept = {c.key: c for c in (*load(path), *found)}
    try:
        save(path, sorted(kept.values(), key=lambda c: (c.name, c.dtype)))
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise OptionError(f"{error}: mend or remove that file first") from error


def _ops(target: str) -> tuple[str, dict[str, Any]]:
    """Import a target; return its file and the derived ops that it defines, or the one that is named."""
    from pullback.check.find.resolve import no_such_name, resolve
    from pullback.check.find.target import similar

    with contextlib.redirect_stdout(sys.stderr):
        resolved = resolve(target)
    module, parsed = resolved.module, resolved.target
    if not module.__file__:
        raise TargetError(f"{parsed.where} is not a file")
    ops = {
        name: value
        for name, value in vars(module).items()
        if getattr(type(value), "_is_pullback_op", False) and value.kind == "derived"
        if value.__module__ == module.__name__ and value.is_stable
    }
    if not parsed.name:
        if not ops:
            raise TargetError(
                f"{parsed.where} defines no @pullback.function without a rule, a relaxation or stable=False"
            )
        return module.__file__, ops
    if parsed.name not in ops:
        if resolved.obj is None:
            raise TargetError(no_such_name(parsed, resolved.root, ops))
        raise TargetError(f"{target} is not a derived op of pullback.function{similar(parsed.name, ops)}")
    return module.__file__, {parsed.name: ops[parsed.name]}


def _print(renewal: Renewal, console: Console) -> None:
    """Print the errors of each form beside those of the formula as written."""
    from rich.table import Table

    from pullback.report.text import clean_line

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("op", "dtype", "of", "error"):
        table.add_column(column, overflow="fold")
    for row in renewal.rows:
        table.add_row(*map(clean_line, row))
    if renewal.made:
        console.print(table)
    for name, why in renewal.left:
        console.print(f"{clean_line(name)} stays as written: {clean_line(why)}", markup=False)
    if renewal.path is not None:
        console.print(f"Written to {clean_line(str(renewal.path))}", markup=False)
