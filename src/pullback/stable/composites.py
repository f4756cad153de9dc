"""ATen's pointwise ops in terms of the table of ops: one row each, by the names of their parameters.

A row is the text of a term, or a function of the arguments that returns it, or `None` if the op is not pointwise for
them. At kinks the branches are chosen such that the derivatives are PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pullback.stable.ops import OPS
from pullback.stable.term import CONST, NAMED, Term

Given = Mapping[str, Any]
"""Arguments by the names of the schema: terms; `None`, strings and lists are kept unchanged."""

_SOFTPLUS_THRESHOLD = 20


def row(name: str, given: Given) -> str | None:
    """Return the text of an ATen op, called with these arguments; `None` if it is not in the table."""
    if name in OPS and name not in _ROWS:
        parameters = ("condition", "self", "other") if name == "where" else ("self", "other")
        used = [p for p in parameters if p in given]
        return f"{name}({', '.join(used)})"
    found = _ROWS.get(name)
    return found if found is None or isinstance(found, str) else found(given)


def is_known(name: str) -> bool:
    """Whether an ATen op is in the table, with some arguments at least."""
    return name in OPS or name in _ROWS


def _pow(given: Given) -> str:
    exponent, base = given["exponent"], given["self"]
    if exponent.op == CONST and exponent.value in _EXPONENTS:
        return _EXPONENTS[exponent.value]
    if (base.op, base.value) in _BASES:
        return f"{_BASES[base.op, base.value]}(exponent)"
    return "pow(self, exponent)"


_EXPONENTS = {
    0: "1", 1: "self", 2: "self**2", 3: "self**3", 4: "self**4", -1: "1/self", 0.5: "sqrt(self)", -0.5: "rsqrt(self)",
}  # fmt: skip


_BASES = {(CONST, 2): "exp2", (NAMED, "E"): "exp"}


def _div(given: Given) -> str | None:
    mode = given.get("rounding_mode")
    return {None: "self/other", "floor": "floor(self/other)", "trunc": _truncated("self/other")}.get(mode)


def _truncated(text: str) -> str:
    return f"where({text} < 0, ceil({text}), floor({text}))"


def _round(given: Given) -> str | None:
    """Return the nearest integer, of two the even one."""
    tie = "where(self - floor(self) == 0.5, 2*floor(0.5*self + 0.5), floor(self + 0.5))"
    return None if "decimals" in given else tie


def _clamp(given: Given) -> str:
    below = "self" if given.get("max") is None else "where(self > max, max, self)"
    return below if given.get("min") is None else f"where(self < min, min, {below})"


def _softplus(given: Given) -> str:
    # From the default threshold on, the linear piece is a numerical device and the function a softplus; a lower one is
    # part of the caller's request.
    soft = "softplus(beta*self)/beta"
    threshold = given["threshold"].value
    return soft if threshold >= _SOFTPLUS_THRESHOLD else f"where(beta*self > threshold, self, {soft})"


def _gelu(given: Given) -> str:
    if given.get("approximate") == "tanh":
        return "0.5*self*(1 + tanh(SQRT_2_OVER_PI*(self + 0.044715*self**3)))"
    return "self*(0.5*(1 + erf(self*SQRT1_2)))"


def _logit(given: Given) -> str:
    if given.get("eps") is None:
        return "log(self/(1 - self))"
    inside = "where(self < eps, eps, where(self > 1 - eps, 1 - eps, self))"
    return f"log({inside}/(1 - {inside}))"


def _polygamma(given: Given) -> str | None:
    n: Term = given["n"]
    return {0: "digamma(self)", 1: "trigamma(self)"}.get(n.value)


def _unreduced(text: str) -> Callable[[Given], str | None]:
    """Return the row of a loss: pointwise only without a reduction and without weights."""

    def of(given: Given) -> str | None:
        weighted = given.get("weight") is not None or given.get("pos_weight") is not None
        reduction = given["reduction"].value
        return None if weighted or reduction != 0 else text

    return of


_ROWS: dict[str, str | Callable[[Given], str | None]] = {
    # the same values; `graphs.py` looks after dtypes and shapes
    **dict.fromkeys(
        ("alias", "clone", "contiguous", "detach", "expand", "lift_fresh", "lift_fresh_copy", "positive", "_to_copy"),
        "self",
    ),
    # constants
    **dict.fromkeys(("full", "full_like", "new_full"), "fill_value"),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), "1"),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), "0"),
    "scalar_tensor": "s",
    # arithmetic
    "add": "self + alpha*other",
    "sub": "self - alpha*other",
    "rsub": "other - alpha*self",
    "mul": "self*other",
    "div": _div,
    "floor_divide": "floor(self/other)",
    "remainder": "self - other*floor(self/other)",
    "fmod": f"self - other*{_truncated('self/other')}",
    "trunc": _truncated("self"),
    "round": _round,
    "frac": f"self - {_truncated('self')}",
    "reciprocal": "1/self",
    "square": "self**2",
    "pow": _pow,
    "addcmul": "self + value*(tensor1*tensor2)",
    "addcdiv": "self + value*(tensor1/tensor2)",
    "lerp": "self + weight*(end - self)",
    "sign": "sgn(self)",
    "deg2rad": "self*(PI/180)",
    "rad2deg": "self*(180/PI)",
    # choices
    "heaviside": "where(self > 0, 1, where(self == 0, values, 0))",
    "masked_fill": "where(mask, value, self)",
    "clamp": _clamp,
    "clamp_min": "where(self < min, min, self)",
    "clamp_max": "where(self > max, max, self)",
    "fmax": "where(self >= other, self, other)",
    "fmin": "where(self <= other, self, other)",
    "bitwise_and": "logical_and(self, other)",
    "bitwise_or": "logical_or(self, other)",
    "bitwise_not": "logical_not(self)",
    **dict.fromkeys(
        ("logical_xor", "bitwise_xor"),
        "logical_and(logical_or(self, other), logical_not(logical_and(self, other)))",
    ),
    "nan_to_num": "self",  # where there is an exact value there is nothing to mend
    **dict.fromkeys(("isnan", "isinf"), "0 != 0"),
    "isfinite": "0 == 0",
    # activations
    "relu6": "where(self <= 0, 0, where(self >= 6, 6, self))",
    "hardtanh": "where(self <= min_val, min_val, where(self >= max_val, max_val, self))",
    "hardsigmoid": "where(self <= -3, 0, where(self >= 3, 1, (self + 3)/6))",
    "hardswish": "where(self <= -3, 0, where(self >= 3, self, self*(self + 3)/6))",
    "leaky_relu": "where(self > 0, self, negative_slope*self)",
    "_prelu_kernel": "where(self > 0, self, weight*self)",
    # at 0 PyTorch takes the slope of the exponential, and no second derivative
    "elu": (
        "where(self > 0, scale*self, where(self == 0, scale*alpha*input_scale*self, "
        "scale*(alpha*expm1(input_scale*self))))"
    ),
    "celu": "where(self >= 0, self, alpha*expm1(self/alpha))",
    "threshold": "where(self <= threshold, value, self)",
    "softshrink": "where(self > lambd, self - lambd, where(self < -lambd, self + lambd, 0))",
    "hardshrink": "where(self > lambd, self, where(self < -lambd, self, 0))",
    "silu": "self*sigmoid(self)",
    "mish": "self*tanh(softplus(self))",
    "gelu": _gelu,
    "softplus": _softplus,
    "log_sigmoid": "-softplus(-self)",
    "log_sigmoid_forward": "-softplus(-self)",
    "logit": _logit,
    # logarithms, special functions
    # not max(a, b) + log(1 + exp(-|a - b|)): the kinks of the two cancel in the first derivative only
    "logaddexp": "where(self > other, self + softplus(other - self), other + softplus(self - other))",
    "logaddexp2": (
        "where(self > other, self + softplus(LN2*(other - self))/LN2, other + softplus(LN2*(self - other))/LN2)"
    ),
    "xlogy": "where(logical_and(self == 0, other <= 0), 0, self*log(other))",
    "special_xlog1py": "where(logical_and(self == 0, other <= -1), 0, self*log1p(other))",
    "special_entr": "where(self == 0, sqrt(self), -(self*log(self)))",  # sqrt has the infinite slope at 0, too
    "special_erfcx": "erfcx(self)",
    "special_log_ndtr": "log(0.5*erfc(-(self*SQRT1_2)))",
    "sinc": "where(self == 0, 1, sin(PI*self)/(PI*self))",
    "polygamma": _polygamma,
    # losses
    "binary_cross_entropy_with_logits": _unreduced("(1 - target)*self + softplus(-self)"),
    "mse_loss": _unreduced("(self - target)**2"),
    "smooth_l1_loss": _unreduced(
        "where(abs(self - target) < beta, 0.5*(self - target)**2/beta, abs(self - target) - 0.5*beta)"
    ),
    "huber_loss": _unreduced(
        "where(abs(self - target) <= delta, 0.5*(self - target)**2, delta*(abs(self - target) - 0.5*delta))"
    ),
    "soft_margin_loss": _unreduced("softplus(-(target*self))"),
}
