// What the ops of a graph compute, on F and D alike, with the formulas of PyTorch's own CPU kernels.
// Where a function gives up before the result leaves the range of its type, it is taken further here.

// Up to where our sin and cos take the multiple of pi/2 off.
static inline double turns(F) { return 1e5; }
static inline double turns(D) { return 1e8; }

// Where SLEEF's asinh and acosh, and our sinh and cosh, stop.
static inline double root(F) { return 1e19; }
static inline double root(D) { return 1e154; }
static inline double steep(F) { return 87; }
static inline double steep(D) { return 708; }

#define UNARY(name) template <class V> static inline V name(V x)
#define BINARY(name) template <class V> static inline V name(V x, V y)
#define TERNARY(name) template <class V> static inline V name(V x, V y, V z)
template <class V> static inline V c(double value) { return set(value, V{}); }
#define ONE c<V>(1)
#define ZERO c<V>(0)
#include "functions.h"

namespace sleef {
SLEEF(exp2, u10)
SLEEF(log2, u10)
SLEEF(log10, u10)
SLEEF(sin, u10)
SLEEF(cos, u10)
SLEEF(tan, u10)
SLEEF(asin, u10)
SLEEF(acos, u10)
SLEEF(asinh, u10)
SLEEF(acosh, u10)
SLEEF(atanh, u10)
SLEEF(lgamma, u10)
SLEEF2(pow, u10)
SLEEF2(atan2, u10)
SLEEF2(hypot, u05)
}  // namespace sleef
using sleef::acos;
using sleef::asin;
using sleef::atan2;
using sleef::atanh;
using sleef::exp2;
using sleef::hypot;
using sleef::lgamma;
using sleef::log10;
using sleef::log2;
using sleef::pow;
using sleef::tan;

