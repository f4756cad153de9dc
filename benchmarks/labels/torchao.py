"""torchao: what is known of its custom functions.

Left out are the functions that need Triton or CUDA (`prototype/moe_training`, `prototype/float8nocompile`,
`sparsity/training`, NVFP4, int8 mixed precision, BitNet, the codebook and Hadamard ones), those that only make a
tensor subclass (float8, affine fake-quantised), and `RoundStraightThrough`, a second `_Round`.

Found beside the calls below: ParetoQ's `QuantizeLinear(..., weight_layerwise=True)` raises in the backward (the
gradient of its step sizes, one for each row, has the shape 1); nothing in the package sets that.
`_NVFP4QuantizedForward...` returns None for the bias as well, by its source; it does not run on a CPU.
"""

from __future__ import annotations

import torch

from labels import Bug, Call, Package

PACKAGE = Package("torchao", "0.18.0", "quantisation")


def round_straight_through():
    from torchao.quantization.quant_primitives import _Round

    torch.manual_seed(0)
    return _Round, (torch.randn(3, 4) * 5,)


def float8_fake_quantize():
    from torchao.quantization.qat import Float8FakeQuantizeConfig
    from torchao.quantization.qat.fake_quantizer import Float8FakeQuantizer

    torch.manual_seed(0)
    return Float8FakeQuantizer(Float8FakeQuantizeConfig()), (torch.randn(3, 16),)


def linear_nf4():
    from torchao.quantization import to_nf4
    from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import LinearNF4

    torch.manual_seed(0)
    return LinearNF4, (torch.randn(2, 3, 128, requires_grad=True), to_nf4(torch.randn(128, 128)))


def supermask_subnet():
    from torchao.sparsity.supermask import GetSubnet

    torch.manual_seed(0)
    scores = torch.rand(4, 5, requires_grad=True)
    return GetSubnet, (scores, torch.zeros(4, 5), torch.ones(4, 5), 0.5)


def supermask_apply():
    from torchao.sparsity.supermask import ApplyMask

    torch.manual_seed(0)
    return ApplyMask, (torch.randn(4, 5), (torch.rand(4, 5) > 0.5).float())


def paretoq_lsq():
    from torchao.prototype.paretoq.models.utils_quant import LsqBinaryTernaryExtension

    torch.manual_seed(0)
    return LsqBinaryTernaryExtension, (torch.randn(4, 8), torch.full((4, 1), 0.3), 3, False)


def paretoq_stretched():
    from torchao.prototype.paretoq.models.utils_quant import StretchedElasticQuant

    torch.manual_seed(0)
    return StretchedElasticQuant, (torch.randn(4, 8), torch.full((4, 1), 1.3), 2, False)


def paretoq_ternary():
    from torchao.prototype.paretoq.models.utils_quant import StretchedElasticQuant

    torch.manual_seed(0)
    return StretchedElasticQuant, (torch.randn(4, 8), torch.full((4, 1), 1.3), 0, False)


def int8_weight_only():
    from torchao.prototype.quantized_training.int8 import Int8QuantizedTrainingLinearWeight

    torch.manual_seed(0)
    weight = Int8QuantizedTrainingLinearWeight.from_float(torch.randn(4, 8))
    return (lambda x, b: torch.nn.functional.linear(x, weight, b)), (torch.randn(2, 3, 8), torch.randn(4))


def float8_linear():
    from torchao.float8 import Float8LinearConfig
    from torchao.float8.float8_linear import Float8Linear

    torch.manual_seed(0)
    linear = Float8Linear.from_float(torch.nn.Linear(16, 16, bias=False), Float8LinearConfig(emulate=True))
    return (lambda x, w: torch.func.functional_call(linear, {"weight": w}, (x,))), (
        torch.randn(2, 16, 16),
        torch.randn(16, 16),
    )


def mx_linear():
    from torchao.prototype.qat.mx import MXFakeQuantizeConfig, _MXQuantizedForwardFakeQuantizedBackward

    torch.manual_seed(0)
    config = MXFakeQuantizeConfig(dtype=torch.float8_e4m3fn)
    args = (
        torch.randn(2, 3, 32, requires_grad=True),
        torch.randn(32, 32, requires_grad=True),
        torch.randn(32, requires_grad=True),
    )
    return _MXQuantizedForwardFakeQuantizedBackward, (*args, config, config)


def _raises(call, text):
    try:
        call()
    except RuntimeError as e:
        return text in str(e)
    return False


def float8_gradient_underflows():
    """Half of the gradients of 1e-3, of elements that are not the largest, are 0, and not 1e-3."""
    f, (x,) = float8_fake_quantize()
    x.requires_grad_()
    (small,) = torch.autograd.grad(f(x), x, torch.full_like(x, 1e-3))
    return (small == 0).float().mean().item() > 0.5


def float8_gradient_is_rounded():
    f, (x,) = float8_fake_quantize()
    x.requires_grad_()
    out = f(x)
    torch.manual_seed(1)
    weights = torch.rand_like(x) + 0.5
    (found,) = torch.autograd.grad(out, x, weights)
    inner = x.abs() < x.abs().amax(1, keepdim=True)
    return ((found - weights) / weights)[inner].abs().max().item() > 0.01


def int8_strided_input_raises():
    f, (x, b) = int8_weight_only()
    x = x.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    loss = f(x, b).sum()
    return _raises(loss.backward, "view size is not compatible")


