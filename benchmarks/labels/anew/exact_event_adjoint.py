"""exact-event-adjoint: what is known of its custom functions.

All three are covered, with the arguments that their layers hand in; the first one also with its term for silent
neurons. Truth: float64 central differences of first and second order. Strided inputs and cotangents, one argument
frozen, two backwards, checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import second_is_wrong

PACKAGE = Package("exact-event-adjoint", "0.2.0", "spiking networks")

EXISTENCE = "by design: silent neurons get a gradient of another loss, whatever the cotangent"
DOUBTFUL = {
    "PB303": "the time of a spike is solved to a tolerance",
    "PB207": "the output is a view of the solution: changing it in place raises, with PyTorch's message on views",
}


def _arguments():
    torch.manual_seed(0)
    return 1 + 8 * torch.rand(2, 4, dtype=torch.float64), 1.5 + 2 * torch.rand(3, 4, dtype=torch.float64)


# First order right: differences.
def first_spikes():
    from exact_event_adjoint.core import ExactAdjointFunction

    return ExactAdjointFunction, (*_arguments(), 15.0, 4.0, 1.0, 50.0, 201, False)


def existence():
    from exact_event_adjoint.core import ExactAdjointFunction

    times, weight = _arguments()
    weight[0] = 0.1
    return ExactAdjointFunction, (times, weight, 15.0, 4.0, 1.0, 50.0, 201, True)


# First order right: differences.
def events():
    from exact_event_adjoint.engine import ExactEventFunction

    return ExactEventFunction, (*_arguments(), 15.0, 4.0, 1.0, 50.0)


# First order right: differences.
def spike_trains():
    from exact_event_adjoint.extended import ExactSaltationMultiSpikeFunction

    return ExactSaltationMultiSpikeFunction, (*_arguments(), 3, 15.0, 4.0, 1.0, 0.0, 50.0)


def _cut(make):
    return Bug(
        "the slope at the spike, an intermediate, is saved as a constant: the second derivative is silently wrong",
        ("PB401", "PB402", "PB404", "PB604"),
        partial(second_is_wrong, make, 1),
    )


CALLS = (
    *(Call(make, bugs=(_cut(make),), doubtful=DOUBTFUL) for make in (first_spikes, events, spike_trains)),
    Call(
        existence,
        "other",
        doubtful=dict.fromkeys(("PB101", "PB109", "PB111", "PB114", "PB401", "PB404", "PB604"), EXISTENCE),
        judged={"PB413": (True, "in use: the backward raises after a forward under autocast")},
    ),
)
