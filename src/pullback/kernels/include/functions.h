// Elementary functions without a call, on registers R: F, of floats, and Q, of doubles; a D is two of these. They are
// written once, in the primitives that avx512.h and avx2.h have for both. SLEEF's take longer, above all in doubles,
// and nothing can be computed beside a call.
//
// The errors that are told are the largest of all floats and of some millions of doubles on AVX-512, which
// `benchmarks/kernel_functions.py` measures. What the polynomials p stand for is in
// `benchmarks/kernel_coefficients.py`, which fits them.
#include "coefficients.h"

// Where results become infinite, zero, one, or minus one.
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

// x = n log 2 + t, so that e^x = 2^n e^t, with t of at most log(2) / 2. A multiple of LOG2_HIGH by n is exact.
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
template <class R> static inline R own_exp(R x) { return exp_over(x, 0); }
template <class R> static inline R own_half_exp(R x) { return exp_over(x, 1); }

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
template <class R> static inline R own_sigmoid(R x) { return share(lt(c<R>(0), x), own_exp(neg(abs(x)))); }
template <class R> static inline R own_mirrored_sigmoid(R x) { return share(lt(x, c<R>(0)), own_exp(neg(abs(x)))); }

// e^x - 1 = 2 (2^(n-1) (t + q) + (2^(n-1) - 1/2)), q = t^2/2 + t^3 p(t) and what t has lost. The large parts are added
// up with what their sum has lost. With n - 1, the power of 2 is finite where the result is; x is within limits.
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
template <class R> static inline R own_expm1(R x) {
  const Sum<R> e = half_expm1(most(c<R>(Limits<R>::EXPM1_LOW), least(c<R>(Limits<R>::EXP_HIGH), x)));
  const R y = e.high + e.low;
  return where(lt(abs(x), c<R>(1e-20)), x, y + y);  // or a zero loses its sign, and half of a subnormal number a bit
}

// h / (k h + 1) of a sum h that is not negative, mended by what the division and the sums have lost.
template <class R> static inline R quotient(R h, R rest, double k) {
  const R one = c<R>(1), kh = c<R>(k) * h, d = kh + one;
  const R lost = fma(c<R>(k), rest, least(one, kh) - (d - most(one, kh)));
  const R inverse = one / d, y = h * inverse;
  return fma(fma(neg(y), lost, fma(neg(y), d, h) + rest), inverse, y);
}
// tanh x = e / (e + 2), e = e^(2x) - 1; beyond 20, it is 1. 0.8 ulp.
template <class R> static inline R own_tanh(R x) {
  const Sum<R> e = half_expm1(least(c<R>(40), abs(x + x)));
  const R h = e.high + e.low;
  return with_sign(quotient(h, (e.high - h) + e.low, 1), x);
}
// sinh x = (e + e / (e + 1)) / 2 and cosh x = ((e + 1) + 1 / (e + 1)) / 2, e = e^x - 1, where e is finite.
// 1.09 and 0.88 ulp.
template <class R> static inline R own_sinh(R x) {
  const Sum<R> e = half_expm1(least(c<R>(Limits<R>::EXP_HIGH), abs(x)));
  const R h = e.high + e.low, rest = (e.high - h) + e.low, q = quotient(h, rest, 2), sum = h + q;
  return where(lt(abs(x), c<R>(1e-20)), x, with_sign(sum + ((q - (sum - h)) + rest), x));
}
template <class R> static inline R own_cosh(R x) {
  const Sum<R> e = half_expm1(least(c<R>(Limits<R>::EXP_HIGH), abs(x)));
  const R half = c<R>(0.5), h = e.high + e.low, d = h + half;
  const R lost = (least(half, h) - (d - most(half, h))) + ((e.high - h) + e.low);
  return d + (c<R>(0.25) / d + lost);
}

// With u = 2^e (1 + f), f from -1/4 to 1/2, log(1 + f) = f - (f^2/2 - s (f^2/2 + z p(z))) with s = f / (2 + f) and
// z = s^2, from the series of 2 artanh s; this arrangement, in which f is exact, is that of FreeBSD's msun.
// log(u + lost) is larger by lost / u. 0.93 ulp, as log1p.
template <class R> static inline R log_and(R u, R more) {
  const Parts<R> parts = parts_of(u);
  const R f = parts.mantissa - c<R>(1), s = f / (c<R>(2) + f), z = s * s, half = c<R>(0.5) * f * f;
  const R low = fma(parts.exponent, c<R>(Of<R>::LOG2_LOW), more);
  const R small = fma(s, fma(z, polynomial<Of<R>::LOG_TAIL>(z), half), low);
  return fma(parts.exponent, c<R>(Of<R>::LOG2_HIGH), f - (half - small));
}
template <class R> static inline R own_log(R x) { return log_and(x, c<R>(0)); }
template <class R> static inline R own_log1p(R x) {
  const R one = c<R>(1), u = x + one, lost = least(one, x) - (u - most(one, x));
  // Of a large number what is lost is nothing, and of infinity a NaN; where u is 0, so is what is lost.
  const R more = where(lt(u, c<R>(1e18)), lost / most(c<R>(1e-18), u), c<R>(0));
  return with_sign(log_and(u, more), x);
}

