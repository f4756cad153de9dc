"""Division of an old-style forward's statements between `forward` and `setup_context`.

Statements that save residuals move to `setup_context`, which has the inputs and the outputs. A value that they read
moves with them if the forward does not use it otherwise, and is computed in both if it consists of sizes and numbers
alone. Any other value would have to be computed twice, or returned: then the forward stays as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pullback.fix.bindings import binds, own_returns, reads, writes
from pullback.fix.context import Context
from pullback.fix.costless import is_costless, is_repeatable
from pullback.fix.model import CannotFixError


@dataclass(frozen=True, slots=True)
class Split:
    """Division of the statements of a forward.

    Attributes:
        ctx: name of the context.
        there: positions of the statements of `setup_context`.
        here: positions of those that stay in the forward.
        inputs: the arguments that `setup_context` reads.
        outputs: the names that the forward returns, "_" for those that `setup_context` does not read; empty if it reads
            none.
        is_tuple: whether the forward returns a tuple.
        read: for each attribute of the context that the forward reads, the name of its value.
    """

    ctx: str
    there: tuple[int, ...]
    here: tuple[int, ...]
    inputs: frozenset[str]
    outputs: tuple[str, ...]
    is_tuple: bool
    read: dict[str, str]


def split(forward: ast.FunctionDef, plain: Collection[str]) -> Split:
    """Return how to share the statements of a forward.

    Args:
        forward: its definition.
        plain: names of arguments that are no tensors.

    Raises:
        CannotFixError: if it cannot be done without computing anything twice.
    """
    return _Splitter(forward, plain).split()


class _Splitter:
    """Analysis of one forward's statements."""

    def __init__(self, forward: ast.FunctionDef, plain: Collection[str]) -> None:
        a = forward.args
        self._ctx, *positional = [one.arg for one in (*a.posonlyargs, *a.args)]
        self._inputs = {*positional, *([a.vararg.arg] if a.vararg else [])}
        self._refused = {one.arg for one in (*a.kwonlyargs, *([a.kwarg] if a.kwarg else []))}
        self._body: Sequence[ast.stmt] = forward.body
        self._plain = set(plain)
        self._context = Context(self._ctx, self._body)
        self._binds = [binds(one) for one in self._body]
        self._reads = [reads(one) for one in self._body]
        self._returned, self._is_tuple = self._names_returned()
        self._read_inputs: set[str] = set()
        self._read_outputs: set[str] = set()
        self._with: set[int] = set()

    def split(self) -> Split:
        """Return how they are shared."""
        keeping = self._context.keeping
        self._check_order(keeping)
        for at in keeping:
            self._check_own(at)
            for name in self._reads[at] - self._binds[at] - {self._ctx}:
                self._need(name, at)
        if both := self._read_inputs & self._read_outputs:
            raise CannotFixError(f"it keeps {min(both)} before and after giving it another value")
        moving = {*keeping, *self._with}
        copied = self._copied(moving)
        here = [i for i in range(len(self._body)) if i not in moving or i in copied]
        for at in moving - copied:
            self._check_later(at, [self._body[i] for i in here if i > at])
        self._check_aliases()
        outputs = tuple(name if name in self._read_outputs else "_" for name in self._returned)
        read_any = any(name != "_" for name in outputs)
        return Split(
            self._ctx,
            tuple(sorted(moving)),
            tuple(here),
            frozenset(self._read_inputs),
            outputs if read_any else (),
            self._is_tuple,
            self._context.read,
        )

    def _names_returned(self) -> tuple[list[str], bool]:
        """Return the names of the returned values, "_" for an unnamed one, if there is one return, at the end."""
        returns = [one for statement in self._body for one in own_returns(statement)]
        if len(returns) != 1 or returns[0] is not self._body[-1] or returns[0].value is None:
            return [], False
        value = returns[0].value
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        if any(isinstance(part, ast.Starred) for part in parts):
            return [], True
        return [part.id if isinstance(part, ast.Name) else "_" for part in parts], isinstance(value, ast.Tuple)

    def _check_order(self, keeping: Sequence[int]) -> None:
        first = next((i for i, one in enumerate(self._body) if next(own_returns(one), None)), len(self._body))
        if any(at > first for at in keeping):
            raise CannotFixError("what its forward keeps depends on where it returns")

    def _check_own(self, at: int) -> None:
        """See that the names that a statement binds as it keeps things are bound by it alone.

        Raises:
            CannotFixError: if the forward has one of them for something else.
        """
        for name in self._binds[at]:
            if name in self._inputs or self._bound_before(name, len(self._body)) != [at]:
                raise CannotFixError(f"it gives {name} a value where it keeps things, which it reads elsewhere")

    def _bound_before(self, name: str, at: int) -> list[int]:
        return [i for i in range(at) if name in self._binds[i]]

    def _need(self, name: str, at: int) -> None:
        """Have a name that a statement reads in the `setup_context`, with the value that it has there.

        Raises:
            CannotFixError: if it cannot be had.
        """
        everywhere = self._bound_before(name, len(self._body))
        before = self._bound_before(name, at)
        if name in self._refused:
            raise CannotFixError(f"it keeps {name}, a keyword, which setup_context is not given")
        if name in self._inputs and not before:
            self._read_inputs.add(name)
        elif name in self._returned and before == everywhere and before:
            self._read_outputs.add(name)
        elif everywhere and not set(before) <= set(self._context.keeping):
            self._take_along(name, before, everywhere)

    def _take_along(self, name: str, before: Sequence[int], everywhere: Sequence[int]) -> None:
        if name in self._inputs:
            raise CannotFixError(f"it keeps {name} after giving it another value")
        if len(everywhere) != 1 or before != everywhere or not self._is_assignment(everywhere[0]):
            raise CannotFixError(f"it keeps {name}, which is neither an input nor an output, nor computed by one line")
        [at] = everywhere
        if at not in self._with:
            self._with.add(at)
            for inner in self._reads[at]:
                self._need(inner, at)

    def _is_assignment(self, at: int) -> bool:
        statement = self._body[at]
        if not isinstance(statement, ast.Assign) or self._ctx in self._reads[at]:
            return False
        targets = [e for t in statement.targets for e in (t.elts if isinstance(t, ast.Tuple) else [t])]
        inside = [node for node in ast.walk(statement.value) if isinstance(node, ast.NamedExpr)]
        return not inside and all(isinstance(target, ast.Name) for target in targets)

    def _copied(self, moving: set[int]) -> set[int]:
        """Return the statements that both methods need.

        Raises:
            CannotFixError: if one of them computes anything.
        """
        copied: set[int] = set()
        while more := {i for i in moving - copied if self._binds[i] & self._read_here(moving - copied)}:
            copied |= more
        for at in sorted(copied):
            name = min(self._binds[at])
            if at in self._context.keeping or not self._is_costless(at):
                raise CannotFixError(
                    f"it keeps {name}, which is neither an input nor an output: "
                    "setup_context would have to compute it again"
                )
        return copied

    def _read_here(self, gone: set[int]) -> set[str]:
        """Return the names that the forward reads without some statements."""
        left = {name for i, names in enumerate(self._reads) if i not in gone for name in names}
        return left | set(self._context.read.values())

    def _is_costless(self, at: int) -> bool:
        statement = self._body[at]
        return isinstance(statement, ast.Assign) and is_costless(statement.value, self._is_plain)

    def _is_plain(self, name: str) -> bool:
        """Whether a name is known to hold no tensor."""
        at = self._bound_before(name, len(self._body))
        if name in self._inputs or not at:
            return not at and (name not in self._inputs or name in self._plain)
        return len(at) == 1 and self._is_costless(at[0])

    def _check_later(self, at: int, after: Sequence[ast.stmt]) -> None:
        """See that a statement may come after others.

        Raises:
            CannotFixError: if it computes something that may be another thing then.
        """
        computed = [value for value in _values(self._body[at]) if not self._is_as_given(value)]
        for value in computed:
            if not is_repeatable(value, self._is_own):
                raise CannotFixError(f"it keeps what may not be computed later: {ast.unparse(value)}")
            if any(writes(statement) for statement in after):
                raise CannotFixError(f"it keeps {ast.unparse(value)}, and works in place afterwards")

    def _is_own(self, name: str) -> bool:
        return name in self._inputs or bool(self._bound_before(name, len(self._body)))

    def _is_as_given(self, value: ast.expr) -> bool:
        """Whether an expression only refers to names, or consists of sizes and numbers."""
        if isinstance(value, ast.Tuple | ast.List):
            return all(self._is_as_given(one) for one in value.elts)
        if isinstance(value, ast.Starred):
            return self._is_as_given(value.value)
        return isinstance(value, ast.Name) or is_costless(value, self._is_plain)

    def _check_aliases(self) -> None:
        """Check that a name which replaces an attribute is bound to the same value wherever the forward reads it.

        Raises:
            CannotFixError: if it is rebound.
        """
        for attribute, name in self._context.read.items():
            if len(self._bound_before(name, len(self._body))) > (name not in self._inputs):
                raise CannotFixError(f"its forward reads {self._ctx}.{attribute}, and gives {name} another value")


def _values(statement: ast.stmt) -> list[ast.expr]:
    """Return the expressions that a statement saves or binds, and those of its conditions."""
    match statement:
        case ast.If(test=test, body=body, orelse=orelse):
            return [test, *(value for inner in (*body, *orelse) for value in _values(inner))]
        case ast.Expr(value=ast.Call(args=args, keywords=keywords)):
            return [*args, *(one.value for one in keywords)]
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            return [value]
        case _:
            return []
