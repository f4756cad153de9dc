"""zuko: what is known of its custom functions.

All three are covered, called through the package's own functions with the parameters in `phi`, as its transforms call
them. Truth: float64 central differences of every argument (below 1e-8; `odeint` to its tolerance).
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong, is_kept, output_change_is_unnoticed, raises_when_frozen

PACKAGE = Package("zuko", "1.6.0", "normalising flows")

ONCE = "once_differentiable: backward() raises, torch.autograd.grad may leave the term out"
OUTPUT = "the saved solution is the output: changing that in place raises, with PyTorch's message"
TWICE = {"PB401": ONCE, "PB402": ONCE, "PB403": ONCE, "PB404": ONCE}
FROZEN = ("PB113", "PB119")
UNUSED = "does not require grad"


# First order right in the target: differences (1e-11).
def bisection_plain():
    from zuko.utils import bisection

    def inverse(y):
        return bisection(lambda x: x + torch.sinh(x), y, -10.0, 10.0, n=48)

    return inverse, (torch.tensor([-0.3, 0.5, 1.2]),)


# First order right in target and parameters: differences (1e-10), also where one parameter is shared by all targets.
def bisection_parameters():
    from zuko.utils import bisection

    def inverse(y, a, b):
        return bisection(lambda x: a * x + torch.sinh(b * x), y, -10.0, 10.0, n=48, phi=(a, b))

    return inverse, (torch.tensor([-0.3, 0.5, 1.2]), torch.tensor(0.7), torch.tensor([1.1, 0.9, 1.3]))


# First order right in both limits: differences (1e-11).
def gauss_legendre_plain():
    from zuko.utils import gauss_legendre

    def integral(a, b):
        return gauss_legendre(lambda x: torch.exp(-(x**2)), a, b, n=16)

    return integral, (torch.tensor([-0.69, 0.1]), torch.tensor([1.2, 0.9]))


# First order right in limits and parameters: differences (1e-11).
def gauss_legendre_parameters():
    from zuko.utils import gauss_legendre

    def integral(a, b, p, q):
        return gauss_legendre(lambda x: torch.exp(-p * x**2) + q * x, a, b, n=16, phi=(p, q))

    limits = torch.tensor([-0.69, 0.1]), torch.tensor([1.2, 0.9])
    return integral, (*limits, torch.tensor(0.7), torch.tensor(0.3))


def _solution(*times):
    from zuko.utils import odeint

    torch.manual_seed(0)
    matrix = torch.randn(2, 2)

    def field(matrix):
        return lambda t, x: torch.tanh(x @ matrix) + t * x

    def solution(x, matrix, *times):
        t0, t1 = times or (0.0, 1.0)
        return odeint(field(matrix), x, t0, t1, phi=(matrix,), atol=1e-6, rtol=1e-5)

    return solution, (torch.randn(2), matrix, *times)


# First order right in state and parameters: differences, to the tolerance of the solver (8e-4; 1e-5 with a tenth of it).
def odeint_fixed_times():
    return _solution()


# Right in state, parameters and final time, to the tolerance of the solver (8e-4); wrong in the initial time.
def odeint_times():
    return _solution(torch.tensor(0.0), torch.tensor(1.0))


def _odeint(make):
    return (
        Bug(
            "the output is kept on ctx, in the list of steps: changing it in place silently changes the gradient",
            ("PB201", "PB209"),
            partial(output_change_is_unnoticed, make),
        ),
        Bug(
            "the output is kept on ctx, in a reference cycle: it is not freed before the garbage collector runs",
            ("PB204", "PB201"),
            partial(is_kept, make),
        ),
        Bug(
            "where a parameter is frozen, the backward raises",
            FROZEN,
            partial(raises_when_frozen, make, 0, UNUSED),
        ),
    )


STEPS = (
    "the gradient is that of an adjoint equation, solved with the steps of the forward: off by 1e-3 with this tolerance"
)
COARSE = "in bfloat16 the solution itself has two digits"
NO_ROOT = "with negated parameters the function falls: there is no root to find"

CALLS = (
    Call(bisection_plain, doubtful={**TWICE, "PB209": OUTPUT, "PB207": OUTPUT}),
    Call(
        bisection_parameters,
        bugs=(
            Bug(
                "where a parameter is frozen, the backward raises",
                FROZEN,
                partial(raises_when_frozen, bisection_parameters, 0, UNUSED),
            ),
        ),
        doubtful={**TWICE, "PB303": COARSE, "PB115": "the gradient of a broadcast target is summed by autograd"},
        judged={"PB101": (False, NO_ROOT), "PB301": (False, NO_ROOT)},
    ),
    Call(
        gauss_legendre_plain,
        doubtful=TWICE,
        judged={"PB101": (False, "with limits of hundreds 16 nodes are no integral, and the gradient is that of one")},
    ),
    Call(
        gauss_legendre_parameters,
        bugs=(
            Bug(
                "where a parameter is frozen, the backward raises",
                FROZEN,
                partial(raises_when_frozen, gauss_legendre_parameters, 0, UNUSED),
            ),
        ),
        doubtful=TWICE,
        judged={"PB101": (True, "one tensor as both parameters gets twice its gradient (differences)")},
    ),
    Call(odeint_fixed_times, bugs=_odeint(odeint_fixed_times), doubtful={**TWICE, "PB303": STEPS, "PB101": STEPS}),
    Call(
        odeint_times,
        bugs=(
            Bug(
                "the gradient of the initial time has the wrong sign",
                ("PB101",),
                partial(first_is_wrong, odeint_times, 2),
            ),
            *_odeint(odeint_times),
        ),
        doubtful={**TWICE, "PB303": STEPS},
    ),
)
