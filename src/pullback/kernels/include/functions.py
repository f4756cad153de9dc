"""The functions of ops in Triton, on float32 and float64 alike; the counterpart in C++ is `functions.h`.

This file is read rather than imported: a kernel copies the functions that it calls. Reasons for the unusual ones: `neg`
multiplies, since Triton subtracts from zero, which loses the sign of a zero; `div` and `sqrt` round correctly, where
Triton's own do not in float32; functions are libdevice's, since Triton's `exp` and `log` are approximations.
"""

import triton
import triton.language as tl
from triton.language.extra.libdevice import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    ceil,
    cos,
    cosh,
    erf,
    erfc,
    exp,
    exp2,
    expm1,
    floor,
    hypot,
    lgamma,
    log,
    log1p,
    log2,
    log10,
    pow,
    sin,
    sinh,
    tan,
    tanh,
    trunc,
)
from triton.language.extra.libdevice import (
    nearbyint as round,
)

INF = tl.constexpr(float("inf"))


# Numbers, and conversions. A narrow type of 16 bits is computed in float32; a cast to it rounds.


@triton.jit
def set_F(value):
    return tl.full((), value, tl.float32)


@triton.jit
def set_D(value):
    return tl.full((), value, tl.float64)


@triton.jit
def set_M(value):
    return tl.full((), value != 0, tl.int1)


@triton.jit
def c(value, x):
    return tl.full((), value, x.dtype)


@triton.jit
def wide(x):
    return x.to(tl.float64)


@triton.jit
def narrow(x):
    return x.to(tl.float32)


@triton.jit
def through_bfloat(x):
    return x.to(tl.bfloat16).to(tl.float32)


@triton.jit
def through_half(x):
    return x.to(tl.float16).to(tl.float32)


@triton.jit
def number_F(x):
    return x.to(tl.float32)


@triton.jit
def number_D(x):
    return x.to(tl.float64)


@triton.jit
def truth(x):
    return x != 0.0


# Comparisons and choices.


@triton.jit
def lt(x, y):
    return x < y


@triton.jit
def le(x, y):
    return x <= y


@triton.jit
def gt(x, y):
    return x > y


@triton.jit
def ge(x, y):
    return x >= y


@triton.jit
def eq(x, y):
    return x == y


@triton.jit
def ne(x, y):
    return x != y


@triton.jit
def isnan(x):
    return x != x


@triton.jit
def isinf(x):
    return abs(x) == INF


@triton.jit
def where(condition, x, y):
    return tl.where(condition, x, y)


# Of zeros, too, as PyTorch's kernels for GPUs have it: 0 is larger than -0, whichever comes first.


@triton.jit
def maximum(x, y):
    return tl.maximum(x, y, tl.PropagateNan.ALL)


@triton.jit
def minimum(x, y):
    return tl.minimum(x, y, tl.PropagateNan.ALL)


# Arithmetic.


@triton.jit
def neg(x):
    return x * -1.0


@triton.jit
def abs(x):
    return tl.abs(x)


@triton.jit
def fma(x, y, z):
    return tl.fma(x, y, z)


@triton.jit
def div(x, y):
    if x.dtype == tl.float64:
        return x / y
    else:
        return tl.div_rn(x, y)


@triton.jit
def sqrt(x):
    if x.dtype == tl.float64:
        return tl.sqrt(x)
    else:
        return tl.sqrt_rn(x)


@triton.jit
def reciprocal(x):
    return div(c(1.0, x), x)


@triton.jit
def rsqrt(x):
    return div(c(1.0, x), sqrt(x))


@triton.jit
def square(x):
    return x * x


@triton.jit
def cube(x):
    return x * x * x


@triton.jit
def frac(x):
    return x - trunc(x)


@triton.jit
def sign(x):
    return where(gt(x, c(0.0, x)), c(1.0, x), where(lt(x, c(0.0, x)), c(-1.0, x), c(0.0, x)))


# sigma(x) = 1 / (1 + e^-x), or e / (1 + e) with e = e^-|x| where x < 0: e^-x may overflow, e does not.


@triton.jit
def share(above, e):
    return div(where(above, c(1.0, e), e), e + 1.0)


@triton.jit
def sigmoid(x):
    return share(lt(c(0.0, x), x), exp(neg(abs(x))))


@triton.jit
def mirrored_sigmoid(x):
    return share(lt(x, c(0.0, x)), exp(neg(abs(x))))


@triton.jit
def relu(x):
    return maximum(x, c(0.0, x))


@triton.jit
def silu(x):
    return x * sigmoid(x)


