"""Static analysis of bytecode: globals that a function loads, imports, assignments, attributes and operators."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator

_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_NAME", "LOAD_FROM_DICT_OR_DEREF"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"})
_STORES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"})
_NEEDS_GRAD = "needs_input_grad"
"""The one attribute of a context that depends on the call: a graph holds for one set of inputs that require grad."""
_ATTRIBUTE_STORES = frozenset({"STORE_ATTR", "DELETE_ATTR"})
_BINARY = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "truediv",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "@": "matmul",
    "&": "and",
    "|": "or",
    "^": "xor",
    "<<": "lshift",
    ">>": "rshift",
}
_METHODS = {symbol: (f"__{name}__", f"__r{name}__", f"__i{name}__") for symbol, name in _BINARY.items()} | {
    "UNARY_NEGATIVE": ("__neg__",),
    "UNARY_INVERT": ("__invert__",),
    "COMPARE_OP": ("__lt__", "__le__", "__eq__", "__ne__", "__gt__", "__ge__"),
    "CONTAINS_OP": ("__contains__",),
    "GET_ITER": ("__iter__",),
    "BINARY_SUBSCR": ("__getitem__",),
    "BINARY_SLICE": ("__getitem__",),
    "[]": ("__getitem__",),
}
"""Methods that an operator may call, by its symbol or instruction."""


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
        if _loads(instruction, own):
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


def _loads(instruction: dis.Instruction, own: set[str]) -> bool:
    """Whether an instruction loads a name from around code whose own names are given."""
    return instruction.opname == "LOAD_GLOBAL" or (instruction.opname in _LOADS and instruction.argval not in own)


def attributes_in(code: types.CodeType, around: frozenset[str] = frozenset(), context: str = "") -> Iterator[str]:
    """Yield each attribute that code reads from an argument or a result, except from the variable `context`."""
    own = {*around, *code.co_varnames, *code.co_cellvars}
    chained, loaded = False, None
    for instruction in dis.get_instructions(code):
        if instruction.opname not in _ATTRIBUTES:
            chained = _loads(instruction, own)
        elif not chained and (loaded != context or instruction.argval == _NEEDS_GRAD):
            yield instruction.argval
        loaded = _loaded(instruction)
    for inner in _inner(code):
        yield from attributes_in(inner, frozenset(own))


def operators_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names of the methods that the operators in code may call."""
    for instruction in dis.get_instructions(code):
        operator = instruction.argrepr.rstrip("=") if instruction.opname == "BINARY_OP" else instruction.opname
        yield from _METHODS.get(operator, ())
    for inner in _inner(code):
        yield from operators_in(inner)


def _loaded(instruction: dis.Instruction) -> str | None:
    """Return the name of the local variable that an instruction loads."""
    return instruction.argval if instruction.opname == "LOAD_FAST" else None


def sets_in(code: types.CodeType, context: str = "") -> Iterator[str]:
    """Yield each attribute that code sets or deletes, of another value than the variable `context`."""
    loaded: str | None = None
    for instruction in dis.get_instructions(code):
        if instruction.opname in _ATTRIBUTE_STORES and loaded != context:
            yield instruction.argval
        loaded = _loaded(instruction)
    for inner in _inner(code):
        yield from sets_in(inner)


def matches(code: types.CodeType) -> bool:
    """Whether code matches a value against a class, which may read attributes."""
    return any(i.opname == "MATCH_CLASS" for i in dis.get_instructions(code)) or any(map(matches, _inner(code)))


def catches(code: types.CodeType) -> bool:
    """Whether code handles exceptions; the implicit handler of a `with` statement does not count."""
    names = [instruction.opname for instruction in dis.get_instructions(code)]
    return names.count("PUSH_EXC_INFO") > names.count("WITH_EXCEPT_START") or any(map(catches, _inner(code)))


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
