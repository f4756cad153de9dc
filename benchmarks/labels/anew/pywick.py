"""pywick: what is known of its custom functions.

All four are covered: swish and mish, plain and scripted. Truth: float64 central differences of first and second order.
Strided inputs and cotangents, two backwards, checkpoints, changes in place, other dtypes, autocast.
"""

import torch

from labels import Call, Package
from labels.anew import bare

PACKAGE = Package("pywick", "0.6.5", "training tools")


def _module(name):
    import importlib

    bare("pywick")
    bare("pywick.functions")
    torch.manual_seed(0)
    return importlib.import_module(f"pywick.functions.{name}")


# Right, twice: differences.
def swish():
    return _module("activations_autofn").SwishAutoFn, (torch.randn(3, 4),)


# Right, twice: differences.
def mish():
    return _module("activations_autofn").MishAutoFn, (torch.randn(3, 4),)


# Right, twice: differences.
def scripted_swish():
    return _module("activations_jit").SwishJitAutoFn, (torch.randn(3, 4),)


# Right, twice: differences.
def scripted_mish():
    return _module("activations_jit").MishJitAutoFn, (torch.randn(3, 4),)


CALLS = tuple(map(Call, (swish, mish, scripted_swish, scripted_mish)))
