"""Queries of the source for the rules about it. Nothing is imported and nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pullback.check.find.source import FunctionSource
from pullback.check.find.syntax import own_nodes, positional_arguments

_NO_WRITES = frozenset({"requires_grad_", "retain_grad_", "share_memory_"})
_SAME_MEMORY = frozenset({"data", "detach"})


@dataclass(frozen=True, slots=True)
class Write:
    """A statement that writes into the memory of the tensor `name`; `bypasses` autograd by `.data` or `.detach()`."""

    name: str
    line: int
    code: str
    bypasses: bool


def inputs(source: FunctionSource) -> list[str]:
    """Return the names of the forward's arguments, without `ctx`."""
    forward = source.methods.get("forward")
    if forward is None or not isinstance(source.node, ast.ClassDef):
        return []
    names = [argument.arg for argument in positional_arguments(forward)]
    return names if "setup_context" in source.methods else names[1:]


def cotangents(source: FunctionSource) -> list[str]:
    """Return the names of the backward's arguments, without `ctx`."""
    backward = source.methods.get("backward")
    return [argument.arg for argument in positional_arguments(backward)][1:] if backward is not None else []


def differentiated(source: FunctionSource) -> list[str]:
    """Arguments of the forward for which some `return` of the backward has a gradient, and so tensors."""
    names, forward, backward = inputs(source), source.methods.get("forward"), source.methods.get("backward")
    found: set[str] = set()
    for node in own_nodes(backward) if backward is not None else ():
        match node:
            case ast.Return(value=ast.Tuple(elts=values)) if not any(isinstance(v, ast.Starred) for v in values):
                found |= {name for name, value in zip(names, values, strict=False) if not _is_none(value)}
            case ast.Return(value=ast.expr() as value) if (
                len(names) == 1 and forward is not None and not forward.args.vararg and not _is_none(value)
            ):
                found.add(names[0])
            case _:
                pass
    return [name for name in names if name in found]


def saved(backward: ast.FunctionDef) -> set[str]:
    """Return the names that the backward gives to saved tensors."""
    found = set()
    for node in own_nodes(backward):
        if isinstance(node, ast.Assign) and is_saved_tensors(node.value):
            found |= {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return found


def is_saved_tensors(node: ast.AST) -> bool:
    """Whether an expression is `ctx.saved_tensors`, or an element of it."""
    node = node.value if isinstance(node, ast.Subscript) else node
    return isinstance(node, ast.Attribute) and node.attr == "saved_tensors"


def writes(method: ast.FunctionDef, names: Collection[str]) -> Iterator[Write]:
    """Yield, in line order, the nodes that write into one of `names`, unless the method has rebound the name."""
    nodes = list(own_nodes(method))
    first: list[ast.expr] = [node.target for node in nodes if isinstance(node, ast.AugAssign)]
    first += [
        t for node in nodes if isinstance(node, ast.Assign) and is_saved_tensors(node.value) for t in node.targets
    ]
    no_others = {id(inner) for target in first for inner in ast.walk(target)}
    given_anew: dict[str, int] = {}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in no_others:
            given_anew[node.id] = min(node.lineno, given_anew.get(node.id, node.lineno))
    found = [write for node in nodes if (write := _write(node)) is not None and write.name in names]
    for write in sorted(found, key=lambda write: write.line):
        if given_anew.get(write.name, write.line + 1) > write.line:
            yield write


def calls(method: ast.FunctionDef) -> Iterator[tuple[ast.Call, str]]:
    """Yield every call in a method with the last name of the callee, nested functions included."""
    for node in ast.walk(method):
        if isinstance(node, ast.Call):
            function = node.func
            yield node, function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def text(node: ast.AST) -> str:
    """Return the source of a node on one line of bounded length."""
    line = " ".join(ast.unparse(node).split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _write(node: ast.AST) -> Write | None:
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr=attr)) if (
            attr.endswith("_") and not attr.endswith("__") and attr not in _NO_WRITES
        ):
            pass
        case ast.Assign(targets=[ast.Subscript(value=value)]) | ast.AugAssign(target=ast.Subscript(value=value)):
            pass
        case ast.AugAssign(target=ast.Name() | ast.Attribute() as value):
            pass
        case ast.Assign(targets=[ast.Attribute(attr="data") as value]):
            pass
        case _:
            return None
    owner, bypasses = _owner(value)
    return Write(owner, getattr(node, "lineno", 0), text(node), bypasses) if owner else None


def _owner(node: ast.expr) -> tuple[str, bool]:
    """Return the name whose memory an expression is, and whether by `.data` or `.detach()`."""
    if isinstance(node, ast.Call) and not node.args:
        node = node.func
    if isinstance(node, ast.Attribute) and node.attr in _SAME_MEMORY:
        return (node.value.id, True) if isinstance(node.value, ast.Name) else ("", False)
    return (node.id, False) if isinstance(node, ast.Name) else ("", False)
