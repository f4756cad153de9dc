"""Evidence about the parameters of a forward in its source: how they are used."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from pullback.check.find.syntax import own_nodes

Role = Literal["callable", "tensor", "sequence", "int", "dim", "flag", "number"]

_NO_SIGN = {"name", "names", "index", "count", "T", "type", "values", "split", "apply_"}
"""Attributes of a tensor that other objects have as well."""
_TENSOR = {name for name in dir(torch.Tensor) if not name.startswith("_")} - _NO_SIGN

_BY_FUNCTION: dict[str, Role] = {"range": "int", "len": "sequence", "int": "number", "float": "number"}
_BY_KEYWORD: dict[str, Role] = {
    "dim": "dim", "axis": "dim", "keepdim": "flag", "num_classes": "int", "dim_size": "int", "minlength": "int",
    "min": "number", "max": "number", "alpha": "number",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Usage:
    """How one parameter is used.

    Attributes:
        roles: types that the use requires.
        lengths: numbers of items that it is unpacked into.
        constants: values with which it is compared.
    """

    roles: frozenset[Role] = frozenset()
    lengths: tuple[int, ...] = ()
    constants: tuple[Any, ...] = ()


def usage(node: ast.FunctionDef, names: Sequence[str]) -> dict[str, Usage]:
    """Return how the body of a function uses each of its parameters; a rebound parameter still counts as itself."""
    roles: defaultdict[str, set[Role]] = defaultdict(set)
    lengths: defaultdict[str, list[int]] = defaultdict(list)
    constants: defaultdict[str, list[Any]] = defaultdict(list)
    for part in ast.walk(node):
        for name, sign in _signs(part):
            if name not in names:
                continue
            if isinstance(sign, str):
                roles[name].add(sign)
            elif isinstance(sign, int):
                roles[name].add("sequence")
                lengths[name].append(sign)
            else:
                constants[name] += sign
    return {
        name: Usage(frozenset(roles[name]), tuple(lengths[name]), tuple(dict.fromkeys(constants[name])))
        for name in names
    }


def kept_as_settings(methods: Mapping[str, ast.FunctionDef], names: Sequence[str]) -> set[str]:
    """Return the parameters of a Function's forward that are numbers or flags by the way its backward has them.

    They are attributes of `ctx` (`ctx.n = n`, `ctx.other = n, p`, `ctx.n, ctx.p = n, p`), where a tensor would be given
    to `save_for_backward`, and in every `return` the backward has None in their place.
    """
    bodies = [methods[name] for name in ("forward", "setup_context") if name in methods]
    kept = {
        value.id
        for body in bodies
        for node in own_nodes(body)
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Attribute) for t in map(_first, node.targets))
        for value in (node.value.elts if isinstance(node.value, ast.Tuple | ast.List) else [node.value])
        if isinstance(value, ast.Name)
    }
    returned = [node.value for node in own_nodes(methods["backward"]) if isinstance(node, ast.Return)]
    for value in returned:
        if not isinstance(value, ast.Tuple) or any(isinstance(item, ast.Starred) for item in value.elts):
            return set()
        nothing = [isinstance(item, ast.Constant) and item.value is None for item in value.elts]
        kept &= {name for name, is_none in zip(names, nothing, strict=False) if is_none}
    return kept if returned else set()


def _first(target: ast.expr) -> ast.expr:
    return target.elts[0] if isinstance(target, ast.Tuple | ast.List) and target.elts else target


_Sign = tuple[str, Role | int | list[Any]]
"""A name with a role of its, the number of items in it, or constants that it is compared with."""


def _signs(part: ast.AST) -> Iterator[_Sign]:
    match part:
        case ast.Call():
            yield from _of_call(part)
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if attribute in _TENSOR:
            yield name, "tensor"
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple() | ast.Slice()):
            yield name, "tensor"
        case ast.BinOp(op=ast.MatMult(), left=left, right=right):
            yield from ((side.id, "tensor") for side in (left, right) if isinstance(side, ast.Name))
        case ast.For(iter=ast.Name(id=name)) | ast.comprehension(iter=ast.Name(id=name)):
            yield name, "sequence"
        case ast.Assign(targets=[ast.Tuple(elts=items)], value=ast.Name(id=name)):
            yield name, len(items)
            # `a, (b, c) = args`: the argument after `a` has two items, and no name.
            yield from ((f"{name}_{i}", len(item.elts)) for i, item in enumerate(items) if isinstance(item, ast.Tuple))
        case ast.If(test=test) | ast.IfExp(test=test):
            bare = test.operand if isinstance(test, ast.UnaryOp) else test
            if isinstance(bare, ast.Name):
                yield bare.id, "flag"
        case ast.Compare(left=ast.Name(id=name), ops=operators, comparators=others):
            for operator, other in zip(operators, others, strict=True):
                yield from _of_comparison(name, operator, other)


def _of_call(call: ast.Call) -> Iterator[_Sign]:
    called = ast.unparse(call.func)
    if isinstance(call.func, ast.Name):
        yield call.func.id, "callable"
    for position, argument in enumerate(call.args):
        match argument:
            case ast.Starred(value=ast.Name(id=name)):
                yield name, "sequence"
            case ast.Name(id=name):
                first_of_torch = position == 0 and called.partition(".")[0] in ("torch", "F")
                if called.endswith("save_for_backward") or (first_of_torch and not _takes_sequence(called)):
                    yield name, "tensor"
                elif called in _BY_FUNCTION:
                    yield name, _BY_FUNCTION[called]
    for keyword in call.keywords:
        if isinstance(keyword.value, ast.Name) and keyword.arg in _BY_KEYWORD:
            yield keyword.value.id, _BY_KEYWORD[keyword.arg]


def _takes_sequence(called: str) -> bool:
    """Whether the first argument of a function of torch is no tensor: a list of them, a size or a number."""
    last = called.rpartition(".")[2]
    return last in (
        "cat", "stack", "concat", "vstack", "hstack", "zeros", "ones", "empty", "full", "rand", "randn", "eye",
        "arange", "linspace", "tensor", "as_tensor", "is_tensor", "manual_seed", "einsum", "Size", "device", "no_grad",
    )  # fmt: skip


def _of_comparison(name: str, operator: ast.cmpop, other: ast.expr) -> Iterator[_Sign]:
    match other:
        case ast.Constant(value=str() | int() | float() as value) if isinstance(operator, ast.Eq):
            yield name, [value]
        case ast.Constant(value=int() | float()):
            yield name, "number"
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            constants = [item.value for item in items if isinstance(item, ast.Constant)]
            if constants:
                yield name, constants
