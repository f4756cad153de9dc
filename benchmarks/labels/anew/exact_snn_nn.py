"""exact-snn-nn: what is known of its custom functions.

All six are covered, with the weights and spike times that their layers hand in; a grid of times, on which no gradient
depends, is held by the call. Truth: float64 central differences of first and second order, with steps that
the grid resolves. Strided inputs and
cotangents, one argument frozen, two backwards, checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.beyond import second_is_wrong_in_single
from labels.fresh import first_is_wrong, second_is_wrong

PACKAGE = Package("exact-snn-nn", "3.2.3", "spiking networks")

TAUS = (15.0, 4.0)
DOUBTFUL = {"PB303": "the time of a spike is solved to a tolerance"}
VIEW = "the output is a view of the solution: changing it in place raises, with PyTorch's message on views"
STEPS = "the time of a spike is bisected to 1e-6 on a grid: differences of smaller steps are not meant"


def _peak():
    from exact_snn import ExactTTFSLinear

    return ExactTTFSLinear._compute_k_peak(*TAUS)


def _grid(points=2001):
    return torch.linspace(0.0, 40.0, points, dtype=torch.float64)


def _times(*shape):
    torch.manual_seed(1)
    return 1 + 8 * torch.rand(shape, dtype=torch.float64)


def _weight(*shape):
    torch.manual_seed(0)
    return 0.4 + 0.6 * torch.rand(shape, dtype=torch.float64)


# First order right: differences.
def first_spikes():
    from exact_snn import _ExactTTFSLayerFn

    options = (0.0, 1.0, *TAUS, False, _peak(), _grid(), 1e-2)
    return (lambda w, t: _ExactTTFSLayerFn.apply(w, t, *(_of(o, w) for o in options))), (_weight(3, 5), _times(4, 2))


# First order right: differences.
def events():
    from exact_snn.event import _ExactEventLayerFn

    return _ExactEventLayerFn, (_weight(3, 5), _times(4, 2), 0.0, 1.0, 40.0, *TAUS, _peak(), 1e-2)


# First order right: differences.
def recurrent_step():
    from exact_snn.recurrent import _ExactTTFSRnnStepFn

    options = (0.0, 1.0, *TAUS, False, _peak(), _grid(), 1e-2)
    return (
        lambda w, t, h: _ExactTTFSRnnStepFn.apply(w, t, h, *(_of(o, w) for o in options)),
        (_weight(3, 6), _times(2, 2), 1 + _times(3, 2)),
    )


def _trains(most):
    from exact_snn.extended import _ExactMultiSpikeFn

    options = (0.0, 1.0, *TAUS, _peak(), 40.0, _grid(), most, False)
    return (lambda w, t: _ExactMultiSpikeFn.apply(w, t, *(_of(o, w) for o in options))), (_weight(3, 5), _times(4, 2))


def spike_trains():
    return _trains(2)


def _convolution(batch, points=501):
    from exact_snn.extended import _ExactTTFSConvFn

    options = (0.0, 1.0, *TAUS, False, _peak(), _grid(points), 40.0, 1, 0, 2, 2, 3, 3, 1e-2)
    return (
        lambda w, t: _ExactTTFSConvFn.apply(w, t, *(_of(o, w) for o in options)),
        (_weight(2, 9), _times(batch, 2, 3, 3)),
    )


def convolution():
    return _convolution(2)


def convolution_of_one():
    return _convolution(1)


def attention():
    from exact_snn.attention import ExactAttentionCombineFn

    return ExactAttentionCombineFn, (*_times(3, 3, 2).unbind(), *TAUS, False, _peak(), 1.0, 40.0, "gaussian")


def _of(option, like):
    return option.to(like.dtype) if isinstance(option, torch.Tensor) else option


SLOPE = "the slope at the spike, an intermediate, is saved as a constant: the second derivative is silently wrong"
CUT = ("PB401", "PB402", "PB404", "PB604")


def _cut(make):
    return Bug(SLOPE, CUT, partial(second_is_wrong_in_single, make, 1e-3))


def _interpolated(make):
    return Bug(
        "Newton's steps are held in a bracket of the interpolated potential: on the default grid the times, and their "
        "derivative, are not those that the gradient is of",
        ("PB101", "PB303"),
        partial(first_is_wrong, make, 1, 0.05, torch.float64, 1e-3),
    )


CALLS = (
    Call(first_spikes, bugs=(_cut(first_spikes),), doubtful={**DOUBTFUL, "PB101": STEPS}),
    Call(
        events,
        bugs=(_cut(events),),
        doubtful=DOUBTFUL,
        judged={
            "PB101": (True, "by differences: with another time of the bias, and of times before the window"),
            "PB104": (False, "weights for no inputs beside times of four: the forward takes them by accident"),
        },
    ),
    Call(recurrent_step, bugs=(_cut(recurrent_step),), doubtful={**DOUBTFUL, "PB101": STEPS}),
    Call(
        spike_trains,
        bugs=(
            Bug(
                "the cotangents of a neuron's spikes are summed, and each spike gets the sum: the gradient is silently wrong",
                ("PB101", "PB106", "PB111"),
                partial(first_is_wrong, spike_trains, 0, 0.5, torch.float64, 1e-3),
            ),
            _cut(spike_trains),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(
        convolution,
        bugs=(
            Bug(
                "what is sent back is folded as if the patches came before the batch: with two images or more the "
                "gradient of the times silently is another one's",
                ("PB101", "PB106"),
                partial(first_is_wrong, partial(_convolution, 2, 20001), 1, 0.5, torch.float64, 1e-3),
            ),
            _interpolated(convolution),
            _cut(convolution),
        ),
        doubtful={**DOUBTFUL, "PB207": VIEW},
    ),
    Call(
        convolution_of_one,
        bugs=(_interpolated(convolution_of_one), _cut(convolution_of_one)),
        doubtful={**DOUBTFUL, "PB207": VIEW},
    ),
    Call(
        attention,
        bugs=(
            Bug(
                "the values get the sum of their weights times their own row's cotangent, not the weighted sum: the "
                "gradient is silently wrong",
                ("PB101", "PB106", "PB111"),
                partial(first_is_wrong, attention, 2, 0.5),
            ),
            Bug(
                "the weights, an intermediate, are saved as a constant: the second derivative is silently wrong",
                CUT,
                partial(second_is_wrong, attention),
            ),
        ),
    ),
)
