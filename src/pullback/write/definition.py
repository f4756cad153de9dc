"""Definition of a Function to write: value and derivative as functions of tensors alone, and names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.bind.forms import Forms
from pullback.dtypes import has_derivative
from pullback.numerics.written import as_written

Flat = Callable[..., list[Any]]


@dataclass(slots=True)
class Definition:
    """A formula and its derivative, for calls like one example.

    Attributes:
        name: of the target.
        class_name: of the Function.
        summary: the author's description, in one paragraph; may be empty.
        names: of the tensors.
        fixed: the plain arguments that the text is specialised on, by name.
        value: tensors to the leaves of the result.
        soft: the function that is differentiated instead, with the same results.
        pull: of a rule: cotangents, outputs, tensors to gradients.
        push: of a rule: tangents, outputs, tensors to tangents.
        kind: see `Op.kind`.
        forms: the stable forms that replace the formula.
        wanted: positions of the tensors that get a gradient.
        is_tuple: whether the result is a tuple.
        is_linear: whether the gradient is linear in the cotangent, as every derivative is; a rule need not be.
        original: the op, on tensors alone, for comparison.
        only: the one dtype that its numbers were chosen for, if they were.
        last: for a gradient the Function that ends its derivatives; the inputs pass through it.
        letter: name of a cotangent.
        connected: positions of the outputs with a derivative, once the definition has been traced.
    """

    name: str
    class_name: str
    summary: str
    names: list[str]
    fixed: dict[str, Any]
    value: Flat
    soft: Flat
    original: Flat
    kind: str = "derived"
    pull: Callable[..., list[Any]] | None = None
    push: Callable[..., list[Any]] | None = None
    forms: Forms | None = None
    wanted: list[int] = field(default_factory=list)
    is_tuple: bool = False
    is_linear: bool = True
    letter: str = "g"
    only: torch.dtype | None = None
    last: str = ""
    connected: list[int] = field(default_factory=list)

    def run(self, given: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the outputs, and the outputs of the function that is differentiated, each as a list of tensors."""
        if self.pull is not None or self.push is not None:
            values = tensors_of(self.value(*given))
            return values, values
        for i in self.wanted:
            given[i].requires_grad_()
        with torch.enable_grad(), as_written():
            roots = tensors_of(self.soft(*given))
        if self.soft is self.value:
            return roots, roots
        with torch.no_grad(), as_written():
            return tensors_of(self.value(*given)), roots

    def pulled(
        self,
        roots: Sequence[Tensor],
        values: Sequence[Tensor],
        given: Sequence[Tensor],
        gs: Sequence[Tensor],
        record: bool = False,
    ) -> list[Tensor | None]:
        """Return the gradients of the wanted tensors."""
        if self.pull is not None:
            found = self.pull(gs, values, given)
            return [found[i] for i in self.wanted]
        live = [out for out in roots if out.requires_grad]
        return _torch.pulled(live, [given[i] for i in self.wanted], gs, record=record)

    def pushed(self, given: Sequence[Tensor], tangents: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return the outputs and their tangents.

        Without a jvp rule these are the vjp transposed, which exists wherever PyTorch can differentiate a backward.
        """
        values, roots = self.run(given)
        if self.push is not None:
            moved = dict(zip(self.wanted, tangents, strict=True))
            return values, self.push([moved.get(i) for i in range(len(given))], values, given)
        like = values if self.pull is not None else [out for out in roots if out.requires_grad]
        gs = [torch.zeros_like(out).requires_grad_() for out in like if has_derivative(out)]
        with torch.enable_grad():
            gradients = self.pulled(roots, values, given, gs, record=True)
            pairs = [(x, t) for x, t in zip(gradients, tangents, strict=True) if x is not None and x.requires_grad]
        ours, theirs = [x for x, _ in pairs], [t for _, t in pairs]
        return values, _torch.pulled(ours, gs, theirs) if pairs else [None for _ in gs]

    def outputs(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the real outputs at some tensors, which require grad where they depend on the wanted ones."""
        given = [x.detach().clone() for x in tensors]
        values, roots = self.run(given)
        if self.pull is not None or self.push is not None:
            return [v.detach().requires_grad_(has_derivative(v)) for v in values]
        return roots

    def cotangents(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return tensors like the differentiable outputs, and record which these are."""
        outs = self.outputs(tensors)
        self.connected = [i for i, out in enumerate(outs) if out.requires_grad]
        return [torch.empty_like(outs[i]) for i in self.connected]


def tensors_of(leaves: Sequence[Any]) -> list[Tensor]:
    """Return the tensors among some leaves."""
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]
