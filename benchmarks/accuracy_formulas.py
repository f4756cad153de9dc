"""Formulas that `accuracy.py` measures, as people write them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

ABOVE_0 = (2.0**-149, math.inf)
UNIT = (2.0**-149, 1 - 2.0**-24)
"""The float32 numbers between 0 and 1."""
SHARE = (2.0**-149, 1.0)


@dataclass(frozen=True)
class Case:
    """A formula.

    Attributes:
        name: of the formula.
        text: its source for `pullback.stable.term.parse`.
        domain: bounds of variables; a variable without bounds takes all numbers.
        builtin: PyTorch's function for it, if there is one; takes the variables in alphabetical order.
    """

    name: str
    text: str
    domain: dict[str, tuple[float, float]] = field(default_factory=dict)
    builtin: Callable[..., Any] | None = None


FORMULAS = (
    Case("log-sigmoid", "log(sigmoid(x))", builtin=F.logsigmoid),
    Case("log-sigmoid, exp", "log(1/(1+exp(-x)))", builtin=F.logsigmoid),
    Case("softplus", "log(1+exp(x))", builtin=F.softplus),
    Case("sigmoid", "sigmoid(x)", builtin=torch.sigmoid),
    Case("sigmoid, exp", "1/(1+exp(-x))", builtin=torch.sigmoid),
    Case("tanh", "tanh(x)", builtin=torch.tanh),
    Case("silu", "x*sigmoid(x)", builtin=F.silu),
    Case("mish", "x*tanh(log(1+exp(x)))", builtin=F.mish),
    Case("gelu", "0.5*x*(1+erf(x*SQRT1_2))", builtin=F.gelu),
    Case("log1mexp", "log(1-exp(-x))", {"x": ABOVE_0}),
    Case("cosm1/x²", "(1-cos(x))/x**2"),
    Case("expm1/x", "(exp(x)-1)/x"),
    Case("√ difference", "sqrt(x+1)-sqrt(x)", {"x": ABOVE_0}),
    Case("logit", "log(x/(1-x))", {"x": UNIT}, torch.logit),
    Case("log-cosh", "log((exp(x)+exp(-x))/2)"),
    Case("softsign", "x/(1+abs(x))", builtin=F.softsign),
    Case("seed activation", "sigmoid(x)*rsqrt(1+exp(x))"),
    Case("entropy", "-x*log(x)", {"x": ABOVE_0}, torch.special.entr),
    Case("binary entropy", "-x*log(x)-(1-x)*log(1-x)", {"x": UNIT}),
    Case("Gaussian", "exp(-(x*x)/2)"),
    Case("sinc", "sin(x)/x"),
    Case("tanhshrink", "x-tanh(x)", builtin=F.tanhshrink),
    Case("asinh", "log(x+sqrt(x*x+1))", builtin=torch.asinh),
    Case("hypot difference", "sqrt(x*x+1)-x"),
    Case("Gumbel cdf", "exp(-exp(-x))"),
)
"""25 common formulas of one variable, on which the prototype of the search was measured, too."""


def _bce(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(x, y, reduction="none")


def _softmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.stack([x, y]), 0)[0]


SEVERAL = (
    Case("softplus·y", "log(1+exp(x))*y", builtin=lambda x, y: F.softplus(x) * y),
    Case("log-add-exp", "log(exp(x)+exp(y))", builtin=torch.logaddexp),
    Case("log-sub-exp", "log(exp(x)-exp(y))"),
    Case("x log y", "x*log(y)", {"y": ABOVE_0}, torch.special.xlogy),
    Case("x log1p y", "x*log(1+y)", {"y": (-1 + 2.0**-24, math.inf)}, torch.special.xlog1py),
    Case("BCE with logits", "-(y*log(sigmoid(x))+(1-y)*log(1-sigmoid(x)))", {"y": (0.0, 1.0)}, _bce),
    Case(
        "focal loss", "-(y*(1-sigmoid(x))**2*log(sigmoid(x))+(1-y)*sigmoid(x)**2*log(1-sigmoid(x)))", {"y": (0.0, 1.0)}
    ),
    Case("KL, of a ratio", "p*log(p/q)", {"p": SHARE, "q": SHARE}),
    Case("KL, of logs", "p*(log(p)-log(q))", {"p": SHARE, "q": SHARE}),
    Case("SwiGLU", "x*sigmoid(x)*y", builtin=lambda x, y: F.silu(x) * y),
    Case("GeGLU", "0.5*x*(1+erf(x*SQRT1_2))*y", builtin=lambda x, y: F.gelu(x) * y),
    Case("softmax of two", "exp(x)/(exp(x)+exp(y))", builtin=_softmax),
    Case("hypot", "sqrt(x*x+y*y)", builtin=torch.hypot),
    Case("angle", "atan(y/x)", {"x": ABOVE_0}, lambda x, y: torch.atan2(y, x)),
    Case("Student-t", "0.5*(v+1)*log(1+t*t/v)", {"v": ABOVE_0}),
    Case("Gaussian nll", "0.5*(s+(x-m)**2*exp(-s))"),
    Case("share", "x/(x+y)", {"x": ABOVE_0, "y": ABOVE_0}),
    Case("difference of exps", "exp(x)-exp(y)"),
    Case("difference of squares", "x*x-y*y"),
    Case("log of a ratio", "log(x/y)", {"x": ABOVE_0, "y": ABOVE_0}),
)
"""20 formulas of two or three variables, from losses, activations and likelihoods."""
