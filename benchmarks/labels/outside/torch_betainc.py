"""torch-betainc: what is known of its custom function.

`Betainc` is covered with all three arguments free, with the upper limit alone, with large shapes, and by the
distribution that uses it. Truth: mpmath, and float64 central differences. Double backward, broadcast, strided and
expanded inputs and cotangents, arguments frozen, two backwards, checkpoints, changes in place, float32, autocast.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong

PACKAGE = Package("torch-betainc", "0.2.1", "special functions")

DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    "PB301": "shapes of some hundreds, and any in float16, where 1e-30 is 0, give NaN",
    "PB302": "at 0 and 1 the derivative by the upper limit is set to 0, also where the density is not",
    "PB303": "a continued fraction that ends when the value no longer changes",
    "PB305": "at 0 and 1 the derivative by the upper limit is set to 0, also where the density is not",
    "PB705": "by design: the backward iterates again",
}


def _betainc():
    from torch_betainc import betainc

    torch.manual_seed(0)
    return betainc


# Wrong, by its first argument: differences.
def three():
    return _betainc(), (0.5 + 4 * torch.rand(5), 0.5 + 4 * torch.rand(5), 0.1 + 0.8 * torch.rand(5))


# Wrong, by its second argument: differences.
def broadcast():
    return _betainc(), (0.5 + 4 * torch.rand(3, 1), 0.5 + 4 * torch.rand(1, 4), torch.tensor(0.4))


# Right, twice: differences.
def upper_limit():
    function = _betainc()
    a, b = 0.5 + 4 * torch.rand(5), 0.5 + 4 * torch.rand(5)
    return (lambda x: function(a.to(x), b.to(x), x)), (0.1 + 0.8 * torch.rand(5),)


# NaN.
def large():
    return _betainc(), (torch.tensor([200.0, 150.0]), torch.tensor([300.0, 150.0]), torch.tensor([0.4, 0.5]))


# Wrong, by the degrees of freedom: differences.
def student():
    from torch_betainc import StudentT

    torch.manual_seed(0)
    return (lambda value, df, loc: StudentT(df, loc).cdf(value)), (
        2 * torch.randn(6),
        2 + 4 * torch.rand(6),
        0.1 * torch.randn(6),
    )


def is_nan_in_single():
    """Whether value and gradients are NaN in float32, and finite in float64, where the value is near a half."""
    found = []
    for dtype in (torch.float32, torch.float64):
        function, arguments = large()
        leaves = [a.to(dtype).requires_grad_() for a in arguments]
        y = function(*leaves)
        found.append((y, *torch.autograd.grad(y.sum(), leaves)))
    single, double = found
    return all(bool(a.isnan().all()) and bool(b.isfinite().all()) for a, b in zip(single, double, strict=True))


def is_zero_near_the_centre():
    """Whether the density that the gradient is, in float32, is 0 near the centre, and right at it."""
    function, _ = student()
    found = []
    for value in (0.0, 2e-4):
        x = torch.tensor(value, requires_grad=True)
        (density,) = torch.autograd.grad(function(x, torch.tensor(5.0), torch.tensor(0.0)), x)
        found.append(float(density))
    return abs(found[0] - 0.3796) < 1e-3 and found[1] == 0


def _coefficient(make, position):
    return Bug(
        "from the second on, the coefficients' derivative by the first shape is another formula: the gradient is a little off",
        ("PB101",),
        partial(first_is_wrong, make, position, 1e-4),
    )


CALLS = (
    Call(three, bugs=(_coefficient(three, 0),), doubtful=DOUBTFUL),
    Call(broadcast, bugs=(_coefficient(broadcast, 1),), doubtful=DOUBTFUL),
    Call(upper_limit, doubtful=DOUBTFUL),
    Call(
        large,
        bugs=(
            Bug(
                "in float32, silently: value and gradients are NaN, for the beta function of the shapes is rounded to 0",
                ("PB301", "PB304"),
                is_nan_in_single,
            ),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(
        student,
        bugs=(
            _coefficient(student, 1),
            Bug(
                "in float32, near the centre, the upper limit is rounded to 1: the gradient is silently 0 in place of the density",
                ("PB302", "PB303"),
                is_zero_near_the_centre,
            ),
        ),
        doubtful={rule: why for rule, why in DOUBTFUL.items() if rule not in ("PB302", "PB303")},
    ),
)
