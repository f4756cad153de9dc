"""Formulas that kernels are measured on, with the Function written by hand and inputs of a given size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import formulas_by_hand as by_hand
import torch
import torch.nn.functional as F
from formulas_by_hand import EPS, HIGH, LOW, STEEP
from torch import Tensor

import pullback

HIDDEN = 64


def gate(x):
    return torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x))


def log_sigmoid(x):
    return torch.log(torch.sigmoid(x))


def mish(x):
    return x * torch.tanh(F.softplus(x))


def swiglu(x, y):
    return x * torch.sigmoid(x) * y


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))


def focal(x, y):
    p = torch.sigmoid(x)
    return -y * (1 - p).square() * F.logsigmoid(x) - (1 - y) * p.square() * F.logsigmoid(-x)


def decay(x, y):
    return x * torch.exp(-y)


def sin_squared(x):
    return torch.sin(x).square()


def lsq(x, s):
    return torch.round(torch.clamp(x / s, LOW, HIGH)) * s


def soft_lsq(x, s):
    """The derivative replaces rounding by the identity, also in the slope by s (Esser et al., 2020)."""
    v = torch.clamp(x / s, LOW, HIGH)
    return (v + (torch.round(v) - v).detach()) * s


def spike(u):
    return (u >= 0).to(u.dtype)


def soft_spike(u):
    return 0.5 + torch.atan(math.pi / 2 * STEEP * u) / math.pi


def rms_norm(x, w):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * w


def linear_cross_entropy(x, w, k):
    return F.cross_entropy(x @ w.t(), k)


def linear_relu6(x, w, b):
    return F.relu6(F.linear(x, w, b))


def one(n: int) -> tuple[Tensor, ...]:
    return (_live(n),)


def two(n: int) -> tuple[Tensor, ...]:
    return _live(n), _live(n, seed=1)


def logits_and_target(n: int) -> tuple[Tensor, ...]:
    return _live(n), (_live(n, seed=1) > 0).float()


def and_scale(n: int) -> tuple[Tensor, ...]:
    return _live(n), torch.tensor(0.25, requires_grad=True)


def rows(n: int) -> tuple[Tensor, ...]:
    columns = min(n, 1024)
    return _live(n // columns, columns), _live(columns, seed=1)


def classes(n: int) -> tuple[Tensor, ...]:
    """n logits, of rows and classes about as many."""
    count = 2 ** (int(math.log2(n)) // 2)
    k = torch.randint(n // count, (count,), generator=torch.Generator().manual_seed(2))
    return _live(count, HIDDEN), _live(n // count, HIDDEN, seed=1), k


def layer(n: int) -> tuple[Tensor, ...]:
    """What gives n numbers, about as many rows as columns."""
    columns = 2 ** (int(math.log2(n)) // 2)
    return _live(n // columns, HIDDEN), _live(columns, HIDDEN, seed=1), _live(columns, seed=2)


def _live(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@dataclass(frozen=True)
class Case:
    """A formula and its peers.

    Attributes:
        formula: computes the value.
        hand: the Function written by hand.
        make: inputs, for a size.
        soft: the function that is differentiated, where it is not the formula.
    """

    name: str
    formula: Callable[..., Tensor]
    hand: type[torch.autograd.Function]
    make: Callable[[int], tuple[Tensor, ...]] = one
    soft: Callable[..., Tensor] | None = None

    @property
    def label(self) -> str:
        """The name, and the kind of op unless it is derived."""
        return f"{self.name} (relaxed)" if self.soft is not None else self.name

    @property
    def is_one_input(self) -> bool:
        """Whether it reads and writes as much as `torch.sigmoid`."""
        return self.make is one

    @property
    def is_searched(self) -> bool:
        """Whether a search for stable forms takes seconds: the op is pointwise and derived."""
        return self.soft is None and self.make in (one, two)

    def op(self, **options: Any) -> pullback.Op:
        """Return the op, with options of `pullback.function`."""
        if self.soft is not None:
            options.pop("stable", None)
            return pullback.function(derivative_of=self.soft, **options)(self.formula)
        return pullback.function(**options)(self.formula)

    def eager(self, *inputs: Tensor) -> Tensor:
        """Compute the formula under PyTorch's autograd, without a Function."""
        if self.soft is None:
            return self.formula(*inputs)
        soft = self.soft(*inputs)
        return soft + (self.formula(*inputs) - soft).detach()

    def inputs(self, n: int, device: str) -> tuple[Tensor, ...]:
        """Return inputs of n elements, leaves that require grad where they are no integers or targets."""
        return tuple(x.detach().to(device).requires_grad_(x.requires_grad) for x in self.make(n))


CASES = [
    Case("σ(x)·rsqrt(1+exp x)", gate, by_hand.Gate),
    Case("log σ(x)", log_sigmoid, by_hand.LogSigmoid),
    Case("mish", mish, by_hand.Mish),
    Case("SwiGLU", swiglu, by_hand.SwiGLU, two),
    Case("GELU", gelu, by_hand.GELU),
    Case("focal loss", focal, by_hand.Focal, logits_and_target),
    Case("x·exp(−y)", decay, by_hand.Decay, two),
    Case("sin² x", sin_squared, by_hand.SinSquared),
    Case("LSQ", lsq, by_hand.LSQ, and_scale, soft_lsq),
    Case("spike", spike, by_hand.Spike, one, soft_spike),
    Case("RMSNorm", rms_norm, by_hand.RMSNorm, rows),
    Case("linear + cross-entropy", linear_cross_entropy, by_hand.LinearCrossEntropy, classes),
]

KEEPING = [*CASES, Case("linear + ReLU6", linear_relu6, by_hand.LinearReLU6, layer)]
"""Cases for the memory of residuals alone: their time is that of matrix products."""
