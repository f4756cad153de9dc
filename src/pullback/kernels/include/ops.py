"""The ops of a graph in Triton, written in terms of `arithmetic.py`; the counterpart in C++ is `ops.h`.

This file is read rather than imported: a kernel copies the functions that it calls.
"""

import triton
from arithmetic import (
    INF,
    abs,
    c,
    div,
    eq,
    erf,
    exp,
    expm1,
    fma,
    ge,
    gt,
    isinf,
    isnan,
    le,
    log,
    log1p,
    lt,
    maximum,
    minimum,
    neg,
    sigmoid,
    tanh,
    where,
)


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


# With e = e^-|x|: 1 - 2 e^2 / (2 (e^2 + e) + 1) above 0, and e - e^2 (e + 1) / (e^2 + 2 (e + 1)) below.
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
