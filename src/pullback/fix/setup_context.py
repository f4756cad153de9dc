"""The text of a `setup_context`, and the statements of a forward shared with it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import libcst as cst
from libcst import matchers as m

from pullback.fix.classes import block_of
from pullback.fix.split import Split


def opening(forward: ast.FunctionDef, plan: Split) -> str:
    """Return a `setup_context` that unpacks its arguments and does nothing else.

    Args:
        forward: the old one, with its context.
        plan: the arguments and results to read.
    """
    taken = {node.id for node in ast.walk(forward) if isinstance(node, ast.Name)} | {plan.ctx}
    taken |= {one.arg for one in ast.walk(forward.args) if isinstance(one, ast.arg)}
    inputs, output = _free("inputs", taken), _free("output", taken)
    lines = list(_unpacked(forward.args, plan, inputs))
    if plan.outputs and not plan.is_tuple:
        [output] = plan.outputs
    elif plan.outputs:
        lines.append(_taken_apart(plan.outputs, output))
    text = "".join(f"    {line}\n" for line in lines) or "    pass\n"
    return f"@staticmethod\ndef setup_context({plan.ctx}, {inputs}, {output}):\n{text}"


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _unpacked(a: ast.arguments, plan: Split, inputs: str) -> Iterator[str]:
    """Yield lines that give the inputs the names that they have in the forward."""
    names = [one.arg for one in (*a.posonlyargs, *a.args)][1:]
    wanted = [name if name in plan.inputs else "_" for name in names]
    if any(name != "_" for name in wanted):
        yield _taken_apart([*wanted, "*_"] if a.vararg else wanted, inputs)
    if a.vararg and a.vararg.arg in plan.inputs:
        yield f"{a.vararg.arg} = {inputs}" + (f"[{len(names)}:]" if names else "")


def _taken_apart(names: Sequence[str], whole: str) -> str:
    """Return an assignment of the parts of a tuple to names, those at its end that are not wanted all at once."""
    wanted = list(names)
    while wanted[-1] in ("_", "*_"):
        wanted.pop()
    rest = names[len(wanted) :]
    wanted += ["*_"] if len(rest) > 1 or "*_" in rest else rest
    return f"({wanted[0]},) = {whole}" if len(wanted) == 1 else f"{', '.join(wanted)} = {whole}"


class Shared:
    """The statements of a forward, divided; comments stay with their statements.

    Attributes:
        block: of the forward.
        here: the lines that stay.
        there: those of the `setup_context`.
    """

    def __init__(self, forward: cst.FunctionDef, plan: Split) -> None:
        self.block = block_of(forward)
        self.here: list[cst.BaseStatement] = []
        self.there: list[cst.BaseStatement] = []
        position = 0
        for line in self.block.body:
            count = len(line.body) if isinstance(line, cst.SimpleStatementLine) else 1
            places = range(position, position + count)
            stay = _part(line, [i in plan.here for i in places])
            gone = _part(line, [i in plan.there for i in places])
            if stay is not None and gone is not None:
                gone = _uncommented(gone)  # a comment beside a line is about the statements that stay
            self.here += [] if stay is None else [stay.visit(_Reads(plan))]  # type: ignore[list-item]
            self.there += [] if gone is None else [gone]
            position += count
        self.here, self.there = _closed_up(self.here), _closed_up(self.there)


def _part(line: cst.BaseStatement, wanted: Sequence[bool]) -> cst.BaseStatement | None:
    """Return a line with some of its statements; `None` if there are none."""
    if not isinstance(line, cst.SimpleStatementLine) or all(wanted):
        return line if all(wanted) else None
    left = [one for one, is_wanted in zip(line.body, wanted, strict=True) if is_wanted]
    if not left:
        return None
    return line.with_changes(body=[*left[:-1], left[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])


def _uncommented(line: cst.BaseStatement) -> cst.BaseStatement:
    assert isinstance(line, cst.SimpleStatementLine)  # nothing else is in two places
    return line.with_changes(leading_lines=[], trailing_whitespace=cst.TrailingWhitespace())


def _closed_up(lines: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
    """Return the lines of a body without empty ones at its start."""
    if not lines:
        return lines
    above = list(getattr(lines[0], "leading_lines", ()))
    while above and above[0].comment is None:
        above.pop(0)
    return [lines[0].with_changes(leading_lines=above), *lines[1:]]


class _Reads(cst.CSTTransformer):
    """Makes a forward read the value that was assigned to an attribute of its context, not the attribute."""

    def __init__(self, plan: Split) -> None:
        super().__init__()
        self._ctx, self._names = plan.ctx, plan.read

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:  # noqa: N802 - libcst's name
        """Replace `ctx.name` by the name that it was given."""
        if m.matches(updated_node, m.Attribute(m.Name(self._ctx))) and updated_node.attr.value in self._names:
            return cst.Name(self._names[updated_node.attr.value], lpar=updated_node.lpar, rpar=updated_node.rpar)
        return updated_node
