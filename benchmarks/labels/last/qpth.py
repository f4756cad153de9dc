"""qpth: what is known of its custom function.

`QPFunction` is covered, with the package's own solver; `SpQPFunction` is of a kind that PyTorch no longer runs. Truth:
float64 central differences of the solution (below 1e-6; of Q in symmetric directions). Frozen arguments, strided
inputs and cotangents, double backward, two backwards, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import stub
from labels.fresh import first_is_wrong, second_is_wrong

PACKAGE = Package("qpth", "0.0.18", "optimisation layers")

SYMMETRIC = "the gradient is that of a symmetric Q, which the problem takes"
ITERATED = "a solution of iterations: near the ends of constraints few digits are left"
NARROW = "the solver has no half precision, and says so"
DOUBTFUL = {
    "PB101": SYMMETRIC,
    "PB303": ITERATED,
    "PB302": ITERATED,
    "PB413": NARROW,
    "PB119": NARROW,
    "PB201": "what the solver found is kept on ctx: it is neither input nor output",
    "PB408": "a vectorised backward raises: the factorisation takes no batch",
}


def _solve():
    stub("cvxpy")
    from qpth.qp import QPFunction

    return QPFunction(verbose=-1)


def _problem(batch):
    """Some of the inequalities hold with equality."""
    torch.manual_seed(0)
    root = torch.randn(batch, 4, 4, dtype=torch.float64)
    q = root @ root.mT + torch.eye(4, dtype=torch.float64)
    p, z = torch.randn(2, batch, 4, dtype=torch.float64)
    g, a = torch.randn(batch, 3, 4, dtype=torch.float64), torch.randn(batch, 1, 4, dtype=torch.float64)
    h = (g @ z.unsqueeze(-1)).squeeze(-1) + torch.rand(batch, 3, dtype=torch.float64)
    return q, p, g, h, a, (a @ z.unsqueeze(-1)).squeeze(-1)


# First order right: differences.
def batch():
    return _solve(), _problem(2)


# First order right: differences.
def inequalities_alone():
    none = torch.tensor([], dtype=torch.float64)
    q, p, g, h, _, _ = _problem(2)
    function = _solve()
    return (lambda q, p, g, h: function(q, p, g, h, none, none)), (q, p, g, h)


# First order right: differences.
def single():
    return _solve(), tuple(x[0] for x in _problem(1))


# Wrong, by the number of problems: differences.
def shared_constraints():
    q, p, g, h, a, b = _problem(2)
    return _solve(), (q, p, g[0], h[0], a[0], b[0])


def _lost(make, position):
    return Bug(
        "multipliers and factors are kept without a graph: the second derivative is silently wrong",
        ("PB401", "PB404"),
        partial(second_is_wrong, make, position),
    )


CALLS = (
    Call(batch, bugs=(_lost(batch, 2),), doubtful=DOUBTFUL),
    Call(inequalities_alone, bugs=(_lost(inequalities_alone, 2),), doubtful=DOUBTFUL),
    Call(single, bugs=(_lost(single, 2),), doubtful=DOUBTFUL),
    Call(
        shared_constraints,
        bugs=(
            Bug(
                "the gradient of what the problems of a batch share is the mean over them, where the sum is right",
                ("PB101",),
                partial(first_is_wrong, shared_constraints, 4),
            ),
            _lost(shared_constraints, 4),
        ),
        doubtful=DOUBTFUL,
    ),
)
