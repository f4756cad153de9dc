"""Losses of logits whose gradients keep their digits where the model is sure and right.

PyTorch computes the gradient of a cross-entropy as p − 1 for the right class, and 1 − p rounds to 0 in float32 once p
is above 1 − 6·10⁻⁸, in bfloat16 above 0.998. Written as functions of the margin, the gradients are products of small
numbers and nothing cancels.

Floating-point logits of any dtype; smooth; derivatives of every order are those of the formulas. One loss for each
sample: reduce it as you like.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback.op import function


@function
def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """−log softmax(logits)[target], as log(1 + e^t) with t = log Σ_{j ≠ target} e^{logits_j} − logits_target.

    Args:
        logits: [..., classes].
        target: [...], integers from 0 to classes − 1.

    The gradient is −σ(t) for the target, and σ(t) times the softmax of the others for these.
    """
    if logits.shape[-1] == 1:
        return (logits - logits).squeeze(-1)
    place = target.unsqueeze(-1)
    others = torch.logsumexp(logits.scatter(-1, place, float("-inf")), -1)
    return -F.logsigmoid(logits.gather(-1, place).squeeze(-1) - others)


@function
def bce_with_logits(logits: Tensor, target: Tensor) -> Tensor:
    """y · log(1 + e^−x) + (1 − y) · log(1 + e^x) for a target y from 0 to 1, of the shape of the logits x.

    The gradient is (1 − y) σ(x) − y σ(−x), which σ(x) − y is not in floating point.
    """
    return -target * F.logsigmoid(logits) - (1 - target) * F.logsigmoid(-logits)
