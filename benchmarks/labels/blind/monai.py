"""monai: what is known of its custom functions.

Those are covered that run without the package's compiled extension. Truth: float64 central differences of values and
gradients (7e-11), and the formulas; half precision, strided and zero inputs, changes in place.
"""

import torch

from labels import Call, Package

PACKAGE = Package("monai", "1.6.1", "medical images")

GUIDED = "by design: guided backpropagation passes positive gradients only"
INFINITE = "of an input that is infinite"


# First and second order right: differences (7e-11).
def swish():
    from monai.networks.blocks.activation import SwishImplementation

    torch.manual_seed(0)
    return SwishImplementation, (3 * torch.randn(2, 3, 4),)


# Right, for what it is for: the gradient passes where both input and gradient are positive.
def guided_relu():
    from monai.visualize.gradient_based import _AutoGradReLU

    torch.manual_seed(0)
    return _AutoGradReLU, (torch.randn(2, 3, 4),)


CALLS = (
    Call(swish, doubtful={"PB301": INFINITE}),
    Call(guided_relu, "other", doubtful={"PB101": GUIDED, "PB109": GUIDED, "PB401": GUIDED, "PB301": INFINITE}),
)
