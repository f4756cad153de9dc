"""bitorch: what is known of its custom functions.

All nine that its layers use are covered, with the arguments that those pass. None is meant to be a derivative: they pass
the gradient straight through a quantisation, replace it by that of another function, or cancel a part of it; each was
held against the function that it stands for (float64, 1e-12).
"""

import torch

from labels import Call, Package

PACKAGE = Package("bitorch", "0.4.1", "binary networks", needs=("pandas==3.1.1",))

IDLE = "the input is saved and not used: memory, no wrong number"
TRAILING = "it returns one None too many, which PyTorch accepts"
SHAPE = "the gradient of alpha has a dimension too many, which PyTorch takes away"
ITSELF = "the input is returned as it is, and changing the output in place raises, with PyTorch's message on views"
ZERO_DIM = "a tensor without dimensions is refused: the backward prints how many rows there are"
FLOAT = "the output is float32 whatever the input is; the gradient is of the input's width"
PRINTS = "the backward prints"


def _inputs():
    return torch.tensor([[0.3, -1.2, 2.5, 0.9], [-0.4, 3.3, 0.1, -5.0]])


def _quantization(module, name, *arguments):
    from importlib import import_module

    return getattr(import_module(f"bitorch.{module}"), name), (_inputs(), *arguments)


def pact():
    return _quantization("layers.pact", "PactActFn", torch.tensor(2.0), 3)


def gradient_cancellation():
    return _quantization("layers.qactivation", "GradientCancellation", 1.0)


def progressive_sign():
    return _quantization("quantizations.progressive_sign", "ProgressiveSignFunctionTrain", 0.3)


def dorefa_of_weights():
    return _quantization("quantizations.dorefa", "WeightDoReFaFunction", 3)


def dorefa_of_inputs():
    return _quantization("quantizations.dorefa", "InputDoReFaFunction", 2)


def swish_sign():
    return _quantization("quantizations.swish_sign", "SwishSignFunction", 5.0)


def approximate_sign():
    return _quantization("quantizations.approx_sign", "ApproxSignFunction")


def sign():
    return _quantization("quantizations.sign", "SignFunction")


def heaviside():
    return _quantization("quantizations.ste_heaviside", "SteHeavisideFunction")


CALLS = (
    Call(pact, "other", doubtful={"PB104": SHAPE, "PB115": SHAPE}),
    Call(gradient_cancellation, "other", doubtful={"PB207": ITSELF, "PB209": ITSELF}),
    Call(progressive_sign, "other", doubtful={"PB205": IDLE, "PB701": IDLE}),
    Call(dorefa_of_weights, "other", doubtful={"PB205": IDLE, "PB701": IDLE, "PB103": TRAILING}),
    Call(dorefa_of_inputs, "other"),
    Call(swish_sign, "other"),
    Call(approximate_sign, "other"),
    Call(sign, "other"),
    Call(
        heaviside,
        "other",
        doubtful={"PB505": ZERO_DIM, "PB119": ZERO_DIM, "PB105": FLOAT, "PB413": FLOAT, "PB603": PRINTS},
    ),
)
