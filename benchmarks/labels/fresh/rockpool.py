"""rockpool: what is known of its custom functions.

Those of the PyTorch modules are covered, with the arguments that `LIFTorch` and `UpDownTorch` pass; those of the Sinabs
backend are copies. Two are surrogates, whose gradients were held against the functions that they stand for; `Bitshift`
is a derivative where the decay belongs to the shift, as it does in its module.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import gradients, input_change_is_unnoticed, raises

PACKAGE = Package("rockpool", "3.1.0", "spiking networks", needs=("scipy==1.17.1",))

CONSTANT = "the width of the surrogate is kept as an attribute of ctx: it is a constant"
CLAMPED = "the largest number of spikes is a constant, and gets no gradient"
SHIFT = "shift and decay are constants, and get no gradient"
REDUCED = "the gradient of a broadcast threshold is summed by autograd"
SPIKES = "spikes are float32 whatever the potential is"
WINDOW = {"PB201": CONSTANT, "PB209": CONSTANT, "PB107": CLAMPED, "PB115": REDUCED, "PB105": SPIKES}


def _potentials():
    return torch.tensor([[0.3, -1.2, 2.5, 0.9], [-0.4, 3.3, 0.1, -5.0]])


def _function(module, name):
    from importlib import import_module

    return getattr(import_module(f"rockpool.nn.modules.torch.{module}"), name)


def _thresholds():
    return torch.tensor([1.0, 0.8, 1.2, 0.9])


def step():
    arguments = _potentials(), _thresholds(), torch.tensor(0.5), torch.tensor(3.0)
    return _function("lif_torch", "StepPWL"), arguments


def periodic():
    arguments = _potentials(), _thresholds(), torch.tensor(0.5), torch.tensor(3.0)
    return _function("lif_torch", "PeriodicExponential"), arguments


# The backward never works with the threshold that is the default of the forward.
def periodic_of_default_threshold():
    return _function("lif_torch", "PeriodicExponential"), (_potentials(),)


def up_down():
    return _function("updown_torch", "StepPWL"), (_potentials(),)


# First order right: differences (2e-11).
def bitshift():
    return _function("lif_bitshift_torch", "Bitshift"), (_potentials(), torch.tensor(4.0), torch.tensor(0.9375))


CALLS = (
    Call(step, "other", doubtful=WINDOW),
    Call(
        periodic,
        "other",
        bugs=(
            Bug(
                "the threshold, which is trained, is kept on ctx: changing it in place silently changes the gradient",
                ("PB201", "PB209"),
                partial(input_change_is_unnoticed, periodic, 1),
            ),
        ),
        doubtful=WINDOW,
    ),
    Call(
        periodic_of_default_threshold,
        "other",
        bugs=(
            Bug(
                "the backward gives a gradient for a threshold that is a number, as by default: it raises",
                ("PB108", "PB119", "PB103"),
                partial(
                    raises, partial(gradients, periodic_of_default_threshold), "not a Variable", "incorrect number"
                ),
            ),
        ),
        doubtful=WINDOW,
    ),
    Call(up_down, "other"),
    Call(bitshift, doubtful={"PB107": SHIFT, "PB101": SHIFT, "PB205": SHIFT}),
)
