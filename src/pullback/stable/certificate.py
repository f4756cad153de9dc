"""Certificates: the programs that a search found for a formula, and their measured errors, as readable text.

A file of certificates is TOML. It is stored beside a module, under version control, or in the user's cache. Its content
is parsed, never executed, and a program is accepted only if it computes its formula.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

from pullback import caches
from pullback.ops.constants import VALUES
from pullback.ops.registry import CONDITIONS, OPS
from pullback.stable.piecewise import Piecewise, parse_piecewise
from pullback.stable.term import topological

SUFFIX = ".stable.toml"
"""Suffix of the file beside a module: `ops.py` has `ops.stable.toml`."""
_HEADER = (
    "# Written by `pullback stabilise`: stable forms of formulas and of their derivatives, with measured errors.\n"
)

_HIGHEST = 64
"""Largest order of a zero or pole: far more than occurs."""

By = tuple[str, ...]
"""Variables of successive differentiation; none for the value."""

Key = tuple[str, tuple[str, ...], str, str]
"""Formula, variables, dtype and device: the key of a certificate."""


@dataclass(frozen=True, slots=True)
class Form:
    """Program for a formula or one of its derivatives.

    Attributes:
        program: the program.
        measured: its errors and those of the formula as written, in words.
    """

    program: Piecewise
    measured: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """The stable forms of one formula for one dtype.

    Attributes:
        name: name of the op.
        formula: the formula, as the text of a term.
        variables: its inputs, in order.
        dtype: dtype of the inputs, as in "float32".
        wide: whether float64 was allowed: "never", "where-needed" or "always".
        device: device whose kernels it was measured on.
        made: versions that made it.
        forms: forms of the value and the derivatives, by the variables of the derivative.
    """

    name: str
    formula: str
    variables: tuple[str, ...]
    dtype: str
    wide: str
    device: str
    made: str
    forms: Mapping[By, Form]

    @property
    def key(self) -> Key:
        """Key of the certificate."""
        return (self.formula, self.variables, self.dtype, self.device)

    def __str__(self) -> str:
        return "\n".join(_toml_lines(self))

    def __repr__(self) -> str:
        return f"<certificate of {self.name} for {self.dtype}: {', '.join(map(label, self.forms))}>"


def label(by: By) -> str:
    """Name of a derivative: "value", "d/dx", "d²/dx²", "d²/dx dy"."""
    if not by:
        return "value"
    powers = {1: "", 2: "²", 3: "³"}
    names = [f"d{name}{powers[by.count(name)]}" for name in dict.fromkeys(by)]
    return f"d{powers[len(by)]}/{' '.join(names)}"


def load(path: Path, key: Key | None = None) -> list[Certificate]:
    """Certificates of a file, or those with a key; none if there is no such file.

    Raises:
        ValueError: if it is not a file of certificates.
    """
    try:
        stat = path.stat()
        tables = _tables(path, (stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return [_of_table(table) for table in tables if key in (None, _key_of(table))]
    except FileNotFoundError:
        return []
    except KeyError as error:
        raise ValueError(f"{path} is not a file of certificates: one has no {error}") from error
    except (ValueError, TypeError, AttributeError, SyntaxError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{path} is not a file of certificates: {error}") from error


@lru_cache(maxsize=64)
def _tables(path: Path, version: tuple[int, ...]) -> list[dict[str, Any]]:
    """Parse one version of a file; cached, since the ops of a module read the same file one after another."""
    import tomllib  # here, since most formulas have no certificate

    tables: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8")).get("certificate", [])
    return tables


def save(path: Path, certificates: Iterable[Certificate]) -> None:
    """Write a file of certificates, whole or not at all."""
    text = "\n".join([_HEADER, *("\n".join([*_toml_lines(c), ""]) for c in certificates)])
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=path.name, suffix=".part", delete=False
    ) as part:
        written = Path(part.name)
        try:
            part.write(text)
            part.close()
            written.chmod(0o644)
            written.replace(path)
        except OSError:
            written.unlink()
            raise


def path_beside(source: str) -> Path:
    """File of certificates of a module's file."""
    return Path(source).with_suffix(SUFFIX)


def path_beside_function(function: Callable[..., Any]) -> Path | None:
    """File of certificates beside a function's module; `None` if it has no file."""
    try:
        source = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:
        return None
    return path_beside(source) if source and not source.startswith("<") else None


def cache_folder() -> Path:
    """Folder of certificates in the user's cache."""
    return caches.root() / "certificates"


def cache_path(key: Key) -> Path:
    """File in the user's cache for one key."""
    return cache_folder() / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:24]}{SUFFIX}"


def _key_of(table: dict[str, Any]) -> Key:
    return (table["formula"], tuple(table["variables"]), table["dtype"], table["device"])


def _of_table(table: dict[str, Any]) -> Certificate:
    texts = [table[name] for name in ("name", "formula", "dtype", "wide", "device", "made")]
    name, formula, dtype, wide, device, made = map(str, texts)
    variables = tuple(map(str, table["variables"]))
    forms = {}
    for form in table["form"]:
        program = parse_piecewise(form["program"].strip("\n").splitlines(), variables)
        _require_known(program, variables)
        forms[tuple(form["by"])] = Form(program, str(form["measured"]))
    wanted = {by for order in range(3) for by in combinations_with_replacement(variables, order)}
    if forms.keys() != wanted:
        raise ValueError(f"{name} has not the forms of its value, first and second derivatives")
    return Certificate(name, formula, variables, dtype, wide, device, made, forms)


def _require_known(program: Piecewise, variables: Sequence[str]) -> None:
    """Refuse names that no search writes: names become code (`emit`)."""
    roots = [*program.branches(), *(term for term, _ in program.terms())]
    for term in topological(roots):
        match term.op:
            case "const":
                known = math.isfinite(float(term.value))
            case "var":
                known = term.value in variables
            case "named":
                known = term.value in VALUES
            case "poly":
                known = abs(term.value.power) <= _HIGHEST
            case op:
                known = op in OPS and len(term.args) == OPS[op].arity
        if not known:
            raise ValueError(f"it does not know {term}")
    if any(root.op in CONDITIONS for root in roots):
        raise ValueError("a form is a number, not a condition")


def _toml_lines(c: Certificate) -> list[str]:
    lines = ["[[certificate]]"]
    lines += [f"{k} = {_toml_string(getattr(c, k))}" for k in ("name", "formula")]
    lines.append(f"variables = [{', '.join(map(_toml_string, c.variables))}]")
    lines += [f"{k} = {_toml_string(getattr(c, k))}" for k in ("dtype", "wide", "device", "made")]
    for by, form in c.forms.items():
        lines += ["", f"[[certificate.form]]  # {label(by)}", f"by = [{', '.join(map(_toml_string, by))}]"]
        lines += [f"measured = {_toml_string(form.measured)}", "program = '''", *form.program.lines(), "'''"]
    return lines


def _toml_string(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)  # a basic string of TOML
