"""Edits of classes in a source file: a new backward with its residuals. Everything else stays byte for byte.

`with_classes` is the mechanism, and `setup_context` uses it too; `with_backwards` inserts new backwards.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeVar

import libcst as cst
from libcst import matchers as m

from pullback.fix.dataflow import names_assigned
from pullback.fix.patch import CannotFixError, NewBackward, SavedValue, ValueOrigin
from pullback.fix.source import plain_parameters

_FUNCTIONAL = "torch.nn.functional"
_BLOCKS_DOUBLE_BACKWARD = {"once_differentiable", "no_grad", "inference_mode"}
"""Decorators of a backward that keep it from being differentiated."""
_SAVE = "save_for_backward"
_SAVE_STATEMENT = m.Expr(m.Call(m.Attribute(m.Name(), m.Name(_SAVE))))
_STALE_CALLS = (_SAVE, "set_materialize_grads")  # a derived backward expects a tensor for every cotangent
_EMPTY = cst.Module([])

_Edit = TypeVar("_Edit")
_SavePoint = Literal["existing", "start", "return"]
"""Where a method saves: where it does now, else at its end; at its start; before its last statement."""


def with_backwards(source: bytes, changes: Mapping[str, NewBackward]) -> bytes:
    """Source of a file with new backwards.

    Args:
        source: the file, in the encoding that it declares.
        changes: the new backwards, by the qualified names of their classes.

    Raises:
        CannotFixError: if the way that a class is written does not allow it.
    """
    module = parsed(source)
    if not _imports_functional(module):
        changes = {name: _without_f(backward) for name, backward in changes.items()}
    module = with_classes(module, changes, _with_backward)
    text = "\n".join(line for backward in changes.values() for line in backward.body)
    if re.search(r"\btorch\.", text) and not _imports_torch(module):
        module = _with_import(module)
    return module.bytes


def parsed(source: bytes) -> cst.Module:
    """Concrete syntax tree of a file, in the encoding that it declares.

    Raises:
        CannotFixError: if it cannot be parsed.
    """
    try:
        return cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        raise CannotFixError(f"its file cannot be parsed: {error.message}") from None


def with_classes(
    module: cst.Module, changes: Mapping[str, _Edit], edited: Callable[[_Edit, cst.ClassDef], cst.ClassDef]
) -> cst.Module:
    """A module with some of its classes replaced.

    Args:
        module: the current one.
        changes: the changes, by the qualified names of their classes.
        edited: returns the new class for a change and the old class.

    Raises:
        CannotFixError: if no class has a name, or more than one has.
    """
    editor = _ClassEditor({name: partial(edited, change) for name, change in changes.items()})
    module = module.visit(editor)
    for name in changes:
        if editor.found[name] != 1:
            raise CannotFixError(f"its file defines {name} {editor.found[name]} times")
    return module


class _ClassEditor(cst.CSTTransformer):
    """Replaces classes by qualified name, and counts the classes of each name."""

    def __init__(self, changes: Mapping[str, Callable[[cst.ClassDef], cst.ClassDef]]) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self._changes = changes
        self._scope: list[str] = []

    def visit_ClassDef(self, node: cst.ClassDef) -> None:  # noqa: N802 - libcst's name
        """Enter a class."""
        self._scope.append(node.name.value)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:  # noqa: N802 - libcst's name
        """Enter a function."""
        self._scope += [node.name.value, "<locals>"]

    def leave_FunctionDef(  # noqa: N802 - libcst's name
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        """Leave a function."""
        del self._scope[-2:]
        return updated_node

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:  # noqa: N802 - libcst's name
        """Replace a class."""
        name = ".".join(self._scope)
        self._scope.pop()
        if name not in self._changes:
            return updated_node
        self.found[name] += 1
        return self._changes[name](updated_node)


def block_of(method: cst.FunctionDef) -> cst.IndentedBlock:
    """Body of a method as a block, also if it is on the line of the `def`."""
    if isinstance(method.body, cst.IndentedBlock):
        return method.body
    line = cst.SimpleStatementLine(method.body.body)  # type: ignore[arg-type]
    return cst.IndentedBlock([line])


def ast_of(method: cst.FunctionDef) -> ast.FunctionDef:
    """Abstract syntax tree of a method."""
    [tree] = ast.parse(cst.Module([method.with_changes(leading_lines=[])]).code).body
    assert isinstance(tree, ast.FunctionDef)  # the text is that of a method
    return tree


def decorator_names(method: ast.FunctionDef) -> list[str]:
    """Last name of each decorator: "no_grad" for `@torch.no_grad()`."""
    return [ast.unparse(one).partition("(")[0].rpartition(".")[2] for one in method.decorator_list]


def with_statements(line: cst.SimpleStatementLine, left: Sequence[cst.BaseSmallStatement]) -> cst.SimpleStatementLine:
    """A line with some of its statements."""
    return line.with_changes(body=[*left[:-1], left[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])


def leading_lines(statement: cst.BaseStatement) -> Sequence[cst.EmptyLine]:
    """Empty lines and comments above a statement."""
    return getattr(statement, "leading_lines", ())


def _imports_functional(module: cst.Module) -> bool:
    """Whether `F` is torch.nn.functional in a module."""
    return any(
        alias.evaluated_alias == "F" and f"{prefix}{alias.evaluated_name}" == _FUNCTIONAL
        for prefix, alias in _imports(module)
    )


def _imports_torch(module: cst.Module) -> bool:
    """Whether `torch` is imported under its own name."""
    return any(
        not prefix and alias.asname is None and alias.evaluated_name.partition(".")[0] == "torch"
        for prefix, alias in _imports(module)
    )


def _imports(module: cst.Module) -> Iterator[tuple[str, cst.ImportAlias]]:
    """Yield the top-level imports of a module, with the source module and a dot for `from` imports."""
    for statement in module.body:
        for one in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if isinstance(one, cst.Import):
                yield from (("", alias) for alias in one.names)
            elif isinstance(one, cst.ImportFrom) and not isinstance(one.names, cst.ImportStar) and one.module:
                yield from ((f"{_EMPTY.code_for_node(one.module)}.", alias) for alias in one.names)


def _with_import(module: cst.Module) -> cst.Module:
    """A module that imports torch after its first import."""
    imports = m.SimpleStatementLine([m.OneOf(m.Import(), m.ImportFrom())])
    positions = [i for i, statement in enumerate(module.body) if m.matches(statement, imports)]
    body = list(module.body)
    body.insert(positions[0] + 1 if positions else 0, cst.parse_statement("import torch"))
    return module.with_changes(body=body)


def _without_f(backward: NewBackward) -> NewBackward:
    return replace(backward, body=tuple(re.sub(r"\bF\.", f"{_FUNCTIONAL}.", line) for line in backward.body))


def _with_backward(backward: NewBackward, node: cst.ClassDef) -> cst.ClassDef:
    """A class with a new backward, and a forward or setup_context that saves its residuals.

    Raises:
        CannotFixError: if the way that it is written does not allow it.
    """
    methods = {one.name.value: one for one in node.body.body if isinstance(one, cst.FunctionDef)}
    attributes = _attributes_read(methods)
    if "setup_context" in methods:
        count = len(plain_parameters(ast_of(methods["forward"])) or [])
        saver = {"setup_context": _saving_setup_context(methods["setup_context"], backward, attributes, count)}
    else:
        saver = {"forward": _saving_forward(methods["forward"], backward, attributes)}
    new = {"backward": _new_backward(methods["backward"], backward), **saver}
    body = [new.get(one.name.value, one) if isinstance(one, cst.FunctionDef) else one for one in node.body.body]
    return node.with_changes(body=node.body.with_changes(body=body))


def _new_backward(node: cst.FunctionDef, backward: NewBackward) -> cst.FunctionDef:
    """A backward with other lines; decorators, signature, docstring and last comments stay if they can."""
    body, tree = block_of(node), ast_of(node)
    statements = [*cst.parse_module("\n".join(backward.body) + "\n").body]
    if node.get_docstring() is not None:
        statements.insert(0, body.body[0])  # type: ignore[arg-type]
    if tuple(plain_parameters(tree) or ()) != backward.parameters:
        parameters = [cst.Param(cst.Name(name)) for name in backward.parameters]
        node = node.with_changes(params=cst.Parameters(parameters))
    decorators = [
        one
        for one, name in zip(node.decorators, decorator_names(tree), strict=True)
        if name not in _BLOCKS_DOUBLE_BACKWARD
    ]
    return node.with_changes(decorators=decorators, body=body.with_changes(body=statements))


def _saving_forward(node: cst.FunctionDef, backward: NewBackward, attributes: set[str]) -> cst.FunctionDef:
    """An old-style forward that saves the residuals of the new backward."""
    tree = ast_of(node)
    [ctx, *_] = plain_parameters(tree) or []
    names = {(one.origin, one.position): one.name for one in backward.saved}
    saves = any(m.matches(one, m.SimpleStatementLine([_SAVE_STATEMENT])) for one in block_of(node).body)
    rebinds = bool(names_assigned(tree) & {one.name for one in backward.saved})
    at: _SavePoint
    if any(one.origin == "output" for one in backward.saved):
        at = "return"  # an output exists only then
    else:
        at = "existing" if saves and not rebinds else "start"  # before the name of an input is rebound
    body = _with_saved_values(block_of(node), _SavingMethod(ctx, names, attributes), backward.saved, at)
    return node.with_changes(body=body)


def _saving_setup_context(
    node: cst.FunctionDef, backward: NewBackward, attributes: set[str], count: int
) -> cst.FunctionDef:
    """A `setup_context` that saves the residuals of the new backward; `count` is the number of inputs."""
    [ctx, inputs, output] = plain_parameters(ast_of(node)) or []
    body = block_of(node)
    unpacked = dict(_unpacked(body, inputs, "input")) | dict(_unpacked(body, output, "output"))
    is_tuple = any(one.origin == "output" and one.position for one in backward.saved) or ("output", 0) in unpacked
    names: dict[tuple[ValueOrigin, int], str] = {("input", i): f"{inputs}[{i}]" for i in range(count)}
    names |= {
        (one.origin, one.position): f"{output}[{one.position}]" if is_tuple else output
        for one in backward.saved
        if one.origin == "output"
    }
    set_by_unpacking = {text.removeprefix(f"{ctx}.") for text in unpacked.values() if text.startswith(f"{ctx}.")}
    method = _SavingMethod(ctx, names | unpacked, attributes, (inputs, count), set_by_unpacking)
    return node.with_changes(body=_with_saved_values(body, method, backward.saved, "existing"))


def _unpacked(body: cst.IndentedBlock, name: str, origin: ValueOrigin) -> Iterator[tuple[tuple[ValueOrigin, int], str]]:
    """Yield the names that a setup_context gives to the elements of a tuple that it unpacks before it saves."""
    unpacking = m.Assign([m.AssignTarget(m.Tuple())], m.Name(name))
    for statement in body.body:
        for one in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if m.matches(one, _SAVE_STATEMENT):
                return
            if not m.matches(one, unpacking):
                continue
            left = cst.ensure_type(cst.ensure_type(one, cst.Assign).targets[0].target, cst.Tuple)
            if not any(isinstance(element, cst.StarredElement) for element in left.elements):
                parts = [_EMPTY.code_for_node(element.value) for element in left.elements]
                yield from (((origin, i), part) for i, part in enumerate(parts) if part != "_")


def _attributes_read(methods: Mapping[str, cst.FunctionDef]) -> set[str]:
    """Attributes of variables that methods other than the backward read."""
    return {
        node.attr
        for name, method in methods.items()
        if name != "backward"
        for node in ast.walk(ast_of(method))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name)
    }


@dataclass(frozen=True, slots=True)
class _SavingMethod:
    """A method that saves residuals.

    Attributes:
        ctx: its name for the context.
        names: expressions for the values that can be saved, by origin and position.
        attributes: attributes of the context that are read outside the backward.
        all_inputs: the parameter that holds all inputs, and their number.
        set_by_unpacking: attributes of the context that the method sets as it unpacks its inputs.
    """

    ctx: str
    names: Mapping[tuple[ValueOrigin, int], str]
    attributes: Collection[str]
    all_inputs: tuple[str, int] = ("", 0)
    set_by_unpacking: Collection[str] = ()


def _with_saved_values(
    body: cst.IndentedBlock, method: _SavingMethod, saved: Sequence[SavedValue], at: _SavePoint
) -> cst.IndentedBlock:
    """Body of a method that saves the residuals of a new backward in place of the old ones.

    Raises:
        CannotFixError: if the context already has an attribute of that name, which another method reads.
    """
    stale = _StaleResiduals(method)
    position = _position(body, stale, at)
    here = body.body[position] if position < len(body.body) else None
    replaced = here is not None and stale.is_save_alone(here)
    new = _save_lines(method, saved, here if replaced else None)
    out: list[cst.BaseStatement] = []
    comments: list[cst.EmptyLine] = []  # of removed statements; the next statement inherits them
    for i, statement in enumerate([*body.body, None]):
        is_replaced = i == position and replaced
        left = None if statement is None or is_replaced else stale.removed_from(statement)
        if statement is not None and left is None:
            comments += [x for x in leading_lines(statement) if x.comment is not None or (is_replaced and new)]
        for line in (*(new if i == position else ()), *([left] if left is not None else ())):
            out.append(line.with_changes(leading_lines=[*comments, *leading_lines(line)]))
            comments = []
    return body.with_changes(body=out or [cst.parse_statement("pass")], footer=[*comments, *body.footer])


def _position(body: cst.IndentedBlock, stale: _StaleResiduals, at: _SavePoint) -> int:
    if at == "return":
        return len(body.body) - 1
    if at == "start":  # after the docstring
        return int(m.matches(body.body[0], m.SimpleStatementLine([m.Expr(m.SimpleString() | m.ConcatenatedString())])))
    positions = [i for i, statement in enumerate(body.body) if stale.is_save_alone(statement)]
    return positions[0] if positions else len(body.body)


def _save_lines(
    method: _SavingMethod, saved: Sequence[SavedValue], replaced: cst.BaseStatement | None
) -> list[cst.SimpleStatementLine]:
    """Lines that save the residuals; the first one inherits the comment beside a line that it replaces."""
    tensors = [one for one in saved if one.kind == "tensor"]
    texts = [f"{method.ctx}.{_SAVE}({_save_arguments(method, tensors, replaced)})"] if tensors else []
    for one in saved:
        if one.kind == "tensor" or one.attribute in method.set_by_unpacking:
            continue
        if one.attribute in method.attributes:
            raise CannotFixError(f"{method.ctx}.{one.attribute} has another use in it")
        value = method.names[one.origin, one.position]
        texts.append(f"{method.ctx}.{one.attribute} = {value}{'.shape' if one.kind == 'shape' else ''}")
    lines = [cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine) for text in texts]
    if isinstance(replaced, cst.SimpleStatementLine) and lines:
        lines[0] = lines[0].with_changes(trailing_whitespace=replaced.trailing_whitespace)
    return lines


def _save_arguments(method: _SavingMethod, tensors: Sequence[SavedValue], replaced: cst.BaseStatement | None) -> str:
    """Arguments of the call that saves; `*inputs` stays where it is right."""
    star, count = method.all_inputs
    saves_all = [(one.origin, one.position) for one in tensors] == [("input", i) for i in range(count)]
    if star and saves_all and replaced is not None and f"(*{star})" in _EMPTY.code_for_node(replaced):
        return f"*{star}"
    return ", ".join(method.names[one.origin, one.position] for one in tensors)


class _StaleResiduals(cst.CSTTransformer):
    """Removes the residuals of the old backward."""

    def __init__(self, method: _SavingMethod) -> None:
        super().__init__()
        calls = m.OneOf(*(m.Attribute(m.Name(method.ctx), m.Name(name)) for name in _STALE_CALLS))
        self._save = m.Expr(m.Call(m.Attribute(m.Name(method.ctx), m.Name(_SAVE))))
        self._call = m.Expr(m.Call(calls))
        self._assignment = m.Assign([m.AssignTarget(m.Attribute(m.Name(method.ctx), m.DoNotCare()))])
        self._attributes = method.attributes

    def is_save_alone(self, statement: cst.BaseStatement) -> bool:
        """Whether a statement saves tensors and does nothing else."""
        return m.matches(statement, m.SimpleStatementLine([self._save]))

    def removed_from(self, statement: cst.BaseStatement) -> cst.BaseStatement | None:
        """A statement without its residuals; `None` if nothing is left."""
        if isinstance(statement, cst.SimpleStatementLine):
            return self._without_stale(statement)
        found = statement.visit(self)
        assert isinstance(found, cst.BaseStatement)  # a compound statement stays one
        return found

    def leave_SimpleStatementLine(  # noqa: N802 - libcst's name
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        """Leave `pass` where a block would be empty."""
        return self._without_stale(updated_node) or updated_node.with_changes(body=[cst.Pass()])

    def _without_stale(self, line: cst.SimpleStatementLine) -> cst.SimpleStatementLine | None:
        left = [one for one in line.body if not self._is_stale(one)]
        if len(left) == len(line.body):
            return line
        return with_statements(line, left) if left else None

    def _is_stale(self, statement: cst.BaseSmallStatement) -> bool:
        if m.findall(statement, m.NamedExpr()):
            return False
        if m.matches(statement, self._assignment):
            target = cst.ensure_type(cst.ensure_type(statement, cst.Assign).targets[0].target, cst.Attribute)
            return target.attr.value not in self._attributes
        return m.matches(statement, self._call)
