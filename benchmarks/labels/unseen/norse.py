"""norse: what is known of its custom functions.

Six are covered, of twenty. The gradients of spikes are those of surrogates, and those of the neurons solve adjoint
equations of their own; truth: their formulas, and for second order differences of the gradient. The surrogate of
`SuperSpike` does not read its width, which no derivative tells. Spikes that do not come, weights that meet spikes of the
step before, half precision, frozen arguments, strided inputs and cotangents, two backwards, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import bare, raises_in
from labels.fresh import gradients, raises

PACKAGE = Package("norse", "1.1.0", "spiking networks")

SURROGATE = "by design: the gradient is that of a surrogate"
ADJOINT = "by design: the gradient solves the adjoint equations in time, with time constants of their own"
INTERMEDIATE = "values between the steps are saved; that of an adjoint equation is no derivative anyway"
NEURON = {
    **dict.fromkeys(("PB101", "PB107", "PB106", "PB109", "PB114", "PB305"), ADJOINT),
    **dict.fromkeys(("PB401", "PB404"), INTERMEDIATE),
    "PB201": "the parameters of the neuron are constants, kept on ctx",
    "PB209": "the parameters of the neuron are constants, kept on ctx",
    "PB301": "where the current is zero the jump is zero by an explicit test",
    "PB304": "where the current is zero the jump is zero by an explicit test",
}


def _functional(name):
    from importlib import import_module

    bare("norse", "norse.torch", "norse.torch.functional")
    return import_module("norse.torch.functional." + name)


def _potentials():
    return torch.tensor([[0.3, -1.2, 2.5, 0.9], [-0.4, 0.6, 0.1, -5.2]])


# Its formula, twice, right.
def superspike():
    return _functional("superspike").SuperSpike, (_potentials(), 100.0)


# Its formula, twice, right.
def error_function():
    return _functional("threshold").HeaviErfc, (_potentials(), 1.5)


# Its formula, twice, right.
def triangle():
    return _functional("threshold").Triangle, (_potentials(), 0.3)


# Right in float32.
def spike_times():
    rows = [[0.0, 1, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0], [1, 1, 1, 1], [1, 0, 1, 0]]
    spikes = torch.tensor(rows)[:, None, :].repeat(1, 2, 1)
    return _functional("spikes_to_times_decoder").ToSpikeTimes, (spikes, torch.tensor(2))


# Wrong.
def spike_times_of_silent_neurons():
    rows = [[0.0, 1, 0, 1], [0, 0, 0, 1], [0, 1, 1, 0], [1, 1, 0, 1], [0, 0, 0, 0]]
    spikes = torch.tensor(rows)[:, None, :].repeat(1, 2, 1)
    return _functional("spikes_to_times_decoder").ToSpikeTimes, (spikes, torch.tensor(2))


# Adjoint equations.
def neuron():
    torch.manual_seed(0)
    return _functional("adjoint.lif_adjoint").LIFFeedForwardAdjointFunction, (
        torch.rand(2, 4),
        torch.rand(2, 4) / 2,
        torch.rand(2, 4),
    )


# Adjoint equations; wrong for the recurrent weights.
def recurrent_neuron():
    torch.manual_seed(0)
    return _functional("adjoint.lif_adjoint").LIFAdjointFunction, (
        torch.tensor([[1.0, 0, 1, 1], [0, 1, 0, 1]]),
        torch.tensor([[1.0, 0, 1], [0, 1, 0]]),
        torch.rand(2, 3) / 2,
        torch.rand(2, 3),
        torch.randn(3, 4),
        torch.randn(3, 3),
    )


def recurrent_weights_meet_wrong_spikes():
    """Whether the input's weights get the product with the input, and the recurrent ones not that with the old spikes."""
    function, arguments = recurrent_neuron()
    leaves = [a.requires_grad_() for a in arguments]
    current = function.apply(*leaves)[2]
    cotangent = torch.randn(current.shape)
    found = torch.autograd.grad(current, leaves[4:], cotangent)
    expected = [cotangent.t() @ x.detach() for x in leaves[:2]]
    return torch.allclose(found[0], expected[0]) and not torch.allclose(found[1], expected[1], rtol=0.1)


def _spikes(make):
    return Call(make, "other", doubtful=dict.fromkeys(("PB101", "PB107", "PB302"), SURROGATE))


CALLS = (
    *map(_spikes, (superspike, error_function, triangle)),
    Call(
        spike_times,
        "other",
        bugs=(
            Bug(
                "the gradient is made in float32 whatever the spikes are: in half and in double precision the backward raises",
                ("PB119", "PB413", "PB105"),
                partial(raises_in, spike_times, torch.float64, "source and destination dtypes match"),
            ),
        ),
        doubtful={"PB101": SURROGATE, "PB302": SURROGATE, "PB107": SURROGATE},
    ),
    Call(
        spike_times_of_silent_neurons,
        "other",
        bugs=(
            Bug(
                "where a neuron has fewer spikes than are asked for, which the function documents, the backward raises",
                ("PB119", "PB101"),
                lambda: raises(lambda: gradients(spike_times_of_silent_neurons, torch.float32), "shape mismatch"),
            ),
        ),
        doubtful={"PB302": SURROGATE, "PB107": SURROGATE},
    ),
    Call(neuron, "other", doubtful=NEURON),
    Call(
        recurrent_neuron,
        "other",
        bugs=(
            Bug(
                "recurrent weights get the product with the spikes that come out, in place of those that went in",
                ("PB101", "PB106", "PB107"),
                recurrent_weights_meet_wrong_spikes,
            ),
        ),
        doubtful={k: v for k, v in NEURON.items() if k not in ("PB101", "PB106", "PB107")},
    ),
)
