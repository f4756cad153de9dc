"""Losses of logits whose gradients keep their digits where the model is sure and right.

PyTorch computes the gradient of a cross-entropy as p − 1 for the right class, and 1 − p rounds to 0 in float32 once p
is above 1 − 6·10⁻⁸, in bfloat16 above 0.998. Written as functions of the margin, the gradients are products of small
numbers and nothing cancels.

Floating-point logits of any dtype; smooth; derivatives of every order are those of the formulas. One loss for each
sample: reduce it as you like.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from pullback.catalog.rows import wide_log_softmax
from pullback.op import function


@function
def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """−log softmax(logits)[target]; the gradient is −(1 − p) for the target, with 1 − p a sum, and p for the others.

    Args:
        logits: [..., classes].
        target: [...], integers from 0 to classes − 1.

    Returns:
        [...], in the dtype of the logits. Computed as `log_softmax` of the catalogue is: rounded once.
    """
    logs = wide_log_softmax(logits, -1)
    return -logs.gather(-1, target.unsqueeze(-1)).squeeze(-1).to(logits.dtype)


@function
def bce_with_logits(logits: Tensor, target: Tensor) -> Tensor:
    """y · log(1 + e^−x) + (1 − y) · log(1 + e^x) for a target y from 0 to 1, of the shape of the logits x.

    The gradient is (1 − y) σ(x) − y σ(−x), which σ(x) − y is not in floating point.
    """
    return -target * F.logsigmoid(logits) - (1 - target) * F.logsigmoid(-logits)
