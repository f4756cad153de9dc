// The functions of ops. An op of the registry (`pullback.ops`) with a lowering has its function here, on F and D alike:
// first the elementary functions, then what is made of them, with the formulas of PyTorch's own CPU kernels. Where a
// function of SLEEF or PyTorch overflows before the exact value does, it is taken further here.
//
// Elementary functions are written without a call, once for registers R: F, of floats, and Q, of doubles; a D is two of
// these. The primitives are those that avx512.h and avx2.h have for both. SLEEF's take longer, above all in doubles,
// and nothing can be computed beside a call.
//
// The errors in ulp are the largest of all floats and of some millions of doubles on AVX-512; of functions of doubles,
// the largest of 120 000 doubles of all sizes, beside the error of PyTorch 2.13 on such numbers.
// `benchmarks/kernel_functions.py` measures both. `benchmarks/kernel_coefficients.py` defines and fits the polynomials
// p, on the interval that the reduction of the argument leaves and a little more. Their errors are well below that of a
// rounding: at most some 2^-27.6 of a float's function, and 2^-55.4 of a double's.

#define UNARY(name) template <class V> static inline V name(V x)
#define BINARY(name) template <class V> static inline V name(V x, V y)
#define TERNARY(name) template <class V> static inline V name(V x, V y, V z)
template <class V> static inline V c(double value) { return set(value, V{}); }
#define ONE c<V>(1)
#define ZERO c<V>(0)
#include "coefficients.h"

