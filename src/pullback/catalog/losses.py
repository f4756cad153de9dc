"""Losses of logits whose gradients stay accurate where the model is confident and right.

PyTorch computes the gradient of a cross-entropy as p − 1 for the right class, and p rounds to 1 in float32 once it is
above 1 − 3·10⁻⁸, half the distance of 1 from the number below, and in bfloat16 above 0.998. Written as functions of the
margin, the gradients are products of small numbers, and nothing cancels.

Shape and dtypes: floating-point logits of any dtype; one loss per sample, not reduced. Kinks: none. Second order:
derivatives of every order are those of the formulas.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from pullback.catalog.rows import wide_log_softmax
from pullback.op import function


@function
def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """−log p with p = softmax(logits)[target]; gradient p − 1 for the target, and its probability for each other class.

    1 − p is computed as the sum of the other probabilities.

    Args:
        logits: [..., classes].
        target: [...], integers from 0 to classes − 1.

    Returns:
        [...], in the dtype of the logits, rounded once as in `log_softmax` of the catalogue.
    """
    logs = wide_log_softmax(logits, -1)
    return -logs.gather(-1, target.unsqueeze(-1)).squeeze(-1).to(logits.dtype)


@function
def bce_with_logits(logits: Tensor, target: Tensor) -> Tensor:
    """y · log(1 + e^−x) + (1 − y) · log(1 + e^x) for logits x and targets y from 0 to 1, of the same shape.

    The gradient is (1 − y) σ(x) − y σ(−x), and the second derivative σ(x) σ(−x). The usual form of the gradient,
    σ(x) − y, cancels where the model is right.
    """
    return -target * F.logsigmoid(logits) - (1 - target) * F.logsigmoid(-logits)
