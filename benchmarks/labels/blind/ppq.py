"""ppq: what is known of its custom functions.

Those are covered that run without the package's CUDA kernels. Truth: the formulas; the gradient is that of the output.
Half precision, strided inputs, double backward, changes in place.
"""

import torch

from labels import Call, Package
from labels.blind import bare

PACKAGE = Package("ppq", "0.6.6", "quantisation", ("tqdm",))

NONES = "there are more Nones than arguments, which PyTorch drops"
SCALES = "by design: scales and offsets are observed, not trained"
PASSED = {"PB103": NONES, "PB107": SCALES, "PB101": SCALES}


def _linear():
    bare("ppq", "ppq.quantization", "ppq.quantization.qfunction", "ppq.utils")
    from ppq.core import RoundingPolicy
    from ppq.quantization.qfunction import linear

    return linear, RoundingPolicy.ROUND_HALF_EVEN


def _features():
    torch.manual_seed(0)
    return torch.randn(2, 3, 4)


# Straight-through, right.
def rounding():
    _, policy = _linear()
    from ppq.utils.round import PPQTensorRoundImpl

    return PPQTensorRoundImpl, (3 * _features(), policy)


# Straight-through, right.
def tensorwise():
    linear, policy = _linear()
    return linear.TensorwiseLinearQuantImpl, (_features(), torch.tensor([0.1]), torch.tensor([0.0]), -8, 7, policy)


# Straight-through, right.
def channelwise():
    linear, policy = _linear()
    scales = torch.tensor([0.1, 0.2, 0.05])
    return linear.ChannelwiseLinearQuantImpl, (_features(), scales, torch.zeros(3), 1, -8, 7, policy)


CALLS = (
    Call(rounding, "other"),
    Call(tensorwise, "other", doubtful=PASSED),
    Call(channelwise, "other", doubtful=PASSED),
)