// Begins a function of a register, own_name, which name applies to an F and to both halves of a D.
#define FUNCTION(name)                                                       \
  template <class R> static inline R own_##name(R x);                        \
  static inline F name(F x) { return own_##name(x); }                        \
  static inline D name(D x) { return {own_##name(x.lo), own_##name(x.hi)}; } \
  template <class R> static inline R own_##name(R x)

// The same for a function that is written for doubles alone: floats take its result, rounded.
#define FUNCTION_OF_DOUBLES(name)                                            \
  static inline Q own_##name(Q x);                                           \
  static inline D name(D x) { return {own_##name(x.lo), own_##name(x.hi)}; } \
  static inline F name(F x) { return narrow(name(wide(x))); }                \
  static inline Q own_##name(Q x)

// Where results become infinite, zero, one, or minus one: e^x and erfc x below 2^-150 or 2^-1075, half of the smallest
// number, and e^x from 2^128 or 2^1024 on; 1 - erf x, and for expm1 e^x, below 2^-25 or 2^-54, half the distance of 1
// from the number before it.
template <class R> struct Limits;
template <> struct Limits<F> {
  static constexpr double EXP_LOW = -110, EXP_HIGH = 89, EXPM1_LOW = -30, ERF_HIGH = 4, ERFC_HIGH = 10.1;
};
template <> struct Limits<Q> {
  static constexpr double EXP_LOW = -750, EXP_HIGH = 710, EXPM1_LOW = -50, ERF_HIGH = 6, ERFC_HIGH = 27.3;
};

// A polynomial of x, A its coefficients from the constant on: its halves one beside the other (Estrin's scheme), and
// not one coefficient after another, as a kernel waits for chains of results longer than it computes.
template <const auto& A, int FROM, int COUNT, class R> static inline R part_of(const R* powers) {
  if constexpr (COUNT == 1) {
    return c<R>(A[FROM]);
  } else {
    constexpr int LOG = COUNT > 16 ? 4 : COUNT > 8 ? 3 : COUNT > 4 ? 2 : COUNT > 2 ? 1 : 0, HALF = 1 << LOG;
    return fma(part_of<A, FROM + HALF, COUNT - HALF>(powers), powers[LOG], part_of<A, FROM, HALF>(powers));
  }
}
template <const auto& A, class R> static inline R polynomial(R x) {
  const R x2 = x * x, x4 = x2 * x2, x8 = x4 * x4, powers[] = {x, x2, x4, x8, x8 * x8};
  return part_of<A, 0, sizeof(A) / sizeof(double)>(powers);
}

// x = n log 2 + t, so that e^x = 2^n e^t, with t of at most log(2) / 2. The reduction is Cody and Waite's ("Software
// manual for the elementary functions", 1980): LOG2_HIGH has 15 digits of 24, or 42 of 53, so that a multiple of it by
// n is exact. So is x less that: unless n is 0, x is above 1/4 and a multiple of 2^-25 or 2^-54, and so is the
// difference, which is below 2^24 or 2^53 of these. Only t is rounded.
template <class R> static inline R power_in_e(R x) { return round(x * c<R>(1.4426950408889634)); }
template <class R> static inline R less_high(R x, R n) { return fma(n, c<R>(-Of<R>::LOG2_HIGH), x); }
template <class R> static inline R less_low(R x, R n) { return fma(n, c<R>(-Of<R>::LOG2_LOW), x); }

// e^t = 1 + t + t^2/2 + t^3 p(t). 0.91 ulp.
template <class R> static inline R exp_over(R x, int power) {  // of 2, which may lie a little beyond the limit
  x = most(c<R>(Limits<R>::EXP_LOW), least(c<R>(Limits<R>::EXP_HIGH + power), x));
  const R n = power_in_e(x), t = less_low(less_high(x, n), n), one = c<R>(1);
  const R y = fma(fma(fma(polynomial<Of<R>::EXP_TAIL>(t), t, c<R>(0.5)), t, one), t, one);
  return scaled(y, power ? n - c<R>(power) : n);
}
FUNCTION(exp) { return exp_over(x, 0); }
FUNCTION(half_exp) { return exp_over(x, 1); }

// 1 / (1 + e^-x), and that of -x, by e = e^-|x|: what is computed from the same e beside it, log(1 + e^x) say, does not
// compute it again, as a compiler sees. Where e^-x is infinite, e is still a number. 1.9 ulp of floats, 1.6 of doubles.
static inline F share(M above, F e) {
  const F one = c<F>(1);
  return where(above, one, e) / (one + e);
}
static inline Q share(N above, Q e) {
  const Q one = c<Q>(1), s = one / (one + e);
  return where(above, s, e * s);
}
FUNCTION(sigmoid) { return share(lt(c<R>(0), x), own_exp(neg(abs(x)))); }
FUNCTION(mirrored_sigmoid) { return share(lt(x, c<R>(0)), own_exp(neg(abs(x)))); }

// e^x - 1 = 2 (2^(n-1) (t + q) + (2^(n-1) - 1/2)), q = t^2/2 + t^3 p(t) and what t has lost. The large parts are added
// up with what their sum has lost, sum - u being exact for summands in the order of size (Dekker, Numerische Mathematik
// 18, 1971). With n - 1, the power of 2 is finite where the result is; x is within limits.
template <class R> struct Sum {
  R high, low;
};
template <class R> static inline Sum<R> half_expm1(R x) {
  const R half = c<R>(0.5), n = power_in_e(x), a = less_high(x, n), t = less_low(a, n);
  const R q = fma(half * t, t, fma(t * t * t, polynomial<Of<R>::EXP_TAIL>(t), less_low(a - t, n)));
  const R s = half_power(n), u = s - half, st = s * t, sum = u + st;  // u is larger than st, or zero
  return {sum, fma(s, q, (st - (sum - u)) + ((s - u) - half))};
}
// 0.97 ulp.
FUNCTION(expm1) {
  const Sum<R> e = half_expm1(most(c<R>(Limits<R>::EXPM1_LOW), least(c<R>(Limits<R>::EXP_HIGH), x)));
  const R y = e.high + e.low;
  return where(lt(abs(x), c<R>(1e-20)), x, y + y);  // or a zero loses its sign, and half of a subnormal number a bit
}

// h / (k h + 1) of a sum h that is not negative, mended by what the division and the sums have lost: of y, an
// approximate (h + rest) / (d + lost), the residual h + rest - y (d + lost) divided by d is the error, but for its
// square. The sum kh + 1 has lost min - (d - max) exactly, min and max its summands.
template <class R> static inline R quotient(R h, R rest, double k) {
  const R one = c<R>(1), kh = c<R>(k) * h, d = kh + one;
  const R lost = fma(c<R>(k), rest, least(one, kh) - (d - most(one, kh)));
  const R inverse = one / d, y = h * inverse;
  return fma(fma(neg(y), lost, fma(neg(y), d, h) + rest), inverse, y);
}
// tanh x = e / (e + 2), e = e^(2x) - 1; beyond 20, it is 1. 0.8 ulp.
FUNCTION(tanh) {
  const Sum<R> e = half_expm1(least(c<R>(40), abs(x + x)));
  const R h = e.high + e.low;
  return with_sign(quotient(h, (e.high - h) + e.low, 1), x);
}
// sinh x = (e + e / (e + 1)) / 2 and cosh x = ((e + 1) + 1 / (e + 1)) / 2, e = e^x - 1, where e is finite.
// 1.09 and 0.88 ulp.
FUNCTION(near_sinh) {
  const Sum<R> e = half_expm1(least(c<R>(Limits<R>::EXP_HIGH), abs(x)));
  const R h = e.high + e.low, rest = (e.high - h) + e.low, q = quotient(h, rest, 2), sum = h + q;
  return where(lt(abs(x), c<R>(1e-20)), x, with_sign(sum + ((q - (sum - h)) + rest), x));
}
FUNCTION(near_cosh) {
  const Sum<R> e = half_expm1(least(c<R>(Limits<R>::EXP_HIGH), abs(x)));
  const R half = c<R>(0.5), h = e.high + e.low, d = h + half;
  const R lost = (least(half, h) - (d - most(half, h))) + ((e.high - h) + e.low);
  return d + (c<R>(0.25) / d + lost);
}

// With u = 2^e (1 + f), f from -1/4 to 1/2, log(1 + f) = f - (f^2/2 - s (f^2/2 + z p(z))) with s = f / (2 + f) and z =
// s^2, from log(1 + f) = 2 artanh s = 2s + s z p(z) and 2s = f - s f = f - f^2/2 + s f^2/2; this arrangement, in which
// f is exact (Sterbenz's lemma, as 1 + f is from 3/4 to 3/2), is that of FreeBSD's msun. s is from -1/7 to 1/5, so z is
// at most 1/25. log(u + lost) is larger by lost / u, but for half its square. 0.93 ulp, as log1p.
template <class R> static inline R log_and(R u, R more) {
  const Parts<R> parts = parts_of(u);
  const R f = parts.mantissa - c<R>(1), s = f / (c<R>(2) + f), z = s * s, half = c<R>(0.5) * f * f;
  const R low = fma(parts.exponent, c<R>(Of<R>::LOG2_LOW), more);
  const R small = fma(s, fma(z, polynomial<Of<R>::LOG_TAIL>(z), half), low);
  return fma(parts.exponent, c<R>(Of<R>::LOG2_HIGH), f - (half - small));
}
FUNCTION(log) { return log_and(x, c<R>(0)); }
FUNCTION(log1p) {
  const R one = c<R>(1), u = x + one, lost = least(one, x) - (u - most(one, x));
  // Of a large number what is lost is nothing, and of infinity a NaN; where u is 0, so is what is lost.
  const R more = where(lt(u, c<R>(1e18)), lost / most(c<R>(1e-18), u), c<R>(0));
  return with_sign(log_and(u, more), x);
}

// e^(x y - more) = 2^n (1 + t + low), with what the product has lost, which fma(x, y, -product) is exactly.
template <class R> struct Power {
  R n, t, low;
};
template <class R> static inline Power<R> power_of_product(R x, R y, R more) {
  const R product = x * y, n = power_in_e(product - more);
  const R a = less_high(product, n), b = less_low(fma(x, y, neg(product)) - more, n), t = a + b;
  return {n, t, fma(t * t, fma(polynomial<Of<R>::EXP_TAIL>(t), t, c<R>(0.5)), (a - t) + b)};
}

// erf x = x + x p(x^2) up to 1. Beyond, of floats it is 1 - e^(-x^2) p(x - 1), where what the square has lost is small
// beside 1, and the exponential is one that a derivative has beside it; of doubles 1 - e^-(x^2 + p(x - 1)). 1.08 ulp,
// of floats 1.02.
static inline F far_erf(F x, F a) {
  return fma(neg(own_exp(neg(x * x))), polynomial<Of<F>::ERFCX>(a - c<F>(1)), c<F>(1));
}
static inline Q far_erf(Q, Q a) {
  const Q one = c<Q>(1);
  const Power<Q> e = power_of_product(neg(a), a, polynomial<Of<Q>::LOG_ERFCX>(a - one));
  return one - scaled(one + (e.t + e.low), e.n);
}
FUNCTION(erf) {
  const R a = least(c<R>(Limits<R>::ERF_HIGH), abs(x));
  const R near = fma(a, polynomial<Of<R>::ERF_REST>(a * a), a);
  return with_sign(where(lt(a, c<R>(1)), near, far_erf(x, a)), x);
}

// erfc x = 1 - x - x p(x^2) up to 3/4, and beyond e^(-x^2) (5/4 + p(t)) / (1 + 2x) with t = (x - K) / (x + K),
// K = 15/4, as Shepherd and Laframboise have it for all x (Mathematics of Computation 36, 1981). 1.32 ulp.
template <class R> static inline R far_erfc(R x) {
  const R one = c<R>(1), base = c<R>(1.25);
  const Power<R> e = power_of_product(neg(x), x, c<R>(0));
  const R p = polynomial<Of<R>::SCALED_ERFC>(fma(c<R>(-7.5), one / (x + c<R>(3.75)), one));
  const R d = fma(c<R>(2), x, one), inverse = one / d;
  const R lost = fma(neg(inverse), one - fma(c<R>(-2), x, d), fma(neg(inverse), d, one));  // of the division and of d
  // (5/4 + p) (1 + lost) (1 + e.t + e.low) = 5/4 + rest + low
  const R more = fma(base + p, e.low, fma(p, e.t, fma(base, lost, p))), rest = fma(base, e.t, more);
  const R sum = base + rest, low = (rest - (sum - base)) + (fma(base, e.t, neg(rest)) + more);
  const R y = inverse * sum;
  return scaled(y + fma(inverse, low, fma(inverse, sum, neg(y))), e.n);
}
template <class R> static inline R near_erfc(R x) {
  const R one = c<R>(1), u = one - x;
  return u + fma(neg(x), polynomial<Of<R>::ERF_REST>(x * x), (one - u) - x);
}
FUNCTION(erfc) {
  const R a = abs(x), y = far_erfc(least(c<R>(Limits<R>::ERFC_HIGH), a));
  return where(lt(a, c<R>(0.75)), near_erfc(x), where(lt(x, c<R>(0)), c<R>(2) - y, y));
}

// |x| = n pi/2 + t + low, t of at most a little more than pi/4, and sine and cosine of t + low: t + t^3 p(t^2) and 1 -
// t^2/2 + t^4 p(t^2). The largest part of n pi/2 is taken off exactly: both are multiples of 2^-24, or 2^-53, and the
// difference is below 1. Of the next one what is lost is in `low`. sin(t + low) is sin t + low cos t, where cos t
// counts as 1, and cos(t + low) is a function of t^2 + 2 t low. A compiler sees that sine and cosine of the same x have
// this in common. 1.08 ulp.
template <class R> struct Turn {
  R n, sine, cosine;
};
template <class R> static inline Turn<R> turn_of(R x) {
  const R a = abs(x), n = round(a * c<R>(0.63661977236758134)), rest = fma(n, c<R>(-Of<R>::HALF_PI_0), a);
  const R second = n * c<R>(Of<R>::HALF_PI_1), t = rest - second;
  const R lost = ((rest - t) - second) - fma(n, c<R>(Of<R>::HALF_PI_1), neg(second));
  const R low = fma(n, c<R>(-Of<R>::HALF_PI_2), lost), z = t * t, square = fma(t + t, low, z);
  const R sine = t + fma(t * z, polynomial<Of<R>::SIN_TAIL>(z), low);
  return {n, sine, fma(square, fma(z, polynomial<Of<R>::COS_TAIL>(z), c<R>(-0.5)), c<R>(1))};
}
FUNCTION(near_sin) {
  const Turn<R> at = turn_of(x);
  const auto n = whole(at.n);
  return times_sign(turned(where(odd(n, x), at.cosine, at.sine), n), x);
}
FUNCTION(near_cos) {
  const Turn<R> at = turn_of(x);
  return turned(where(odd(whole(at.n), x), at.sine, at.cosine), whole(at.n + c<R>(1)));
}

// atan x = x + x^3 p(x^2) up to 1, and pi/2 less that of 1 / x beyond, with what the quotient and the sum have lost:
// with y the rounded quotient, 1 / a = y + y (1 - y a), but for the square of 1 - y a. 1.34 ulp.
FUNCTION(atan) {
  const R a = least(c<R>(1e30), abs(x)), one = c<R>(1), zero = c<R>(0), inverse = one / a;
  const auto far = lt(one, a);
  const R t = where(far, neg(inverse), a), z = t * t, base = where(far, c<R>(Of<R>::HALF_PI_0), zero), sum = base + t;
  const R lost = fma(neg(inverse), fma(neg(inverse), a, one), c<R>(Of<R>::HALF_PI_1));
  const R low = where(far, lost, zero) + ((base - sum) + t);
  return with_sign(sum + fma(t * z, polynomial<Of<R>::ATAN_TAIL>(z), low), x);
}

// erfcx x = e^(x^2) erfc x: as this product up to 3/4, beyond (5/8 + p(t)/2) / (1/2 + x) with the t of erfc, and of a
// negative number 2 e^(x^2) - erfcx(-x), with what the square has lost. 2.17 ulp (PyTorch 501).
static inline Q erfcx_of_positive(Q x) {
  const Q half = c<Q>(0.5), t = fma(c<Q>(-7.5), c<Q>(1) / (x + c<Q>(3.75)), c<Q>(1));
  const Q far = fma(half, polynomial<Of<Q>::POSITIVE_ERFCX>(t), c<Q>(0.625)) / (x + half);
  return where(lt(x, c<Q>(0.75)), near_erfc(x) * own_exp(x * x), far);
}
FUNCTION_OF_DOUBLES(erfcx) {
  const Q a = abs(x), y = erfcx_of_positive(a), b = least(c<Q>(27), a);
  const Power<Q> e = power_of_product(b, b, c<Q>(0));
  const Q power = c<Q>(1) + (e.t + e.low);
  return where(lt(x, c<Q>(0)), scaled(power + power, e.n) - y, y);
}

// log Phi(x), of the normal distribution: with s = erfcx(|x| / sqrt(2)) / 2, log s - x^2/2 below 0, and
// log(1 - s e^(-x^2/2)) above, with what the square has lost. 3.93 ulp (PyTorch 1165).
FUNCTION_OF_DOUBLES(log_ndtr) {
  const Q half = c<Q>(0.5), a = abs(x), s = half * erfcx_of_positive(c<Q>(0.70710678118654752) * a);
  const Q b = least(c<Q>(40), a);
  const Power<Q> e = power_of_product(neg(half * b), b, c<Q>(0));
  const Q above = own_log1p(neg(scaled(fma(s, e.t + e.low, s), e.n)));
  return where(lt(x, c<Q>(0)), fma(neg(half * a), a, own_log(s)), above);
}

// The inverse of Phi, by the rational functions of Wichura (Algorithm AS 241, Applied Statistics 37, 1988): of w = q^2,
// q = x - 1/2, up to q = 0.425, as q (sqrt(2 pi) + w p(w)); else of r = sqrt(-log(x or 1 - x)). Beyond 0.6, a step of
// Newton's method removes the rounding errors of q, r and these functions, up to r = 26, short of subnormal tails.
// 3.02 ulp (PyTorch 3.32).
template <const auto& OVER, const auto& UNDER> static inline Q ratio(Q x) {
  return polynomial<OVER>(x) / polynomial<UNDER>(x);
}
FUNCTION_OF_DOUBLES(ndtri) {
  using A = Of<Q>;
  const Q zero = c<Q>(0), half = c<Q>(0.5), one = c<Q>(1), q = x - half, u = abs(q), w = q * q;
  const Q low = fma(w, ratio<A::NDTRI_CENTRE_OVER, A::NDTRI_CENTRE_UNDER>(w), c<Q>(-1.8328579980459167e-16));
  const Q centre = fma(u, c<Q>(2.5066282746310005), u * low);
  const Q tail = where(lt(q, zero), x, one - x), r = sqrt(neg(own_log(tail))), r5 = r - c<Q>(5);
  const Q near = ratio<A::NDTRI_NEAR_OVER, A::NDTRI_NEAR_UNDER>(r - c<Q>(1.6));
  const Q far = ratio<A::NDTRI_FAR_OVER, A::NDTRI_FAR_UNDER>(r5);
  const Q y = where(lt(u, c<Q>(0.425)), centre, where(lt(r5, zero), near, far));
  // With s e^(-y^2/2) = 1 - Phi(y), the slope of Phi is e^(-y^2/2) / sqrt(2 pi).
  const Q s = half * erfcx_of_positive(c<Q>(0.70710678118654752) * y);
  const Power<Q> e = power_of_product(neg(half * y), y, zero);
  const Q step = c<Q>(2.5066282746310005) * s * (one - tail / scaled(fma(s, e.t + e.low, s), e.n));
  const Q size = where(lt(y, c<Q>(0.6)), y, where(lt(r, c<Q>(26)), y + step, where(lt(r, c<Q>(100)), y, r)));
  return with_sign(size, q);  // where r is infinite, or NaN, so is the result
}

// Modified Bessel functions. Up to 8, I0(x) = 1 + z p(z) and I1(x) = x (1/2 + z p(z)) with z = x^2/4; beyond, e^-x I(x)
// = p(t) / sqrt(x) with t = 16/x - 71/64, and e^x is 2^8 times one that is finite where I(x) is. Up to 8, what z has
// lost is multiplied by the derivative of the logarithm by z: of I0 it is I1(x) / (sqrt(z) I0(x)), within 4 % of 1 /
// sqrt(1 + z), and of I1(x) / x it is I2(x) / (sqrt(z) I1(x)), within 9 % of 1 / sqrt(4 + z). 3.92 and 3.72 ulp, scaled
// 3.59 and 3.48 (PyTorch 6.28, 10.06, 5.93 and 7.21).
static inline Q near_i0(Q a) {
  const Q h = c<Q>(0.5) * a, z = h * h, one = c<Q>(1);
  const Q y = fma(z, polynomial<Of<Q>::I0_NEAR>(z), one);
  return fma(y, fma(h, h, neg(z)) / sqrt(one + z), y);
}
static inline Q near_i1(Q a) {
  const Q h = c<Q>(0.5) * a, z = h * h;
  const Q y = a * fma(z, polynomial<Of<Q>::I1_NEAR>(z), c<Q>(0.5));
  return fma(y, fma(h, h, neg(z)) / sqrt(c<Q>(4) + z), y);
}
template <const auto& A> static inline Q bessel_far(Q a) {
  return polynomial<A>(fma(c<Q>(16), c<Q>(1) / a, c<Q>(-71. / 64))) / sqrt(a);
}
template <const auto& A> static inline Q growing_bessel_far(Q a) {
  const Q b = least(c<Q>(1000), a);
  return c<Q>(256) * (exp_over(b, 8) * bessel_far<A>(b));
}
FUNCTION_OF_DOUBLES(i0) {
  const Q a = abs(x);
  return where(lt(a, c<Q>(8)), near_i0(a), growing_bessel_far<Of<Q>::I0_FAR>(a));
}
FUNCTION_OF_DOUBLES(i0e) {
  const Q a = abs(x);
  return where(lt(a, c<Q>(8)), own_exp(neg(a)) * near_i0(a), bessel_far<Of<Q>::I0_FAR>(a));
}
FUNCTION_OF_DOUBLES(i1) {
  const Q a = abs(x);
  return with_sign(where(lt(a, c<Q>(8)), near_i1(a), growing_bessel_far<Of<Q>::I1_FAR>(a)), x);
}
FUNCTION_OF_DOUBLES(i1e) {
  const Q a = abs(x);
  return with_sign(where(lt(a, c<Q>(8)), own_exp(neg(a)) * near_i1(a), bessel_far<Of<Q>::I1_FAR>(a)), x);
}

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


// Up to where our sin and cos take the multiple of pi/2 off.
static inline double turns(F) { return 1e5; }
static inline double turns(D) { return 1e8; }

// Where SLEEF's asinh and acosh, and our sinh and cosh, stop. Beyond, asinh x and acosh x are log 2x, as the next terms
// of their series, +-1 / (4 x^2), are below any rounding error; and of sinh x and cosh x the rest, e^-x / 2, is.
static inline double root(F) { return 1e19; }
static inline double root(D) { return 1e154; }
static inline double steep(F) { return 87; }
static inline double steep(D) { return 708; }

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
// With e = e^-|x|: 1 - 2 e^2 / (2 (e^2 + e) + 1) above 0, and e - e^2 (e + 1) / (e^2 + 2 (e + 1)) below;
// `pullback.ops.activations.tanh_softplus` derives it.
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
