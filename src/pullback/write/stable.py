"""The stable forms of an op: its value, and its gradient as a separate Function with forms for its derivative."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.bind.forms import Forms
from pullback.write.definition import Definition


def use_forms(d: Definition) -> None:
    """Have value and gradient computed by the stable forms."""
    forms = d.forms
    assert forms is not None
    d.only = _dtype_of(forms)
    d.value = d.soft = lambda *given: [forms.value(*given)]
    d.pull = lambda gs, outs, given: _gradients(forms, given, gs[0])


def last_class(name: str) -> str:
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


def backward_of(d: Definition) -> Definition:
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

    return Definition(
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