@triton.jit
def gelu(x):
    return x * 0.5 * (erf(x * 0.70710678118654752440) + 1.0)


@triton.jit
def gelu_inner(x):
    return (x + x * x * x * 0.044715) * 0.79788456080286535588


@triton.jit
def gelu_tanh(x):
    return x * 0.5 * (tanh(gelu_inner(x)) + 1.0)


@triton.jit
def logit(x):
    return log(div(x, c(1.0, x) - x))


@triton.jit
def to_six(x):
    return minimum(maximum(x + 3.0, c(0.0, x)), c(6.0, x))


@triton.jit
def hardsigmoid(x):
    return div(to_six(x), c(6.0, x))


@triton.jit
def hardswish(x):
    return div(x * to_six(x), c(6.0, x))


@triton.jit
def softplus_sum(x, scaled, tail, beta, threshold):
    return where(gt(scaled, threshold), x, div(maximum(scaled, c(0.0, x)) + tail, beta))


# With e = e^-|x|: 1 - 2 e^2 / (2 (e^2 + e) + 1) above 0, and e - e^2 (e + 1) / (e^2 + 2 (e + 1)) below;
# `pullback.ops.activations.tanh_softplus` derives it.
@triton.jit
def tanh_softplus(x, e):
    above = gt(x, c(0.0, x))
    two, ee, more = c(2.0, x), e * e, e + 1.0
    whole = where(above, fma(two, ee + e, c(1.0, x)), fma(two, more, ee))
    return where(above, c(1.0, x), e) - div(ee * where(above, two, more), whole)


@triton.jit
def leaky_relu(x, slope):
    return where(gt(x, c(0.0, x)), x, x * slope)


@triton.jit
def elu(x, alpha, scale, input_scale):
    return where(le(x, c(0.0, x)), expm1(x * input_scale) * (alpha * scale), x * scale)


@triton.jit
def threshold(x, least, value):
    return where(le(x, least), value, x)


@triton.jit
def xlogy(x, y):
    return where(isnan(y), y, where(eq(x, c(0.0, x)), c(0.0, x), x * log(y)))


@triton.jit
def xlog1py(x, y):
    return where(isnan(y), y, where(eq(x, c(0.0, x)), c(0.0, x), x * log1p(y)))


@triton.jit
def logaddexp(x, y):
    return where(isinf(x) & eq(x, y), x, maximum(x, y) + log1p(exp(neg(abs(x - y)))))


# Derivatives: g is the cotangent.


@triton.jit
def sigmoid_backward(g, y):
    return g * (c(1.0, y) - y) * y


@triton.jit
def tanh_backward(g, y):
    return g * (c(1.0, y) - y * y)


@triton.jit
def silu_backward(g, x):
    s = sigmoid(x)
    return g * (s * (x * (c(1.0, x) - s) + 1.0))


@triton.jit
def gelu_backward(g, x):
    cdf = (erf(x * 0.70710678118654752440) + 1.0) * 0.5
    pdf = exp(x * -0.5 * x) * 0.39894228040143267794
    return g * (cdf + x * pdf)


@triton.jit
def gelu_tanh_backward(g, x):
    t = tanh(gelu_inner(x))
    inner = (x * x * 0.134145 + 1.0) * 0.79788456080286535588
    return g * ((t + 1.0) * 0.5 + x * 0.5 * ((c(1.0, x) - t * t) * inner))


@triton.jit
def softplus_slope(g, slope, scaled, threshold):
    return where(gt(scaled, threshold), g, g * slope)


@triton.jit
def leaky_relu_backward(g, x, slope):
    return where(gt(x, c(0.0, x)), g, g * slope)


@triton.jit
def threshold_backward(g, x, least):
    return where(le(x, least), c(0.0, x), g)


# PyTorch's kernel for GPUs gives g where x is NaN, that for the CPU 0.
@triton.jit
def hardtanh_backward(g, x, lower, upper):
    return where(le(x, lower) | ge(x, upper), c(0.0, x), g)


@triton.jit
def elu_backward(g, alpha, scale, input_scale, x):
    return where(gt(x, c(0.0, x)), g * scale, g * input_scale * (alpha * scale) * exp(x * input_scale))


@triton.jit
def elu_backward_of_result(g, alpha, scale, input_scale, y):
    return where(gt(y, c(0.0, y)), g * scale, g * input_scale * (y + alpha * scale))


@triton.jit
def logit_backward(g, x):
    return where(lt(x, c(0.0, x)) | gt(x, c(1.0, x)), c(INF - INF, x), div(g, x * (c(1.0, x) - x)))
