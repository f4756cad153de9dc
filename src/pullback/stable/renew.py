"""`pullback stabilise`: the certificates of a module's ops, written beside it."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pullback.check.find.importing import import_root
from pullback.check.find.target import parse_target, similar
from pullback.errors import FormulaError, OptionError, TargetError
from pullback.stable.certificate import Certificate, beside, label, load, save
from pullback.stable.command import domain_of, dtypes_of
from pullback.stable.sampling import Domain
from pullback.stable.search import Wide
from pullback.stable.stabilise import certify_parts


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
        return [(c.name, c.dtype, label(by), form.measured) for c in self.made for by, form in c.forms.items()]


def run(
    target: str,
    dtypes: Iterable[str],
    wide: Wide,
    domain: Iterable[str],
    on_progress: Callable[[int, int], None],
) -> Renewal:
    """Search for the stable forms of the ops of a module, or of one of them, and write them beside it.

    Raises:
        PullbackError: for an invalid target or option.
    """
    source, ops = _ops(target)
    limits, wanted = domain_of(domain), dtypes_of(dtypes) or [torch.float32]
    path = beside(source)
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
    parsed = parse_target(target)
    with contextlib.redirect_stdout(sys.stderr):
        module = import_root(parsed).module
    if module is None or not module.__file__:
        raise TargetError(f"{parsed.where} cannot be imported; run it with python to see where")
    ops = {
        name: value
        for name, value in vars(module).items()
        if getattr(type(value), "_is_pullback_op", False) and value.kind == "derived"
        if value.__module__ == module.__name__ and value.is_stable
    }
    if not parsed.name:
        if not ops:
            raise TargetError(f"{parsed.where} defines no derived op of pullback.function")
        return module.__file__, ops
    if parsed.name not in ops:
        raise TargetError(f"no derived op {parsed.name!r} in {parsed.where}{similar(parsed.name, ops)}")
    return module.__file__, {parsed.name: ops[parsed.name]}