// e^-(x^2 + more) = 2^n (1 + t + low), with what the square has lost.
template <class R> struct Power {
  R n, t, low;
};
template <class R> static inline Power<R> power_of_square(R x, R more) {
  const R square = neg(x * x), n = power_in_e(square - more);
  const R a = less_high(square, n), b = less_low(fma(neg(x), x, neg(square)) - more, n), t = a + b;
  return {n, t, fma(t * t, fma(polynomial<Of<R>::EXP_TAIL>(t), t, c<R>(0.5)), (a - t) + b)};
}

// erf x = x + x p(x^2) up to 1. Beyond, of floats it is 1 - e^(-x^2) p(x - 1), where what the square has lost is small
// beside 1, and the exponential is one that a derivative has beside it; of doubles 1 - e^-(x^2 + p(x - 1)). 1.08 ulp, of floats 1.02.
static inline F far_erf(F x, F a) {
  return fma(neg(own_exp(neg(x * x))), polynomial<Of<F>::ERFCX>(a - c<F>(1)), c<F>(1));
}
static inline Q far_erf(Q, Q a) {
  const Q one = c<Q>(1);
  const Power<Q> e = power_of_square(a, polynomial<Of<Q>::LOG_ERFCX>(a - one));
  return one - scaled(one + (e.t + e.low), e.n);
}
template <class R> static inline R own_erf(R x) {
  const R a = least(c<R>(Limits<R>::ERF_HIGH), abs(x));
  const R near = fma(a, polynomial<Of<R>::ERF_REST>(a * a), a);
  return with_sign(where(lt(a, c<R>(1)), near, far_erf(x, a)), x);
}

// erfc x = 1 - x - x p(x^2) up to 3/4, and beyond e^(-x^2) (5/4 + p(t)) / (1 + 2x) with t = (x - K) / (x + K),
// K = 15/4, as Shepherd and Laframboise have it for all x (Mathematics of Computation 36, 1981). 1.32 ulp.
template <class R> static inline R far_erfc(R x) {
  const R one = c<R>(1), base = c<R>(1.25);
  const Power<R> e = power_of_square(x, c<R>(0));
  const R p = polynomial<Of<R>::SCALED_ERFC>(fma(c<R>(-7.5), one / (x + c<R>(3.75)), one));
  const R d = fma(c<R>(2), x, one), inverse = one / d;
  const R lost = fma(neg(inverse), one - fma(c<R>(-2), x, d), fma(neg(inverse), d, one));  // of the division and of d
  // (5/4 + p) (1 + lost) (1 + e.t + e.low) = 5/4 + rest + low
  const R more = fma(base + p, e.low, fma(p, e.t, fma(base, lost, p))), rest = fma(base, e.t, more);
  const R sum = base + rest, low = (rest - (sum - base)) + (fma(base, e.t, neg(rest)) + more);
  const R y = inverse * sum;
  return scaled(y + fma(inverse, low, fma(inverse, sum, neg(y))), e.n);
}
template <class R> static inline R own_erfc(R x) {
  const R a = abs(x), one = c<R>(1), u = one - x, y = far_erfc(least(c<R>(Limits<R>::ERFC_HIGH), a));
  const R near = u + fma(neg(x), polynomial<Of<R>::ERF_REST>(x * x), (one - u) - x);
  return where(lt(a, c<R>(0.75)), near, where(lt(x, c<R>(0)), c<R>(2) - y, y));
}

// |x| = n pi/2 + t + low, t of at most a little more than pi/4, and sine and cosine of t + low: t + t^3 p(t^2) and
// 1 - t^2/2 + t^4 p(t^2). The largest part of n pi/2 is taken off exactly, of the next one what is lost is in `low`. A
// compiler sees that sine and cosine of the same x have this in common. 1.08 ulp.
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
template <class R> static inline R own_sin(R x) {
  const Turn<R> at = turn_of(x);
  const auto n = whole(at.n);
  return times_sign(turned(where(odd(n, x), at.cosine, at.sine), n), x);
}
template <class R> static inline R own_cos(R x) {
  const Turn<R> at = turn_of(x);
  return turned(where(odd(whole(at.n), x), at.sine, at.cosine), whole(at.n + c<R>(1)));
}

// atan x = x + x^3 p(x^2) up to 1, and pi/2 less that of 1 / x beyond, with what the quotient and the sum have lost.
// 1.34 ulp.
template <class R> static inline R own_atan(R x) {
  const R a = least(c<R>(1e30), abs(x)), one = c<R>(1), zero = c<R>(0), inverse = one / a;
  const auto far = lt(one, a);
  const R t = where(far, neg(inverse), a), z = t * t, base = where(far, c<R>(Of<R>::HALF_PI_0), zero), sum = base + t;
  const R lost = fma(neg(inverse), fma(neg(inverse), a, one), c<R>(Of<R>::HALF_PI_1));
  const R low = where(far, lost, zero) + ((base - sum) + t);
  return with_sign(sum + fma(t * z, polynomial<Of<R>::ATAN_TAIL>(z), low), x);
}
