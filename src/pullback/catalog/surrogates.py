"""Surrogate spikes: 1 if the membrane potential reaches the threshold, else 0, with a surrogate for the derivative.

Shape and dtypes: elementwise in `u`, the potential minus the threshold, of any shape, float64, float32, float16 and
bfloat16. The value is exactly 0 or 1: `u ≥ 0` fires, NaN does not. The derivative is that of the *primitive*, a smooth
step from 0 to `area`, which is a function of its own here. So the area under the surrogate is `area`, whatever its
steepness; with their default parameters the surrogates of common libraries have areas from 0.02 to 50, a hidden factor
of the learning rate. `alpha` and `area` may be tensors, which then have the gradients of the primitive.

Kinks: derivatives are finite everywhere, and 0 where u is infinite or NaN. Second order: derivatives of the primitive;
each surrogate has its maximum at u = 0, and its derivative is 0 there, also where it has a kink.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.op import function

FloatOrTensor = float | Tensor


def arctan_step(u: Tensor, alpha: FloatOrTensor = 2.0, area: FloatOrTensor = 1.0) -> Tensor:
    """area · (1/2 + atan(π α u / 2) / π), the primitive of `spike_arctan`."""
    return area * (0.5 + torch.atan(_scaled(u, math.pi / 2 * alpha)) / math.pi)


def fast_sigmoid_step(u: Tensor, alpha: FloatOrTensor = 2.0, area: FloatOrTensor = 1.0) -> Tensor:
    """area · (1/2 + α u / (2 + 2 α|u|)), the primitive of `spike_fast_sigmoid`."""
    v = _scaled(u, alpha)
    tail = 0.5 / (1 + v.abs())  # the step's distance from its limit: no cancellation, no inf/inf
    # 1 − tail = 1/2 + v/(2 + 2v) for v > 0. At 0 autograd takes 0 for the derivative of |v|: the step's tangent
    # replaces it there, with the right slope 1/2.
    return area * torch.where(v == 0, 0.5 + 0.5 * v, torch.where(v > 0, 1 - tail, tail))


def triangle_step(u: Tensor, alpha: FloatOrTensor = 1.0, area: FloatOrTensor = 1.0) -> Tensor:
    """area · (1/2 + c − c|c|/2) with c = α u clamped to ±1, the primitive of `spike_triangle`."""
    c = F.hardtanh(_scaled(u, alpha))  # unlike that of clamp, its derivative at the bounds is 0, as the surrogate is
    return area * (0.5 + c - 0.5 * c * c.abs())


def sigmoid_step(u: Tensor, alpha: FloatOrTensor = 4.0, area: FloatOrTensor = 1.0) -> Tensor:
    """area · σ(α u), the primitive of `spike_sigmoid`."""
    # σ's own backward, y(1 − y), cancels where σ nears 1.
    return area * torch.exp(F.logsigmoid(_scaled(u, alpha)))


@function(derivative_of=arctan_step)
def spike_arctan(u: Tensor, alpha: FloatOrTensor = 2.0, area: FloatOrTensor = 1.0) -> Tensor:
    """Spike; derivative area · (α/2) / (1 + (π α u / 2)²).

    Reference: Fang et al., "Incorporating learnable membrane time constant", 2021.
    """
    return _fires(u)


@function(derivative_of=fast_sigmoid_step)
def spike_fast_sigmoid(u: Tensor, alpha: FloatOrTensor = 2.0, area: FloatOrTensor = 1.0) -> Tensor:
    """Spike; derivative area · (α/2) / (1 + α|u|)².

    Reference: Zenke, Ganguli, "SuperSpike", 2018 (there without the factor α/2, so that its area is 2/α).
    """
    return _fires(u)


@function(derivative_of=triangle_step)
def spike_triangle(u: Tensor, alpha: FloatOrTensor = 1.0, area: FloatOrTensor = 1.0) -> Tensor:
    """Spike; derivative area · α · max(0, 1 − α|u|); its own derivative is 0 at the three corners.

    Reference: Bellec et al., "Long short-term memory and learning-to-learn in networks of spiking neurons", 2018
    (there γ · max(0, 1 − |u|) with γ = 0.3: `area=0.3`).
    """
    return _fires(u)


@function(derivative_of=sigmoid_step)
def spike_sigmoid(u: Tensor, alpha: FloatOrTensor = 4.0, area: FloatOrTensor = 1.0) -> Tensor:
    """Spike; derivative area · α · σ(α u) · σ(−α u).

    Reference: Neftci, Mostafa, Zenke, "Surrogate gradient learning in spiking neural networks", 2019.
    """
    return _fires(u)


def _scaled(u: Tensor, alpha: FloatOrTensor) -> Tensor:
    """α u with finite numbers in place of ±∞ and NaN, so that derivatives are 0 there, and not inf/inf."""
    return torch.nan_to_num(alpha * torch.nan_to_num(u))


def _fires(u: Tensor) -> Tensor:
    return (u >= 0).to(u.dtype)
