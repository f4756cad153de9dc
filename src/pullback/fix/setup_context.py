"""Edits of classes in a source file: the current style, with `forward(x)` and `setup_context(ctx, inputs, output)`.

Methods become static, `saved_variables` becomes `saved_tensors`, `Name()(x)` becomes `Name.apply(x)`, and a forward
that takes the context is split (`split_forward`). Comments stay with their statements; everything else stays byte for
byte. A forward whose parameters others rely on is not split (`other_use`).
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import libcst as cst
from libcst import matchers as m

from pullback.check.find.source import read
from pullback.check.find.syntax import dotted, instantiations, positional_parameters
from pullback.check.find.target import package_of
from pullback.errors import TargetError
from pullback.fix.dataflow import names_read, own_returns, unused_name
from pullback.fix.edit import ast_of, block_of, decorator_names, leading_lines, parsed, with_classes, with_statements
from pullback.fix.patch import CannotFixError, NewStyle
from pullback.fix.split_forward import ForwardSplit, split_forward

_STATIC = ("forward", "backward", "setup_context", "jvp", "vmap", "vjp")
_INDEPENDENT_OF_CONTEXT = {"staticmethod", "no_grad"}
"""Decorators of a forward that do not use its first argument."""
_FRAME_DEPENDENT = {"super", "__class__", "locals", "vars", "eval", "exec"}
"""Names whose value depends on the method in which they are read."""


def with_new_styles(source: bytes, changes: Mapping[str, NewStyle]) -> bytes:
    """Source of a file with classes in the new style, and `apply` in place of calls of their instances.

    Args:
        source: the file, in the encoding that it declares.
        changes: the changes, by the qualified names of their classes.

    Raises:
        CannotFixError: if the way that a class is written does not allow it.
    """
    if not changes:
        return source
    module = with_classes(parsed(source), changes, _with_new_style)
    return module.visit(_InstanceCalls(instantiations(ast.parse(source), changes))).bytes


class _InstanceCalls(cst.CSTTransformer):
    """Replaces `Name()(x)` by `Name.apply(x)`."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self._names = names

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:  # noqa: N802 - libcst's name
        """Call `apply` in place of an instance made without arguments and called without keywords."""
        positional = m.ZeroOrMore(m.Arg(keyword=None))
        if not m.matches(updated_node, m.Call(m.Call(m.Name(), args=[]), args=[positional])):
            return updated_node
        cls = cst.ensure_type(cst.ensure_type(updated_node.func, cst.Call).func, cst.Name)
        if cls.value not in self._names:
            return updated_node
        return updated_node.with_changes(func=cst.Attribute(cls, cst.Name("apply")))


def _with_new_style(style: NewStyle, node: cst.ClassDef) -> cst.ClassDef:
    """A class in the new style.

    Raises:
        CannotFixError: if its forward needs its context.
    """
    old = [_static(one) if isinstance(one, cst.FunctionDef) else one for one in node.body.body]
    methods = {one.name.value: one for one in old if isinstance(one, cst.FunctionDef)}
    body: list[cst.BaseStatement] = []
    for one in old:
        if style.splits_forward and one is methods["forward"]:
            body += _split(methods, style)
        else:
            body.append(one)  # type: ignore[arg-type]
    changed = node.with_changes(body=node.body.with_changes(body=body)).visit(_DeprecatedNames())
    assert isinstance(changed, cst.ClassDef)  # a class stays one
    return changed


class _DeprecatedNames(cst.CSTTransformer):
    """Replaces names that PyTorch has renamed."""

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:  # noqa: N802 - libcst's name
        """Replace `saved_variables` by `saved_tensors`."""
        if updated_node.attr.value != "saved_variables":
            return updated_node
        return updated_node.with_changes(attr=updated_node.attr.with_changes(value="saved_tensors"))


def _static(method: cst.FunctionDef) -> cst.FunctionDef:
    """A method as a staticmethod, if it is one that PyTorch calls on the class, and can be static."""
    if method.name.value not in _STATIC:
        return method
    if not method.decorators:
        return method.with_changes(decorators=[cst.Decorator(cst.Name("staticmethod"))])
    tree = ast_of(method)
    first = positional_parameters(tree)[:1]
    decorators = [ast.unparse(one) for one in tree.decorator_list]
    if decorators != ["classmethod"] or names_read(tree) & {*first, *_FRAME_DEPENDENT}:
        return method
    decorator = method.decorators[0].with_changes(decorator=cst.Name("staticmethod"))
    return method.with_changes(decorators=[decorator], params=_without_first(method.params))


def _without_first(params: cst.Parameters) -> cst.Parameters:
    if params.posonly_params:
        left = params.posonly_params[1:]
        end = params.posonly_ind if left else cst.MaybeSentinel.DEFAULT
        return params.with_changes(posonly_params=left, posonly_ind=end)
    return params.with_changes(params=params.params[1:])


