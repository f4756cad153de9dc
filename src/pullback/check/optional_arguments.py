"""The working example with its optional arguments passed, left out, or given tensors or numbers."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from pullback.check.case import Case, make_case
from pullback.check.cases.exclusive import exclusive_pairs
from pullback.check.cases.guess import candidates
from pullback.check.cases.signature import definition, parameters, positional_names, usage
from pullback.check.cases.templates import Shape, TensorOf, make_tensor
from pullback.check.facts import ExampleFacts
from pullback.check.find.kernels import recording
from pullback.check.find.objects import answers
from pullback.check.trial import Raised, forward, standard_cotangents, vjp


def with_defaults(audit: ExampleFacts) -> Case:
    """The example with omitted arguments passed explicitly, so that flags and `dim` can be varied."""
    base = audit.base
    args, kwargs, _ = base.arguments()
    left = parameters(audit.subject)[len(args) :]
    plain = bool | int | float | str | None
    usual = [
        p.default
        for p in left
        if p.kind is p.POSITIONAL_OR_KEYWORD and answers(p.default) and isinstance(p.default, plain)
    ]
    if kwargs or base.captured or not left or len(usual) < len(left):
        return base
    names, nested = positional_names(audit.subject), audit.subject.kind != "function"
    case = make_case((*args, *usual), {}, names, base.label, nested, base.shared_ids)
    return replace(case, non_leaf=base.non_leaf)


def without_optional(audit: ExampleFacts) -> Iterator[Case]:
    """Yield the example with None for each tensor argument that may be None, by default or by the source."""
    yield from (_without(audit.base, [position]) for position in _may_be_none(audit, audit.base))


def _may_be_none(audit: ExampleFacts, example: Case) -> Iterator[int]:
    """Yield the positions of the differentiated arguments that may be None, by default or by the source."""
    source = audit.subject.source
    text = ast.unparse(source.node) if source else ""
    positions = example.top_level(len(example.arguments()[0]))
    for position, parameter in zip(positions, parameters(audit.subject), strict=False):
        optional = parameter.default is None or re.search(rf"\b{parameter.name} is (not )?None\b", text)
        if optional and position is not None and position in example.wrt:
            yield position


def _without(example: Case, positions: Sequence[int]) -> Case:
    label = ", ".join(f"{example.names[p]}=None" for p in positions)
    wrt = tuple(p for p in example.wrt if p not in positions)
    return example.with_values(dict.fromkeys(positions), label, wrt=wrt)


_NUMBER = 0.3


def with_numbers(audit: ExampleFacts) -> Iterator[Case]:
    """Yield the example with a number for each argument that is None and in whose place the forward takes a number."""
    example, node = with_defaults(audit), definition(audit.subject)
    names = set(_replaced_by_numbers(node)) if node is not None else set()
    positions = example.top_level(len(example.arguments()[0]))
    for position, parameter in zip(positions, parameters(audit.subject), strict=False):
        if parameter.name in names and position is not None and example.values[position] is None:
            yield example.with_values({position: _NUMBER}, f"{parameter.name} = {_NUMBER}")


def _replaced_by_numbers(node: ast.AST) -> Iterator[str]:
    """Yield the names that stand for a number if they are None: `if scale is None: scale = D ** -0.5`."""
    for part in ast.walk(node):
        match part:
            case ast.If(
                test=ast.Compare(left=ast.Name(id=name), ops=[ast.Is()], comparators=[ast.Constant(value=None)]),
                body=[ast.Assign(targets=[ast.Name(id=assigned)], value=value)],
            ) if assigned == name and _is_number(value):
                yield name
            case (
                ast.IfExp(
                    test=ast.Compare(left=ast.Name(id=name), ops=[ast.Is()], comparators=[ast.Constant(value=None)]),
                    body=value,
                )
                | ast.IfExp(
                    test=ast.Compare(left=ast.Name(id=name), ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]),
                    orelse=value,
                )
                | ast.BoolOp(op=ast.Or(), values=[ast.Name(id=name), value])
            ) if _is_number(value):
                yield name


def _is_number(node: ast.expr) -> bool:
    """Whether an expression looks like a float: a literal, a quotient, a power, or a function of `math`."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, float)
        case ast.UnaryOp(operand=operand):
            return _is_number(operand)
        case ast.BinOp(op=ast.Mult() | ast.Add() | ast.Sub(), left=left, right=right):
            return _is_number(left) or _is_number(right)
        case ast.Call(func=ast.Name(id="float") | ast.Attribute(value=ast.Name(id="math"))):
            return True
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Pow)


_MOST = 40
"""Shapes that are tried for one argument."""
_LENGTHS = re.compile(r"cu_?seq_?lens?\w*")
"""Matches names of the positions at which packed sequences start and end."""


