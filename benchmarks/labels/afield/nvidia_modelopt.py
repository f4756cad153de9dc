"""nvidia_modelopt: what is known of its custom functions.

Three are covered: `ClipFunction` with limits that are numbers, of shape (1,), and one for each channel, `FakeTensorQuantFunction`
with and without clipping of the gradient, and `IntCastSTEFunction`. Left out: those that need Triton or CUDA. Truth:
float64 central differences, but for those that pass the gradient straight through. Double backward, each argument
alone, strided inputs and cotangents, two backwards, checkpoints, autocast, changes in place.
"""

from importlib import import_module

import torch

from labels import Bug, Call, Package
from labels.afield import stand_in
from labels.blind import bare
from labels.fresh import gradients, raises

PACKAGE = Package("nvidia-modelopt", "0.47.0", "quantisation")

WARNS = "a learnt limit is called experimental, in a warning"


def _module(name):
    bare("modelopt", "modelopt.torch", "modelopt.torch.quantization", "modelopt.torch.quantization.nn")
    bare("modelopt.torch.quantization.utils", "modelopt.torch.kernels", "modelopt.torch.kernels.quantization")
    stand_in("modelopt.torch.kernels.quantization.gemm", IS_AVAILABLE=False)
    stand_in("modelopt.torch.quantization.config", QuantizerAttributeConfig=dict)
    stand_in("modelopt.torch.quantization.extensions", get_cuda_ext=None, get_cuda_ext_fp8=None, get_cuda_ext_mx=None)
    torch.manual_seed(0)
    return import_module(f"modelopt.torch.quantization.{name}")


# Right, twice: differences.
def clip():
    return _module("nn.functional").clip, (torch.randn(3, 4), torch.tensor(-1.0), torch.tensor(0.5))


# Right, twice: differences.
def clip_to_fixed():
    function = _module("nn.functional").clip
    return (lambda x: function(x, torch.full((), -1.0, dtype=x.dtype), torch.full((), 0.5, dtype=x.dtype))), (
        torch.randn(3, 4),
    )


# Raises.
def clip_channels():
    function = _module("nn.functional").clip
    lower, upper = -torch.rand(4), torch.rand(4)
    return (lambda x: function(x, lower.to(x.dtype), upper.to(x.dtype))), (torch.randn(3, 4),)


# Raises.
def clip_of_one():
    return _module("nn.functional").clip, (torch.randn(3, 4), torch.tensor([-1.0]), torch.tensor([0.5]))


def cast():
    return _module("tensor_quant").IntCastSTEFunction, (4 * torch.randn(3, 4), 4)


def _fake(*arguments):
    function = _module("tensor_quant").FakeTensorQuantFunction
    return (lambda x: function.apply(x, torch.tensor(1.5), *arguments)), (torch.randn(3, 4),)


def fake():
    return _fake()


def fake_with_passed_gradient():
    return _fake(None, 8, False, True, None, True)


CALLS = (
    Call(
        clip,
        doubtful=dict.fromkeys(("PB603", "PB305"), WARNS),
        judged={"PB101": (False, "the lower limit is above the upper one")},
    ),
    Call(clip_to_fixed),
    Call(
        clip_channels,
        bugs=(
            Bug(
                "limits for each channel, which the forward is for, make the backward raise where nobody learns them",
                ("PB119",),
                lambda: raises(lambda: gradients(clip_channels), "can only be scalar"),
            ),
        ),
    ),
    Call(
        clip_of_one,
        bugs=(
            Bug(
                "learnt limits of shape (1,), which the check lets through, get a gradient without dimensions: it raises",
                ("PB104", "PB119"),
                lambda: raises(lambda: gradients(clip_of_one), "invalid gradient"),
            ),
        ),
        doubtful=dict.fromkeys(("PB603", "PB305"), WARNS),
    ),
    Call(cast, "other"),
    Call(fake, "other"),
    Call(fake_with_passed_gradient, "other"),
)
