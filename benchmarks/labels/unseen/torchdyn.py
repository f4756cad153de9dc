"""torchdyn: what is known of its custom functions.

Both, which are made anew for each problem, are covered by the problem that applies them. Truth: float64 central
differences of the solution, to the solver's tolerance. Weights of the field, times, frozen arguments, double backward,
strided inputs and cotangents, two backwards, checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.fresh import first_is_wrong, gradients, raises, second_raises

PACKAGE = Package(
    "torchdyn",
    "1.0.6",
    "neural differential equations",
    ("torchcde", "torchdiffeq", "torchsde", "trampoline", "attrs", "scipy==1.17.1"),
)

SOLVED = "a solution of the adjoint equation, to the tolerance that was asked for"
DOUBTFUL = {
    **dict.fromkeys(("PB303", "PB302"), SOLVED),
    "PB408": "a vectorised backward raises: a nested gradient takes no batch",
    "PB406": "torch.func does not take it: it has no setup_context",
    "PB413": "the solver works in the dtype of the field",
    "PB103": "there is one None more than arguments, which PyTorch drops",
}


def _problem(sensitivity):
    bare("torchdyn", "torchdyn.numerics", "torchdyn.core")
    from torchdyn.core.problems import ODEProblem

    class Field(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            layers = (torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
            self.layers = torch.nn.Sequential(*layers).double().requires_grad_()

        def forward(self, t, x, args=None):
            return self.layers(x) + torch.sin(t)

    tolerances = dict.fromkeys(("atol", "rtol", "atol_adjoint", "rtol_adjoint"), 1e-9)
    problem = ODEProblem(Field(), "dopri5", sensitivity=sensitivity, **tolerances)
    torch.manual_seed(1)
    return problem, torch.randn(3, 2, dtype=torch.float64)


def _times(points):
    return torch.linspace(0, 1, points, dtype=torch.float64)


# First order right: differences.
def path():
    problem, x = _problem("adjoint")
    return (lambda x: problem.odeint(x, _times(4))[1]), (x,)


# The state: right, once. The times: wrong.
def end_of_times():
    problem, x = _problem("adjoint")
    return (lambda x, t: problem.odeint(x, t)[1][-1]), (x, _times(2))


# Wrong.
def path_of_times():
    problem, x = _problem("adjoint")
    return (lambda x, t: problem.odeint(x, t)[1]), (x, _times(4))


# First order right: differences.
def interpolated_end():
    problem, x = _problem("interpolated_adjoint")
    return (lambda x: problem.odeint(x, _times(2))[1][-1]), (x,)


# Wrong.
def interpolated_path():
    problem, x = _problem("interpolated_adjoint")
    return (lambda x: problem.odeint(x, _times(4))[1]), (x,)


def _freed(make):
    return Bug(
        "double backward raises, with a word on a graph that was freed: the adjoint equation frees its own",
        ("PB403", "PB401"),
        partial(second_raises, make, "a second time"),
    )


FROZEN = True, "the backward asks for gradients of all weights of the field, and raises where one is frozen"

CALLS = (
    Call(path, bugs=(_freed(path),), doubtful=DOUBTFUL, judged={"PB113": FROZEN}),
    Call(
        end_of_times,
        bugs=(
            Bug(
                "the first time gets another number: the field at the other end of its interval, with the wrong sign",
                ("PB101",),
                partial(first_is_wrong, end_of_times, 1),
            ),
            _freed(end_of_times),
        ),
        doubtful=DOUBTFUL,
        judged={"PB113": FROZEN},
    ),
    Call(
        path_of_times,
        bugs=(
            Bug(
                "of more than two times, the gradient has the shape of two, and the backward raises",
                ("PB104", "PB119"),
                lambda: raises(lambda: gradients(path_of_times), "invalid gradient at index 2"),
            ),
        ),
        doubtful=DOUBTFUL,
        judged={"PB101": (True, "of two times, the gradient of the first is wrong, as that of `end_of_times`")},
    ),
    Call(
        interpolated_end,
        bugs=(_freed(interpolated_end),),
        doubtful=DOUBTFUL,
        judged={
            "PB113": FROZEN,
            "PB003": (False, "this call returns: what does not is that of an empty batch, which the audit had tried"),
        },
    ),
    Call(
        interpolated_path,
        bugs=(
            Bug(
                "gradients of the solver's own steps are taken for those of the times that were asked for",
                ("PB101",),
                partial(first_is_wrong, interpolated_path, 0),
            ),
        ),
        doubtful={**DOUBTFUL, "PB403": "double backward raises", "PB401": "the first order is wrong already"},
        judged={"PB113": FROZEN},
    ),
)
