"""The names in a function's code: what it loads from around it, imports and assigns."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator

_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_NAME", "LOAD_FROM_DICT_OR_DEREF"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_STORES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"})


def names_in(code: types.CodeType) -> Iterator[list[str]]:
    """Yield each global or closed-over name that code loads, with the attributes read from it at once."""
    own = set(code.co_varnames) | set(code.co_cellvars)
    chain: list[str] = []
    for instruction in dis.get_instructions(code):
        if chain and instruction.opname in _ATTRIBUTES:
            chain.append(instruction.argval)
            continue
        if chain:
            yield chain
            chain = []
        if instruction.opname == "LOAD_GLOBAL" or (instruction.opname in _LOADS and instruction.argval not in own):
            chain = [instruction.argval]
    if chain:
        yield chain
    for inner in _inner(code):
        for chain in names_in(inner):
            if chain[0] not in own or chain[0] in _globals_of(inner):
                yield chain


def _globals_of(code: types.CodeType) -> set[str]:
    found = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    return found.union(*map(_globals_of, _inner(code)))


def imports_in(code: types.CodeType) -> Iterator[str]:
    """Yield each module that code imports."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            yield instruction.argval
    for inner in _inner(code):
        yield from imports_in(inner)


def writes_in(code: types.CodeType) -> Iterator[str]:
    """Yield each name that code assigns to outside of itself."""
    own = set(code.co_cellvars)
    for instruction in dis.get_instructions(code):
        if instruction.opname in _STORES and instruction.argval not in own:
            yield instruction.argval
    for inner in _inner(code):
        for name in writes_in(inner):
            if name not in own:
                yield name


def _inner(code: types.CodeType) -> Iterator[types.CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
