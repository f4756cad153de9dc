"""pythae: what is known of its custom functions.

All three are covered. The package is entered without its `__init__`, which needs pydantic. Truth: float64 central
differences of first and second derivatives, numerical integrals of the density and of its derivative, for dimensions of
2 to 10; strided inputs and cotangents, two backwards, checkpoints, changes in place, autocast, half precision.
"""

from functools import partial
from importlib import import_module

import torch

from labels import Bug, Call, Package
from labels.beyond import second_is_wrong_in_single
from labels.blind import bare

PACKAGE = Package("pythae", "0.1.2", "autoencoders")

NARROW = "NumPy has no bfloat16: the forward says so"
ZERO = "at zero the derivative is NaN; the package adds one to what it gives"
SINGLE = "value and gradient are known to float32's digits, whatever is given"
EMPTY = "the package has no distribution without a batch"
CANCELLED = "an alternating sum cancels where the scale is small"
IMPLICIT = "by design: the implicit gradient of a sample, whose value is given"
VIEW = "the output is the input: changing it in place raises, with PyTorch's message on views"


def _module(name):
    bare("pythae", "pythae.models", "pythae.models.pvae", "pythae.models.svae")
    return import_module("pythae.models." + name)


# Right, twice: differences.
def bessel():
    torch.manual_seed(0)
    return _module("svae.svae_utils").ModifiedBesselFn, (1.5, 1 + 5 * torch.rand(4, 1))


# First order right: integrals.
def normaliser():
    torch.manual_seed(0)
    return _module("pvae.pvae_utils")._log_normalizer_closed_grad, (0.3 + torch.rand(5, 1), 1.0, 2)


# First order right: integrals.
def normaliser_of_five():
    torch.manual_seed(0)
    return _module("pvae.pvae_utils")._log_normalizer_closed_grad, (0.3 + torch.rand(5, 1), 0.7, 5)


# Its implicit gradient, right: integrals.
def radius():
    torch.manual_seed(0)
    function = _module("pvae.pvae_utils").impl_rsample
    return function, (0.3 + torch.rand(1, 5, 1), 0.5 + torch.rand(5, 1), 1.0, 3)


def _cut(make):
    return Bug(
        "what the backward reads is detached: the second derivative is silently wrong",
        ("PB401", "PB402", "PB404", "PB604"),
        partial(second_is_wrong_in_single, make),
    )


NORMALISER = {
    **dict.fromkeys(("PB105", "PB303"), SINGLE),
    **dict.fromkeys(("PB301", "PB302"), CANCELLED),
    **dict.fromkeys(("PB503", "PB119"), EMPTY),
}
CALLS = (
    Call(bessel, doubtful={**dict.fromkeys(("PB119", "PB413"), NARROW), **dict.fromkeys(("PB301", "PB304"), ZERO)}),
    *(Call(make, bugs=(_cut(make),), doubtful=NORMALISER) for make in (normaliser, normaliser_of_five)),
    Call(
        radius,
        "other",
        doubtful={
            **dict.fromkeys(("PB101", "PB107", "PB110", "PB106", "PB401", "PB402", "PB404", "PB604"), IMPLICIT),
            **dict.fromkeys(("PB105", "PB303"), SINGLE),
            **dict.fromkeys(("PB503", "PB119"), EMPTY),
            "PB207": VIEW,
            "PB209": "the sample is the package's own, and is kept as a copy",
        },
    ),
)