#define OWN(name, function)                               \
  static inline F name(F x) { return own_##function(x); } \
  static inline D name(D x) { return {own_##function(x.lo), own_##function(x.hi)}; }
OWN(exp, exp)
OWN(half_exp, half_exp)
OWN(expm1, expm1)
OWN(log, log)
OWN(log1p, log1p)
OWN(tanh, tanh)
OWN(near_sinh, sinh)
OWN(near_cosh, cosh)
OWN(near_sin, sin)
OWN(near_cos, cos)
OWN(atan, atan)
OWN(erf, erf)
OWN(erfc, erfc)
OWN(sigmoid, sigmoid)
OWN(mirrored_sigmoid, mirrored_sigmoid)

template <class V> static inline M isnan(V x) { return ne(x, x); }
template <class V> static inline M isinf(V x) { return eq(abs(x), c<V>(1. / 0.)); }
BINARY(with_sign) { return where(lt(y, ZERO), neg(x), x); }

// Beyond, SLEEF's: a call that nothing waits for.
template <class V> __attribute__((noinline, cold)) static V far_sin(V x) { return sleef::sin(x); }
template <class V> __attribute__((noinline, cold)) static V far_cos(V x) { return sleef::cos(x); }
UNARY(sin) {
  V y = near_sin(x);
  M far = gt(abs(x), c<V>(turns(x)));
  return any(far) ? where(far, far_sin(x), y) : y;
}
UNARY(cos) {
  V y = near_cos(x);
  M far = gt(abs(x), c<V>(turns(x)));
  return any(far) ? where(far, far_cos(x), y) : y;
}
UNARY(sinh) {
  V y = near_sinh(x);
  M far = gt(abs(x), c<V>(steep(x)));
  return any(far) ? where(far, with_sign(half_exp(abs(x)), x), y) : y;
}
UNARY(cosh) {
  V y = near_cosh(x);
  M far = gt(abs(x), c<V>(steep(x)));
  return any(far) ? where(far, half_exp(abs(x)), y) : y;
}
UNARY(asinh) {
  V y = sleef::asinh(x);
  M far = gt(abs(x), c<V>(root(x)));
  return any(far) ? where(far, with_sign(log(abs(x)) + c<V>(0.69314718055994530942), x), y) : y;
}
UNARY(acosh) {
  V y = sleef::acosh(x);
  M far = gt(x, c<V>(root(x)));
  return any(far) ? where(far, log(x) + c<V>(0.69314718055994530942), y) : y;
}

UNARY(frac) { return x - trunc(x); }
UNARY(reciprocal) { return ONE / x; }
UNARY(rsqrt) { return ONE / sqrt(x); }
BINARY(div) { return x / y; }
UNARY(square) { return x * x; }
UNARY(cube) { return x * x * x; }
UNARY(sign) { return where(gt(x, ZERO), ONE, where(lt(x, ZERO), c<V>(-1), ZERO)); }
UNARY(relu) { return where(lt(x, ZERO), ZERO, x); }
BINARY(maximum) { return where(isnan(x) | gt(x, y), x, y); }
BINARY(minimum) { return where(isnan(x) | lt(x, y), x, y); }
UNARY(silu) { return x * sigmoid(x); }
UNARY(gelu) { return x * c<V>(0.5) * (ONE + erf(x * c<V>(0.70710678118654752440))); }
UNARY(gelu_inner) { return c<V>(0.79788456080286535588) * (x + c<V>(0.044715) * (x * x * x)); }
UNARY(gelu_tanh) { return c<V>(0.5) * x * (ONE + tanh(gelu_inner(x))); }
UNARY(logit) { return log(x / (ONE - x)); }
UNARY(hardsigmoid) { return minimum(maximum(x + c<V>(3), ZERO), c<V>(6)) / c<V>(6); }
UNARY(hardswish) { return x * minimum(maximum(x + c<V>(3), ZERO), c<V>(6)) / c<V>(6); }
template <class V> static inline V softplus_sum(V x, V scaled, V tail, V beta, V threshold) {
  return where(gt(scaled, threshold), x, (maximum(scaled, ZERO) + tail) / beta);
}
// With e = e^-|x|: 1 - 2 e^2 / (2 (e^2 + e) + 1) above 0, and e - e^2 (e + 1) / (e^2 + 2 (e + 1)) below.
template <class V> static inline V tanh_softplus(V x, V e) {
  const M above = gt(x, ZERO);
  const V two = c<V>(2), square = e * e, next = e + ONE, share = where(above, two, next);
  const V whole = where(above, fma(two, square + e, ONE), fma(two, next, square));
  return where(above, ONE, e) - square * share / whole;
}
BINARY(leaky_relu) { return where(gt(x, ZERO), x, x * y); }
template <class V> static inline V elu(V x, V alpha, V scale, V input_scale) {
  return where(le(x, ZERO), expm1(x * input_scale) * (alpha * scale), x * scale);
}
TERNARY(threshold) { return where(le(x, y), z, x); }
BINARY(xlogy) { return where(isnan(y), y, where(eq(x, ZERO), ZERO, x * log(y))); }
BINARY(xlog1py) { return where(isnan(y), y, where(eq(x, ZERO), ZERO, x * log1p(y))); }
BINARY(logaddexp) {
  V m = maximum(x, y);
  return where(isinf(x) & eq(x, y), x, m + log1p(exp(neg(abs(x - y)))));
}

// Derivatives: g is the cotangent.
BINARY(sigmoid_backward) { return x * (ONE - y) * y; }
BINARY(tanh_backward) { return x * (ONE - y * y); }
template <class V> static inline V silu_backward(V g, V x) {
  V s = sigmoid(x);
  return g * (s * (ONE + x * (ONE - s)));
}
template <class V> static inline V gelu_backward(V g, V x) {
  V cdf = c<V>(0.5) * (ONE + erf(x * c<V>(0.70710678118654752440)));
  V pdf = exp(c<V>(-0.5) * x * x) * c<V>(0.39894228040143267794);
  return g * (cdf + x * pdf);
}
template <class V> static inline V gelu_tanh_backward(V g, V x) {
  V t = tanh(gelu_inner(x));
  V inner = c<V>(0.79788456080286535588) * (ONE + c<V>(3 * 0.044715) * (x * x));
  return g * (c<V>(0.5) * (ONE + t) + c<V>(0.5) * x * ((ONE - t * t) * inner));
}
template <class V> static inline V softplus_slope(V g, V share, V scaled, V threshold) {
  return where(gt(scaled, threshold), g, g * share);
}
TERNARY(leaky_relu_backward) { return where(gt(y, ZERO), x, x * z); }
TERNARY(threshold_backward) { return where(le(y, z), ZERO, x); }
template <class V> static inline V hardtanh_backward(V g, V x, V lower, V upper) {
  return where(gt(x, lower) & lt(x, upper), g, ZERO);
}
template <class V> static inline V elu_backward(V g, V alpha, V scale, V input_scale, V x) {
  return where(gt(x, ZERO), g * scale, g * input_scale * (alpha * scale) * exp(x * input_scale));
}
template <class V> static inline V elu_backward_of_result(V g, V alpha, V scale, V input_scale, V y) {
  return where(gt(y, ZERO), g * scale, g * input_scale * (y + alpha * scale));
}
template <class V> static inline V logit_backward(V g, V x) {
  return where(lt(x, ZERO) | gt(x, ONE), c<V>(0. / 0.), g / (x * (ONE - x)));
}

// Numbers, and conversions. A narrow type of 16 bits is computed in floats; a cast to it rounds.
static constexpr double INF = __builtin_inf();
static inline F set_F(double value) { return set(value, F{}); }
static inline D set_D(double value) { return set(value, D{}); }
static inline M set_M(double value) { return set(value != 0, M{}); }
template <class T> static inline F through(F x) {
  T kept[LANES];
  store(kept, x);
  return load(kept);
}
static inline F through_bfloat(F x) { return through<bfloat>(x); }
static inline F through_half(F x) { return through<half>(x); }
template <class V> static inline V number(M x) { return where(x, ONE, ZERO); }
static inline F number_F(M x) { return number<F>(x); }
static inline D number_D(M x) { return number<D>(x); }
template <class V> static inline M truth(V x) { return ne(x, ZERO); }
