"""Residuals in a forward or setup_context: the old ones removed, the new ones added, everything else unchanged."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import libcst as cst
from libcst import matchers as m

from pullback.fix.model import CannotFixError, Kept

_SAVING = "save_for_backward"
_CALLS = (_SAVING, "set_materialize_grads")  # a derived backward takes every cotangent for a tensor
_EMPTY = cst.Module([])

At = Literal["there", "start", "return"]
"""Where a method keeps things: where it does now, else at its end; at its start; before its last statement."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method that saves residuals.

    Attributes:
        ctx: its name for the context.
        names: expressions for the values that can be saved, by (input or output, position).
        read: attributes of the context that are read outside the backward.
        everything: the parameter that holds all inputs, and their number.
        unpacked: attributes of the context that the method sets as it unpacks its inputs.
    """

    ctx: str
    names: Mapping[tuple[str, int], str]
    read: Collection[str]
    everything: tuple[str, int] = ("", 0)
    unpacked: Collection[str] = ()


def keeping(body: cst.IndentedBlock, method: Method, kept: Sequence[Kept], at: At) -> cst.IndentedBlock:
    """Return the body of a method that saves the residuals of a new backward in place of the old ones.

    Raises:
        CannotFixError: if the context already has an attribute of that name, which is read elsewhere.
    """
    old = _Old(method)
    place = _place(body, old, at)
    here = body.body[place] if place < len(body.body) else None
    replaced = here is not None and old.saves_alone(here)
    new = _lines(method, kept, here if replaced else None)
    out: list[cst.BaseStatement] = []
    comments: list[cst.EmptyLine] = []
    for i, statement in enumerate([*body.body, None]):
        stands_in = i == place and replaced
        left = None if statement is None or stands_in else old.cleaned(statement)
        if statement is not None and left is None:
            comments += [line for line in _leading(statement) if line.comment is not None or (stands_in and new)]
        for line in (*(new if i == place else ()), *([left] if left is not None else ())):
            out.append(line.with_changes(leading_lines=[*comments, *_leading(line)]))
            comments = []
    return body.with_changes(body=out or [cst.parse_statement("pass")], footer=[*comments, *body.footer])


def _leading(statement: cst.BaseStatement) -> Sequence[cst.EmptyLine]:
    """Return the empty lines and comments above a statement."""
    return getattr(statement, "leading_lines", ())


def _place(body: cst.IndentedBlock, old: _Old, at: At) -> int:
    if at == "return":
        return len(body.body) - 1
    if at == "start":
        return int(m.matches(body.body[0], m.SimpleStatementLine([m.Expr(m.SimpleString() | m.ConcatenatedString())])))
    places = [i for i, statement in enumerate(body.body) if old.saves_alone(statement)]
    return places[0] if places else len(body.body)


def _lines(method: Method, kept: Sequence[Kept], line: cst.BaseStatement | None) -> list[cst.SimpleStatementLine]:
    tensors = [one for one in kept if one.what == "tensor"]
    texts = [f"{method.ctx}.{_SAVING}({_listed(method, tensors, line)})"] if tensors else []
    for one in kept:
        if one.what == "tensor" or one.attribute in method.unpacked:
            continue
        if one.attribute in method.read:
            raise CannotFixError(f"{method.ctx}.{one.attribute} has another use in it")
        value = method.names[one.of, one.position]
        texts.append(f"{method.ctx}.{one.attribute} = {value}{'.shape' if one.what == 'shape' else ''}")
    lines = [cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine) for text in texts]
    if isinstance(line, cst.SimpleStatementLine) and lines:
        lines[0] = lines[0].with_changes(trailing_whitespace=line.trailing_whitespace)
    return lines


def _listed(method: Method, tensors: Sequence[Kept], line: cst.BaseStatement | None) -> str:
    """Return the arguments of the call that saves; `*inputs` stays if it is right."""
    star, count = method.everything
    all_of_them = [(one.of, one.position) for one in tensors] == [("input", i) for i in range(count)]
    if star and all_of_them and line is not None and f"(*{star})" in _EMPTY.code_for_node(line):
        return f"*{star}"
    return ", ".join(method.names[one.of, one.position] for one in tensors)


class _Old(cst.CSTTransformer):
    """Removes the residuals of the old backward."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        calls = m.OneOf(*(m.Attribute(m.Name(method.ctx), m.Name(name)) for name in _CALLS))
        self._saving = m.Expr(m.Call(m.Attribute(m.Name(method.ctx), m.Name(_SAVING))))
        self._call = m.Expr(m.Call(calls))
        self._assigned = m.Assign([m.AssignTarget(m.Attribute(m.Name(method.ctx), m.DoNotCare()))])
        self._read = method.read

    def saves_alone(self, statement: cst.BaseStatement) -> bool:
        """Whether a statement saves tensors and does nothing else."""
        return m.matches(statement, m.SimpleStatementLine([self._saving]))

    def cleaned(self, statement: cst.BaseStatement) -> cst.BaseStatement | None:
        """Return a statement without its residuals; `None` if nothing is left."""
        if isinstance(statement, cst.SimpleStatementLine):
            left = [one for one in statement.body if not self._is_stale(one)]
            return statement if len(left) == len(statement.body) else _shortened(statement, left)
        found = statement.visit(self)
        assert isinstance(found, cst.BaseStatement)  # a compound statement stays one
        return found

    def leave_SimpleStatementLine(  # noqa: N802 - libcst's name
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        """Leave `pass` where a block would be empty."""
        left = [one for one in updated_node.body if not self._is_stale(one)]
        if len(left) == len(updated_node.body):
            return updated_node
        return _shortened(updated_node, left) or updated_node.with_changes(body=[cst.Pass()])

    def _is_stale(self, statement: cst.BaseSmallStatement) -> bool:
        if m.findall(statement, m.NamedExpr()):
            return False
        if m.matches(statement, self._assigned):
            target = cst.ensure_type(cst.ensure_type(statement, cst.Assign).targets[0].target, cst.Attribute)
            return target.attr.value not in self._read
        return m.matches(statement, self._call)


def _shortened(line: cst.SimpleStatementLine, left: Sequence[cst.BaseSmallStatement]) -> cst.SimpleStatementLine | None:
    """Return a line with some of its statements."""
    if not left:
        return None
    return line.with_changes(body=[*left[:-1], left[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])
