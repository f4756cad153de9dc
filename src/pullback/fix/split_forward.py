"""Division of the statements of an old-style forward between `forward` and `setup_context`.

Statements that save residuals move to `setup_context`, which has the inputs and the outputs. A value that they read
moves with them if the forward does not use it otherwise; it is computed in both methods if it consists of sizes and
numbers alone. Any other value would have to be computed twice, or returned: then the forward stays as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pullback.check.find.syntax import positional_parameters
from pullback.fix.dataflow import is_metadata, is_pure, may_write_in_place, names_bound, names_read, own_returns
from pullback.fix.patch import CannotFixError

_CONTEXT_METHODS = {
    "save_for_backward",
    "save_for_forward",
    "mark_dirty",
    "mark_non_differentiable",
    "set_materialize_grads",
}
_SET_BY_PYTORCH = "needs_input_grad"
"""Attribute that PyTorch sets on a context before the forward runs."""


@dataclass(frozen=True, slots=True)
class ForwardSplit:
    """Division of the statements of a forward.

    Attributes:
        ctx: name of the context.
        moved: positions of the statements of `setup_context`.
        left: positions of the statements that the forward keeps; those with metadata alone may be in both.
        inputs: the arguments that `setup_context` reads.
        outputs: the names that the forward returns, "_" for those that `setup_context` does not read; empty if it reads
            none.
        is_tuple: whether the forward returns a tuple.
        aliases: for each attribute of the context that the forward reads, the variable that was assigned to it.
    """

    ctx: str
    moved: tuple[int, ...]
    left: tuple[int, ...]
    inputs: frozenset[str]
    outputs: tuple[str, ...]
    is_tuple: bool
    aliases: dict[str, str]


def split_forward(forward: ast.FunctionDef, non_tensors: Collection[str]) -> ForwardSplit:
    """Divide the statements of a forward.

    Args:
        forward: its definition.
        non_tensors: names of arguments that hold no tensor.

    Raises:
        CannotFixError: if it cannot be done without computing anything twice.
    """
    return _Splitter(forward, non_tensors).split()


class _ContextUses:
    """Uses of the context in a forward: the statements that save to it, and the reads of it by the others.

    Args:
        ctx: name of the context.
        body: the statements of the forward.

    Attributes:
        saving: positions of the statements that save, and do nothing else.
        aliases: for each attribute that other statements read, the variable that was assigned to it.

    Raises:
        CannotFixError: if the forward uses its context for anything else.
    """

    def __init__(self, ctx: str, body: Sequence[ast.stmt]) -> None:
        self._ctx = ctx
        self.saving = [i for i, statement in enumerate(body) if self._is_saving(statement)]
        known: dict[str, ast.expr | None] = {}
        self.aliases: dict[str, str] = {}
        for i, statement in enumerate(body):
            self._check_uses(statement, known, i in self.saving)
            for attribute, value in self._assigned(statement):
                if attribute in self.aliases:
                    raise CannotFixError(f"its forward reads {ctx}.{attribute} and assigns it again")
                known[attribute] = None if attribute in known else value

    def _is_attribute(self, node: ast.AST) -> bool:
        """Whether a node is an attribute of the context."""
        return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == self._ctx

    def _is_saving(self, statement: ast.stmt) -> bool:
        """Whether a statement saves to the context, and so has to move.

        Raises:
            CannotFixError: if it does other things too, or saves inside anything but `if`.
        """
        if not any(self._saves(node) for node in ast.walk(statement)):
            return False
        for leaf in _leaves(statement):
            if not (self._saves(leaf) or isinstance(leaf, ast.Pass) or _assigns_names(leaf)):
                raise CannotFixError(f"its forward saves in the middle of other code: {_first_line(statement)}")
        return True

    def _saves(self, node: ast.AST) -> bool:
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=attr) as func)):
                return attr in _CONTEXT_METHODS and self._is_attribute(func)
            case ast.Assign(targets=targets):
                return any(self._is_attribute(part) for target in targets for part in _elements(target))
            case ast.AnnAssign(target=target):
                return self._is_attribute(target)
            case _:
                return False

    def _assigned(self, statement: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
        """Yield the attributes that a statement assigns, each with its value if that is `ctx.name = value` alone."""
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and self._is_attribute(node):
                is_plain = isinstance(statement, ast.Assign) and statement.targets == [node]
                yield node.attr, statement.value if is_plain else None  # type: ignore[attr-defined]

    def _check_uses(self, statement: ast.stmt, known: dict[str, ast.expr | None], is_saving: bool) -> None:
        attributes = [node for node in ast.walk(statement) if self._is_attribute(node)]
        bases = {id(node.value) for node in attributes if isinstance(node, ast.Attribute)}
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id == self._ctx and id(node) not in bases:
                raise CannotFixError(f"its forward uses {self._ctx} as a whole: {_first_line(statement)}")
        for node in attributes:
            assert isinstance(node, ast.Attribute)  # by `_is_attribute`
            if isinstance(node.ctx, ast.Load):
                self._check_read(node.attr, known, is_saving, statement)
            elif not is_saving:
                raise CannotFixError(f"its forward changes {self._ctx}.{node.attr}: {_first_line(statement)}")

    def _check_read(self, attr: str, known: dict[str, ast.expr | None], is_saving: bool, statement: ast.stmt) -> None:
        if is_saving and (attr in _CONTEXT_METHODS or attr == _SET_BY_PYTORCH or attr in known):
            return
        value = known.get(attr)
        if is_saving or not isinstance(value, ast.Name):
            raise CannotFixError(f"its forward reads {self._ctx}.{attr}: {_first_line(statement)}")
        self.aliases[attr] = value.id


class _Splitter:
    """Analysis of one forward: what each statement reads and binds, and where the moved ones get their names from."""

    def __init__(self, forward: ast.FunctionDef, non_tensors: Collection[str]) -> None:
        a = forward.args
        self._ctx, *positional = positional_parameters(forward)
        self._inputs = {*positional, *([a.vararg.arg] if a.vararg else [])}
        self._keywords = {one.arg for one in (*a.kwonlyargs, *([a.kwarg] if a.kwarg else []))}
        self._body: Sequence[ast.stmt] = forward.body
        self._non_tensors = set(non_tensors)
        self._context = _ContextUses(self._ctx, self._body)
        self._bound = [names_bound(one) for one in self._body]
        self._read = [names_read(one) for one in self._body]
        self._returned, self._is_tuple = self._returned_names()
        self._needed_inputs: set[str] = set()
        self._needed_outputs: set[str] = set()
        self._needed_statements: set[int] = set()

    def split(self) -> ForwardSplit:
        saving = self._context.saving
        self._check_returns(saving)
        for at in saving:
            self._check_assigned_names(at)
            for name in self._read[at] - self._bound[at] - {self._ctx}:
                self._require(name, at)
        if both := self._needed_inputs & self._needed_outputs:
            raise CannotFixError(f"it saves {min(both)} both before and after rebinding it")
        moved = {*saving, *self._needed_statements}
        copied = self._copied(moved)
        left = [i for i in range(len(self._body)) if i not in moved or i in copied]
        for at in moved - copied:
            self._check_delay(at, [self._body[i] for i in left if i > at])
        self._check_aliases()
        outputs = tuple(name if name in self._needed_outputs else "_" for name in self._returned)
        return ForwardSplit(
            self._ctx,
            tuple(sorted(moved)),
            tuple(left),
            frozenset(self._needed_inputs),
            outputs if any(name != "_" for name in outputs) else (),
            self._is_tuple,
            self._context.aliases,
        )

    def _returned_names(self) -> tuple[list[str], bool]:
        """Names of the returned values, "_" for an unnamed one, and whether they are a tuple.

        There are none unless the forward has one return, at its end.
        """
        returns = [one for statement in self._body for one in own_returns(statement)]
        if len(returns) != 1 or returns[0] is not self._body[-1] or returns[0].value is None:
            return [], False
        value = returns[0].value
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        if any(isinstance(part, ast.Starred) for part in parts):
            return [], True
        return [part.id if isinstance(part, ast.Name) else "_" for part in parts], isinstance(value, ast.Tuple)

    def _check_returns(self, saving: Sequence[int]) -> None:
        first = next((i for i, one in enumerate(self._body) if next(own_returns(one), None)), len(self._body))
        if any(at > first for at in saving):
            raise CannotFixError("what its forward saves depends on where it returns")

    def _check_assigned_names(self, at: int) -> None:
        """Check that the names that a saving statement assigns are assigned by it alone.

        Raises:
            CannotFixError: if the forward uses one of them for something else.
        """
        for name in self._bound[at]:
            if name in self._inputs or self._bindings(name, len(self._body)) != [at]:
                raise CannotFixError(f"it assigns {name} where it saves, and elsewhere too")

    def _bindings(self, name: str, before: int) -> list[int]:
        """Positions of the statements before a position that bind a name."""
        return [i for i in range(before) if name in self._bound[i]]

    def _require(self, name: str, at: int) -> None:
        """Provide a name that a moved statement reads in `setup_context`, with the value that it has in the forward.

        Raises:
            CannotFixError: if that is impossible.
        """
        everywhere = self._bindings(name, len(self._body))
        before = self._bindings(name, at)
        if name in self._keywords:
            raise CannotFixError(f"it saves {name}, a keyword argument, which setup_context does not get")
        if name in self._inputs and not before:
            self._needed_inputs.add(name)
        elif name in self._returned and before == everywhere and before:
            self._needed_outputs.add(name)
        elif everywhere and not set(before) <= set(self._context.saving):
            self._require_statement(name, before, everywhere)

    def _require_statement(self, name: str, before: Sequence[int], everywhere: Sequence[int]) -> None:
        """Move the one statement that computes a name along with those that save it."""
        if name in self._inputs:
            raise CannotFixError(f"it saves {name} after rebinding it")
        if len(everywhere) != 1 or before != everywhere or not self._is_assignment(everywhere[0]):
            raise CannotFixError(
                f"it saves {name}, which is neither an input nor an output, nor computed by one statement"
            )
        [at] = everywhere
        if at not in self._needed_statements:
            self._needed_statements.add(at)
            for inner in self._read[at]:
                self._require(inner, at)

    def _is_assignment(self, at: int) -> bool:
        statement = self._body[at]
        if not isinstance(statement, ast.Assign) or self._ctx in self._read[at]:
            return False
        targets = [e for t in statement.targets for e in (t.elts if isinstance(t, ast.Tuple) else [t])]
        inside = [node for node in ast.walk(statement.value) if isinstance(node, ast.NamedExpr)]
        return not inside and all(isinstance(target, ast.Name) for target in targets)

    def _copied(self, moved: set[int]) -> set[int]:
        """Moved statements that the forward needs as well.

        Raises:
            CannotFixError: if one of them computes anything.
        """
        copied: set[int] = set()
        while more := {i for i in moved - copied if self._bound[i] & self._read_without(moved - copied)}:
            copied |= more
        for at in sorted(copied):
            name = min(self._bound[at])
            if at in self._context.saving or not self._is_metadata(at):
                raise CannotFixError(
                    f"it saves {name}, which is neither an input nor an output: "
                    "setup_context would have to recompute it"
                )
        return copied

    def _read_without(self, removed: set[int]) -> set[str]:
        """Names that the forward reads without some of its statements."""
        read = {name for i, names in enumerate(self._read) if i not in removed for name in names}
        return read | set(self._context.aliases.values())

    def _is_metadata(self, at: int) -> bool:
        statement = self._body[at]
        return isinstance(statement, ast.Assign) and is_metadata(statement.value, self._is_scalar)

    def _is_scalar(self, name: str) -> bool:
        """Whether a name is known to hold no tensor."""
        at = self._bindings(name, len(self._body))
        if name in self._inputs or not at:
            return not at and (name not in self._inputs or name in self._non_tensors)
        return len(at) == 1 and self._is_metadata(at[0])

    def _check_delay(self, at: int, after: Sequence[ast.stmt]) -> None:
        """Check that a statement computes the same after others that it preceded.

        Raises:
            CannotFixError: if it may not.
        """
        for value in (value for value in _values(self._body[at]) if not self._is_name_or_metadata(value)):
            if not is_pure(value, self._is_local):
                raise CannotFixError(f"it saves what may have another value later: {ast.unparse(value)}")
            if any(may_write_in_place(statement) for statement in after):
                raise CannotFixError(f"it saves {ast.unparse(value)}, and writes in place afterwards")

    def _is_local(self, name: str) -> bool:
        return name in self._inputs or bool(self._bindings(name, len(self._body)))

    def _is_name_or_metadata(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Tuple | ast.List):
            return all(self._is_name_or_metadata(one) for one in value.elts)
        if isinstance(value, ast.Starred):
            return self._is_name_or_metadata(value.value)
        return isinstance(value, ast.Name) or is_metadata(value, self._is_scalar)

    def _check_aliases(self) -> None:
        """Check that a variable that replaces an attribute has the same value wherever the forward reads it.

        Raises:
            CannotFixError: if it is rebound.
        """
        for attribute, name in self._context.aliases.items():
            if len(self._bindings(name, len(self._body))) > (name not in self._inputs):
                raise CannotFixError(f"its forward reads {self._ctx}.{attribute}, and rebinds {name}")


def _leaves(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the simple statements under nested `if`s."""
    if isinstance(statement, ast.If):
        for inner in (*statement.body, *statement.orelse):
            yield from _leaves(inner)
    else:
        yield statement


def _values(statement: ast.stmt) -> list[ast.expr]:
    """Expressions that a statement saves or binds, and those of its conditions."""
    match statement:
        case ast.If(test=test, body=body, orelse=orelse):
            return [test, *(value for inner in (*body, *orelse) for value in _values(inner))]
        case ast.Expr(value=ast.Call(args=args, keywords=keywords)):
            return [*args, *(one.value for one in keywords)]
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            return [value]
        case _:
            return []


def _assigns_names(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Assign):
        return False
    return all(isinstance(part, ast.Name) for target in statement.targets for part in _elements(target))


def _elements(target: ast.expr) -> list[ast.expr]:
    return list(target.elts) if isinstance(target, ast.Tuple | ast.List) else [target]


def _first_line(statement: ast.stmt) -> str:
    return ast.unparse(statement).partition("\n")[0]
