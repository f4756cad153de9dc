"""torchquantum: what is known of its custom function.

Truth: the forward rounds, and the gradient is that of the output, cut off three deviations from its mean.
"""

import torch

from labels import Bug, Call, Package
from labels.blind import bare

PACKAGE = Package("torchquantum", "0.1.8", "quantum circuits")

CUT = "by design: the gradient is cut off where it deviates"
TWICE = "double backward raises, with PyTorch's message on changes in place; the gradient is an estimate"


# NaN: a gate passes the one parameter that it has, and one number has no deviation.
def clifford_angle():
    bare("torchquantum", "torchquantum.util", "torchquantum.util.quantization")
    from torchquantum.util.quantization.clifford_quantization import CliffordQuantizer

    return CliffordQuantizer.quantize_sse, (torch.tensor([[0.7]]),)


def gradient_is_nan():
    function, (angle,) = clifford_angle()
    angle.requires_grad_()
    function(angle).sum().backward()
    return bool(angle.grad.isnan().all())


CALLS = (
    Call(
        clifford_angle,
        "other",
        bugs=(
            Bug(
                "the gradient is NaN: it is cut off by the deviation of a single number",
                ("PB301", "PB101", "PB504", "PB505"),
                gradient_is_nan,
            ),
        ),
        doubtful={"PB109": CUT, "PB403": TWICE, "PB119": TWICE, "PB401": TWICE},
    ),
)
