"""One class with its backward replaced, and its residuals with it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

import libcst as cst
from libcst import matchers as m

from pullback.fix.classes import block_of, definition_of
from pullback.fix.model import Derived
from pullback.fix.saving import At, Method, keeping
from pullback.fix.style import rebound_in

_DROPPED = {"once_differentiable", "no_grad", "inference_mode"}
"""Decorators of a backward that would keep it from being differentiated."""
_SAVING = m.Expr(m.Call(m.Attribute(m.Name(), m.Name("save_for_backward"))))
_EMPTY = cst.Module([])


def with_backward(derived: Derived, node: cst.ClassDef) -> cst.ClassDef:
    """Return a class with a new backward.

    Raises:
        CannotFixError: if the way it is written does not allow it.
    """
    methods = {one.name.value: one for one in node.body.body if isinstance(one, cst.FunctionDef)}
    read = _read_attributes(methods)
    keeper = "setup_context" if "setup_context" in methods else "forward"
    new = {
        "backward": _new_backward(methods["backward"], derived),
        keeper: _keeper(methods[keeper], derived, read, keeper == "forward", len(_parameters(methods["forward"]))),
    }
    body = [new.get(one.name.value, one) if isinstance(one, cst.FunctionDef) else one for one in node.body.body]
    return node.with_changes(body=node.body.with_changes(body=body))


def _new_backward(node: cst.FunctionDef, derived: Derived) -> cst.FunctionDef:
    """Return a backward with other lines; decorators, signature, docstring and last comments stay if they can."""
    body = block_of(node)
    statements = [*cst.parse_module("\n".join(derived.body) + "\n").body]
    if node.get_docstring() is not None:
        statements.insert(0, body.body[0])  # type: ignore[arg-type]
    if tuple(_parameters(node)) != derived.parameters:
        parameters = [cst.Param(cst.Name(name)) for name in derived.parameters]
        node = node.with_changes(params=cst.Parameters(parameters))
    decorators = [one for one in node.decorators if _last_name(one.decorator) not in _DROPPED]
    return node.with_changes(decorators=decorators, body=body.with_changes(body=statements))


def _keeper(node: cst.FunctionDef, derived: Derived, read: set[str], is_forward: bool, count: int) -> cst.FunctionDef:
    """Return the method that saves the residuals of the new backward."""
    names = _parameters(node)
    body = block_of(node)
    at: At = "there"
    if is_forward:
        expressions: dict[tuple[str, int], str] = {(one.of, one.position): one.name for one in derived.kept}
        method = Method(names[0], expressions, read)
        at = _where(node, derived)
    else:
        ctx, inputs, output = names
        unpacked = dict(_unpacked(body, inputs, "input")) | dict(_unpacked(body, output, "output"))
        several = any(one.of == "output" and one.position for one in derived.kept) or ("output", 0) in unpacked
        known = {("input", i): f"{inputs}[{i}]" for i in range(count)}
        known |= {
            (one.of, one.position): f"{output}[{one.position}]" if several else output
            for one in derived.kept
            if one.of == "output"
        }
        attributes = {text.removeprefix(f"{ctx}.") for text in unpacked.values() if text.startswith(f"{ctx}.")}
        method = Method(ctx, known | unpacked, read, (inputs, count), attributes)
    return node.with_changes(body=keeping(body, method, derived.kept, at))


def _where(forward: cst.FunctionDef, derived: Derived) -> At:
    """Return where a forward has to save: inputs before they are rebound, outputs once they exist."""
    if any(one.of == "output" for one in derived.kept):
        return "return"
    changed = rebound_in(definition_of(forward)) & {one.name for one in derived.kept}
    saves = any(m.matches(statement, m.SimpleStatementLine([_SAVING])) for statement in block_of(forward).body)
    return "there" if saves and not changed else "start"


def _unpacked(body: cst.IndentedBlock, name: str, of: str) -> Iterator[tuple[tuple[str, int], str]]:
    """Yield the names that a setup_context gives to the parts of a tuple that it unpacks before it saves."""
    unpacking = m.Assign([m.AssignTarget(m.Tuple())], m.Name(name))
    for statement in body.body:
        for one in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if m.matches(one, _SAVING):
                return
            if not m.matches(one, unpacking):
                continue
            left = cst.ensure_type(cst.ensure_type(one, cst.Assign).targets[0].target, cst.Tuple)
            if not any(isinstance(element, cst.StarredElement) for element in left.elements):
                parts = [_EMPTY.code_for_node(element.value) for element in left.elements]
                yield from (((of, i), part) for i, part in enumerate(parts) if part != "_")


def _read_attributes(methods: Mapping[str, cst.FunctionDef]) -> set[str]:
    """Return the attributes that methods other than the backward read, of any object."""
    found = set()
    for name, node in methods.items():
        if name == "backward":
            continue
        loads = [
            n for n in ast.walk(definition_of(node)) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)
        ]
        found |= {n.attr for n in loads if isinstance(n.value, ast.Name)}
    return found


def _parameters(node: cst.FunctionDef) -> Sequence[str]:
    params = node.params
    others = [params.star_arg, params.star_kwarg]
    plain = not any(isinstance(one, cst.Param) for one in others) and not params.kwonly_params
    return [p.name.value for p in (*params.posonly_params, *params.params)] if plain else []


def _last_name(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Call):
        node = node.func
    if isinstance(node, cst.Attribute):
        node = node.attr
    return node.value if isinstance(node, cst.Name) else ""
