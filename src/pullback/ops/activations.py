"""Activations of neural networks, with the backward ops that PyTorch has for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pullback.ops.bounds import exact
from pullback.ops.lowering import Arguments, Lowering, Number, call
from pullback.ops.record import Continuity, Given, PointwiseOp, Rounding, TermOp

_PYTORCH = {"lowering": "left to PyTorch's kernel"}
_DECOMPOSED = {"lowering": "kernels/decompositions.py writes it in e = exp(−|x|), which it shares with others"}


def _relu_ball(a: Any) -> Any:
    return a.max(type(a)(0))


def _gelu_reading(given: Given) -> str:
    if given.get("approximate") == "tanh":
        return "0.5*self*(1 + tanh(SQRT_2_OVER_PI*(self + 0.044715*self**3)))"
    return "self*(0.5*(1 + erf(self*SQRT1_2)))"


def _gelu(suffix: str, count: int) -> Callable[[Arguments], str]:
    def write(given: Arguments) -> str:
        kind = given[count] if len(given) > count else "none"
        name = {"none": "gelu", "tanh": "gelu_tanh"}.get(getattr(kind, "value", kind))
        return f"{name}{suffix}({', '.join(map(str, given[:count]))})"

    return write


def _elu(given: Arguments) -> str:
    x, *rest = given
    return f"elu({', '.join(map(str, [x, *rest, *(Number(1.0), Number(1.0), Number(1.0))[len(rest) :]]))})"


def _celu(given: Arguments) -> str:
    x, alpha = [*given, Number(1.0)][:2]
    return f"elu({x}, {alpha}, {Number(1.0)}, {Number(1.0 / alpha.value)})"


def _elu_backward(given: Arguments) -> str:
    g, alpha, scale, input_scale, is_result, x = given
    name = "elu_backward_of_result" if is_result.value else "elu_backward"
    return f"{name}({g}, {alpha}, {scale}, {input_scale}, {x})"


def _leaky_relu(given: Arguments) -> str:
    x, slope = [*given, Number(0.01)][:2]
    return f"leaky_relu({x}, {slope})"


def tanh_softplus(x: Tensor, e: Tensor) -> Tensor:
    """Return tanh(softplus(x)) as a start, 1 or e, less a correction, with e = exp(−|x|).

    With t = 1 + eˣ, tanh(log t) = (t² − 1) / (t² + 1). For x > 0 that is 1 − 2 e² / (2 (e² + e) + 1); otherwise, with e
    = eˣ, it is e − e² (e + 1) / (e² + 2 (e + 1)). The correction is at most 2/5 of the start, at x = 0, where the value
    is 3/5: its error is amplified by at most 2/3, and that of the start by 5/3.
    """
    above, square = x > 0, e * e
    start, share = torch.where(above, 1.0, e), torch.where(above, 2.0, e + 1)
    return start - square * share / torch.where(above, 2 * (square + e) + 1, square + 2 * (e + 1))


OPS = (
    TermOp(
        name="relu",
        aten=("relu",),
        value=torch.relu,
        partials=("where(a > 0, 1, 0)",),
        ball=_relu_ball,
        bounds=exact(torch.relu),
        mpmath=lambda mp, a: max(a, mp.zero),
        cost=0.5,
        pieces=("a", "a", "0"),
        kink="relu at 0",
        continuity=Continuity.KINKS,
        rounding=Rounding.NONE,
        lowering=call("relu", latency=1),
    ),
    PointwiseOp(
        name="relu6",
        aten=("relu6",),
        reading="where(self <= 0, 0, where(self >= 6, 6, self))",
        kink="relu6 at 0 and 6",
        continuity=Continuity.KINKS,
        empty={"lowering": "PyTorch records it as hardtanh"},
    ),
    PointwiseOp(
        name="leaky_relu",
        aten=("leaky_relu",),
        reading="where(self > 0, self, negative_slope*self)",
        kink="leaky_relu at 0",
        continuity=Continuity.KINKS,
        lowering=Lowering(write=_leaky_relu, latency=3),
    ),
    PointwiseOp(
        name="leaky_relu_backward",
        aten=("leaky_relu_backward",),
        continuity=Continuity.JUMPS,
        lowering=call("leaky_relu_backward", 3, latency=3),
    ),
    PointwiseOp(
        name="prelu",
        aten=("_prelu_kernel",),
        reading="where(self > 0, self, weight*self)",
        kink="prelu at 0",
        continuity=Continuity.KINKS,
        empty=_PYTORCH,
    ),
    # at 0 PyTorch takes the slope of the exponential, and no second derivative
    PointwiseOp(
        name="elu",
        aten=("elu",),
        reading=(
            "where(self > 0, scale*self, where(self == 0, scale*alpha*input_scale*self, "
            "scale*(alpha*expm1(input_scale*self))))"
        ),
        kink="elu (selu, celu) at 0",
        continuity=Continuity.KINKS,
        lowering=Lowering(write=_elu),
    ),
    PointwiseOp(
        name="celu",
        aten=("celu",),
        reading="where(self >= 0, self, alpha*expm1(self/alpha))",
        kink="elu (selu, celu) at 0",
        continuity=Continuity.KINKS,
        lowering=Lowering(write=_celu),
    ),
    PointwiseOp(
        name="elu_backward", aten=("elu_backward",), continuity=Continuity.JUMPS, lowering=Lowering(write=_elu_backward)
    ),
    PointwiseOp(
        name="hardsigmoid",
        aten=("hardsigmoid",),
        reading="where(self <= -3, 0, where(self >= 3, 1, (self + 3)/6))",
        kink="hardsigmoid at ±3",
        continuity=Continuity.KINKS,
        lowering=call("hardsigmoid", latency=3),
    ),
    PointwiseOp(
        name="hardswish",
        aten=("hardswish",),
        reading="where(self <= -3, 0, where(self >= 3, self, self*(self + 3)/6))",
        kink="hardswish at ±3",
        continuity=Continuity.KINKS,
        lowering=call("hardswish", latency=3),
    ),
    PointwiseOp(
        name="softshrink",
        aten=("softshrink",),
        reading="where(self > lambd, self - lambd, where(self < -lambd, self + lambd, 0))",
        kink="softshrink at its bounds",
        continuity=Continuity.KINKS,
        empty=_PYTORCH,
    ),
    PointwiseOp(
        name="hardshrink",
        aten=("hardshrink",),
        reading="where(self > lambd, self, where(self < -lambd, self, 0))",
        kink="hardshrink at its bounds, where it jumps",
        continuity=Continuity.JUMPS,
        empty=_PYTORCH,
    ),
    PointwiseOp(name="silu", aten=("silu",), reading="self*sigmoid(self)", lowering=call("silu")),
    PointwiseOp(name="silu_backward", aten=("silu_backward",), lowering=call("silu_backward", 2)),
    PointwiseOp(name="mish", aten=("mish",), reading="self*tanh(softplus(self))", empty=_DECOMPOSED),
    PointwiseOp(name="mish_backward", aten=("mish_backward",), empty=_DECOMPOSED),
    PointwiseOp(name="tanh_softplus", lowering=call("tanh_softplus", 2, target=tanh_softplus, latency=8)),
    PointwiseOp(
        name="gelu",
        aten=("gelu",),
        reading=_gelu_reading,
        lowering=Lowering(write=_gelu("", 1), keywords=("approximate",)),
    ),
    PointwiseOp(
        name="gelu_backward",
        aten=("gelu_backward",),
        lowering=Lowering(write=_gelu("_backward", 2), keywords=("approximate",)),
    ),
)
