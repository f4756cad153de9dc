"""pysdtw: what is known of its custom function.

`SoftDTWcpu` is covered. Truth: central differences, of float32. Batches of sequences of different lengths, bands, double
backward, float64, strided inputs and cotangents, two backwards, checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong, gradients
from labels.last import derivative_of_backward_is_wrong

PACKAGE = Package("pysdtw", "0.0.5", "alignment of sequences", ("numba==0.68.1", "llvmlite==0.50.0"))

NARROW = "NumPy has no bfloat16, and numba no half precision: the forward says so"
DOUBTFUL = {
    **dict.fromkeys(("PB119", "PB413"), NARROW),
    "PB408": "a vectorised backward raises: NumPy takes no batch",
    "PB406": "torch.func does not take it: it has no setup_context",
}


def _distances(n, m, lengths, gamma, band):
    from pysdtw.sdtw_cpu import SoftDTWcpu

    torch.manual_seed(0)
    return SoftDTWcpu, (torch.rand(2, n, m), torch.tensor(lengths), gamma, band)


# First order right, to float32: differences.
def of_sequences():
    from pysdtw import SoftDTW

    torch.manual_seed(0)
    return SoftDTW(gamma=1.0, use_cuda=False), (torch.randn(2, 5, 3), torch.randn(2, 4, 3))


# First order right, to float32: differences.
def banded():
    return _distances(6, 6, [[6, 6], [6, 6]], 0.5, 2.0)


# Wrong.
def of_different_lengths():
    return _distances(6, 5, [[6, 5], [4, 3]], 0.5, 0.0)


# Wrong.
def banded_of_different_lengths():
    return _distances(8, 6, [[8, 6], [4, 6]], 0.5, 2.0)


def float64_is_float32():
    """Whether the gradient of the sum, at float64 distances, is made of float32 numbers."""
    function, (distances, *rest) = banded()
    x = distances.double().requires_grad_()
    (found,) = torch.autograd.grad(function.apply(x, *rest).sum(), x)
    return found.dtype == torch.float64 and torch.equal(found, found.float().double())


def _cut(make):
    return Bug(
        "the backward goes through NumPy: the second derivative is silently wrong",
        ("PB401", "PB402", "PB604", "PB404"),
        partial(derivative_of_backward_is_wrong, make),
    )


ROUNDED = dict.fromkeys(("PB303", "PB101", "PB105"), "value and gradient are rounded to float32")
NARROWED = Bug(
    "value and gradient of float64 distances are rounded to float32",
    ("PB303", "PB101", "PB105"),
    float64_is_float32,
)

OUTSIDE = False, "a variant of fewer steps than the lengths say wrote outside of its memory, and the example is blamed"

CALLS = (
    Call(of_sequences, bugs=(_cut(of_sequences),), doubtful={**DOUBTFUL, **ROUNDED}),
    Call(banded, bugs=(_cut(banded), NARROWED), doubtful=DOUBTFUL, judged={"PB002": OUTSIDE}),
    Call(
        of_different_lengths,
        bugs=(
            Bug(
                "the backward of the shorter sequences starts with the distance of a point behind their ends",
                ("PB101",),
                partial(first_is_wrong, of_different_lengths, 0, 0.05, torch.float64, 1e-2),
            ),
            _cut(of_different_lengths),
        ),
        doubtful={**DOUBTFUL, "PB303": ROUNDED["PB303"], "PB105": ROUNDED["PB105"]},
        judged={"PB002": OUTSIDE},
    ),
    Call(
        banded_of_different_lengths,
        bugs=(
            Bug(
                "the backward lays the band by the padded lengths, the forward by the true ones: NaN",
                ("PB101", "PB301"),
                lambda: bool(gradients(banded_of_different_lengths, torch.float32)[0].isnan().any()),
            ),
        ),
        doubtful={**DOUBTFUL, **dict.fromkeys(("PB401", "PB402", "PB604", "PB404"), "there is no first order either")},
    ),
)