@functools.lru_cache(maxsize=2)
def with_optional(audit: ExampleFacts) -> tuple[Case, ...]:
    """Return the example with a tensor for each argument that is None, if interpreted kernels use such a tensor.

    Nothing tells its shape. It fits if the kernels of the forward keep to it and the outputs depend on its last
    element: one with fewer elements they leave, and of one with more they leave some. Of the shapes with as many
    elements, those of outputs come first, for a first state has the shape of the last one. A tensor to which the
    backward gives no gradient is not differentiated. Another is the last input, so that the others keep their places.
    """
    if not audit.subject.is_interpreted or not audit.base.wrt or audit.draws:
        return ()
    return tuple(_with_each(audit))


def with_all_optional(audit: ExampleFacts) -> Case | None:
    """Return the example with all of those tensors, or the first alone where the forward refuses them together."""
    example = with_defaults(audit)
    found = _compatible(audit, [case for case in with_optional(audit) if not case.doubtful and _adds(case, example)])
    for chosen in (found, found[:1]):
        added = {p: case.values[p] for case in chosen for p in case.wrt[len(example.wrt) :]}
        label = ", ".join(case.label for case in chosen)
        together = example.with_values(added, label, wrt=(*example.wrt, *added))
        if added and audit.is_valid(together):
            return together
    return None


def _adds(case: Case, example: Case) -> bool:
    """Whether a case has all inputs of the example, and more."""
    return len(case.wrt) > len(example.wrt) and case.wrt[: len(example.wrt)] == example.wrt


def _compatible(audit: ExampleFacts, cases: list[Case]) -> list[Case]:
    """Return the cases whose last inputs, the optional ones, do not exclude each other: of two that do, the first."""
    pairs = exclusive_pairs(audit.subject)
    found: list[Case] = []
    for case in cases:
        name = case.names[case.wrt[-1]]
        if not any(frozenset((name, other.names[other.wrt[-1]])) in pairs for other in found):
            found.append(case)
    return found


def _with_each(audit: ExampleFacts) -> Iterator[Case]:
    example = with_defaults(audit)
    positions = example.top_level(len(example.arguments()[0]))
    pairs = exclusive_pairs(audit.subject)
    alone: list[int] = []
    for position, parameter in zip(positions, parameters(audit.subject), strict=False):
        if position is None or example.values[position] is not None:
            continue
        if _LENGTHS.fullmatch(parameter.name):
            yield from _packed(example, position)
        elif _may_be_tensor(audit, parameter):
            rivals = [p for p in example.all_tensors if frozenset((example.names[p], parameter.name)) in pairs]
            found = _first_fitting(audit, _without(example, rivals) if rivals else example, [position])
            yield from found if rivals else (each for case in found for each in _parted(audit, example, case, position))
            alone += [position] * (not found and not any(parameter.name in pair for pair in pairs))
    if len(alone) > 1:  # a weight and a bias, both of them or none
        yield from _first_fitting(audit, example, alone)


def _first_fitting(audit: ExampleFacts, example: Case, positions: list[int]) -> list[Case]:
    """Return the example with tensors of one shape at some positions, of the first shape that fits; or nothing."""
    shapes = itertools.islice(_shapes(audit, example), _MOST)
    found = (_fitting(audit, example, positions, shape) for shape in shapes)
    return list(itertools.islice(filter(None, found), 1))


def _parted(audit: ExampleFacts, example: Case, case: Case, position: int) -> Iterator[Case]:
    """Yield the example with a tensor at a position, also with it in place of one that it excludes.

    Nothing tells that a Function takes one or the other of two. If the forward ignores the one as soon as the other is
    given, the two are no call. If the backward ignores one beside the other, and not where it is alone, that is its
    fault or the caller's, and the call is doubtful.
    """
    overridden = [other for other in _may_be_none(audit, example) if not _has_effect(audit, case, other)]
    before, beside = _gradients(audit, example), _gradients(audit, case)
    is_ignored = bool(before) and all(_same(gradient, beside.get(p)) for p, gradient in before.items())
    is_call, is_sure = True, True
    for other in _may_be_none(audit, example) if is_ignored else overridden:
        instead = _without(case, [other])
        instead = replace(instead, label=f"{case.label}, {instead.label}")
        if not audit.is_valid(instead):
            continue
        is_excluded = other in overridden and _has_effect(audit, example, other)
        is_rival = not is_excluded and is_ignored and _needs(audit, instead, position)
        if is_excluded or is_rival:
            yield instead
        is_call, is_sure = is_call and not is_excluded, is_sure and not is_rival
    if is_call:
        yield case if is_sure else replace(case, doubtful=True)


def _has_effect(audit: ExampleFacts, case: Case, position: int) -> bool:
    """Whether the outputs depend on the last element of a tensor; so, too, if that cannot be told."""
    before = _outputs(audit, case)
    after = _outputs(audit, case.with_values({position: _last_changed(case.values[position])}))
    return before is None or after is None or not all(map(torch.equal, before, after))


