"""torchspd: what is known of its custom function.

`_SpectralCore` is covered by six functions of a matrix, one of them with equal eigenvalues. Truth: float64 central
differences. Double backward, strided inputs and cotangents, two backwards, checkpoints, changes in place, autocast.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong, raises_in_autocast

PACKAGE = Package("torchspd", "0.1.2", "symmetric positive definite matrices")

ONCE = "once_differentiable: backward() raises, torch.autograd.grad may leave the term out"
EDGE = "a function of matrices that are positive definite"
NEAR = "where two eigenvalues are near each other, a quotient of differences has half of the digits"
DOUBTFUL = {
    **dict.fromkeys(("PB401", "PB402", "PB403", "PB404", "PB604"), ONCE),
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    **dict.fromkeys(("PB301", "PB302", "PB304", "PB305"), EDGE),
    "PB303": NEAR,
    "PB105": "LAPACK has no half precision, and PyTorch says so",
}


def _matrix():
    torch.manual_seed(0)
    a = torch.randn(2, 3, 3, dtype=torch.float64)
    return a @ a.mT + torch.eye(3, dtype=torch.float64)


# First order right: differences.
def logarithm():
    from torchspd import logm

    return logm, (_matrix(),)


# First order right: differences, and so it is where all eigenvalues are equal.
def logarithm_of_identity():
    from torchspd import logm

    return logm, (2 * torch.eye(3, dtype=torch.float64),)


# First order right: differences.
def square_root():
    from torchspd import sqrtm

    return sqrtm, (_matrix(),)


# First order right: differences.
def inverse_square_root():
    from torchspd import invsqrtm

    return invsqrtm, (_matrix(),)


# First order right: differences.
def own_function():
    from torchspd import apply_quad

    return (lambda a: apply_quad(a, torch.log1p, lambda x: 1 / (1 + x))), (_matrix(),)


# First order right: differences.
def power():
    from torchspd import powm

    return (lambda a: powm(a, 0.3)), (_matrix(),)


# Wrong.
def power_of_identity():
    from torchspd import powm

    return (lambda a: powm(a, 0.3)), (2 * torch.eye(3, dtype=torch.float64),)


def _autocast(make):
    return Bug(
        "under autocast the output is bfloat16, and the backward raises",
        ("PB413", "PB119", "PB105"),
        partial(raises_in_autocast, make, "expected scalar type", "same dtype"),
    )


CALLS = (
    *(
        Call(
            make,
            bugs=(_autocast(make),),
            doubtful=DOUBTFUL,
            judged={"PB101": (True, "of two equal eigenvalues: as of the identity, see below")},
        )
        for make in (logarithm, logarithm_of_identity, square_root, inverse_square_root, own_function, power)
    ),
    Call(
        power_of_identity,
        bugs=(
            Bug(
                "where two eigenvalues are equal, the quotient of differences is taken for 0: silently, no gradient",
                ("PB101", "PB302", "PB303", "PB305", "PB401", "PB404"),
                partial(first_is_wrong, power_of_identity, 0),
            ),
            _autocast(power_of_identity),
        ),
        doubtful=DOUBTFUL,
    ),
)
