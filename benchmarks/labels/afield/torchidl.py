"""torchidl: what is known of its custom functions.

`ImplicitFunction`, `ImplicitFunctionTriu` and `ImplicitFunctionInf` are covered by themselves, with a small tolerance
in place of 3e-6; the last with a matrix that is scaled, and one that is not. Truth: float64 central differences. Double
backward, strided inputs and cotangents, two backwards, checkpoints, autocast, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong, raises_in_autocast, raises_in_checkpoint
from labels.outside import argument_is_changed

PACKAGE = Package(
    "torchidl",
    "0.0.4",
    "implicit models",
    ("tqdm==4.67.1", "cvxpy==1.7.3", "scipy==1.17.1", "scikit-learn==1.9.1", "matplotlib==3.11.2"),
)

SETUP = "torch.func does not take it: it has no setup_context"
FOUND = "as exact as the iteration, which ends at a tolerance"
START = "the solution does not depend on where the iteration starts, but for its tolerance"
SHARED = "the tolerances are attributes of the class: those that were set last count"
DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407", "PB408", "PB409", "PB801", "PB803"), SETUP),
    **dict.fromkeys(("PB303", "PB501", "PB302"), FOUND),
    **dict.fromkeys(("PB120",), SHARED),
    **dict.fromkeys(("PB205", "PB107", "PB704"), START),
    "PB305": "where an entry is 0 the solution has a kink",
}


def _solved(name, scale):
    from torchidl import implicit_function

    function = getattr(implicit_function, name)
    function.set_parameters(mitr=300, grad_mitr=300, tol=1e-12, grad_tol=1e-12, kappa=0.99)
    torch.manual_seed(0)
    a, b, u = scale * torch.randn(4, 4), torch.randn(4, 3), torch.randn(3, 5)
    return function, (a, b, torch.zeros(4, 5), u)


# Right, twice: differences.
def plain():
    return _solved("ImplicitFunction", 0.17)


# First order right: differences.
def triangular():
    return _solved("ImplicitFunctionTriu", 0.17)


# Right, twice: differences.
def inside_ball():
    return _solved("ImplicitFunctionInf", 0.07)


# Wrong.
def outside_ball():
    return _solved("ImplicitFunctionInf", 0.7)


def _autocast(make):
    return Bug(
        "after a forward under autocast the backward multiplies two dtypes, and raises",
        ("PB413", "PB119"),
        partial(raises_in_autocast, make, "same dtype"),
    )


CALLS = (
    Call(plain, bugs=(_autocast(plain),), doubtful=DOUBTFUL),
    Call(
        triangular,
        bugs=(
            _autocast(triangular),
            Bug(
                "the forward sets the lower triangle of its argument to 0 in place, and autograd is not told: silently",
                ("PB202", "PB209"),
                partial(argument_is_changed, triangular),
            ),
            Bug(
                "it changes its argument: under a checkpoint the backward raises",
                ("PB411", "PB202"),
                partial(raises_in_checkpoint, triangular, "inplace operation", "Recomputed values"),
            ),
        ),
        doubtful={
            **DOUBTFUL,
            **dict.fromkeys(("PB401", "PB404", "PB604"), "of entries that the forward sets to 0"),
        },
    ),
    Call(inside_ball, bugs=(_autocast(inside_ball),), doubtful=DOUBTFUL),
    Call(
        outside_ball,
        bugs=(
            _autocast(outside_ball),
            Bug(
                "the forward scales a matrix whose norm is too large, and the backward does not know",
                ("PB101",),
                partial(first_is_wrong, outside_ball, 0),
            ),
        ),
        doubtful={**DOUBTFUL, **dict.fromkeys(("PB401", "PB404", "PB604", "PB209"), "of the matrix that was scaled")},
    ),
)
