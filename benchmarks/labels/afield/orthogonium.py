"""orthogonium: what is known of its custom functions.

All three are covered: `CholeskyOrthfn` and `CholeskyOrthfn_stable` by the layer that applies them, and `SOC_Function` by
itself, with a skew filter as an argument and with one that is fixed. Truth: float64 central differences. Double
backward, strided inputs and cotangents, two backwards, checkpoints, autocast, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.afield import stand_in
from labels.blind import bare
from labels.fresh import input_change_is_unnoticed
from labels.last import derivative_of_backward_is_wrong
from labels.unseen import argument_gets_none

PACKAGE = Package("orthogonium", "0.0.4", "robust networks")


def _orthogonal(stable):
    bare("orthogonium")
    from orthogonium.reparametrizers import BatchedCholeskyOrthogonalization

    torch.manual_seed(0)
    return BatchedCholeskyOrthogonalization((2, 3, 5), stable), (torch.randn(2, 3, 5),)


# First order right: differences.
def cholesky():
    return _orthogonal(False)


# First order right: differences.
def cholesky_stable():
    return _orthogonal(True)


def _exponential():
    bare("orthogonium", "orthogonium.legacy")
    stand_in("einops")
    from orthogonium.legacy.skew_ortho_conv import SOC_Function, transpose_filter

    torch.manual_seed(0)
    filters = torch.randn(2, 2, 3, 3)
    return SOC_Function, torch.randn(1, 2, 4, 4), 0.2 * (filters - transpose_filter(filters))


# The gradient of the image is right: differences. The filter gets none.
def exponential():
    function, x, filters = _exponential()
    return function, (x, filters)


# Right, twice: differences.
def exponential_of_fixed():
    function, x, filters = _exponential()
    return (lambda z: function.apply(z, filters.to(z.dtype))), (x,)


CALLS = (
    *(
        Call(
            make,
            bugs=(
                Bug(
                    "a triangular factor, saved in the forward, has no graph: the second derivative is silently wrong",
                    ("PB401", "PB404"),
                    partial(derivative_of_backward_is_wrong, make),
                ),
            ),
            judged={"PB413": (True, "in use: the backward raises after a forward of bfloat16 under autocast")},
        )
        for make in (cholesky, cholesky_stable)
    ),
    Call(
        exponential,
        bugs=(
            Bug(
                "the filter gets no gradient, though the output depends on it",
                ("PB107", "PB101", "PB604"),
                partial(argument_gets_none, exponential, 1),
            ),
            Bug(
                "the filter is kept on ctx: changing it in place silently changes the gradient",
                ("PB201", "PB209"),
                partial(input_change_is_unnoticed, exponential, 1),
            ),
        ),
        doubtful={"PB110": "what is not skew gets another gradient: the function is for skew filters"},
    ),
    Call(exponential_of_fixed, doubtful=dict.fromkeys(("PB201", "PB209"), "true of the filter, which is fixed")),
)
