"""torchdae: what is known of its custom function.

`DAEAdjointFunction` is covered by the function that applies it, with implicit Euler steps: the last state of a linear
equation with a parameter, all of its states, the last state of two nonlinear equations without a parameter, and of one
whose mass depends on the state. Truth: float64 central differences. Double backward, strided inputs and cotangents, two
backwards, frozen arguments, checkpoints, changes in place.
"""

import logging
from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong, raises_when_frozen, second_raises

PACKAGE = Package("torchdae", "0.1.1", "differential-algebraic equations")

INNER = "torch.func is used within, which PyTorch allows neither under hooks of saved tensors nor twice"
FOUND = "as exact as Newton's iteration, to 1e-8"
DOUBTFUL = {
    **dict.fromkeys(("PB411", "PB412", "PB405", "PB406", "PB407", "PB408", "PB409"), INNER),
    **dict.fromkeys(("PB303", "PB413"), FOUND),
    **dict.fromkeys(("PB503", "PB504", "PB505"), "a batch has a first member, and two states here"),
    "PB119": "one step has no state between the first and the last",
}


def _solve(residual, y0, parameters):
    from torchdae import solve_bdf1, solve_dae_adjoint

    logging.getLogger("torchdae").setLevel(logging.ERROR)

    def solver(f, span, y, h):
        return solve_bdf1(f, span, y, h=h)

    return solve_dae_adjoint(residual, (0.0, 0.3), y0, 0.1, parameters, solver)


def _arguments():
    return torch.tensor([[1.0, 0.5], [2.0, 1.0]], dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)


def _linear(y0, k):
    def residual(t, y, yp):
        return torch.stack([yp[..., 0] + k * y[..., 0] - y[..., 1], y[..., 1] - 0.5 * y[..., 0]], -1)

    return _solve(residual, y0, [k])


# First order right: differences.
def last_state():
    return (lambda y0, k: _linear(y0, k)[-1]), _arguments()


# Wrong.
def all_states():
    return _linear, _arguments()


# Right, twice: differences.
def without_parameters():
    def residual(t, y, yp):
        return torch.stack([yp[..., 0] + y[..., 0] ** 3 - y[..., 1], yp[..., 1] + 0.5 * y[..., 0]], -1)

    return (lambda y0: _solve(residual, y0, [])[-1]), _arguments()[:1]


# Right, twice: differences.
def algebraic_without_parameters():
    def residual(t, y, yp):
        return torch.stack([yp[..., 0] + y[..., 0] - y[..., 1], y[..., 1] - torch.sin(y[..., 0])], -1)

    return (lambda y0: _solve(residual, y0, [])[-1]), _arguments()[:1]


# Wrong.
def mass_of_state():
    def call(y0, k):
        def residual(t, y, yp):
            mass = 1 + y[..., 1] ** 2
            return torch.stack([mass * yp[..., 0] + k * y[..., 0] ** 3 - y[..., 1], yp[..., 1] + 0.5 * y[..., 0]], -1)

        return _solve(residual, y0, [k])[-1]

    return call, _arguments()


def _frozen(make):
    return Bug(
        "where a parameter is frozen, the backward asks for its gradient all the same, and raises",
        ("PB113", "PB119"),
        partial(raises_when_frozen, make, 0, "does not require grad"),
    )


def _twice(make):
    return Bug(
        "an inner gradient frees a graph that double backward needs: it raises",
        ("PB403", "PB401", "PB404"),
        partial(second_raises, make, "a second time"),
    )


CALLS = (
    Call(last_state, bugs=(_frozen(last_state), _twice(last_state)), doubtful=DOUBTFUL),
    Call(
        all_states,
        bugs=(
            Bug(
                "what is sent back to the first of the states is left out",
                ("PB101", "PB111", "PB114"),
                partial(first_is_wrong, all_states, 0),
            ),
            _frozen(all_states),
            _twice(all_states),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(without_parameters, doubtful=DOUBTFUL),
    Call(algebraic_without_parameters, doubtful=DOUBTFUL),
    Call(
        mass_of_state,
        bugs=(
            Bug(
                "of all of a batch, the Jacobians are taken at the derivative, or the state, of the first",
                ("PB101",),
                partial(first_is_wrong, mass_of_state, 1),
            ),
            _frozen(mass_of_state),
            _twice(mass_of_state),
        ),
        doubtful=DOUBTFUL,
    ),
)
