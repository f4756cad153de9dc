"""The test file of a written Function: finite differences, and consistency of its derivatives."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from torch import Tensor

from pullback.dtypes import has_derivative
from pullback.write.spec import FunctionSpec

_MOST_NUMBERS = 40
"""Larger example tensors are drawn at random in the test file."""
_HEAD = '''"""Tests of {name}: derivatives against finite differences, forward mode against reverse, vmap."""

import torch
from {module} import {name}


def inputs():
    """Return the arguments of an example call."""
{made}
    return {returned}


def outputs(*given):
    """Return the differentiable outputs."""
    results = {name}.apply(*given)
    results = results if isinstance(results, tuple) else (results,)
    return [out for out in results if out.requires_grad]
'''
_SHAPE_AND_FINITE = """

def test_gradients_are_finite_and_have_the_shape_of_their_inputs():
    given = inputs()
    leaves = [x for x in given if x.requires_grad]
    gradients = torch.autograd.grad([out.sum() for out in outputs(*given)], leaves)
    for x, g in zip(leaves, gradients, strict=True):
        assert g.shape == x.shape
        assert g.isfinite().all()
"""
_GRADCHECK = """

def test_gradient_matches_finite_differences():
    assert torch.autograd.gradcheck({name}.apply, inputs())


def test_second_derivative_matches_finite_differences():
    assert torch.autograd.gradgradcheck({name}.apply, inputs())
"""
_COARSE_DIFFERENCES = """

def test_gradient_matches_coarse_differences():
    given = inputs()
    (out,) = outputs(*given)
    gradients = torch.autograd.grad(out.sum(), given)
    step = 2.0**-6
    for i, g in enumerate(gradients):
        up, down = ([x + h * (j == i) for j, x in enumerate(given)] for h in (step, -step))
        slope = (outputs(*up)[0] - outputs(*down)[0]) / (2 * step)
        torch.testing.assert_close(g, slope, rtol=2e-2, atol=2e-2)
"""
_ADJOINT = """

def test_forward_mode_is_adjoint_to_reverse_mode():
    given = inputs()
    moved = [i for i, x in enumerate(given) if x.requires_grad]
    primals = tuple(given[i].detach() for i in moved)
    tangents = tuple(torch.cos(torch.arange(x.numel(), dtype=x.dtype)).reshape(x.shape) for x in primals)

    def function(*xs):
        full = [x.detach() for x in given]
        for i, x in zip(moved, xs, strict=True):
            full[i] = x
        return {name}.apply(*full)

    out, pushed = torch.func.jvp(function, primals, tangents)
    pulled = torch.func.vjp(function, *primals)[1](out)
    outs, pushes = (out, pushed) if isinstance(out, tuple) else ((out,), (pushed,))
    forward = sum((g * t).sum() for g, t in zip(outs, pushes, strict=True))
    backward = sum((g * t).sum() for g, t in zip(pulled, tangents, strict=True))
    torch.testing.assert_close(forward, backward)
"""
_VMAP = """

def test_vmap_matches_separate_calls():
    given = [x.detach() for x in inputs()]
    several = [torch.stack([x, x]) for x in given]
    together = torch.func.vmap({name}.apply)(*several)
    alone = {name}.apply(*given)
    for batch, one in zip(*(r if isinstance(r, tuple) else (r,) for r in (together, alone)), strict=True):
        torch.testing.assert_close(batch, torch.stack([one, one]))
"""


def test_source(spec: FunctionSpec, tensors: Sequence[Tensor], module: str, has_jvp: bool, has_vmap: bool) -> str:
    """Return the text of a test file for a Function whose source is in a module of that name."""
    single = spec.dtype is not None
    made = [f"{name} = {_literal(x, single)}" for name, x in zip(spec.names, tensors, strict=True)]
    returned = f"{', '.join(spec.names)}{',' if len(spec.names) == 1 else ''}"
    returned = f"({returned})" if len(spec.names) == 1 else returned
    body = textwrap.indent("\n".join(made), "    ")
    parts = [_HEAD]
    if spec.active_outputs:
        parts.append(_SHAPE_AND_FINITE)
        if spec.kind == "derived":
            parts.append(_COARSE_DIFFERENCES if single else _GRADCHECK)
        parts += [_ADJOINT] if has_jvp else []
    parts += [_VMAP] if has_vmap else []
    return "".join(parts).format(name=spec.class_name, module=module, made=body, returned=returned)


def _literal(x: Tensor, single: bool) -> str:
    """The tensor of an example as text, its numbers to four digits; in double precision unless `single`."""
    wide = x.detach().double() if x.is_floating_point() and not single else x.detach()
    grad = ", requires_grad=True" if has_derivative(x) else ""
    if x.numel() > _MOST_NUMBERS or x.is_complex():
        shape, dtype = tuple(x.shape), f"dtype={wide.dtype}{grad}"
        maker = "randn" if has_derivative(x) else "ones"
        return f"torch.{maker}({shape}, {dtype})"
    numbers = str(_rounded(wide.tolist())).replace("], [", "],\n    [") if x.dim() == 2 else _rounded(wide.tolist())
    return f"torch.tensor(\n    {numbers},\n    dtype={wide.dtype}{grad},\n)"


def _rounded(value: object) -> object:
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return round(value, 4) if isinstance(value, float) else value
