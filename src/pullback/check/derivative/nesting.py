"""Directional derivatives of order 2 and 3 by every nesting of forward and reverse mode.

A derivative Dⁿφ(x)[v₁, …, vₙ] of a scalar function is symmetric in its directions. So every nesting of forward and
reverse mode gives one number, whichever direction each takes, and the numeric derivative of the derivative one order
below, along the last direction, tells which of two nestings is right: no formula is needed.

A mode takes a scalar function to a scalar function: reverse mode φ to <∇φ, v>, forward mode φ to its tangent along v.
Each exists in several interfaces. In `torch.func` they nest freely, also for a batch of directions under `vmap`, as in
`jacfwd`, `jacrev` and `hessian`, and with `linearize`. Among `torch.autograd.grad` and dual numbers (`forward_ad`) only
one level may be of dual numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.autograd.forward_ad as fwad
from torch import Tensor

from pullback.check.derivative.oracle import SIGNIFICANT, Estimate, confirmed, differentiate_briefly
from pullback.check.trial import Raised, as_real, guarded, reseed

Tensors = Sequence[Tensor]
Interface = Literal["torch.func", "vmap", "linearize", "autograd"]
Scalar = Callable[..., Tensor]
"""Tensors to a real number that is differentiable in them."""

_AGREEMENT = 1e-7
"""Relative difference of two nestings that counts as rounding."""
_UNDECIDED = 0.1
"""Relative error bar above which a numeric derivative decides nothing."""


@dataclass(frozen=True, slots=True)
class Nesting:
    """A nesting of modes.

    Attributes:
        modes: "f" and "r", the outermost first: "fr" is forward over reverse.
        interface: what takes the derivatives.
    """

    modes: str
    interface: Interface

    def __str__(self) -> str:
        words = {"f": "forward", "r": "reverse"}
        return f"{' over '.join(words[mode] for mode in self.modes)} ({self.interface})"

    def derivative(self, phi: Scalar, inputs: Sequence[Tensor], directions: Sequence[Tensors]) -> Tensor:
        """Return the derivative of `phi` along one direction for each mode.

        Raises:
            Raised: if a mode is refused.
        """
        with guarded(str(self)), torch.enable_grad():
            if self.interface == "autograd":
                return self._by_autograd(phi, inputs, directions)
            return self._by_func(phi, inputs, directions)

    def _by_func(self, phi: Scalar, inputs: Sequence[Tensor], directions: Sequence[Tensors]) -> Tensor:
        for mode, v in zip(reversed(self.modes), directions, strict=True):
            phi = _TAKEN[self.interface, mode](phi, v)
        return phi(*inputs).detach()

    def _by_autograd(self, phi: Scalar, inputs: Sequence[Tensor], directions: Sequence[Tensors]) -> Tensor:
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        with fwad.dual_level():
            xs: Sequence[Tensor] = leaves
            if "f" in self.modes:
                along = directions[len(self.modes) - 1 - self.modes.index("f")]
                xs = [fwad.make_dual(x, v.clone()) for x, v in zip(leaves, along, strict=True)]
            value = phi(*xs)
            for mode, v in zip(reversed(self.modes), directions, strict=True):
                if mode == "f":
                    tangent = fwad.unpack_dual(value).tangent
                    value = torch.zeros_like(value) if tangent is None else tangent
                    xs = leaves
                elif value.requires_grad:
                    grads = torch.autograd.grad(value, list(xs), create_graph=True, materialize_grads=True)
                    value = _dot(grads, v)
                else:
                    value = torch.zeros_like(value)
            return value.detach().clone()


def nestings(order: int) -> list[Nesting]:
    """Every nesting of an order that PyTorch lets one write."""
    modes = ["".join(each) for each in itertools.product("rf", repeat=order)]
    by_autograd = [Nesting(each, "autograd") for each in modes if each.count("f") <= 1]
    return [*by_autograd, *(Nesting(each, "torch.func") for each in modes)]


def batched_nestings(order: int) -> list[Nesting]:
    """Every nesting of an order for batches of directions, as in `hessian`."""
    return [Nesting("".join(each), "vmap") for each in itertools.product("rf", repeat=order)]


def linearized(order: int) -> Nesting:
    """Forward over reverse mode by `linearize`, which traces: it takes a second."""
    return Nesting("f" + "r" * (order - 1), "linearize")


def _tangent(phi: Scalar, v: Tensors) -> Scalar:
    return lambda *xs: torch.func.jvp(phi, xs, tuple(v))[1]


def _slope(phi: Scalar, v: Tensors) -> Scalar:
    return lambda *xs: _dot(torch.func.grad(phi, argnums=tuple(range(len(xs))))(*xs), v)


def _linear_tangent(phi: Scalar, v: Tensors) -> Scalar:
    def tangent(*xs: Tensor) -> Tensor:
        _, push = torch.func.linearize(phi, *xs)
        along: Tensor = push(*v)
        return along

    return tangent


def _batched_tangent(phi: Scalar, v: Tensors) -> Scalar:
    """Return the second of two tangents, whose directions are in the last dimension."""
    batch = [torch.stack([2 * t, t], -1) for t in v]

    def tangent(*xs: Tensor) -> Tensor:
        along: Tensor = torch.func.vmap(lambda *vs: torch.func.jvp(phi, xs, vs)[1], in_dims=-1)(*batch)
        return along[1]

    return tangent


def _batched_slope(phi: Scalar, v: Tensors) -> Scalar:
    """Return the slope along v, from the second of two cotangents."""

    def slope(*xs: Tensor) -> Tensor:
        out, pull = torch.func.vjp(phi, *xs)[:2]
        grads = torch.func.vmap(pull)(torch.stack([2 * torch.ones_like(out), torch.ones_like(out)]))
        return _dot([g[1] for g in grads], v)

    return slope


_TAKEN: dict[tuple[Interface, str], Callable[[Scalar, Tensors], Scalar]] = {
    ("torch.func", "f"): _tangent,
    ("torch.func", "r"): _slope,
    ("vmap", "f"): _batched_tangent,
    ("vmap", "r"): _batched_slope,
    ("linearize", "f"): _linear_tangent,
    ("linearize", "r"): _slope,
}


def _dot(a: Tensors, b: Tensors) -> Tensor:
    terms = [(x.conj() * y).real.sum() if x.is_complex() else (x * y).sum() for x, y in zip(a, b, strict=True)]
    return terms[0] if len(terms) == 1 else torch.stack(terms).sum()


def sizes(values: Tensors) -> list[float]:
    """Return the largest modulus in each tensor, at least 1."""
    return [max(1.0, float(value.abs().max())) if value.numel() else 1.0 for value in values]


def composite(function: Callable[..., Tensors], inputs: Tensors, weights: Tensors, units: Sequence[float]) -> Scalar:
    """Return a real function of `inputs`, of which no derivative of order up to 3 skips a part of a rule.

    It is Σ w · exp(z) for z = f(ψ(x)) in its unit, with ψ(x) = x + (x − x₀)²/4 about the inputs x₀. Its derivatives
    by z are not 0, so the cotangent of f depends on x; and so does its tangent, by ψ. Yet ψ(x₀) is x₀, so that zeros
    and ties stay.

    Args:
        function: returns one tensor for each weight.
        inputs: the x₀.
        weights: the w, of the shapes of the results.
        units: of the results: their `sizes`, so that no z is large.
    """
    # In forward mode, an operand without a tangent costs a call of Python code in each operation: so there are few.

    def phi(*xs: Tensor) -> Tensor:
        reseed()
        moved = [torch.add(x, (x - x0).square(), alpha=0.25) for x, x0 in zip(xs, inputs, strict=True)]
        terms = []
        for out, w, unit in zip(function(*moved), weights, units, strict=True):
            z = out if unit == 1 else out / unit
            term = (w.conj() * z.exp()).sum()
            terms.append(term.real if term.is_complex() else term)
        return terms[0] if len(terms) == 1 else torch.stack(terms).sum()

    return phi


@dataclass(frozen=True)
class Nested:
    """The derivative of one order by every nesting, and numerically.

    Attributes:
        values: of the nestings that gave one.
        refused: why the others gave none.
        expected, bar: the numeric derivative of one order below; NaN if there is none.
        scale: size of what was added up.
    """

    values: dict[Nesting, float]
    refused: dict[Nesting, Raised] = field(default_factory=dict)
    expected: float = torch.nan
    bar: float = torch.nan
    scale: float = 0.0

    def is_right(self, value: float) -> bool:
        """Whether a value is the numeric one, as far as that is known."""
        return abs(value - self.expected) <= self._tolerance

    @property
    def is_decided(self) -> bool:
        """Whether the numeric derivative is known well enough to judge."""
        return SIGNIFICANT * self.bar <= _UNDECIDED * max(self.scale, abs(self.expected))

    @property
    def wrong(self) -> list[Nesting]:
        """The nestings that give another number than the numeric one; none if that is not known."""
        known = math.isfinite(self.expected)
        return [n for n, value in self.values.items() if known and not self.is_right(value)]

    @property
    def right(self) -> list[Nesting]:
        """The nestings that give the numeric one."""
        return [n for n, value in self.values.items() if self.is_right(value)]

    @property
    def _tolerance(self) -> float:
        return SIGNIFICANT * self.bar + _AGREEMENT * (self.scale + abs(self.expected))


def compare_nestings(
    phi: Scalar,
    inputs: Tensors,
    directions: Sequence[Tensors],
    below: Nesting,
    tried: Sequence[Nesting],
    few_samples: bool = False,
) -> Nested:
    """Take the derivative of `phi` along as many directions as its order, by nestings and numerically.

    Args:
        phi: the function; it changes none of its arguments.
        inputs: where.
        directions: one direction of all inputs for each order.
        below: a nesting of one order below that is right, whose numeric derivative settles who is right.
        tried: the nestings, of this order.
        few_samples: take few samples of the numeric derivative where they suffice.

    Raises:
        Raised: if the nesting below is refused.
    """
    values, refused = {}, {}
    for nesting in tried:
        try:
            values[nesting] = float(nesting.derivative(phi, inputs, directions))
        except Raised as error:
            refused[nesting] = error
    if not values:
        return Nested({}, refused)
    *inner, last = directions

    def curve(t: float) -> Tensor:
        moved = [(x + t * v).to(x.dtype) for x, v in zip(inputs, last, strict=True)]
        return as_real(below.derivative(phi, moved, inner)).reshape(1)

    size = float(curve(0.0).abs()) + float(phi(*inputs).abs())
    scale = size + max((abs(value) for value in values.values() if math.isfinite(value)), default=0.0)

    def judged(estimate: Estimate) -> Nested:
        known = bool(estimate.valid) and not bool(estimate.kink)
        expected, bar = (float(estimate.low), float(estimate.bar)) if known else (torch.nan, torch.nan)
        return Nested(values, refused, expected, bar, scale)

    def disagrees(estimate: Estimate) -> bool:
        found = judged(estimate)
        return len(found.right) < len(values) or not found.is_decided

    if few_samples and not disagrees(brief := differentiate_briefly(curve)):
        return judged(brief)
    return judged(confirmed(curve, disagrees, list(inputs)))
