"""A file with the backwards of some of its classes replaced; everything else stays byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import libcst as cst
from libcst import matchers as m

from pullback.fix.classes import parsed, with_classes
from pullback.fix.edit_class import with_backward
from pullback.fix.model import Derived

_FUNCTIONAL = "torch.nn.functional"
_EMPTY = cst.Module([])


def edited(source: bytes, changes: Mapping[str, Derived]) -> bytes:
    """Return the source of a file with new backwards.

    Args:
        source: of the file, in the encoding that it declares.
        changes: the new backwards, by the qualified names of their classes.

    Raises:
        CannotFixError: if the way a class is written does not allow it.
    """
    module = parsed(source)
    if not _has_functional(module):
        changes = {name: _spelled_out(derived) for name, derived in changes.items()}
    module = with_classes(module, changes, with_backward)
    text = "\n".join(line for derived in changes.values() for line in derived.body)
    if re.search(r"\btorch\.", text) and not _has_torch(module):
        module = _with_import(module)
    return module.bytes


def _has_functional(module: cst.Module) -> bool:
    """Whether `F` is torch.nn.functional in a module."""
    return any(
        alias.evaluated_alias == "F" and f"{prefix}{alias.evaluated_name}" == _FUNCTIONAL
        for prefix, alias in _imported(module)
    )


def _has_torch(module: cst.Module) -> bool:
    """Whether `torch` is imported under its name."""
    return any(
        not prefix and alias.asname is None and alias.evaluated_name.partition(".")[0] == "torch"
        for prefix, alias in _imported(module)
    )


def _imported(module: cst.Module) -> Iterator[tuple[str, cst.ImportAlias]]:
    """Yield the top-level imports of a module, with the source module and a dot for `from` imports."""
    for statement in module.body:
        for one in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if isinstance(one, cst.Import):
                yield from (("", alias) for alias in one.names)
            elif isinstance(one, cst.ImportFrom) and not isinstance(one.names, cst.ImportStar) and one.module:
                yield from ((f"{_EMPTY.code_for_node(one.module)}.", alias) for alias in one.names)


def _with_import(module: cst.Module) -> cst.Module:
    """Return a module that imports torch, after its other imports at the top."""
    imports = m.SimpleStatementLine([m.OneOf(m.Import(), m.ImportFrom())])
    places = [i for i, statement in enumerate(module.body) if m.matches(statement, imports)]
    body = list(module.body)
    body.insert(places[0] + 1 if places else 0, cst.parse_statement("import torch"))
    return module.with_changes(body=body)


def _spelled_out(derived: Derived) -> Derived:
    return replace(derived, body=tuple(re.sub(r"\bF\.", f"{_FUNCTIONAL}.", line) for line in derived.body))
