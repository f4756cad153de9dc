"""Arithmetic for `ops.py`, in Triton, on float32 and float64 alike; the counterpart in C++ is `ops.h`.

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