def int8_strided_cotangent_raises():
    f, (x, b) = int8_weight_only()
    loss = f(x.requires_grad_(), b).transpose(0, 1).contiguous().pow(2).sum()
    return _raises(loss.backward, "view size is not compatible")


def mx_bias_gets_none():
    f, (x, w, b, *configs) = mx_linear()
    out = f.apply(x, w, b, *configs)
    (found,) = torch.autograd.grad(out.sum(), b, allow_unused=True)
    with torch.no_grad():
        change = (f.apply(x, w, b + 1, *configs) - out).abs().min().item()
    return found is None and change > 0.9


def mx_strided_input_raises():
    f, (x, *args) = mx_linear()
    x = x.detach().transpose(0, 1).contiguous().transpose(0, 1)
    return _raises(lambda: f.apply(x, *args), "view size is not compatible")


def mx_strided_cotangent_raises():
    f, args = mx_linear()
    loss = f.apply(*args).transpose(0, 1).contiguous().pow(2).sum()
    return _raises(loss.backward, "view size is not compatible")


_UNASKED = {"PB704": "gradients of frozen arguments are computed, too; that costs time only"}

# Each was run with random cotangents, strided and expanded ones, strided inputs, frozen arguments, changes in place,
# float64, checkpoint, hooks, autocast, twice, and for leaks; then, for the truth of the gradients:
CALLS = (
    # The identity, by reading.
    Call(round_straight_through, "other"),
    # Straight-through: the gradient is the cotangent but for the largest element of a row, which gives the scale.
    Call(
        float8_fake_quantize,
        "other",
        bugs=(
            Bug(
                "small gradients become 0: _RoundToFloat8 has a float8 output, so that its cotangent is cast to float8",
                ("PB302", "PB303", "PB105", "PB109"),
                float8_gradient_underflows,
            ),
            Bug(
                "gradients are rounded to the three bits of float8: the backward is not linear in the cotangent",
                ("PB303", "PB105", "PB109"),
                float8_gradient_is_rounded,
            ),
        ),
    ),
    # Against autograd through the dequantised weight, and central differences.
    Call(
        linear_nf4,
        doubtful={"PB412": "a clone of an NF4Tensor quantises anew, so that a hook that clones changes the weight"},
    ),
    # The identity, by reading; the threshold has no derivative.
    Call(supermask_subnet, "other", doubtful={"PB501": "strided scores are refused, by a view; they are parameters"}),
    # By reading: the cotangent for both, "STE function".
    Call(
        supermask_apply,
        "other",
        doubtful={
            "PB101": "the scores get the cotangent without the weight, and masked weights get one: on purpose, it seems"
        },
    ),
    # Against autograd through the formula with a detached rounding error, and the step size scaled as in the paper.
    Call(paretoq_lsq, "other", doubtful={**_UNASKED, "PB503": "an empty weight is refused, by a division by its size"}),
    Call(
        paretoq_stretched,
        "other",
        doubtful={**_UNASKED, "PB503": "an empty weight is refused, by a division by its size"},
    ),
    # As above; that shows the gradient of the step size to be another.
    Call(
        paretoq_ternary,
        "other",
        doubtful={
            **_UNASKED,
            "PB101": "beyond the range the gradient of the step size is that of a level of 1, while the output has 2/3",
            "PB503": "an empty weight is refused, by a division by its size",
        },
    ),
    # Against a linear layer with the dequantised weight; also where the weight gets a gradient.
    Call(
        int8_weight_only,
        bugs=(
            Bug(
                "a strided input makes the backward raise: it is viewed", ("PB501", "PB119"), int8_strided_input_raises
            ),
            Bug(
                "a strided cotangent makes the backward raise: it is viewed",
                ("PB502", "PB119"),
                int8_strided_cotangent_raises,
            ),
        ),
        doubtful=_UNASKED,
    ),
    # Against a plain linear layer: the gradients agree to the 6 % that float8 leaves.
    Call(
        float8_linear,
        "other",
        doubtful={
            **_UNASKED,
            "PB109": "the cotangent is cast to float8 with a scale of its own: that is what the layer is for",
            "PB303": "the cotangent is cast to float8 with a scale of its own: that is what the layer is for",
            "PB403": "double backward fails on an assertion, without saying that it is not supported",
            "PB408": "a vectorised backward raises: float8 tensors take no batch",
            "PB413": "under autocast the gradients are those of bfloat16, as they should be, and of float8",
            "PB503": "an empty batch is refused, by the max of the scale",
        },
    ),
    # Against autograd through the dequantised input and weight: the same to the last bit.
    Call(
        mx_linear,
        "other",
        bugs=(
            Bug("the bias gets no gradient: backward returns None for it", ("PB107",), mx_bias_gets_none),
            Bug("a strided input makes the forward raise: it is viewed", ("PB501",), mx_strided_input_raises),
            Bug(
                "a strided cotangent makes the backward raise: it is viewed",
                ("PB502", "PB119"),
                mx_strided_cotangent_raises,
            ),
        ),
        doubtful={
            **_UNASKED,
            "PB401": "double backward takes the quantised factors for constants; the forward is a step function",
            "PB404": "double backward takes the quantised factors for constants; the forward is a step function",
            "PB413": "a float32 layer under autocast raises: of the CPU, for which the package does not support it",
        },
    ),
)
