"""elasticai_creator: what is known of its custom functions.

Seven are covered, with the arguments that the layers pass. None is meant to be a derivative: they pass the gradient
straight through a quantisation, cut it off, or quantise it too; each was held against that. Changes in place, strided
inputs and cotangents, two backwards, checkpoints, dtypes.
"""

from functools import partial
from importlib import import_module

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.outside import argument_is_changed

PACKAGE = Package("elasticai-creator", "0.67.0", "quantisation")

FLOAT = "the output is float32 whatever the input is"
QUANTISED = "by design: the gradient is quantised too"


def _module(name):
    bare("elasticai.creator", "elasticai.creator.nn", "elasticai.creator.nn.float", "elasticai.creator.nn.fixed_point")
    bare("elasticai.creator.nn.binary", "elasticai.creator.nn.fixed_point.precomputed")
    bare("elasticai.creator_plugins", "elasticai.creator_plugins.quantized_grads")
    bare("elasticai.creator_plugins.quantized_grads.fixed_point")
    torch.manual_seed(0)
    return import_module(f"elasticai.{name}")


def _point():
    arithmetic = _module("creator.arithmetic")
    return arithmetic.FxpArithmetic(arithmetic.FxpParams(total_bits=8, frac_bits=4, signed=True))


def binarize():
    return _module("creator.nn.binary.binary_quantization_function").Binarize, (torch.randn(3, 4),)


def round_to_float():
    function = _module("creator.nn.float.round_to_float").RoundToFloat
    return function, (torch.randn(3, 4) * torch.tensor([1e-3, 1.0, 1.0, 1.0]), 3, 4)


def round_to_fixed_point():
    function = _module("creator.nn.fixed_point.fxp_round_cut").RoundToFixedPoint
    return function, (torch.randn(3, 4), _point())


def cut_to_fixed_point():
    function = _module("creator.nn.fixed_point.fxp_round_cut").CutToFixedPoint
    return function, (torch.randn(3, 4), _point())


def steps():
    function = _module("creator.nn.fixed_point.precomputed.identity_step_function").IdentityStepFunction
    return function, (torch.randn(3, 4), torch.linspace(-2, 2, 9))


def _fixed_point(name, times):
    function = getattr(_module("creator_plugins.quantized_grads.fixed_point.autograd"), name)
    limits = (torch.tensor(16.0), torch.tensor(-8.0), torch.tensor(7.9375))
    return (lambda x: function.apply(x, *(times * limits))), (torch.randn(3, 4),)


def forward_quantised():
    return _fixed_point("QuantizeForwHTEAutograd", 1)


def both_quantised():
    return _fixed_point("QuantizeForwHTEBackwHTEAutograd", 2)


CALLS = (
    Call(binarize, "other", doubtful=dict.fromkeys(("PB413", "PB105"), FLOAT)),
    Call(
        round_to_float,
        "other",
        bugs=(
            Bug(
                "the forward writes the smallest number into its argument, and does not say so",
                ("PB202",),
                partial(argument_is_changed, round_to_float),
            ),
        ),
    ),
    Call(round_to_fixed_point, "other", doubtful={"PB119": "what is out of bounds is refused"}),
    Call(cut_to_fixed_point, "other", doubtful={"PB119": "what is out of bounds is refused"}),
    Call(steps, "other", doubtful={**dict.fromkeys(("PB413", "PB105"), FLOAT), "PB107": "the table is fixed"}),
    Call(forward_quantised, "other"),
    Call(both_quantised, "other", doubtful=dict.fromkeys(("PB109", "PB302", "PB303", "PB401"), QUANTISED)),
)
