"""Which arguments a forward that raised stumbled over, and how far it had come."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from types import CodeType, TracebackType

Place = tuple[int, int]
"""Line and column."""


class Blame:
    """Reads tracebacks of one function.

    Args:
        node: its syntax tree, with the line numbers of its code.
        code: its code object.
        names: of its parameters.
    """

    def __init__(self, node: ast.FunctionDef, code: CodeType, names: Sequence[str]) -> None:
        self._node = node
        self._code = code
        self._positions = list(code.co_positions())
        self._origins = origins(node, names)

    def of(self, error: BaseException) -> tuple[int, frozenset[str]]:
        """Return how many lines were passed, and the parameters in the sub-expression that raised.

        Without a frame of the function in the traceback: no line and no parameter.
        """
        where = self._place(error.__traceback__)
        if where is None:
            return 0, frozenset()
        start, end = self._keyword(*self._condition(*where), str(error))
        found: frozenset[str] = frozenset()
        for node in ast.walk(self._node):
            if isinstance(node, ast.Name | ast.Attribute) and start <= _start(node) and _end(node) <= end:
                found |= self._origins.get(ast.unparse(node), frozenset())
        return max(where[0][0] - self._node.lineno, 0), found

    def _condition(self, start: Place, end: Place) -> tuple[Place, Place]:
        """Return the place of the condition under which a `raise` at this place stands; of anything else the place."""
        for node in ast.walk(self._node):
            if isinstance(node, ast.If):
                for statement in (*node.body, *node.orelse):
                    if isinstance(statement, ast.Raise) and _start(statement) <= start and end <= _end(statement):
                        return _start(node.test), _end(node.test)
        return start, end

    def _keyword(self, start: Place, end: Place, message: str) -> tuple[Place, Place]:
        """Return the place of the keyword argument there that the message names; the same place if it names none."""
        named = re.search(r"argument '(\w+)'", message)
        for node in ast.walk(self._node) if named else ():
            if isinstance(node, ast.keyword) and named and node.arg == named[1]:
                place = _start(node.value), _end(node.value)
                if start <= place[0] and place[1] <= end:
                    return place
        return start, end

    def _place(self, trace: TracebackType | None) -> tuple[Place, Place] | None:
        last = None
        while trace is not None:
            if trace.tb_frame.f_code is self._code:
                last = trace.tb_lasti
            trace = trace.tb_next
        if last is None:
            return None
        line, end_line, column, end_column = self._positions[last // 2]
        if line is None or end_line is None or column is None or end_column is None:
            return None
        return (line, column), (end_line, end_column)


def origins(node: ast.FunctionDef, names: Sequence[str]) -> dict[str, frozenset[str]]:
    """Map each local name, and each attribute that is assigned, to the parameters that its value comes from."""
    found = {name: frozenset((name,)) for name in names}
    for statement in ast.walk(node):
        match statement:
            case ast.Assign(targets=targets, value=value):
                pass
            case ast.AugAssign(target=target, value=value) | ast.For(target=target, iter=value):
                targets = [target]
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                targets = [target]
            case _:
                continue
        used = [found.get(n.id, frozenset()) for n in ast.walk(value) if isinstance(n, ast.Name)]
        for target in targets:
            for name in ast.walk(target):
                if isinstance(name, ast.Name | ast.Attribute):
                    text = ast.unparse(name)
                    found[text] = found.get(text, frozenset()).union(*used)
    return found


def _start(node: ast.expr | ast.stmt) -> Place:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.stmt) -> Place:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
