"""pytorch-toolbelt: what is known of its custom functions.

All three are covered: Swish, Mish, and the normalisation of the bi-tempered loss, by itself and within the loss. The
package is entered without its `__init__`, which needs OpenCV and torchvision. Truth: float64 central differences of
first and second derivatives, and the implicit derivative of the normalisation at 50 iterations; strided and expanded
inputs and cotangents, checkpoints, changes in place, half precision.
"""

from importlib import import_module

import torch

from labels import Call, Package
from labels.blind import bare

PACKAGE = Package("pytorch-toolbelt", "0.8.0", "losses and activations")

ITERATED = "the forward iterates five times; the gradient is that of what it comes near, right to five digits"
HALVED = "the forward halves an interval five times, and so has steps; the gradient is that of the exact number"


def _module(name):
    bare("pytorch_toolbelt", "pytorch_toolbelt.losses", "pytorch_toolbelt.modules")
    return import_module(f"pytorch_toolbelt.{name}")


def _logits():
    torch.manual_seed(0)
    return torch.randn(4, 6)


# Right, twice: differences.
def swish():
    torch.manual_seed(0)
    return _module("modules.activations").SwishFunction, (2.5 * torch.randn(2, 3, 4, 4),)


# Right, twice: differences.
def mish():
    torch.manual_seed(0)
    return _module("modules.activations").MishFunction, (2.5 * torch.randn(2, 3, 4, 4),)


# Right, twice, as far as it is iterated: differences (5e-6).
def heavy_tail():
    return _module("losses.bitempered_loss").ComputeNormalization, (_logits(), 1.2, 5)


# Right at 50 halvings; at five, as the package calls it, the value itself is 3 % off.
def finite_support():
    return _module("losses.bitempered_loss").ComputeNormalization, (4 * _logits(), 0.7, 5)


# Right, twice, as far as it is iterated: differences (1e-6).
def loss():
    function = _module("losses.bitempered_loss").bi_tempered_logistic_loss
    labels = torch.tensor([0, 2, 5, 1])
    return (lambda x: function(x, labels, 0.8, 1.2)), (_logits(),)


CALLS = (
    Call(swish),
    Call(mish),
    Call(heavy_tail, doubtful=dict.fromkeys(("PB303", "PB101"), ITERATED)),
    Call(
        finite_support,
        doubtful=dict.fromkeys(("PB101", "PB303", "PB305", "PB109", "PB401", "PB404", "PB604", "PB301"), HALVED),
    ),
    Call(loss, doubtful=dict.fromkeys(("PB303", "PB101"), ITERATED)),
)
