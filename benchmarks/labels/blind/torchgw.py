"""torchgw: what is known of its custom functions.

Both are covered. Truth: float64 central differences of the converged plan (2e-8), Sinkhorn unrolled in plain PyTorch;
zero weights, strided inputs, double backward, frozen arguments, changes in place.
"""

import torch

from labels import Bug, Call, Package

PACKAGE = Package("torchgw", "0.4.2", "optimal transport")

COST = "only the gradient of the cost is promised; the weights get none"
STEPS = "the gradient is that of the converged plan, and the iteration ends before"
NARROW = "the solver refuses bfloat16, clearly"
FROZEN = "documented: the potentials are taken to be constant"


def _problem():
    torch.manual_seed(0)
    return torch.rand(4, 5), torch.full((4,), 0.25), torch.tensor([0.3, 0.1, 0.2, 0.25, 0.15])


# First and second order right in the cost: differences (2e-8).
def implicit():
    from torchgw._solver import _SinkhornImplicit

    return _SinkhornImplicit, (*_problem(), 0.2, 2000, 1e-12, 10)


# Right, for what it is: the plan over the regularisation, times the gradient.
def approximate():
    from torchgw._solver import _SinkhornApproximate

    return _SinkhornApproximate, (*_problem(), 0.2, 2000, 1e-12, 10, False, 1.0)


def empty_point_gives_nan():
    """Whether a point without weight, which the forward clamps, makes the gradient NaN."""
    function, (cost, _, target, *rest) = implicit()
    cost.requires_grad_()
    plan = function.apply(cost, torch.tensor([0.5, 0.25, 0.25, 0.0]), target, *rest)
    (gradient,) = torch.autograd.grad(plan.square().sum(), cost)
    return bool(plan.isfinite().all() and gradient.isnan().all())


CALLS = (
    Call(
        implicit,
        bugs=(
            Bug(
                "where a point has no weight, which the forward allows for, the whole gradient is NaN",
                ("PB301", "PB304", "PB101"),
                empty_point_gives_nan,
            ),
        ),
        doubtful={"PB107": COST, "PB413": NARROW, "PB303": STEPS, "PB101": STEPS, "PB119": NARROW},
    ),
    Call(approximate, "other", doubtful={"PB107": COST, "PB101": FROZEN, "PB401": FROZEN, "PB404": FROZEN}),
)
