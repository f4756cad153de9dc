"""nncf: what is known of its custom functions.

The functions for export (`ExportQuantizeToFakeQuantize`, `ExportQuantizeToONNXQuantDequant`) are left out: their
comment says that the backward is not used (and it would raise: it returns one gradient for all of the arguments).
nncf compiles its quantisation with a C++ compiler, or torch.compile, at the first call; `_functions` puts in their
place what nncf falls back on where neither is there, so that a call takes no minute.

The gradients are straight-through estimators, and as such "other". Where every weight lies outside of the range,
though, the output is the end of the range, a smooth function of the scale, whose gradient can be nothing but the
derivative: the two calls `symmetric_lora_scale` and `symmetric_lora_negative_scale` are of that kind.
"""

from __future__ import annotations

import torch

from labels import Bug, Call, Package

PACKAGE = Package(
    "nncf",
    "3.4.0",
    "quantisation",
    needs=("natsort==8.4.0", "pydot==4.0.1", "openvino-telemetry==2025.2.0", "safetensors==0.8.0", "tabulate==0.10.0"),
)


def _functions():
    """The functions, with the fallback of nncf in the place of compiled code."""
    from nncf.torch.quantization import quantize_functions, reference

    for wrapper in (reference.torch_forward, reference.torch_backward):
        wrapper._compiled_func = wrapper._func
    quantize_functions.QuantizedFunctionsCPU._loaded_namespace = reference.ReferenceQuantizedFunctions
    return quantize_functions


def symmetric():
    f = _functions()
    torch.manual_seed(0)
    scale = torch.full((4, 1), 1.5, requires_grad=True)
    return f.QuantizeSymmetric, (torch.randn(4, 6, requires_grad=True), scale, -128, 127, 256)


def asymmetric():
    f = _functions()
    torch.manual_seed(0)
    low, span = f.TuneRange.apply(torch.tensor([-1.1]), torch.tensor([2.4]), 256)
    return f.QuantizeAsymmetric, (
        torch.randn(2, 3, 4, requires_grad=True),
        low.requires_grad_(),
        span.requires_grad_(),
        0,
        255,
        256,
    )


def symmetric_lora():
    f = _functions()
    torch.manual_seed(0)
    w = torch.randn(4, 8)
    scale = w.reshape(4, 2, 4).abs().amax(-1, keepdim=True)
    a, b = torch.randn(2, 8).bfloat16() * 0.1, torch.randn(4, 2).bfloat16() * 0.1

    def call(w, a, b, scale):
        return f.symmetric_quantize_lora(w, (4, 2, 4), a, b, scale, -8, 7, 16, 1e-16)

    return call, (w, a, b, scale)


def symmetric_lora_scale():
    f = _functions()
    torch.manual_seed(0)
    x = torch.tensor([[3.0, -3.0, 2.0, -2.5], [-4.0, 3.5, 5.0, 2.0]])
    return (
        lambda scale: f.symmetric_quantize_lora(
            x, (2, 4), torch.zeros(1, 4), torch.zeros(2, 1), scale, -8, 7, 16, 1e-16
        )
    ), (torch.tensor([[1.0], [1.2]]),)


def symmetric_lora_negative_scale():
    f = _functions()
    torch.manual_seed(0)
    x = torch.tensor([[3.0, -3.0, 2.0, -2.5], [-4.0, 3.5, 5.0, 2.0]])
    return (
        lambda scale: f.symmetric_quantize_lora(
            x, (2, 4), torch.zeros(1, 4), torch.zeros(2, 1), scale, -8, 7, 16, 1e-16
        )
    ), (torch.tensor([[-1.0], [-1.2]]),)


def asymmetric_lora():
    f = _functions()
    torch.manual_seed(0)
    w = torch.randn(4, 8)
    g = w.reshape(4, 2, 4)
    low = g.amin(-1, keepdim=True)
    span = g.amax(-1, keepdim=True) - low
    a, b = torch.randn(2, 8).bfloat16() * 0.1, torch.randn(4, 2).bfloat16() * 0.1

    def call(w, a, b, low, span):
        return f.asymmetric_quantize_lora(w, (4, 2, 4), a, b, low, span, 0, 15, 16, 1e-16)

    return call, (w, a, b, low, span)


