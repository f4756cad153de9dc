"""aihwkit-lightning: what is known of its custom functions.

Covered are those of the PyTorch modules, with the arguments that `TorchLinear` passes; the others need Triton. Truth:
the formulas: the gradient of a range or a clip is scaled and clipped by design, as in learned step sizes. Half
precision, strided inputs, transposed and expanded cotangents, double backward, frozen arguments, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.last import cotangent_is_changed, derivative_of_backward_is_wrong, expanded_cotangent_differs

PACKAGE = Package("aihwkit-lightning", "2.1.0", "analogue hardware")

MASKS = "the masks are arguments that belong to the values, of which the gradient is 0 there"
RANGE = "by design: the range gets its gradient from another function"
CLIPPED = "by design: the gradient of the range is clipped by its sign, scaled, and decays"
SCALED = "by design: the gradient of the clip is scaled by the size of the weights"
VIEW = "the output is the input: changing it in place raises, with PyTorch's message on views"
NONES = "there is one None more than arguments, which PyTorch drops"


def _function(module, name):
    from importlib import import_module

    return getattr(import_module("aihwkit_lightning.nn.modules.torch_utils." + module), name)


def _activations():
    torch.manual_seed(0)
    x, bound = 2 * torch.randn(3, 5), torch.tensor([1.5])
    return x, bound, x >= bound, x <= -bound


def _weights(scale=1.0):
    torch.manual_seed(0)
    weights = 0.3 * scale * torch.randn(4, 6)
    return weights, 0.8 * weights.abs().amax(1, keepdim=True)


# The values are right.
def clamp():
    x, bound, upper, lower = _activations()
    return _function("torch_linear", "StraightThroughClamp"), (x, upper, lower, bound)


# Right, for what it is.
def input_range():
    x, bound, upper, lower = _activations()
    x = x.clamp(-1.5, 1.5)
    return _function("torch_linear", "InputRangeForward"), (x, bound, upper, lower, 0.001, 0.95)


# Straight-through, right.
def quantised_input():
    x, bound, _, _ = _activations()
    return _function("quant_utils", "UniformQuantize"), (x, 254, bound, True, False, None, False)


# Right for clips below 1.
def learned_clip():
    weights, clip = _weights()
    return _function("quant_utils", "UniformQuantize"), (weights, clip, 0.5, False, True, 1.0, True)


# Right, for what it is, to first order.
def learned_quantisation():
    weights, clip = _weights()
    return _function("quant_utils", "UniformQuantize"), (weights, clip / 15, 1.0, False, True, 7.5, False)


def clip_above_one_is_inverted():
    """Whether clips above 1 everywhere clip the weights to less as they grow, with gradients that say more."""
    weights, clip = (x.double() for x in _weights(10.0))
    function = learned_clip()[0].apply

    def largest(clip):
        return function(weights, clip, 0.5, False, True, 1.0, True).clamp(min=0).sum()

    clip.requires_grad_()
    (gradient,) = torch.autograd.grad(largest(clip), clip)
    shrinks = bool(largest(1.01 * clip) < largest(clip))
    return bool((clip > 1).all()) and shrinks and bool((gradient >= 0).all() and gradient.any())


CALLS = (
    Call(
        clamp,
        "other",
        bugs=(
            Bug(
                "the backward writes zeros into its cotangent",
                ("PB203",),
                partial(cotangent_is_changed, clamp),
            ),
            Bug(
                "a cotangent that is expanded from one number, as of a sum, becomes 0 as a whole, and the gradient too",
                ("PB502", "PB203"),
                partial(expanded_cotangent_differs, clamp),
            ),
        ),
        doubtful={
            **dict.fromkeys(("PB101", "PB305"), MASKS),
            **dict.fromkeys(("PB107", "PB106"), RANGE),
            "PB103": NONES,
        },
    ),
    Call(
        input_range,
        "other",
        doubtful={**dict.fromkeys(("PB101", "PB109", "PB114", "PB111"), CLIPPED), "PB207": VIEW, "PB408": CLIPPED},
    ),
    Call(quantised_input, "other", doubtful={"PB107": RANGE, "PB101": RANGE}),
    Call(
        learned_clip,
        "other",
        bugs=(
            Bug(
                "clips that all exceed 1 are taken for numbers of states: weights are clipped to the inverse of the "
                "clip, and its gradient has the wrong sign",
                ("PB101",),
                clip_above_one_is_inverted,
            ),
        ),
        doubtful={"PB101": SCALED, "PB401": SCALED, "PB404": SCALED},
    ),
    Call(
        learned_quantisation,
        "other",
        bugs=(
            Bug(
                "the clamped resolution is saved, to which no graph leads: the gradient's derivative is silently wrong",
                ("PB401", "PB404"),
                partial(derivative_of_backward_is_wrong, learned_quantisation, 1),
            ),
        ),
        doubtful={"PB101": SCALED},
    ),
)