def _split(methods: Mapping[str, cst.FunctionDef], style: NewStyle) -> list[cst.FunctionDef]:
    """A forward without its context, and the `setup_context` that it needs."""
    forward = methods["forward"]
    tree = ast_of(forward)
    _check(tree, ast_of(methods["backward"]))
    split = split_forward(tree, style.non_tensors)
    old = block_of(forward)
    left, moved = _divided(old, split)
    setup = cst.ensure_type(cst.parse_statement(_empty_setup_context(tree, split)), cst.FunctionDef)
    block = cst.ensure_type(setup.body, cst.IndentedBlock)
    unpacking = () if m.matches(block.body[0], m.SimpleStatementLine([m.Pass()])) else block.body
    body = [*unpacking, *moved] or block.body
    return [
        forward.with_changes(params=_without_first(forward.params), body=old.with_changes(body=left)),
        setup.with_changes(
            body=block.with_changes(body=body, indent=old.indent), leading_lines=[cst.EmptyLine(indent=False)]
        ),
    ]


def _check(forward: ast.FunctionDef, backward: ast.FunctionDef) -> None:
    """Check that nothing but its statements binds a forward to its context.

    Raises:
        CannotFixError: if something does.
    """
    if others := set(decorator_names(forward)) - _INDEPENDENT_OF_CONTEXT:
        raise CannotFixError(f"its forward is decorated with {min(others)}, which may need its context")
    if used := names_read(forward) & _FRAME_DEPENDENT:
        raise CannotFixError(f"its forward uses {min(used)}")
    positional = [*forward.args.posonlyargs, *forward.args.args]
    if not positional:
        raise CannotFixError("its forward has no parameter for the context")
    if forward.args.defaults and any(count != len(positional) - 1 for count in _gradient_counts(backward)):
        raise CannotFixError(
            "its forward has default arguments: with setup_context PyTorch expects a gradient for each of them, "
            "which its backward does not return"
        )


def _gradient_counts(backward: ast.FunctionDef) -> Iterator[int]:
    """Yield the number of gradients of each return of a backward; -1 if unknown."""
    for one in (found for statement in backward.body for found in own_returns(statement)):
        parts = one.value.elts if isinstance(one.value, ast.Tuple) else [one.value]
        is_variable = len(parts) == 1 and isinstance(parts[0], ast.Name | ast.Starred)
        yield -1 if is_variable or any(isinstance(part, ast.Starred) for part in parts) else len(parts)


def _empty_setup_context(forward: ast.FunctionDef, split: ForwardSplit) -> str:
    """Text of a `setup_context` that unpacks the inputs and outputs that it needs, and does nothing else.

    Args:
        forward: the old one, with its context.
        split: the division of its statements.
    """
    taken = {node.id for node in ast.walk(forward) if isinstance(node, ast.Name)} | {split.ctx}
    taken |= {one.arg for one in ast.walk(forward.args) if isinstance(one, ast.arg)}
    inputs, output = unused_name("inputs", taken), unused_name("output", taken)
    lines = list(_unpacked_inputs(forward, split, inputs))
    if split.outputs and not split.is_tuple:
        [output] = split.outputs
    elif split.outputs:
        lines.append(_unpacking(split.outputs, output))
    text = "".join(f"    {line}\n" for line in lines) or "    pass\n"
    return f"@staticmethod\ndef setup_context({split.ctx}, {inputs}, {output}):\n{text}"


def _unpacked_inputs(forward: ast.FunctionDef, split: ForwardSplit, inputs: str) -> Iterator[str]:
    """Yield lines that give the inputs the names that they have in the forward."""
    names, vararg = positional_parameters(forward)[1:], forward.args.vararg
    wanted = [name if name in split.inputs else "_" for name in names]
    if any(name != "_" for name in wanted):
        yield _unpacking([*wanted, "*_"] if vararg else wanted, inputs)
    if vararg and vararg.arg in split.inputs:
        yield f"{vararg.arg} = {inputs}" + (f"[{len(names)}:]" if names else "")


def _unpacking(names: Sequence[str], whole: str) -> str:
    """An assignment of the elements of a tuple to names; several unused ones at its end become `*_`."""
    wanted = list(names)
    while wanted[-1] in ("_", "*_"):
        wanted.pop()
    rest = names[len(wanted) :]
    wanted += ["*_"] if len(rest) > 1 or "*_" in rest else rest
    return f"({wanted[0]},) = {whole}" if len(wanted) == 1 else f"{', '.join(wanted)} = {whole}"


