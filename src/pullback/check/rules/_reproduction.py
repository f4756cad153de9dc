"""Lines of reproductions that several rules share: a gradient beside the expected one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.check.case import is_differentiable
from pullback.check.cases.repro import bind, call_text, definition, source_of, variables
from pullback.check.derivative.agreement import subscript
from pullback.check.derivative.compare_input import Comparison
from pullback.check.derivative.first_order import FirstOrder
from pullback.check.derivative.sampler import is_symmetric
from pullback.check.trial import refusal_of_grad

if TYPE_CHECKING:
    from pullback.check.audit import Audit
    from pullback.check.case import Case
    from pullback.check.trial import ForwardRun

_STEP = 1e-4
_WIDE = (torch.float64, torch.complex128)


def gradient_and_quotient(audit: Audit, result: FirstOrder, c: Comparison, keeps_symmetry: bool = True) -> list[str]:
    """Return lines that print an element of a gradient, and a difference quotient of the forward.

    Where a plain quotient would be too rough (narrow dtypes, kinks) it is the audit's number. Of a symmetric matrix two
    elements are moved at once, unless the comparison did not keep it symmetric.
    """
    x = result.case.tensors[c.input_index]
    elements = _elements(x, c) if keeps_symmetry else _elements(None, c)
    is_wide = x.dtype in _WIDE and c.index is not None and not c.kink and math.isfinite(c.expected)
    is_plain = not (result.case.captured or x.is_complex() or refusal_of_grad())
    if is_wide and is_plain and isinstance(result.run.result, Tensor) and result.run.roots:
        return _of_one_output(result, c, elements)
    lines = [
        audit.outs,
        bind("g", result.cotangents),
        *_gradient(c.input_index),
    ]
    element = elements[0]
    if not is_wide:
        return [*lines, f"print('gradient', got{element}, 'and numeric derivative', {source_of(c.expected)})"]
    name, step = _name(result, c), _step(x, c)
    term = "(a.conj() * o).real" if any(g.is_complex() for g in result.cotangents) else "(a * o)"
    body = [audit.floating_outs, f"return sum({term}.sum() for a, o in zip(g, {chosen_outs(result.run)})).item()"]
    lines += [
        "@torch.no_grad()",
        *definition("value_at", result.case, body),
        *_step_along(elements, name, step),
    ]
    quotient = f"(above - below) / (2 * {step})"
    case = result.case
    for unit in ("", "1j * ") if x.is_complex() else ("",):
        lines += [
            f"{side} = value_at({moved(case, c.input_index, f'{name}.detach() {sign} {unit}step', '{}.detach()')})"
            for side, sign in (("above", "+"), ("below", "-"))
        ]
        if unit:
            quotient = f"complex(along_1, {quotient})"
        elif x.is_complex():
            lines.append(f"along_1 = {quotient}")
    return [*lines, f"print('gradient', {_mean_of('got', elements)}, 'and finite difference', {quotient})"]


def _gradient(input_index: int) -> list[str]:
    """Return the lines that bind `got` to the gradient of an input, in the way that the backward takes."""
    if refusal_of_grad():
        return ["torch.autograd.backward(outs, g)", f"got = inputs[{input_index}].grad"]
    return [f"got = torch.autograd.grad(outs, inputs, g, materialize_grads=True)[{input_index}]"]


def _elements(x: Tensor | None, c: Comparison) -> list[str]:
    """Return the subscripts of the elements that are moved: one, or it and its mirror image in a symmetric matrix."""
    index = c.index or ()
    found = [index]
    if x is not None and len(index) > 1 and index[-1] != index[-2] and not x.is_complex() and is_symmetric(x):
        found.append((*index[:-2], index[-1], index[-2]))
    return [subscript(at) for at in found]


def _mean_of(name: str, elements: Sequence[str]) -> str:
    if len(elements) == 1:
        return f"{name}{elements[0]}.item()"
    return f"({' + '.join(name + at for at in elements)}).item() / {len(elements)}"


def _of_one_output(result: FirstOrder, c: Comparison, elements: Sequence[str]) -> list[str]:
    """Return the lines for a real tensor and a function that returns one tensor."""
    name, step = _name(result, c), _step(result.case.tensors[c.input_index], c)
    names = variables(result.case)
    detached = {names[p]: f"{names[p]}.detach()" for p in result.case.wrt}
    wrt = name if len(result.case.wrt) == 1 else "inputs"  # a backward may ask which of them are
    return [  # the differences first: a backward may write to its inputs
        bind("g", result.cotangents[0]),
        *_step_along(elements, name, step),
        "value_at = torch.no_grad()(fn)",
        *(
            f"{side} = value_at({call_text(result.case, {**detached, name: f'{name}.detach() {sign} step'})})"
            for side, sign in (("above", "+"), ("below", "-"))
        ),
        f"quotient = ((above - below) * g).sum().item() / (2 * {step})",
        f"got = torch.autograd.grad(out, {wrt}, g, materialize_grads=True)[{c.input_index}]",
        f"print('gradient', {_mean_of('got', elements)}, 'and finite difference', quotient)",
    ]


def _name(result: FirstOrder, c: Comparison) -> str:
    return variables(result.case)[result.case.wrt[c.input_index]]


def _step(x: Tensor, c: Comparison) -> str:
    return f"{_STEP * min(1.0, abs(x[c.index].item()) or 1.0):.0e}"


def _step_along(elements: Sequence[str], name: str, step: str) -> list[str]:
    """Return lines that bind `step` to a step along some elements."""
    part = step if len(elements) == 1 else f"{step} / {len(elements)}"
    return [f"step = torch.zeros_like({name})", *(f"step{at or '[()]'} = {part}" for at in elements)]


def chosen_outs(run: ForwardRun) -> str:
    """Return the expression for those of `audit.floating_outs` that are in the graph."""
    floating = [p for p, out in enumerate(run.outputs) if is_differentiable(out)]
    indices = [floating.index(p) for p in run.differentiable]
    return "outs" if len(indices) == len(floating) else f"[outs[k] for k in {indices}]"


def moved(case: Case, input_index: int, expression: str, others: str = "{}") -> str:
    """Return the list of the differentiated inputs with an expression in place of one (wherever it stands)."""
    names = variables(case)
    chosen = names[case.wrt[input_index]]
    return f"[{', '.join(expression if names[p] == chosen else others.format(names[p]) for p in case.wrt)}]"


def returned(attribute: str, given: object = None) -> list[str]:
    """Return lines that run the backward and print an attribute of each gradient, before the engine changes it.

    Args:
        attribute: an attribute of gradients and inputs.
        given: the attribute of the inputs, if the lines before hide it.
    """
    inputs = f"[x.{attribute} for x in inputs]" if given is None else repr(str(given))
    return [
        "function = fn.__self__",
        "backward = function.backward",
        "def printed(*args):",
        "    result = backward(*args)",
        "    gradients = result if isinstance(result, tuple) else (result,)",
        f"    print('returned:', [getattr(g, '{attribute}', None) for g in gradients])",
        "    return result",
        "function.backward = staticmethod(printed)",
        f"print('inputs:', {inputs})",
        "torch.autograd.grad(outs, inputs, [torch.ones_like(o) for o in outs], allow_unused=True)",
    ]
