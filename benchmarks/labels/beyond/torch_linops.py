"""torch-linops: what is known of its custom function.

The Function that `CG` makes for each operator is covered alone, and by an operator that solves with it. Truth: float64
central differences, and the dense solution. Double backward, strided inputs and cotangents, two backwards, checkpoints,
changes in place, autocast.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import far, gradients

PACKAGE = Package("torch-linops", "0.2.0", "linear operators")

START = "an iteration, which starts from the last gradient: as exact as its tolerance"
DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    **dict.fromkeys(("PB303", "PB601", "PB120", "PB507", "PB206"), START),
    **dict.fromkeys(("PB408", "PB409"), "the iteration looks at its residual"),
    "PB204": "the last gradient is kept, as a start for the next",
}


def _matrix():
    torch.manual_seed(0)
    a = torch.randn(5, 5, dtype=torch.float64)
    return a @ a.mT + torch.eye(5, dtype=torch.float64)


def _solver(*preconditioner, **options):
    from linops.cg import CG

    a = _matrix()
    return CG(lambda v: a.to(v.dtype) @ v, *preconditioner, **options), (torch.randn(5, dtype=torch.float64),)


# First order right: differences.
def rough():
    return _solver()


# First order right: differences.
def exact():
    return _solver(rtol=1e-10)


# First order right: differences.
def preconditioned():
    return _solver(lambda v: v / torch.arange(1, 6, dtype=v.dtype), rtol=1e-10)


# Right for the right-hand side.
def operator():
    import linops

    def solve(b, matrix):
        whole = linops.IdentityOperator(5) + 0.1 * linops.MatrixOperator(matrix)
        return whole.solve_I_p_lambda_AT_A_x_eq_b(0.5, b)

    torch.manual_seed(0)
    return solve, (torch.randn(5), torch.randn(5, 5))


def second_depends_on_calls(make):
    """Whether a second derivative is another one after an ordinary backward at the same place; nothing is said."""

    def second(function, b):
        b = b.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(b).tanh().sum(), b, create_graph=True)
        return torch.autograd.grad(first.square().sum(), b)[0]

    function, (b,) = make()
    before = b.clone().requires_grad_()
    function(before).tanh().sum().backward()
    return far(second(function, b), second(make()[0], b), 0.1)


def operator_gets_none():
    """Whether the matrix of an operator gets no gradient, where the dense solution gives one."""
    found = gradients(operator, None)[1]
    b, matrix = (x.requires_grad_() for x in operator()[1])
    whole = torch.eye(5) + 0.1 * matrix
    (expected,) = torch.autograd.grad(torch.linalg.solve(torch.eye(5) + 0.5 * whole.mT @ whole, b).sum(), matrix)
    return found is None and bool(expected.abs().max() > 0.01)


CALLS = (
    *(
        Call(
            make,
            bugs=(
                Bug(
                    "the backward starts from the last gradient as from a constant: after one at the same place, the second "
                    "derivative is silently wrong",
                    ("PB120", "PB401", "PB404", "PB601", "PB206", "PB507", "PB604"),
                    partial(second_depends_on_calls, make),
                ),
            ),
            doubtful=DOUBTFUL,
            judged={
                "PB109": (False, "the iteration ends at a tolerance, which is wide by default"),
                "PB119": (True, "the gradient that is kept is complex after a complex call: the next real one raises"),
            },
        )
        for make in (rough, exact, preconditioned)
    ),
    Call(
        operator,
        bugs=(
            Bug(
                "the Function reads the matrix of the operator through its closure: silently, it gets no gradient",
                ("PB118", "PB107", "PB101", "PB604", "PB113"),
                operator_gets_none,
            ),
        ),
        doubtful=DOUBTFUL | {"PB105": "the operator is made in the default dtype"},
        judged={
            "PB102": (True, "the matrix has no tangent either"),
            "PB401": (False, "it is of the matrix alone, which gets no gradient"),
        },
    ),
)
