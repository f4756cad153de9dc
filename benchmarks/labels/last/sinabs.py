"""sinabs: what is known of its custom functions.

All five are covered, with the surrogates that its layers take. The gradients are those of the surrogates; truth: their
formulas, and for second order differences of the gradient. Half precision, strided inputs and cotangents, changes.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.last import derivative_of_backward_is_wrong

PACKAGE = Package("sinabs", "3.1.3", "spiking networks")

CONSTANT = "the threshold is a constant, kept as an attribute of ctx: it gets no gradient and is not changed"
SPIKES = "spikes are float32 whatever the potential is"
COPY = "the potential is saved as a copy, for the layer goes on to reset it"
SPIKING = {
    **dict.fromkeys(("PB107", "PB101", "PB201", "PB209"), CONSTANT),
    **dict.fromkeys(("PB105", "PB303"), SPIKES),
    "PB701": COPY,
    "PB103": "there is one None more than arguments, which PyTorch drops",
}


def _activation():
    bare("sinabs")
    from sinabs import activation

    return activation


def _potentials():
    return torch.tensor([[0.3, -1.2, 2.5, 0.9], [-0.4, 3.3, 0.1, -5.2]])


def several_spikes():
    activation = _activation()
    return activation.MultiSpike, (_potentials(), torch.tensor(1.0), activation.SingleExponential())


def at_most_two_spikes():
    activation = _activation()
    return activation.MaxSpike(2).apply, (_potentials(), torch.tensor(1.0), activation.SingleExponential())


def one_spike():
    activation = _activation()
    return activation.SingleSpike, (_potentials(), torch.tensor(1.0), activation.MultiGaussian())


def periodic_surrogate():
    activation = _activation()
    return activation.MultiSpike, (_potentials(), torch.tensor(1.0), activation.PeriodicExponential())


# Straight-through, right.
def floor():
    return _activation().Quantize, (_potentials(),)


# Straight-through, right.
def stochastic_rounding():
    return _activation().StochasticRounding, (_potentials(),)


def _surrogate(make):
    return Call(
        make,
        "other",
        bugs=(
            Bug(
                "a copy of the potential is saved, to which no graph leads: the surrogate's derivative is silently 0",
                ("PB401", "PB404"),
                partial(derivative_of_backward_is_wrong, make),
            ),
        ),
        doubtful=SPIKING,
    )


CALLS = (
    *map(_surrogate, (several_spikes, at_most_two_spikes, one_spike, periodic_surrogate)),
    Call(floor, "other"),
    Call(stochastic_rounding, "other", doubtful={"PB105": "of half precision the output is float32"}),
)
