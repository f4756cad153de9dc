"""Uses of the context by the statements of an old-style forward."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from pullback.fix.model import CannotFixError

_CALLS = {"save_for_backward", "save_for_forward", "mark_dirty", "mark_non_differentiable", "set_materialize_grads"}
_GIVEN = "needs_input_grad"
"""Attribute that PyTorch sets on a context before the forward runs."""


class Context:
    """The context of a forward: the statements that save to it, and the reads of it by the others.

    Args:
        name: of the context.
        body: the statements of the forward.

    Attributes:
        keeping: positions of the statements that save, and do nothing else.
        read: for each attribute that other statements read, the name of its value.

    Raises:
        CannotFixError: if the forward uses its context for anything else.
    """

    def __init__(self, name: str, body: Sequence[ast.stmt]) -> None:
        self.name = name
        self.keeping = [i for i, statement in enumerate(body) if self._keeps(statement)]
        known: dict[str, ast.expr | None] = {}
        self.read: dict[str, str] = {}
        for i, statement in enumerate(body):
            self._check_uses(statement, known, i in self.keeping)
            for attribute, value in self._assigned(statement):
                if attribute in self.read:
                    raise CannotFixError(f"its forward reads {name}.{attribute} and assigns it again")
                known[attribute] = None if attribute in known else value

    def _is_kept(self, node: ast.AST) -> bool:
        """Whether a node is an attribute of the context."""
        return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == self.name

    def _keeps(self, statement: ast.stmt) -> bool:
        """Whether a statement keeps things, and so has to go.

        Raises:
            CannotFixError: if it does other things too, or does so inside of more than `if`.
        """
        if not any(self._is_keeping(node) for node in ast.walk(statement)):
            return False
        for leaf in _leaves(statement):
            if not (self._is_keeping(leaf) or isinstance(leaf, ast.Pass) or _binds_a_name(leaf)):
                raise CannotFixError(f"its forward keeps things among other work: {_shown(statement)}")
        return True

    def _is_keeping(self, node: ast.AST) -> bool:
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=attr) as func)):
                return attr in _CALLS and self._is_kept(func)
            case ast.Assign(targets=targets):
                return any(self._is_kept(part) for target in targets for part in _parts(target))
            case ast.AnnAssign(target=target):
                return self._is_kept(target)
            case _:
                return False

    def _assigned(self, statement: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
        """Yield the attributes that a statement assigns, with their value where that is a plain assignment."""
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and self._is_kept(node):
                plain = isinstance(statement, ast.Assign) and statement.targets == [node]
                yield node.attr, statement.value if plain else None  # type: ignore[attr-defined]

    def _check_uses(self, statement: ast.stmt, known: dict[str, ast.expr | None], keeps: bool) -> None:
        attributes = [node for node in ast.walk(statement) if self._is_kept(node)]
        bases = {id(node.value) for node in attributes if isinstance(node, ast.Attribute)}
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id == self.name and id(node) not in bases:
                raise CannotFixError(f"its forward uses {self.name} as a whole: {_shown(statement)}")
        for node in attributes:
            assert isinstance(node, ast.Attribute)  # that is how they were found
            if isinstance(node.ctx, ast.Load):
                self._check_read(node.attr, known, keeps, statement)
            elif not keeps:
                raise CannotFixError(f"its forward changes {self.name}.{node.attr}: {_shown(statement)}")

    def _check_read(self, attr: str, known: dict[str, ast.expr | None], keeps: bool, statement: ast.stmt) -> None:
        if keeps and (attr in _CALLS or attr == _GIVEN or attr in known):
            return
        value = known.get(attr)
        if keeps or not isinstance(value, ast.Name):
            raise CannotFixError(f"its forward reads {self.name}.{attr}: {_shown(statement)}")
        self.read[attr] = value.id


def _leaves(statement: ast.stmt) -> Iterator[ast.stmt]:
    if isinstance(statement, ast.If):
        for inner in (*statement.body, *statement.orelse):
            yield from _leaves(inner)
    else:
        yield statement


def _binds_a_name(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Assign):
        return False
    return all(isinstance(part, ast.Name) for target in statement.targets for part in _parts(target))


def _parts(target: ast.expr) -> list[ast.expr]:
    return list(target.elts) if isinstance(target, ast.Tuple | ast.List) else [target]


def _shown(statement: ast.stmt) -> str:
    return ast.unparse(statement).partition("\n")[0]
