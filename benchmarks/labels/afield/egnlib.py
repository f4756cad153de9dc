"""egnlib: what is known of its custom functions.

`_SpectralMap` is covered by three of its functions, of matrices made symmetric first, as the package does; `_SqrtPair`
as well. Truth: float64 central differences. Double backward, strided inputs and cotangents, two backwards, checkpoints,
changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import second_is_wrong

PACKAGE = Package("egnlib", "0.2.2", "symmetric positive definite matrices")

NEAR = "where two eigenvalues are near each other, a quotient of differences has half of the digits"
EDGE = "a function of matrices that are positive definite"
NARROW = "under autocast the product of the forward is rounded to half precision; the gradient is right"
DOUBTFUL = {
    "PB303": NEAR,
    "PB413": NARROW,
    **dict.fromkeys(("PB301", "PB302", "PB304", "PB305"), EDGE),
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
}


def _matrices():
    torch.manual_seed(0)
    a = torch.randn(2, 3, 3)
    return (a @ a.mT + 0.3 * torch.eye(3),)


# First order right: differences.
def logarithm():
    from egn import functional

    return (lambda x: functional.logm(functional.sym(x))), _matrices()


# First order right: differences.
def power():
    from egn import functional

    return (lambda x: functional.powm(functional.sym(x), 0.3)), _matrices()


# First order right: differences.
def clamped():
    from egn import functional

    return (lambda x: functional.reeig(functional.sym(x), 0.9)), _matrices()


# First order right: differences.
def pair():
    from egn import functional

    return (lambda x: functional.sqrtm_pair(functional.sym(x))), _matrices()


CALLS = tuple(
    Call(
        make,
        bugs=(
            Bug(
                "the backward uses eigenvalues and eigenvectors of the forward: the second derivative is silently wrong",
                ("PB401", "PB402", "PB404", "PB604"),
                partial(second_is_wrong, make),
            ),
        ),
        doubtful=DOUBTFUL,
    )
    for make in (logarithm, power, clamped, pair)
)
