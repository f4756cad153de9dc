"""timm: what is known of its custom functions.

All five are in `timm.layers.activations_me`; no other part of timm has one. `import timm` needs torchvision, whose
wheel does not fit a CPU-only PyTorch, so that the packages `timm` and `timm.layers` are entered here without running
their `__init__` (neither takes part in the functions).

Truth of all calls: float64 central differences, with random cotangents, of values (1e-8) and of first-order gradients
of a non-linear function of the output (1e-9); mpmath at 30 points from -1e30 to 1e30 in float32 and float64 for Swish
and Mish; a look at the kinks and at infinities for the others; strided, empty, size-one and zero inputs and cotangents,
two backwards, in-place changes, leaks, checkpoint, autocast, half precision.
"""

import importlib.util
import sys
import types
from pathlib import Path

import torch

from labels import Call, Package

PACKAGE = Package("timm", "1.0.31", "vision")


def activations():
    """Return `timm.layers.activations_me`, without torchvision."""
    if "timm" not in sys.modules:
        folder = Path(importlib.util.find_spec("timm").origin).parent
        for name, path in (("timm", folder), ("timm.layers", folder / "layers")):
            module = types.ModuleType(name)
            module.__path__ = [str(path)]
            sys.modules[name] = module
    return importlib.import_module("timm.layers.activations_me")


def features():
    """Return what a convolution gives an activation: values on both sides of all kinks."""
    torch.manual_seed(0)
    return torch.randn(2, 4, 6, 6) * 2.5


def swish():
    # Right: the derivative is sigmoid(x) (1 + x (1 - sigmoid(x))), and the backward is plain, differentiable PyTorch.
    return activations().SwishAutoFn, (features(),)


def mish():
    # Right: checked against mpmath; the backward is plain, differentiable PyTorch.
    return activations().MishAutoFn, (features(),)


def hard_sigmoid():
    # Right: 1/6 inside; at the kinks (-3 and 3) it gives 1/6, a one-sided derivative.
    return activations().HardSigmoidAutoFn, (features(),)


def hard_swish():
    # Right: x/3 + 1/2 inside; at the kinks -1/2 and 3/2, one-sided derivatives; second derivative 1/3 inside.
    return activations().HardSwishAutoFn, (features(),)


def hard_mish():
    # Right: x + 1 in [-2, 0], where the forward is x^2/2 + x; at -2 it gives -1, a one-sided derivative.
    return activations().HardMishAutoFn, (features(),)


NAN = "where the input is NaN, the gradient is 0 (as the comparisons are false); the output is NaN all the same"
TAIL = "about x = -89 in float32 the true gradient, 2e-37, comes out as 0 or as 2e-39: nobody can tell"
HALF = "in half precision every step is rounded to half: about 1e-3 (float16) or 1e-2 (bfloat16) off, absolutely"

CALLS = (
    Call(swish, doubtful={"PB302": TAIL, "PB303": f"{TAIL}; {HALF}"}),
    Call(mish, doubtful={"PB302": TAIL, "PB303": f"{TAIL}; {HALF}"}),
    Call(hard_sigmoid, doubtful={"PB304": NAN, "PB302": NAN}),
    Call(hard_swish, doubtful={"PB304": NAN, "PB302": NAN, "PB303": HALF}),
    Call(hard_mish, doubtful={"PB304": NAN, "PB302": NAN, "PB303": HALF}),
)
