"""`pullback write`: from the command line to files."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from pullback.check.cases.given import examples
from pullback.check.find.discover import loaded
from pullback.errors import OptionError
from pullback.write.api import written


def run(target: str, inputs: str | None, test: bool, output: str | None, force: bool) -> str:
    """Write a target; return the text to print: the source, or its path. `inputs` is "FILE:FUNCTION", as for an audit.

    Raises:
        PullbackError: if there is no such target, it cannot be written, or a file already exists.
    """
    found = loaded(target, functions=True)
    name = str(getattr(found, "__name__", "written"))
    source_file = Path(output) if output is not None else Path(f"{_module(name)}.py")
    test_file = source_file.with_name(f"test_{source_file.name}")
    files = [source_file, *([test_file] if test else [])]
    if output is not None:
        _require_free(files, force)
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


def _module(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name)).replace("<", "")


def _require_free(files: list[Path], force: bool) -> None:
    for file in files:
        if file.exists() and not force:
            raise OptionError(f"{file} exists: name another file, or overwrite it with --force.")
