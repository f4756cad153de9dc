"""torchdiffeqpack: what is known of its custom functions.

The two `Checkpointing_Adjoint` are covered by the functions that apply them: steps whose length is chosen, fixed steps,
and fixed steps that are undone. Truth: float64 central differences, with a step of 1e-3, and differentiation through
small steps. Double backward, strided inputs and cotangents, two backwards, frozen weights, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import (
    gradients,
    input_change_is_unnoticed,
    output_change_is_unnoticed,
    raises,
    raises_when_frozen,
)
from labels.last import derivative_of_backward_is_wrong, second_backward_raises

PACKAGE = Package(
    "torchdiffeqpack", "1.0.1", "ordinary differential equations", ("matplotlib==3.11.2", "scipy==1.17.1")
)

STEPS = "time is in single precision, and steps are chosen by an error: differences with a small step are noise"
SETUP = "torch.func does not take it: it has no setup_context"
NARROW = "under autocast the states, and the weights, have two dtypes"
DOUBTFUL = {
    **dict.fromkeys(("PB101", "PB303", "PB408", "PB501"), STEPS),
    **dict.fromkeys(("PB405", "PB406", "PB407"), SETUP),
    **dict.fromkeys(("PB119", "PB413", "PB105"), NARROW),
}


class _Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 3))

    def forward(self, t, y):
        return torch.tanh(y @ self.weight) * (1 + t)


def _solved(method, h, tolerances, trained):
    from TorchDiffEqPack import odesolve_adjoint, odesolve_adjoint_sym12

    torch.manual_seed(0)
    field = _Field().double().requires_grad_(trained)
    solve = odesolve_adjoint_sym12 if "sym12" in method else odesolve_adjoint
    rtol, atol = tolerances

    def call(y):
        options = {"method": method, "h": h, "t0": 0.0, "t1": 1.0, "rtol": rtol, "atol": atol, "t_eval": None}
        return solve(field, y, {**options, "print_neval": False, "neval_max": 5000})

    return call, (torch.randn(2, 3, dtype=torch.float64),)


# First order right: differences.
def chosen_steps(trained=True):
    return _solved("dopri5", None, (1e-5, 1e-6), trained)


# Wrong.
def fixed_steps():
    return _solved("euler", 0.25, (1e-5, 1e-6), True)


# First order right: differences.
def undone_steps(trained=True):
    return _solved("fixedstep_sym12async", 0.25, (1e-2, 1e-3), trained)


def _second(make):
    return Bug(
        "the backward computes again on detached tensors: the second derivative is silently wrong",
        ("PB401", "PB402", "PB404", "PB604"),
        partial(derivative_of_backward_is_wrong, make),
    )


def _again(make, text):
    return Bug(
        "the backward deletes what it kept: a second one raises",
        ("PB206", "PB408"),
        partial(second_backward_raises, make, text),
    )


def _frozen(make):
    return Bug(
        "where the weights are frozen, the backward asks for their gradient all the same, and raises",
        ("PB113", "PB118", "PB119"),
        partial(raises_when_frozen, partial(make, False), 0, "does not require grad"),
    )


CALLS = (
    Call(
        chosen_steps,
        bugs=(
            Bug(
                "the initial state is kept on ctx: a change of it in place silently changes the gradient",
                ("PB209", "PB201"),
                partial(input_change_is_unnoticed, chosen_steps, 0),
            ),
            _second(chosen_steps),
            _again(chosen_steps, "'z0'"),
            _frozen(chosen_steps),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(
        fixed_steps,
        bugs=(
            Bug(
                "the backward iterates over the error of a step, which a fixed step has not: it raises, always",
                ("PB119", "PB101"),
                lambda: raises(lambda: gradients(fixed_steps), "not iterable"),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(
        undone_steps,
        bugs=(
            Bug(
                "the final state is kept on ctx: a change of it in place silently changes the gradient",
                ("PB209", "PB201"),
                partial(output_change_is_unnoticed, undone_steps),
            ),
            _second(undone_steps),
            _again(undone_steps, "'state0'"),
            _frozen(undone_steps),
        ),
        doubtful={**DOUBTFUL, "PB201": "kept on ctx"},
    ),
)
