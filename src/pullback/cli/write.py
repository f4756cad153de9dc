"""`pullback write`: a derived op, or any function, written out as a plain `autograd.Function`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import click

from pullback.cli.options import TARGET
from pullback.errors import OptionError


@click.command(short_help="Write a plain autograd.Function.")
@click.argument("target", type=TARGET, metavar="TARGET:NAME")
@click.option("--inputs", type=TARGET, metavar="FILE:FUNCTION", help="Take an example call from this function.")
@click.option("--test", is_flag=True, help="Also write a test file.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write to FILE, not to standard output."
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
def write(target: str, inputs: str | None, test: bool, output: str | None, force: bool) -> None:
    """Write an op, a function or a Function as a plain autograd.Function that depends on torch alone.

    TARGET:NAME is in a file or a module: ops.py:swish, pullback.catalog:safe_norm. It is imported and run. Only
    the forward of a Function is used; the derivative is derived from it.
    """
    click.echo(written_text(target, inputs, test, output, force), nl=False)


def written_text(target: str, inputs: str | None, test: bool, output: str | None, force: bool) -> str:
    """Write a target; return the text to print: the source, or the paths of the written files.

    Raises:
        PullbackError: if there is no such target, it cannot be written, or a file already exists.
    """
    from pullback.check.cases.given import examples
    from pullback.check.find.resolve import load_object
    from pullback.write.api import written

    found = load_object(target, functions=True)
    name = str(getattr(found, "__name__", "written"))
    source_file = Path(output) if output is not None else Path(f"{_module_name(name)}.py")
    test_file = source_file.with_name(f"test_{source_file.name}")
    files = [source_file, *([test_file] if test else [])]
    if output is not None:
        _require_absent(files, force)
    with contextlib.redirect_stdout(sys.stderr):
        calls = (examples(inputs)(found, name) if inputs else None) or [((), {})]
        args, kwargs = calls[0]
        made = written(found, args, dict(kwargs))
    texts = [made.source, *([made.test(source_file.stem)] if test else [])]
    if output is None:
        return texts[0] if not test else "\n\n".join(f"# {f.name}\n{t}" for f, t in zip(files, texts, strict=True))
    for file, text in zip(files, texts, strict=True):
        try:
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise OptionError(f"{file} cannot be written: {error.strerror}.") from error
    return "\n".join(f"wrote {file}" for file in files) + "\n"


def _module_name(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name)).replace("<", "")


def _require_absent(files: list[Path], force: bool) -> None:
    for file in files:
        if file.exists() and not force:
            raise OptionError(f"{file} exists: name another file, or overwrite it with --force.")