def _needs(audit: ExampleFacts, case: Case, position: int) -> bool:
    """Whether a gradient of another input depends on the last element of a tensor."""
    before = _gradients(audit, case)
    after = _gradients(audit, case.with_values({position: _last_changed(case.values[position])}))
    return not all(_same(gradient, after.get(p)) for p, gradient in before.items() if p != position)


def _gradients(audit: ExampleFacts, case: Case) -> dict[int, Tensor | None]:
    """Return the gradients of a call by their positions; none if it raises."""
    with suppress(Raised):
        run = forward(audit.subject, case)
        return dict(zip(case.wrt, vjp(run, standard_cotangents(run.roots)), strict=True))
    return {}


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b)


def _may_be_tensor(audit: ExampleFacts, parameter: inspect.Parameter) -> bool:
    """Whether a parameter that is None may be a floating tensor, by its annotation, its uses and its name."""
    node = definition(audit.subject)
    used = usage(node, [parameter.name])[parameter.name] if node is not None else None
    if parameter.annotation is not parameter.empty:
        return "Tensor" in re.findall(r"\w+", str(parameter.annotation))
    likeliest = (value for value in candidates(parameter, (), used) if value is not None)
    return isinstance(first := next(likeliest, None), TensorOf) and first.kind == "float"


def _shapes(audit: ExampleFacts, example: Case) -> Iterator[Shape]:
    """Yield shapes that a tensor beside those of the example may have: of outputs, of inputs, of their sizes."""
    flags = [p for p, value in enumerate(example.values) if value is False]
    found: dict[Shape, None] = {}
    for case in (example, *(example.with_values({p: True}, "a flag") for p in flags)):
        with suppress(Raised):
            found |= {tuple(out.shape): None for out in forward(audit.subject, case).outputs}
    inputs = [tuple(example.values[p].shape) for p in example.wrt]
    found |= dict.fromkeys(inputs)
    found |= {shape[:-1]: None for shape in inputs}
    sizes = list(dict.fromkeys(size for shape in inputs for size in reversed(shape)))
    for dims in (1, 2):
        found |= dict.fromkeys(itertools.permutations(sizes, dims))
    yield from (shape for shape in found if shape and 0 not in shape)


def _with_tensors(example: Case, positions: list[int], shape: Shape) -> Case:
    dtype = example.tensors[0].dtype
    made = {p: make_tensor("float", shape, None, dtype, torch.Generator().manual_seed(p)) / 2 for p in positions}
    names = " and ".join(example.names[p] for p in positions)
    also = f", {example.label}" if example.is_variant else ""
    return example.with_values(made, f"a tensor of shape {shape} for {names}{also}", wrt=(*example.wrt, *positions))


def _fitting(audit: ExampleFacts, example: Case, positions: list[int], shape: Shape) -> Case | None:
    """Return the example with tensors of a shape, or of the shape of their gradient, if the tensors fit."""
    case = _with_tensors(example, positions, shape)
    with audit.events.of_first_order(case.describe(), audit.subject, case):
        before = _outputs(audit, case)
        if before is None:
            return None
        for position in positions:
            after = _outputs(audit, case.with_values({position: _last_changed(case.values[position])}))
            if after is None or all(map(torch.equal, before, after)):
                return None
        run = forward(audit.subject, case)
        try:
            gradients = vjp(run, standard_cotangents(run.roots))
        except Raised as raised:
            returned = re.search(r"invalid gradient at index \d+ - got \[([\d, ]*)\]", str(raised))
            own = tuple(map(int, re.findall(r"\d+", returned[1]))) if returned else shape
            if own != shape and math.prod(own) == math.prod(shape):
                return _fitting(audit, example, positions, own)
            return replace(case, doubtful=True)
    given = (p for p, gradient in zip(case.wrt, gradients, strict=True) if gradient is not None or p in example.wrt)
    return replace(case, wrt=tuple(given))


def _outputs(audit: ExampleFacts, case: Case) -> list[Tensor] | None:
    """Return the outputs of a call; `None` if its forward raises or its kernels leave the bounds."""
    with recording() as world:
        try:
            outputs = forward(audit.subject, case).outputs
        except Raised:
            return None
    return None if any(one.kind == "out-of-bounds" for one in world.irregularities) else outputs


def _last_changed(t: Tensor) -> Tensor:
    changed = t.clone()
    changed.view(-1)[-1] += 1
    return changed


_SHORTEST = 3
"""Elements of a sequence of which two are made."""


def _packed(example: Case, position: int) -> Iterator[Case]:
    """Yield an example of one batch as two packed sequences, the first of one element."""
    rows = {tuple(t.shape[:2]) for t in example.tensors if t.ndim > 2}
    if len(rows) != 1:
        return
    ((batch, length),) = rows
    if length < _SHORTEST:
        return
    first = {p: t[:1] for p, t in example.all_tensors.items() if tuple(t.shape[:2]) == (batch, length)}
    bounds = torch.tensor([0, 1 + length // 3, length])
    yield example.with_values({**first, position: bounds}, "two packed sequences")
