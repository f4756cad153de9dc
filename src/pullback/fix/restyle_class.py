"""One class in the new style: `forward` without its context, `setup_context`, static methods."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import libcst as cst
from libcst import matchers as m

from pullback.fix.bindings import own_returns, reads
from pullback.fix.classes import definition_of
from pullback.fix.model import CannotFixError, Restyle
from pullback.fix.setup_context import Shared, opening
from pullback.fix.split import split

_STATIC = ("forward", "backward", "setup_context", "jvp", "vmap", "vjp")
_HARMLESS = {"staticmethod", "no_grad"}
"""Decorators of a forward that do not depend on its first argument."""
_FRAMES = {"super", "__class__", "locals", "vars", "eval", "exec"}


def restyled_class(how: Restyle, node: cst.ClassDef) -> cst.ClassDef:
    """Return a class in the new style.

    Raises:
        CannotFixError: if its forward cannot be without its context.
    """
    old = [_static(one) if isinstance(one, cst.FunctionDef) else one for one in node.body.body]
    methods = {one.name.value: one for one in old if isinstance(one, cst.FunctionDef)}
    body: list[cst.BaseStatement] = []
    for one in old:
        if how.is_split and one is methods["forward"]:
            body += _split_forward(methods, how)
        else:
            body.append(one)  # type: ignore[arg-type]
    changed = node.with_changes(body=node.body.with_changes(body=body)).visit(_Renamed())
    assert isinstance(changed, cst.ClassDef)  # a class stays one
    return changed


class _Renamed(cst.CSTTransformer):
    """Replaces names that PyTorch has renamed."""

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:  # noqa: N802 - libcst's name
        """Have `saved_variables` read as `saved_tensors`."""
        if updated_node.attr.value != "saved_variables":
            return updated_node
        return updated_node.with_changes(attr=updated_node.attr.with_changes(value="saved_tensors"))


def _static(method: cst.FunctionDef) -> cst.FunctionDef:
    """Return a method as a staticmethod, if it is one that PyTorch takes off the class, and can be one."""
    if method.name.value not in _STATIC:
        return method
    if not method.decorators:
        return method.with_changes(decorators=[cst.Decorator(cst.Name("staticmethod"))])
    parsed = definition_of(method)
    first = [one.arg for one in (*parsed.args.posonlyargs, *parsed.args.args)][:1]
    if [ast.unparse(one) for one in parsed.decorator_list] != ["classmethod"] or reads(parsed) & {*first, *_FRAMES}:
        return method
    decorator = method.decorators[0].with_changes(decorator=cst.Name("staticmethod"))
    return method.with_changes(decorators=[decorator], params=_without_first(method.params))


def _split_forward(methods: Mapping[str, cst.FunctionDef], how: Restyle) -> list[cst.FunctionDef]:
    """Return a forward without its context, and the `setup_context` that it needs."""
    forward = methods["forward"]
    parsed = definition_of(forward)
    _check(parsed, definition_of(methods["backward"]))
    plan = split(parsed, how.plain)
    shared = Shared(forward, plan)
    old = shared.block
    setup = cst.ensure_type(cst.parse_statement(opening(parsed, plan)), cst.FunctionDef)
    block = cst.ensure_type(setup.body, cst.IndentedBlock)
    opened = () if m.matches(block.body[0], m.SimpleStatementLine([m.Pass()])) else block.body
    body = [*opened, *shared.there] or block.body
    return [
        forward.with_changes(params=_without_first(forward.params), body=old.with_changes(body=shared.here)),
        setup.with_changes(
            body=block.with_changes(body=body, indent=old.indent), leading_lines=[cst.EmptyLine(indent=False)]
        ),
    ]


def _check(forward: ast.FunctionDef, backward: ast.FunctionDef) -> None:
    """See that nothing but its statements binds a forward to its context.

    Raises:
        CannotFixError: if something does.
    """
    decorators = {ast.unparse(one).partition("(")[0].rpartition(".")[2] for one in forward.decorator_list}
    if others := decorators - _HARMLESS:
        raise CannotFixError(f"its forward is decorated with {min(others)}, which may need its context")
    if used := reads(forward) & _FRAMES:
        raise CannotFixError(f"its forward uses {min(used)}")
    a = forward.args
    positional = [*a.posonlyargs, *a.args]
    if not positional:
        raise CannotFixError("its forward names no context")
    if a.defaults and any(count != len(positional) - 1 for count in _gradients(backward)):
        raise CannotFixError(
            "its forward has default arguments, for which setup_context needs gradients too, "
            "and its backward does not return one for each"
        )


def _gradients(backward: ast.FunctionDef) -> Iterator[int]:
    """Yield the number of gradients of each return of a backward; -1 if unknown."""
    for one in (found for statement in backward.body for found in own_returns(statement)):
        parts = one.value.elts if isinstance(one.value, ast.Tuple) else [one.value]
        named = len(parts) == 1 and isinstance(parts[0], ast.Name | ast.Starred)
        yield -1 if named or any(isinstance(part, ast.Starred) for part in parts) else len(parts)


def _without_first(params: cst.Parameters) -> cst.Parameters:
    if params.posonly_params:
        left = params.posonly_params[1:]
        end = params.posonly_ind if left else cst.MaybeSentinel.DEFAULT
        return params.with_changes(posonly_params=left, posonly_ind=end)
    return params.with_changes(params=params.params[1:])
