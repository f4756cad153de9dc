"""tslearn: what is known of its custom function.

Truth: the recursion of soft-DTW in plain PyTorch and float64, its gradients and second derivatives; series of one step,
empty batches, small and large distances, strided inputs, frozen arguments, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import far, raises, second_is_wrong

PACKAGE = Package("tslearn", "0.10.0", "time series", ("numba", "llvmlite"))

NARROW = "NumPy has no bfloat16, and Numba no float16: refused"
DIGITS = "value and gradient of float64 inputs are computed in float32, see above"
VIEW = "the output is a view: changing it in place raises, with PyTorch's message on views"
DOUBTFUL = {"PB413": NARROW, "PB207": VIEW, "PB101": DIGITS, "PB301": DIGITS, "PB302": DIGITS}


# To float32 right at first order (1e-6): the recursion in float64.
def unconstrained():
    from tslearn.metrics.soft_dtw_loss_pytorch import _SoftDTWLossPyTorch

    torch.manual_seed(0)
    return _SoftDTWLossPyTorch, (torch.rand(2, 4, 5), 0.5)


# As before; what is outside of the band becomes infinite, in the caller's distances.
def band():
    from tslearn.metrics.soft_dtw_loss_pytorch import _SoftDTWLossPyTorch

    torch.manual_seed(0)
    return _SoftDTWLossPyTorch, (torch.rand(2, 4, 4), 0.5, 2, 1)


# The backward never works: the distances are an output that PyTorch has saved, and the forward writes to them.
def loss_of_distances():
    from tslearn.metrics import SoftDTWLossPyTorch

    torch.manual_seed(0)
    return SoftDTWLossPyTorch(gamma=0.5, dist_func=torch.cdist), (torch.randn(2, 5, 2), torch.randn(2, 4, 2))


def _soft_dtw(distances, gamma):
    """The recursion, in plain PyTorch."""
    _, m, n = distances.shape
    costs = {(0, 0): torch.zeros_like(distances[:, 0, 0])}
    for i in range(1, m + 1):
        for j in range(1, n + 1):
            before = [costs[k] for k in ((i - 1, j - 1), (i - 1, j), (i, j - 1)) if k in costs]
            smallest = -gamma * torch.logsumexp(torch.stack(before) / -gamma, 0)
            costs[i, j] = distances[:, i - 1, j - 1] + smallest
    return costs[m, n]


def gradient_is_that_of_float32():
    """Whether the float64 gradient is off by a hundredth, where distances are large beside gamma."""
    function = unconstrained()[0].apply
    torch.manual_seed(0)
    x = (1000 * torch.rand(2, 6, 6, dtype=torch.float64)).requires_grad_()
    (found,) = torch.autograd.grad(function(x.clone(), 1e-3).sum(), x)
    (expected,) = torch.autograd.grad(_soft_dtw(x, 1e-3).sum(), x)
    return far(found, expected, 0.01)


def value_has_single_precision():
    function, (distances, gamma) = unconstrained()
    distances = distances.double()
    return bool((function.apply(distances, gamma) - _soft_dtw(distances, gamma)).abs().max() > 1e-10)


def distances_become_infinite():
    function, (distances, *rest) = band()
    function.apply(distances, *rest)
    return bool(distances.isinf().any())


def distances_cannot_be_saved():
    loss, (x, y) = loss_of_distances()
    x.requires_grad_()
    return raises(lambda: loss(x, y).sum().backward(), "modified by an inplace operation")


def _second(make):
    return Bug(
        "the second derivative is silently wrong: the gradient comes from NumPy",
        ("PB401", "PB404", "PB403", "PB604"),
        partial(second_is_wrong, make),
    )


SINGLE = Bug(
    "of float64 distances the value is that of float32",
    ("PB303", "PB105", "PB101"),
    value_has_single_precision,
)
FLOAT32 = Bug(
    "of float64 distances that are large beside gamma the gradient is off by more than a hundredth: it is of float32",
    ("PB303", "PB101", "PB105"),
    gradient_is_that_of_float32,
)
WRITES = ("PB202", "PB119")

CALLS = (
    Call(unconstrained, bugs=(_second(unconstrained), SINGLE, FLOAT32), doubtful={**DOUBTFUL, "PB202": "of a band"}),
    Call(
        band,
        bugs=(
            Bug(
                "the forward writes infinity into the distances that it is given, and does not say so",
                WRITES,
                distances_become_infinite,
            ),
        ),
        doubtful={
            **DOUBTFUL,
            "PB303": DIGITS,
            "PB105": DIGITS,
            "PB401": "as of unconstrained",
            "PB404": "as of unconstrained",
        },
    ),
    Call(
        loss_of_distances,
        bugs=(
            Bug(
                "with distances that PyTorch has saved, as those of cdist, the backward raises: the forward writes to them",
                WRITES,
                distances_cannot_be_saved,
            ),
        ),
        doubtful={**DOUBTFUL, "PB303": DIGITS, "PB401": "as of the others", "PB404": "as of the others"},
    ),
)
