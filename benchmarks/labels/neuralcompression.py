"""neuralcompression: what is known of its custom functions.

Both `Function`s that it has (`_LowerBound`, in its three modes, and `_ClampMin`) are covered.
Importing the package's `functional` and `layers` needs lpips, fvcore and others, none of which the functions need:
empty modules are put in the place of the packages, and their submodules are the real ones.
"""

import importlib.util
import sys
import types

import torch

from labels import Bug, Call, Package

PACKAGE = Package("neuralcompression", "0.3.1", "learned compression")


def _without_init(*names):
    """Lets the submodules of packages be imported without running their `__init__`."""
    for name in names:
        if name not in sys.modules:
            module = types.ModuleType(name)
            module.__path__ = list(importlib.util.find_spec(name).submodule_search_locations)
            sys.modules[name] = module


def _lower_bound():
    _without_init("neuralcompression", "neuralcompression.functional")
    from neuralcompression.functional._lower_bound import lower_bound

    return lower_bound


def _call(gradient, bound_is_differentiable=False):
    function = _lower_bound()

    def lower_bound(x, bound):
        return function(x, bound, gradient)

    torch.manual_seed(0)
    bound = torch.tensor(0.1, requires_grad=bound_is_differentiable)
    return lower_bound, (torch.randn(4, 6, requires_grad=True), bound)


def disconnected():
    """Documented to be torch.maximum, gradient included; compared with torch.maximum under autograd."""
    return _call("disconnected", True)


def identity():
    """Compared with its documentation: the cotangent goes through; strides, in-place changes, leaks, twice tried."""
    return _call("identity")


def identity_if_towards():
    """Compared with its documentation, with cotangents of both signs; as for `identity`."""
    return _call("identity_if_towards")


def clamp_min():
    """Its backward never works: it returns one gradient for two arguments."""
    _without_init("neuralcompression", "neuralcompression.layers")
    from neuralcompression.layers._simplified_gdn import _ClampMin

    torch.manual_seed(0)
    return _ClampMin, (torch.randn(3, 3, requires_grad=True), 0.0)


def simplified_gdn():
    """The module that uses _ClampMin (on .data, so that no gradient goes there): both derivatives equal differences."""
    _without_init("neuralcompression", "neuralcompression.layers")
    from neuralcompression.layers._simplified_gdn import SimplifiedGDN

    torch.manual_seed(0)
    return SimplifiedGDN(3), (torch.randn(2, 3, 4, 4, requires_grad=True),)


# Proofs


def disconnected_returns_x():
    lower_bound = _lower_bound()
    torch.manual_seed(0)
    x = torch.randn(4, 6, requires_grad=True)
    weights = torch.randn(4, 6)
    (found,) = torch.autograd.grad(lower_bound(x, torch.tensor(0.1), "disconnected"), x, weights)
    (expected,) = torch.autograd.grad(torch.maximum(x, torch.tensor(0.1)), x, weights)
    return torch.equal(found, x) and not torch.allclose(found, expected, atol=1e-2)


def disconnected_forgets_bound():
    lower_bound = _lower_bound()
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    bound = torch.tensor(0.1, requires_grad=True)
    (expected,) = torch.autograd.grad(torch.maximum(x, bound).sum(), bound)
    (found,) = torch.autograd.grad(lower_bound(x, bound, "disconnected").sum(), bound, allow_unused=True)
    return found is None and expected.item() > 1


def clamp_min_raises():
    function, arguments = clamp_min()
    try:
        function.apply(*arguments).sum().backward()
    except RuntimeError as error:
        return "incorrect number of gradients" in str(error)
    return False


BOUND = {
    "PB107": "documented: in this mode the bound gets no gradient",
    "PB101": "by design",
    "PB109": "by design the gradient depends on the sign of the cotangent",
    "PB401": "by design: what is differentiated twice is a surrogate",
}

CALLS = (
    Call(
        disconnected,
        bugs=(
            Bug(
                "the backward returns x for the gradient: neither 0 below the bound nor dependent on the cotangent",
                ("PB101", "PB111", "PB109"),
                disconnected_returns_x,
            ),
            Bug("the bound gets None, where torch.maximum gives it a gradient", ("PB107",), disconnected_forgets_bound),
        ),
    ),
    Call(identity, "other", doubtful={k: BOUND[k] for k in ("PB107", "PB101", "PB401")}),
    Call(identity_if_towards, "other", doubtful=BOUND),
    Call(
        clamp_min,
        "other",
        bugs=(
            Bug("the backward raises: it returns one gradient for two arguments", ("PB103", "PB119"), clamp_min_raises),
        ),
        doubtful={"PB109": "by design the gradient depends on the sign of the cotangent", "PB101": "by design"},
    ),
    Call(simplified_gdn, doubtful={"PB807": "the module clamps its parameters through .data, on purpose"}),
)
