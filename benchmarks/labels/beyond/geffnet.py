"""geffnet: what is known of its custom functions.

All four are covered. The package is entered without its `__init__`, which needs torchvision. Truth: float64 central
differences of first and second derivatives; strided and expanded inputs and cotangents, two backwards, checkpoints,
changes in place, autocast, half precision.
"""

from importlib import import_module

import torch

from labels import Call, Package
from labels.blind import bare

PACKAGE = Package("geffnet", "1.0.2", "image classification")


def _function(name):
    bare("geffnet", "geffnet.activations")
    return getattr(import_module("geffnet.activations.activations_me"), name)


def _features():
    torch.manual_seed(0)
    return (3 * torch.randn(2, 3, 4, 4),)


# Right, twice: differences.
def swish():
    return _function("SwishJitAutoFn"), _features()


# Right, twice: differences.
def mish():
    return _function("MishJitAutoFn"), _features()


# Right, twice: differences. At the kinks it is the derivative of one side.
def hard_sigmoid():
    return _function("HardSigmoidJitAutoFn"), _features()


# Right, twice: differences. At the kinks it is the derivative of one side.
def hard_swish():
    return _function("HardSwishJitAutoFn"), _features()


CALLS = tuple(map(Call, (swish, mish, hard_sigmoid, hard_swish)))