def _divided(block: cst.IndentedBlock, split: ForwardSplit) -> tuple[list[cst.BaseStatement], list[cst.BaseStatement]]:
    """Lines of a forward that stay in it, and those that move to `setup_context`."""
    left: list[cst.BaseStatement] = []
    moved: list[cst.BaseStatement] = []
    position = 0
    for line in block.body:
        count = len(line.body) if isinstance(line, cst.SimpleStatementLine) else 1
        positions = range(position, position + count)
        stays = _selected(line, [i in split.left for i in positions])
        goes = _selected(line, [i in split.moved for i in positions])
        if stays is not None and goes is not None:
            goes = _without_comments(goes)  # a comment beside a line is about the statements that stay
        left += [] if stays is None else [stays.visit(_AttributeReplacer(split))]  # type: ignore[list-item]
        moved += [] if goes is None else [goes]
        position += count
    return _without_empty_start(left), _without_empty_start(moved)


def _selected(line: cst.BaseStatement, wanted: Sequence[bool]) -> cst.BaseStatement | None:
    """A line with some of its statements; `None` if there are none."""
    if not isinstance(line, cst.SimpleStatementLine) or all(wanted):
        return line if all(wanted) else None
    left = [one for one, is_wanted in zip(line.body, wanted, strict=True) if is_wanted]
    return with_statements(line, left) if left else None


def _without_comments(line: cst.BaseStatement) -> cst.BaseStatement:
    assert isinstance(line, cst.SimpleStatementLine)  # nothing else is in both methods
    return line.with_changes(leading_lines=[], trailing_whitespace=cst.TrailingWhitespace())


def _without_empty_start(lines: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
    if not lines:
        return lines
    above = list(leading_lines(lines[0]))
    while above and above[0].comment is None:
        above.pop(0)
    return [lines[0].with_changes(leading_lines=above), *lines[1:]]


class _AttributeReplacer(cst.CSTTransformer):
    """Replaces a read of an attribute of the context by the variable that was assigned to it."""

    def __init__(self, split: ForwardSplit) -> None:
        super().__init__()
        self._ctx, self._aliases = split.ctx, split.aliases

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:  # noqa: N802 - libcst's name
        """Replace `ctx.name`."""
        if m.matches(updated_node, m.Attribute(m.Name(self._ctx))) and updated_node.attr.value in self._aliases:
            return cst.Name(self._aliases[updated_node.attr.value], lpar=updated_node.lpar, rpar=updated_node.rpar)
        return updated_node


def other_use(path: Path, qualname: str) -> str:
    """A subclass of a Function, or a direct call of its forward, in its file and package; empty if there is none.

    The parameters of the forward may not change then.

    Args:
        path: the defining file.
        qualname: qualified name of the Function.
    """
    name = qualname.rpartition(".")[2]
    for file in _package_files(path):
        try:
            text = read(file)
            tree = ast.parse(text) if name in text else None
        except (TargetError, SyntaxError, ValueError, RecursionError):
            continue  # a file that is not Python calls nothing
        if tree is None or (file != path and not _may_refer_to(tree, name)):
            continue
        for line, what in _uses(tree, name):
            return f"{what} in line {line} of {file.name}"
    return ""


def _package_files(path: Path) -> Iterator[Path]:
    """Yield the file and the others of its package, or, if it is in none, of its folder."""
    path = path.resolve()
    root, module = package_of(path)
    package = root / module.partition(".")[0]
    yield path
    for file in sorted(package.rglob("*.py") if package.is_dir() else path.parent.glob("*.py")):
        if file != path:
            yield file


def _may_refer_to(tree: ast.Module, name: str) -> bool:
    """Whether a module imports a class of some name, or reads it as an attribute of another module."""
    nodes = list(ast.walk(tree))
    imported = any(isinstance(node, ast.ImportFrom) and name in {a.name for a in node.names} for node in nodes)
    return imported or any(isinstance(node, ast.Attribute) and node.attr == name for node in nodes)


def _uses(tree: ast.Module, name: str) -> Iterator[tuple[int, str]]:
    called = "its forward is called directly"
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            if any(dotted(base).rpartition(".")[2] == name for base in node.bases):
                yield node.lineno, f"{node.name} derives from it"
            if node.name == name:
                yield from (
                    (one.lineno, called)
                    for one in ast.walk(node)
                    if isinstance(one, ast.Attribute) and one.attr == "forward" and dotted(one.value) in ("cls", "self")
                )
        elif isinstance(node, ast.Attribute) and node.attr == "forward" and _last_name(node.value) == name:
            yield node.lineno, called


def _last_name(node: ast.expr) -> str:
    """Last name of `a.Name`, and of `a.Name()`."""
    return dotted(node.func if isinstance(node, ast.Call) else node).rpartition(".")[2]
