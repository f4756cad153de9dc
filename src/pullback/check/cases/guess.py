"""Candidate values of a parameter: from its default, annotation, uses, call sites and name."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from pullback.check.case import Case
from pullback.check.cases.signature import Role, Usage
from pullback.check.cases.templates import SMOOTH, SQUARE, SequenceOf, TensorOf
from pullback.check.find.source import FunctionSource
from pullback.check.find.syntax import CallSite, FunctionNode

Candidates = Sequence[Any]

_FLOAT, _INDEX, _MASK = TensorOf(), TensorOf("index"), TensorOf("mask")

_BY_NAME: tuple[tuple[str, Candidates], ...] = (
    (r"(is|use|has|with|do|return|requires)_\w+|train\w*|inplace|keep_?dims?|reverse|causal|flag|\w*_flag|hard"
     r"|symmetric|signed|unsigned|verbose|debug|transposed?|normali[sz]ed?|ensure\w*|largest|sorted", (True, False)),
    (r"dims?|axis|axes", (-1, 0, 1, (0, 1), None)),
    (r"k|topk|top_k", (2, None, 0.5)),
    (r"cu_?seq\w*|\w*indptr|(\w+_)?offsets?|ptr", (TensorOf("offsets"), _INDEX, _FLOAT, 1)),
    (r"(idx|index|indices|ids?|batch|segment\w*)|\w+_(idx|index|indices|ids?)", (_INDEX, _FLOAT, 1)),
    (r"labels?|targets?|y_true|tgt", (_FLOAT, _INDEX, 1)),  # a function of class indices refuses floats
    (r"\w*mask\w*", (_MASK, _FLOAT, None)),
    (r"(spk|spike|binary|onehot|one_hot)\w*|\w+_(spk|spikes?)", (TensorOf("binary"), _FLOAT)),
    (r"(n_?|num_|max_?)?iter(s|ations?)?|\w+_iter(s|ations?)?", (50, 10, 3, 2)),  # few would not converge
    (r"n|num|bits?|n_?bits?|num_\w+|n_\w+|\w+_bits?|steps?|levels?|order|depth|width|height|length|groups?|\w+_size",
     (3, 2, 10, 50)),
    (r"stride|padding|dilation|kernel_size|groups|size|scale_factor|upscale|block_size|chunk\w*", (1, 2, 3, (1, 1))),
    (r"(eps|epsilon|tol|atol|rtol)\w*|\w+_(eps|tol)", (1e-6,)),
    (r"alpha|beta|gamma|lambda_?\w*|lambd|lam|slope|scale|temp\w*|tau|sigma|thresh\w*|lr|momentum|p|prob|rate|delta|margin"
     r"|factor|coeff?\w*|power|exponent|bound|clip\w*|max_norm|low|high|min\w*|max\w*|weight_decay|dampening|kappa|theta"
     r"|vth|v_th|decay|window|lens|hight|width|zeta|omega|amplitude|const\w*|constant",
     (0.5, _FLOAT, 2.0, 1.0, 2, None)),
    (r"fn|func|f|function|run_function|\w+_fn|act\w*|callback|module", (SMOOTH, None)),
    (r"shape|size|out\w*_size|\w+_shape", ((3, 5), 5, (5,))),
    (r"reduction", ("mean", "sum", "none")),
    (r"mode|method|kind|type|name", ("mean", "linear", None)),
    (r"dtype", (torch.float32,)),
    (r"device", ("cpu",)),
    (r"bias|b", (_FLOAT, None)),
    (r"ctx2?|state|config|cfg|options?|kwargs|meta", (None, _FLOAT)),
)  # fmt: skip
_NOT_HERE = re.compile(r"\w*process_group|pg|device_mesh|\w*_stream|stream")
"""Names of values that cannot be created here; a tensor instead would make the call invalid."""
_BY_TYPE: dict[str, Candidates] = {
    "Tensor": (_FLOAT, _INDEX),
    "int": (2, 1, 3, 0, -1),
    "float": (0.5, 2.0, 1.0),
    "bool": (True, False),
    "str": ("mean", "sum", "linear"),
    "None": (None,),
    "Callable": (SMOOTH,),
    "Size": (torch.Size((3, 5)),),
}
_FALLBACK: Candidates = (
    _FLOAT,
    2,
    0.5,
    None,
    True,
    _INDEX,
    TensorOf("positive"),
    _MASK,
    SMOOTH,
    (1, 1),
    "mean",
    3,
    5,
    SequenceOf(2),
    False,
    *map(TensorOf, SQUARE),
)


_BY_ROLE: dict[Role, Candidates] = {
    "callable": (SMOOTH,),
    "sequence": (SequenceOf(2), (3, 5), _FLOAT),
    "dim": (-1, 0, 1),
    "int": (3, 5, 2),
    "flag": (False, True),
    "number": (),
    "tensor": (_FLOAT,),
}


def candidates(
    parameter: inspect.Parameter,
    hints: Candidates,
    used: Usage | None = None,
    aliases: Sequence[str] = (),
    is_setting: bool = False,
) -> list[Any]:
    """Return the values to try for a parameter, the likeliest first; `TensorOf` and `SequenceOf` are templates.

    Args:
        parameter: the parameter, with default, annotation and name.
        hints: values that the module itself passes.
        used: how the forward uses it; if that takes a tensor, everything else comes last.
        aliases: names of the arguments that the module passes, used if its own name is no clue.
        is_setting: it is most likely a number or a flag: a tensor of floating numbers comes last.
    """
    if _NOT_HERE.fullmatch(parameter.name):
        return [*hints, None]
    given = [*hints, *([] if parameter.default is inspect.Parameter.empty else [parameter.default])]
    by_name = next((found for name in (parameter.name, *aliases) if (found := _from_name(name))), [])
    by_type = _from_annotation(parameter.annotation)
    is_tensor = used is not None and "tensor" in used.roles
    is_typed_tensor = _FLOAT in by_type or is_tensor
    kinds = [value for value in by_name if isinstance(value, TensorOf)] if is_typed_tensor else []  # the name tells
    by_use = _from_usage(used) if used is not None else []
    constants = used.constants if used is not None else ()
    rest = [*kinds, *constants, *by_type, *by_use, *by_name, *_FALLBACK]
    if is_tensor:
        rest.sort(key=lambda value: not isinstance(value, TensorOf))
    elif is_setting and not is_typed_tensor:
        rest.sort(key=lambda value: isinstance(value, SequenceOf | TensorOf) and value not in (_INDEX, _MASK))
    unique: list[Any] = []
    for value in (*given, *rest):
        if not any(type(value) is type(seen) and is_same_argument(value, seen) for seen in unique):
            unique.append(value)
    return unique


_WEIGHT, _BIAS = re.compile(r"w|weights?|gamma|scale"), re.compile(r"b|bias|beta|shift")
"""Match names of what is one row beside a matrix, most often: of a bias if there is a weight."""


def with_rows(case: Case) -> Case:
    """Return a guess with one row for each weight or bias that has the shape of the first tensor.

    Where kernels read its first row alone, and the others get no gradient, nothing raises.
    """
    (_, first), *others = case.all_tensors.items()
    alike = {p: t for p, t in others if t.shape == first.shape and t.ndim > 1}
    weights, biases = ([p for p in alike if name.fullmatch(case.names[p].lower())] for name in (_WEIGHT, _BIAS))
    if not weights:
        return case
    return case.with_values({p: alike[p].detach().flatten()[: first.shape[-1]].clone() for p in (*weights, *biases)})


def is_same_argument(a: Any, b: Any) -> bool:
    """Whether two values are the same argument; `==` of arrays and the like is not a bool."""
    try:
        return a is b or bool(a == b)
    except Exception:
        return False


def _from_usage(used: Usage) -> list[Any]:
    found: list[Any] = []
    for length in used.lengths:
        found += [SequenceOf(length), (2,) * length, (0.5,) * length, _FLOAT]
    for role, values in _BY_ROLE.items():
        if role in used.roles and not (role == "flag" and "tensor" in used.roles):
            found += values
    return found


def _from_name(name: str) -> list[Any]:
    plain = name.lower().strip("_")
    return [*next((values for pattern, values in _BY_NAME if re.fullmatch(pattern, plain)), ())]


def _from_annotation(annotation: Any) -> list[Any]:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    if annotation is inspect.Parameter.empty:
        return []
    words = re.findall(r"\w+", text)
    return [*_made_by(annotation), *(value for word in words for value in _BY_TYPE.get(word, ()))]


def _made_by(annotation: Any) -> list[Any]:
    """Return an object of an annotated class, if it has defaults for all, as a configuration may."""
    if not isinstance(annotation, type) or annotation.__module__.partition(".")[0] in ("builtins", "torch", "typing"):
        return []
    try:
        return [annotation()]
    except Exception:
        return []


def hints_from_calls(source: FunctionSource | None, position: int) -> list[Any]:
    """Return the constants that the module itself passes as the `position`-th argument of `apply`."""
    found: list[Any] = []
    for site in source.call_sites if source else ():
        if position < len(site.arguments):
            found += _constants(site.arguments[position], site)
    return found


def names_at_calls(source: FunctionSource | None, position: int) -> list[str]:
    """Return the names of the arguments that the module itself passes there: "padding" of `self.padding`."""
    found = []
    for site in source.call_sites if source else ():
        match site.arguments[position] if position < len(site.arguments) else None:
            case ast.Name(id=name) | ast.Attribute(attr=name) if len(name) > 1:  # `f` may be anything there
                found.append(name)
    return found


def _constants(expression: ast.expr, site: CallSite) -> Iterator[Any]:
    try:
        yield ast.literal_eval(expression)
        return
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    if isinstance(expression, ast.Name):
        yield from _default_of(expression.id, site.functions)
    if isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name) and site.inside_class:
        for node in site.inside_class.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                yield from _default_of(expression.attr, [node])


def _default_of(name: str, functions: Iterable[FunctionNode]) -> Iterator[Any]:
    """Yield the literal default of the first parameter of that name, unless it is None, which is no clue."""
    default = next((defaults[name] for defaults in map(_defaults, functions) if name in defaults), None)
    try:
        value = None if default is None else ast.literal_eval(default)
    except (ValueError, TypeError, SyntaxError):
        return
    if value is not None:
        yield value


def _defaults(function: FunctionNode) -> dict[str, ast.expr | None]:
    """Map each parameter to the expression of its default, if it has one."""
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(plain) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    return {a.arg: default for a, default in zip([*plain, *given.kwonlyargs], defaults, strict=True)}
