"""spd-learn: what is known of its custom functions.

Seven of thirteen are covered; the others are eigenvalue functions of the same two helpers. They are called on symmetric
matrices, for which they are. Truth: float64 central differences of first (below 1e-8) and second derivatives; equal
eigenvalues, strided inputs, frozen arguments, autocast, changes in place.
"""

from functools import partial
from importlib import import_module

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.fresh import raises_in_autocast, second_is_wrong

PACKAGE = Package(
    "spd-learn",
    "0.2.1",
    "positive definite matrices",
    ("pyriemann", "array-api-compat", "array-api-extra", "einops"),
)

NARROW = "PyTorch's own decomposition refuses bfloat16"
CLAMPED = "at a clamped eigenvalue the gradient is that of one side"
EQUAL = "of nearly equal eigenvalues, some digits are lost"
DOUBTFUL = {"PB305": CLAMPED, "PB303": EQUAL, "PB302": CLAMPED, "PB301": NARROW}


def _function(name, module="spd_learn.functional.core"):
    bare("spd_learn")
    import_module("spd_learn.functional")
    return getattr(import_module(module), name)


def _covariance(seed=0):
    torch.manual_seed(seed)
    x = torch.randn(2, 4, 4)
    return x @ x.mT / 4 + 0.5 * torch.eye(4)


def _of_symmetric(function, *rest):
    def apply(x):
        return function.apply((x + x.mT) / 2, *rest)

    return apply, (_covariance(),)


# First order right: differences (3e-10).
def logarithm():
    return _of_symmetric(_function("matrix_log"))


# First order right: differences (3e-10).
def both_roots():
    return _of_symmetric(_function("matrix_sqrt_inv"))


# First order right: differences (7e-10).
def clamped():
    return _of_symmetric(_function("clamp_eigvals"), 0.7)


# First order right in matrix and exponent: differences (3e-10).
def power():
    function = _function("matrix_power")

    def apply(x, exponent):
        return function.apply((x + x.mT) / 2, exponent)

    return apply, (_covariance(), torch.tensor(0.3))


# First order right: differences (7e-11).
def log_cholesky():
    return _of_symmetric(_function("cholesky_log", "spd_learn.functional.metrics.log_cholesky"))


# First order right: differences (2e-10).
def exp_cholesky():
    torch.manual_seed(0)
    lower = torch.randn(2, 4, 4).tril()
    return _function("cholesky_exp", "spd_learn.functional.metrics.log_cholesky"), (lower,)


# First order right in both: differences (3e-10). Equal matrices get a gradient of 0, where there is a kink.
def bures_wasserstein():
    distance = _function("bures_wasserstein_distance", "spd_learn.functional.metrics.bures_wasserstein")

    def apply(a, b):
        return distance((a + a.mT) / 2, (b + b.mT) / 2)

    return apply, (_covariance(), _covariance(seed=1))


def _second(make):
    return Bug(
        "the second derivative is silently wrong: the decomposition is an intermediate that is saved",
        ("PB401", "PB404"),
        partial(second_is_wrong, make),
    )


def _autocast(make):
    return Bug(
        "the backward raises after a forward under autocast, whose products are bfloat16",
        ("PB413", "PB119"),
        partial(raises_in_autocast, make, "expected scalar type"),
    )


CALLS = (
    *(
        Call(make, bugs=(_second(make), _autocast(make)), doubtful=DOUBTFUL)
        for make in (logarithm, both_roots, clamped)
    ),
    Call(
        power,
        bugs=(_second(power), _autocast(power)),
        doubtful={**DOUBTFUL, "PB209": "the exponent is kept on ctx, and nobody changes it in between"},
    ),
    Call(log_cholesky, bugs=(_second(log_cholesky),), doubtful={**DOUBTFUL, "PB413": NARROW}),
    Call(exp_cholesky, bugs=(_second(exp_cholesky), _autocast(exp_cholesky))),
    Call(bures_wasserstein, bugs=(_second(bures_wasserstein), _autocast(bures_wasserstein)), doubtful=DOUBTFUL),
)
