"""The parameters of a subject, and what its source says about them.

That is: which types their uses require, which values they are compared with, and, of a forward that raised, which of
them the failing expression was computed from.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, TracebackType
from typing import Any, Literal

import torch

from pullback._torch import custom_op_function, is_dispatched_op, op_parameters
from pullback.check.find.source import plain_function, source_of
from pullback.check.find.syntax import own_nodes
from pullback.check.subject import Subject

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def parameters(subject: Subject) -> list[inspect.Parameter]:
    """Return the parameters that a caller of the subject passes (without `ctx`)."""
    if subject.kind == "function":
        cls = subject.target
        old_style = cls.setup_context is torch.autograd.Function.setup_context
        found = list(_signature(cls.forward).parameters.values())
        return found[1:] if old_style else found
    if is_dispatched_op(subject.target):
        return op_parameters(subject.target)
    function = custom_op_function(subject.target) if subject.kind == "op" else subject.target
    function = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        return list(_signature(function).parameters.values())
    except (TypeError, ValueError):
        return [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]


def _signature(function: Any) -> inspect.Signature:
    """Return a signature, with annotations that are text evaluated, where they can be."""
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # of whatever an annotation names
        return inspect.signature(function)


def positional_names(subject: Subject) -> list[str]:
    """Return the names of the positional parameters, for messages."""
    return [p.name for p in parameters(subject) if p.kind in _POSITIONAL]


def argument_lists(subject: Subject) -> Iterator[list[inspect.Parameter]]:
    """Yield the positional parameters, `*args` unrolled: as unpacked, as passed, or one, two and three."""
    fixed = [p for p in parameters(subject) if p.kind in _POSITIONAL]
    variadic = [p for p in parameters(subject) if p.kind is inspect.Parameter.VAR_POSITIONAL]
    if not variadic:
        yield fixed
        return
    sites = subject.source.call_sites if subject.source else ()
    counts = [len(site.arguments) - len(fixed) for site in sites]
    unpacked = _unpacked(definition(subject), variadic[0].name)
    numbered = [[f"{variadic[0].name}_{i}" for i in range(count)] for count in (*counts, 1, 2, 3)]
    named = [unpacked, *(names for names in numbered if len(names) != len(unpacked))]
    for names in dict.fromkeys(tuple(names) for names in named if names):
        yield [*fixed, *(inspect.Parameter(name, _POSITIONAL[1]) for name in names)]


def _unpacked(node: ast.FunctionDef | None, name: str) -> list[str]:
    """Names into which a function unpacks its `*name`; targets that are not plain names are numbered."""
    for statement in ast.walk(node) if node is not None else ():
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=items)], value=ast.Name(id=unpacked)) if unpacked == name:
                if not any(isinstance(item, ast.Starred) for item in items):
                    return [item.id if isinstance(item, ast.Name) else f"{name}_{i}" for i, item in enumerate(items)]
    return []


def called_function(subject: Subject) -> FunctionType | None:
    """Return the Python function that a call of the subject runs (for a Function, its forward)."""
    return plain_function(subject.target.forward if subject.kind == "function" else subject.target)


def definition(subject: Subject) -> ast.FunctionDef | None:
    """Return the syntax tree of `called_function`, wherever that is written."""
    function = called_function(subject)
    source = source_of(function) if function is not None else None
    return source.methods.get("forward") if source is not None else None


Role = Literal["callable", "tensor", "sequence", "int", "dim", "flag", "number"]

_AMBIGUOUS = {"name", "names", "index", "count", "T", "type", "values", "split", "apply_"}
"""Attributes that a tensor shares with other objects."""
_TENSOR = {name for name in dir(torch.Tensor) if not name.startswith("_")} - _AMBIGUOUS

_BY_FUNCTION: dict[str, Role] = {"range": "int", "len": "sequence", "int": "number", "float": "number"}
_BY_KEYWORD: dict[str, Role] = {
    "dim": "dim", "axis": "dim", "keepdim": "flag", "num_classes": "int", "dim_size": "int", "minlength": "int",
    "min": "number", "max": "number", "alpha": "number",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Usage:
    """The uses of one parameter.

    Attributes:
        roles: types that the use requires.
        lengths: numbers of items that it is unpacked into.
        constants: values with which it is compared.
    """

    roles: frozenset[Role] = frozenset()
    lengths: tuple[int, ...] = ()
    constants: tuple[Any, ...] = ()


def usage(node: ast.FunctionDef, names: Sequence[str]) -> dict[str, Usage]:
    """Return how the body of a function uses each of its parameters; a rebound parameter still counts as itself."""
    roles: defaultdict[str, set[Role]] = defaultdict(set)
    lengths: defaultdict[str, list[int]] = defaultdict(list)
    constants: defaultdict[str, list[Any]] = defaultdict(list)
    for part in ast.walk(node):
        for name, sign in _signs(part):
            if name not in names:
                continue
            if isinstance(sign, str):
                roles[name].add(sign)
            elif isinstance(sign, int):
                roles[name].add("sequence")
                lengths[name].append(sign)
            else:
                constants[name] += sign
    return {
        name: Usage(frozenset(roles[name]), tuple(lengths[name]), tuple(dict.fromkeys(constants[name])))
        for name in names
    }


def kept_as_settings(methods: Mapping[str, ast.FunctionDef], names: Sequence[str]) -> set[str]:
    """Parameters of a Function's forward that must be numbers or flags, judging by how its backward uses them.

    They are attributes of `ctx` (`ctx.n = n`, `ctx.other = n, p`, `ctx.n, ctx.p = n, p`), where a tensor would be given
    to `save_for_backward`, and in every `return` the backward has None in their place.
    """
    bodies = [methods[name] for name in ("forward", "setup_context") if name in methods]
    kept = {
        value.id
        for body in bodies
        for node in own_nodes(body)
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Attribute) for t in map(_first, node.targets))
        for value in (node.value.elts if isinstance(node.value, ast.Tuple | ast.List) else [node.value])
        if isinstance(value, ast.Name)
    }
    returned = [node.value for node in own_nodes(methods["backward"]) if isinstance(node, ast.Return)]
    for value in returned:
        if not isinstance(value, ast.Tuple) or any(isinstance(item, ast.Starred) for item in value.elts):
            return set()
        nothing = [isinstance(item, ast.Constant) and item.value is None for item in value.elts]
        kept &= {name for name, is_none in zip(names, nothing, strict=False) if is_none}
    return kept if returned else set()


def _first(target: ast.expr) -> ast.expr:
    return target.elts[0] if isinstance(target, ast.Tuple | ast.List) and target.elts else target


_Sign = tuple[str, Role | int | list[Any]]
"""A name with its role, its number of items, or the constants that it is compared with."""


def _signs(part: ast.AST) -> Iterator[_Sign]:
    match part:
        case ast.Call():
            yield from _of_call(part)
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if attribute in _TENSOR:
            yield name, "tensor"
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple() | ast.Slice()):
            yield name, "tensor"
        case ast.BinOp(op=ast.MatMult(), left=left, right=right):
            yield from ((side.id, "tensor") for side in (left, right) if isinstance(side, ast.Name))
        case ast.For(iter=ast.Name(id=name)) | ast.comprehension(iter=ast.Name(id=name)):
            yield name, "sequence"
        case ast.Assign(targets=[ast.Tuple(elts=items)], value=ast.Name(id=name)):
            yield name, len(items)
            # `a, (b, c) = args`: the argument after `a` has two items, and no name.
            yield from ((f"{name}_{i}", len(item.elts)) for i, item in enumerate(items) if isinstance(item, ast.Tuple))
        case ast.If(test=test) | ast.IfExp(test=test):
            bare = test.operand if isinstance(test, ast.UnaryOp) else test
            if isinstance(bare, ast.Name):
                yield bare.id, "flag"
        case ast.Compare(left=ast.Name(id=name), ops=operators, comparators=others):
            for operator, other in zip(operators, others, strict=True):
                yield from _of_comparison(name, operator, other)


def _of_call(call: ast.Call) -> Iterator[_Sign]:
    called = ast.unparse(call.func)
    if isinstance(call.func, ast.Name):
        yield call.func.id, "callable"
    for position, argument in enumerate(call.args):
        match argument:
            case ast.Starred(value=ast.Name(id=name)):
                yield name, "sequence"
            case ast.Name(id=name):
                first_of_torch = position == 0 and called.partition(".")[0] in ("torch", "F")
                if called.endswith("save_for_backward") or (first_of_torch and not _takes_sequence(called)):
                    yield name, "tensor"
                elif called in _BY_FUNCTION:
                    yield name, _BY_FUNCTION[called]
    for keyword in call.keywords:
        if isinstance(keyword.value, ast.Name) and keyword.arg in _BY_KEYWORD:
            yield keyword.value.id, _BY_KEYWORD[keyword.arg]


def _takes_sequence(called: str) -> bool:
    """Whether the first argument of a function of torch is not a tensor: a list of them, a size or a number."""
    last = called.rpartition(".")[2]
    return last in (
        "cat", "stack", "concat", "vstack", "hstack", "zeros", "ones", "empty", "full", "rand", "randn", "eye",
        "arange", "linspace", "tensor", "as_tensor", "is_tensor", "manual_seed", "einsum", "Size", "device", "no_grad",
    )  # fmt: skip


def _of_comparison(name: str, operator: ast.cmpop, other: ast.expr) -> Iterator[_Sign]:
    match other:
        case ast.Constant(value=str() | int() | float() as value) if isinstance(operator, ast.Eq):
            yield name, [value]
        case ast.Constant(value=int() | float()):
            yield name, "number"
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            constants = [item.value for item in items if isinstance(item, ast.Constant)]
            if constants:
                yield name, constants


Place = tuple[int, int]
"""Line and column."""


class Blame:
    """Finds the arguments that an error is about, from its traceback.

    Args:
        node: its syntax tree, with the line numbers of its code.
        code: its code object.
        names: names of its parameters.
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
        """Location of the condition that guards a `raise` there; otherwise the location itself."""
        for node in ast.walk(self._node):
            if isinstance(node, ast.If):
                for statement in (*node.body, *node.orelse):
                    if isinstance(statement, ast.Raise) and _start(statement) <= start and end <= _end(statement):
                        return _start(node.test), _end(node.test)
        return start, end

    def _keyword(self, start: Place, end: Place, message: str) -> tuple[Place, Place]:
        """Location of the keyword argument that the message names; otherwise the location itself."""
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
