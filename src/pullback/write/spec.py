"""Specification of the Function to write: value and derivative as functions of tensors alone, and its names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pullback.dtypes import has_derivative
from pullback.stable.forms import Forms
from pullback.stable.formula import as_written

Flat = Callable[..., list[Any]]
"""A function of tensors alone that returns the leaves of its result as a list."""


@dataclass(slots=True)
class FunctionSpec:
    """A formula and its derivative, specialised on the structure and the plain arguments of one example call.

    Attributes:
        name: name of the target.
        class_name: class name of the Function.
        summary: the author's description, in one paragraph; may be empty.
        names: names of the tensors.
        constants: the plain arguments that the text is specialised on, by name.
        value: the formula.
        surrogate: the function that is differentiated in its place; the formula itself unless the op is relaxed.
        reference: the target as it is called, which the written class is compared with.
        kind: see `Op.kind`.
        vjp_rule: cotangents, outputs, tensors to gradients of all tensors; derived from `surrogate` if there is none.
        jvp_rule: tangents, outputs, tensors to tangents; the transposed vjp if there is none.
        forms: the stable forms that replace the formula.
        active_inputs: positions of the tensors that get a gradient.
        active_outputs: positions of the outputs that have a derivative; known once the formula was traced.
        is_tuple: whether the result is a tuple.
        is_linear: whether the gradient is linear in the cotangent. Every derivative is; a rule need not be.
        dtype: the one dtype that the constants of stable forms were fitted for; `None` without such forms.
        barrier: name of the Function that stops further differentiation; the inputs of a gradient pass through it.
        cotangent: name of the cotangent in the text.
    """

    name: str
    class_name: str
    summary: str
    names: list[str]
    constants: dict[str, Any]
    value: Flat
    surrogate: Flat
    reference: Flat
    kind: str = "derived"
    vjp_rule: Callable[..., list[Any]] | None = None
    jvp_rule: Callable[..., list[Any]] | None = None
    forms: Forms | None = None
    active_inputs: list[int] = field(default_factory=list)
    active_outputs: list[int] = field(default_factory=list)
    is_tuple: bool = False
    is_linear: bool = True
    dtype: torch.dtype | None = None
    barrier: str = ""
    cotangent: str = "g"

    @property
    def has_rule(self) -> bool:
        """Whether the derivative is given by a rule."""
        return self.vjp_rule is not None or self.jvp_rule is not None

    def run(self, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Compute the outputs, and the roots: the outputs of the function that is differentiated."""
        if self.has_rule:
            values = _tensors_of(self.value(*inputs))
            return values, values
        for i in self.active_inputs:
            inputs[i].requires_grad_()
        with torch.enable_grad(), as_written():
            roots = _tensors_of(self.surrogate(*inputs))
        if self.surrogate is self.value:
            return roots, roots
        with torch.no_grad(), as_written():
            return _tensors_of(self.value(*inputs)), roots

    def vjp(
        self,
        roots: Sequence[Tensor],
        values: Sequence[Tensor],
        inputs: Sequence[Tensor],
        cotangents: Sequence[Tensor],
        record: bool = False,
    ) -> list[Tensor | None]:
        """Compute the gradients of the active inputs; with `record`, differentiably."""
        if self.vjp_rule is not None:
            gradients = self.vjp_rule(cotangents, values, inputs)
            return [gradients[i] for i in self.active_inputs]
        live = [out for out in roots if out.requires_grad]
        active = [inputs[i] for i in self.active_inputs]
        return list(torch.autograd.grad(live, active, cotangents, create_graph=record, allow_unused=True))

    def jvp(self, inputs: Sequence[Tensor], tangents: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor | None]]:
        """Compute the outputs and their tangents.

        Without a jvp rule the tangent is the vjp transposed: v(g) = Jᵀ g is linear in g, so the vjp of v at any g,
        with the tangent t as its cotangent, is J t. It exists wherever PyTorch can differentiate a backward.
        """
        values, roots = self.run(inputs)
        if self.jvp_rule is not None:
            by_position = dict(zip(self.active_inputs, tangents, strict=True))
            return values, self.jvp_rule([by_position.get(i) for i in range(len(inputs))], values, inputs)
        like = values if self.vjp_rule is not None else [out for out in roots if out.requires_grad]
        gs = [torch.zeros_like(out).requires_grad_() for out in like if has_derivative(out)]
        with torch.enable_grad():
            gradients = self.vjp(roots, values, inputs, gs, record=True)
            pairs = [(gx, t) for gx, t in zip(gradients, tangents, strict=True) if gx is not None and gx.requires_grad]
        if not pairs:
            return values, [None for _ in gs]
        return values, list(torch.autograd.grad([gx for gx, _ in pairs], gs, [t for _, t in pairs], allow_unused=True))

    def outputs(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Compute the outputs at some tensors; those that depend on the active inputs require grad."""
        values, roots = self.run([x.detach().clone() for x in tensors])
        return [v.detach().requires_grad_(has_derivative(v)) for v in values] if self.has_rule else roots

    def cotangents(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Make one uninitialised tensor for each active output, and record which outputs these are."""
        outs = self.outputs(tensors)
        self.active_outputs = [i for i, out in enumerate(outs) if out.requires_grad]
        return [torch.empty_like(outs[i]) for i in self.active_outputs]


def _tensors_of(leaves: Sequence[Any]) -> list[Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def use_stable_forms(spec: FunctionSpec) -> None:
    """Compute value and gradient by the stable forms."""
    forms = spec.forms
    assert forms is not None
    spec.dtype = _dtype_of(forms)
    spec.value = spec.surrogate = lambda *inputs: [forms.value(*inputs)]
    spec.vjp_rule = lambda gs, outs, inputs: _gradients(forms, inputs, gs[0])


def backward_spec(spec: FunctionSpec) -> FunctionSpec:
    """Specify the gradient by stable forms as a Function of its own, whose derivative has stable forms, too.

    With f the formula, the gradient is g ∂f/∂xᵢ. For its cotangents vᵢ, the gradients are g Σⱼ vⱼ ∂²f/∂xᵢ∂xⱼ for xᵢ
    and Σⱼ vⱼ ∂f/∂xⱼ for g.
    """
    forms = spec.forms
    assert forms is not None
    assert forms.derivatives is not None
    partials = forms.derivatives

    def value(*inputs: Tensor) -> list[Any]:
        return _gradients(forms, inputs[:-1], inputs[-1])

    def vjp_rule(vs: Sequence[Tensor], outs: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Any]:
        *xs, g = inputs
        found = []
        for i in range(len(spec.names)):
            products = [v * g * partials[min(i, j), max(i, j)](*xs) for j, v in enumerate(vs)]
            found.append(functools.reduce(torch.add, products))
        along = [v * partials[(j,)](*xs) for j, v in enumerate(vs)]
        return [*found, functools.reduce(torch.add, along)]

    return FunctionSpec(
        name=f"{spec.name}_backward",
        class_name=f"{spec.class_name}Backward",
        summary=f"The gradient of {spec.class_name}, which has forms of its own, and so has its derivative.",
        names=[*spec.names, "g"],
        constants={},
        value=value,
        surrogate=value,
        reference=value,
        vjp_rule=vjp_rule,
        active_inputs=list(range(len(spec.names) + 1)),
        is_tuple=len(spec.names) > 1,
        dtype=_dtype_of(forms),
        barrier=f"{spec.class_name}Last",
        cotangent="v",
    )


def _dtype_of(forms: Forms) -> torch.dtype | None:
    """Dtype that stable forms were measured in; forms by rules alone have no certificate and hold in every dtype."""
    return getattr(torch, forms.certificates[0].dtype) if forms.certificates else None


def _gradients(forms: Forms, inputs: Sequence[Tensor], g: Tensor) -> list[Any]:
    assert forms.derivatives is not None
    return [g * forms.derivatives[(i,)](*inputs) for i in range(len(inputs))]
