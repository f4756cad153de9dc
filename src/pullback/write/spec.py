"""FunctionSpec of a Function to write: value and derivative as functions of tensors alone, and names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.dtypes import has_derivative
from pullback.stable.forms import Forms
from pullback.stable.written import as_written

Flat = Callable[..., list[Any]]


@dataclass(slots=True)
class FunctionSpec:
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


def use_stable_forms(d: FunctionSpec) -> None:
    """Have value and gradient computed by the stable forms."""
    forms = d.forms
    assert forms is not None
    d.only = _dtype_of(forms)
    d.value = d.soft = lambda *given: [forms.value(*given)]
    d.pull = lambda gs, outs, given: _gradients(forms, given, gs[0])


def barrier_class(name: str) -> str:
    """Return the source of a Function that is the identity and raises where it is differentiated.

    `once_differentiable` would not do: it looks at cotangents alone, and where these are constants the next derivative
    is lost without a word.
    """
    return _LAST.format(name=name)


_LAST = '''class {name}Last(torch.autograd.Function):
    """The identity, which is not differentiated: the forms of {name} end with the second derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        raise NotImplementedError("{name} has no third derivative")
'''


def _dtype_of(forms: Forms) -> torch.dtype | None:
    """Return the dtype that forms were measured in, where they hold in that alone."""
    return getattr(torch, forms.certificates[0].dtype) if forms.certificates else None


def _gradients(forms: Forms, given: Sequence[Tensor], g: Tensor) -> list[Any]:
    assert forms.derivatives is not None
    return [g * forms.derivatives[(i,)](*given) for i in range(len(given))]


def backward_spec(d: FunctionSpec) -> FunctionSpec:
    """Return the gradient by stable forms as a separate function, with a derivative by forms."""
    forms = d.forms
    assert forms is not None
    n = range(len(d.names))

    def value(*given: Tensor) -> list[Any]:
        return _gradients(forms, given[:-1], given[-1])

    def pull(vs: Sequence[Tensor], outs: Sequence[Tensor], given: Sequence[Tensor]) -> list[Any]:
        assert forms.derivatives is not None
        *xs, g = given
        found = []
        for i in n:
            turned = [v * g * forms.derivatives[min(i, j), max(i, j)](*xs) for j, v in enumerate(vs)]
            found.append(functools.reduce(torch.add, turned))
        along = [v * forms.derivatives[(j,)](*xs) for j, v in enumerate(vs)]
        return [*found, functools.reduce(torch.add, along)]

    return FunctionSpec(
        name=f"{d.name}_backward",
        class_name=f"{d.class_name}Backward",
        summary=f"The gradient of {d.class_name}, which has forms of its own, and so has its derivative.",
        names=[*d.names, "g"],
        fixed={},
        value=value,
        soft=value,
        original=value,
        pull=pull,
        wanted=list(range(len(d.names) + 1)),
        is_tuple=len(d.names) > 1,
        letter="v",
        only=_dtype_of(forms),
        last=f"{d.class_name}Last",
    )
