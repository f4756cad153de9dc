"""mpc: what is known of its custom function.

Truth: float64 central differences of all five arguments, without bounds (7e-11) and with active ones (5e-8); float32,
frozen and strided arguments, second derivatives, changes in place, leaks.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import is_kept, second_is_wrong

PACKAGE = Package("mpc", "0.0.6", "control")

STEPS, STATE, CONTROL = 3, 2, 1
NARROW = "under autocast and in bfloat16 the solver itself raises, or doesn't converge"
BOUND = "where a bound becomes active there is a kink"
UNCONVERGED = "documented: what hasn't converged is detached, so that the gradient is 0"
DOUBTFUL = {"PB413": NARROW, "PB305": BOUND, "PB303": UNCONVERGED, "PB101": UNCONVERGED, "PB302": UNCONVERGED}


def _control(**bounds):
    from mpc.mpc import MPC, LinDx, QuadCost

    def control(start, quadratic, linear, dynamics, drift):
        solver = MPC(STATE, CONTROL, STEPS, lqr_iter=20, verbose=-1, exit_unconverged=False, eps=1e-4, **bounds)
        states, controls, _ = solver(start, QuadCost((quadratic + quadratic.mT) / 2, linear), LinDx(dynamics, drift))
        return states, controls

    torch.manual_seed(0)
    n = STATE + CONTROL
    quadratic = torch.randn(STEPS, 2, n, n)
    quadratic = quadratic @ quadratic.mT + torch.eye(n)
    dynamics = 0.5 * torch.randn(STEPS - 1, 2, STATE, n), torch.randn(STEPS - 1, 2, STATE)
    return control, (torch.randn(2, STATE), quadratic, torch.randn(STEPS, 2, n), *dynamics)


# First order right: differences (7e-11).
def unbounded():
    return _control()


# First order right: differences (5e-8).
def bounded():
    return _control(u_lower=-0.5, u_upper=0.5)


def _bugs(make):
    return (
        Bug(
            "the second derivative is silently wrong: the solution of the backward is taken out of the graph",
            ("PB401", "PB404", "PB403", "PB604"),
            partial(second_is_wrong, make),
        ),
        Bug(
            "the outputs are kept on ctx, in a reference cycle: they are not freed before the garbage collector runs",
            ("PB204", "PB201"),
            partial(is_kept, make),
        ),
    )


WRAPPED = (False, "under is_grads_batched it gets tensors that wrap others, which nobody promises")

CALLS = tuple(
    Call(make, bugs=_bugs(make), doubtful=DOUBTFUL, judged={"PB002": WRAPPED, "PB004": WRAPPED})
    for make in (unbounded, bounded)
)
