"""compressai: what is known of its custom functions.

Both `Function`s that it has (`LowerBoundFunction`, `QReLU`) are covered, and the modules around the first.
Importing the whole package needs torchvision, torch-geometric, pandas and others, none of which the functions need: an
empty module is put in the place of the package, and its submodules are the real ones.
"""

import importlib.util
import sys
import types

import torch

from labels import Call, Package

PACKAGE = Package("compressai", "1.2.8", "learned compression")


def _without_init(name):
    """Lets the submodules of a package be imported without running its `__init__`."""
    if name not in sys.modules:
        module = types.ModuleType(name)
        module.__path__ = list(importlib.util.find_spec(name).submodule_search_locations)
        sys.modules[name] = module


BOUND = {
    "PB101": "by design the gradient below the bound is kept where it moves x towards the bound",
    "PB109": "by design the gradient depends on the sign of the cotangent",
    "PB401": "by design: what is differentiated twice is a surrogate that depends on the sign of the cotangent",
    "PB505": "a tensor without dimensions gets one, since the bound has one",
    "PB105": "half precision is promoted to float32 by the bound; the gradient comes back in half precision",
}


def lower_bound_scale():
    """As in GaussianConditional. Gradient compared with the rule of its docstring; strides, ties, in-place changes tried."""
    _without_init("compressai")
    from compressai.ops.bound_ops import LowerBoundFunction

    torch.manual_seed(0)
    return LowerBoundFunction, (torch.rand(2, 4, 4, 4, requires_grad=True), torch.tensor([0.11]))


def lower_bound_likelihood():
    """As in EntropyModel, on a module. As for `lower_bound_scale`."""
    _without_init("compressai")
    from compressai.ops import LowerBound

    torch.manual_seed(0)
    return LowerBound(1e-9), (torch.rand(2, 4, 4, 4, requires_grad=True),)


def non_negative():
    """As in GDN: above its bound equal to differences, first and second derivative; below the bound a surrogate."""
    _without_init("compressai")
    from compressai.ops import NonNegativeParametrizer

    torch.manual_seed(0)
    return NonNegativeParametrizer(), (0.3 * torch.eye(4) + 0.1 * torch.rand(4, 4),)


def gdn():
    """A normalisation whose parameters go through the lower bound: first and second derivative in x equal differences."""
    _without_init("compressai")
    from compressai.layers import GDN

    torch.manual_seed(0)
    return GDN(4), (torch.randn(2, 4, 4, 4, requires_grad=True),)


def inverse_gdn():
    """As for `gdn`."""
    _without_init("compressai")
    from compressai.layers import GDN

    torch.manual_seed(0)
    return GDN(4, inverse=True), (torch.randn(2, 4, 4, 4, requires_grad=True),)


def qrelu():
    """As in models/video/google.py: equals the formula of the paper that it cites, inside and outside of the range."""
    _without_init("compressai")
    from compressai.layers.layers import QReLU

    torch.manual_seed(0)
    return QReLU, (128 + 150 * torch.randn(2, 4, 4, 4), 8, 100)


CALLS = (
    Call(lower_bound_scale, "other", doubtful=BOUND),
    Call(lower_bound_likelihood, "other", doubtful=BOUND),
    Call(non_negative, "other", doubtful=BOUND),
    Call(gdn),
    Call(inverse_gdn),
    Call(
        qrelu,
        "other",
        doubtful={
            "PB101": "by design: outside of the range the gradient is a generalised Gaussian",
            "PB302": "by design far outside of the range the surrogate underflows to 0",
            "PB301": "the derivative of the surrogate (a second derivative) is NaN far outside of the range, as inf * 0",
            "PB401": "the derivative of the surrogate (a second derivative) is NaN far outside of the range, as inf * 0",
            "PB304": "the derivative of the surrogate (a second derivative) is NaN far outside of the range, as inf * 0",
        },
    ),
)