def tune_range():
    f = _functions()
    return f.TuneRange, (
        torch.tensor([[-1.1], [-0.3]], requires_grad=True),
        torch.tensor([[2.4], [1.7]], requires_grad=True),
        256,
    )


def threshold():
    from nncf.torch.functions import STThreshold

    torch.manual_seed(0)
    return STThreshold, (torch.sigmoid(torch.randn(3, 4)),)


def _scale_gradient(make):
    """The gradient of the scale, and the central difference, of a random sum of the outputs."""
    f, (scale,) = make()
    scale = scale.detach().requires_grad_()
    torch.manual_seed(1)
    weights = torch.rand(2, 4) + 0.5
    (found,) = torch.autograd.grad((f(scale) * weights).sum(), scale)
    up, down = (((f(scale.detach() + sign * 1e-2) * weights).sum(1, keepdim=True)) for sign in (1, -1))
    return found, (up - down) / 2e-2


def scale_gradient_is_too_large():
    found, expected = _scale_gradient(symmetric_lora_scale)
    return torch.allclose(found, expected * 8 / 7, rtol=1e-3) and not torch.allclose(found, expected, rtol=0.1)


def scale_gradient_has_the_wrong_sign():
    f, (scale,) = symmetric_lora_negative_scale()
    scale = scale.detach().requires_grad_()
    top = f(scale)[0, 0]  # of a weight above the range, whose upper end is -scale
    (found,) = torch.autograd.grad(top, scale)
    expected = (f(scale.detach() + 1e-2)[0, 0] - f(scale.detach() - 1e-2)[0, 0]) / 2e-2
    return found[0, 0].item() * expected.item() < -0.9


_FACTOR = Bug(
    "beyond the range the gradient of the scale is 8/7 of the derivative: that of a range [-8/7 scale, scale], while "
    "the forward has [-scale, 7/8 scale]",
    ("PB101",),
    scale_gradient_is_too_large,
)
_SIGN = Bug(
    "the gradient of a negative scale, which half of the groups of weights have, has the wrong sign: forward takes the "
    "absolute value of the range, and backward the sign of that",
    ("PB101",),
    scale_gradient_has_the_wrong_sign,
)
_UNASKED = {"PB704": "all of the gradients are computed, also those of frozen arguments; that costs time only"}

# Each was run with random cotangents, strided and expanded ones, strided and bfloat16 inputs, per tensor, per channel
# and per group, with an empty batch, with frozen arguments, changes in place, checkpoint, autocast, twice, and for
# leaks.
CALLS = (
    # The gradients at both ends of the range are those of central differences; within, they are an estimate.
    Call(
        symmetric,
        "other",
        doubtful={
            **_UNASKED,
            "PB101": "within the range the gradient of the scale is (output - input) / range, and would be / scale",
        },
    ),
    # As above, for the low end and the range; within the range nothing is lacking.
    Call(asymmetric, "other", doubtful=_UNASKED),
    # See the next two. The gradients of the weight and of the adapters are right.
    Call(
        symmetric_lora,
        "other",
        doubtful={
            **_UNASKED,
            "PB101": "the gradient of the scale is wrong, as the next two calls show where it can be told",
            "PB303": "the adapters are bfloat16, and so are their gradients",
            "PB105": "the adapters are bfloat16, and so are their gradients",
            "PB404": "of an estimate: what it saves is a constant to double backward, which gives 0",
        },
    ),
    # Against central differences, and by hand: the ends are -scale and 7/8 scale.
    Call(symmetric_lora_scale, bugs=(_FACTOR,), doubtful=_UNASKED),
    Call(symmetric_lora_negative_scale, bugs=(_SIGN,), doubtful=_UNASKED),
    # As asymmetric: at both ends the gradients are 1 and 1, and 1 and 0, as they should be.
    Call(
        asymmetric_lora,
        "other",
        doubtful={
            **_UNASKED,
            "PB303": "the adapters are bfloat16, and so are their gradients",
            "PB105": "the adapters are bfloat16, and so are their gradients",
            "PB401": "of an estimate, whose own derivative it is not",
        },
    ),
    # The identity, for both arguments, by reading; the forward copies before it writes.
    Call(
        tune_range,
        "other",
        judged={
            "PB101": (False, "ranges are positive; of negative ones the forward is no identity, and means nothing")
        },
    ),
    # The identity, by reading.
    Call(threshold, "other"),
)
