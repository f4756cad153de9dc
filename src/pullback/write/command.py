"""`pullback write`: from what is written on the command line to files."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from pullback.check.find.importing import import_root
from pullback.check.find.named import public_callables
from pullback.check.find.target import parse_target, similar
from pullback.errors import OptionError, TargetError
from pullback.write.api import written


def run(target: str, test: bool, output: str | None, force: bool) -> str:
    """Write a target; return what to print: the text, or where it is.

    Raises:
        PullbackError: if there is no such target, it cannot be written, or a file is in the way.
    """
    found = _load(target)
    name = str(getattr(found, "__name__", "written"))
    source_file = Path(output) if output is not None else Path(f"{_module(name)}.py")
    test_file = source_file.with_name(f"test_{source_file.name}")
    files = [source_file, *([test_file] if test else [])]
    if output is not None:
        _require_free(files, force)
    with contextlib.redirect_stdout(sys.stderr):
        made = written(found, (), {})
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


def _load(target: str) -> Any:
    """Import what "FILE:NAME" or "MODULE:NAME" names; what it prints goes to standard error."""
    parsed = parse_target(target)
    with contextlib.redirect_stdout(sys.stderr):
        root = import_root(parsed)
    if root.module is None:
        raise TargetError(f"{parsed.where} {root.why}; run it with python to see where")
    if not parsed.name:
        names = similar("", public_callables(root.module))
        raise TargetError(f"name a function of {parsed.where}, as in {parsed.where}:NAME{names}")
    found: Any = root.module
    for part in parsed.name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise TargetError(f"no {parsed.name!r} in {parsed.where}{similar(parsed.name, public_callables(root.module))}")
    return found
