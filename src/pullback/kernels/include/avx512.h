// Vectors of 16 numbers on AVX-512: F of floats, D of doubles, M of truth values. avx2.h says the same with 8.
#include <immintrin.h>
#include <sleef.h>

constexpr int64_t LANES = 16;
typedef __m512 F;
struct D {
  __m512d lo, hi;
};
struct M {
  __mmask16 bits;
};

#define SLEEF(name, accuracy)                                              \
  static inline F name(F x) { return Sleef_##name##f16_##accuracy(x); }      \
  static inline D name(D x) {                                               \
    return {Sleef_##name##d8_##accuracy(x.lo), Sleef_##name##d8_##accuracy(x.hi)}; \
  }
#define SLEEF2(name, accuracy)                                             \
  static inline F name(F x, F y) { return Sleef_##name##f16_##accuracy(x, y); } \
  static inline D name(D x, D y) {                                          \
    return {Sleef_##name##d8_##accuracy(x.lo, y.lo), Sleef_##name##d8_##accuracy(x.hi, y.hi)}; \
  }

static inline F set(float c, F) { return _mm512_set1_ps(c); }
static inline D set(double c, D) { return {_mm512_set1_pd(c), _mm512_set1_pd(c)}; }

static inline D operator+(D a, D b) { return {a.lo + b.lo, a.hi + b.hi}; }
static inline D operator-(D a, D b) { return {a.lo - b.lo, a.hi - b.hi}; }
static inline D operator*(D a, D b) { return {a.lo * b.lo, a.hi * b.hi}; }
static inline D operator/(D a, D b) { return {a.lo / b.lo, a.hi / b.hi}; }

#define COMPARISON(name, code)                                                                  \
  static inline M name(F a, F b) { return {_mm512_cmp_ps_mask(a, b, code)}; }                   \
  static inline M name(D a, D b) {                                                              \
    return {_mm512_kunpackb(_mm512_cmp_pd_mask(a.hi, b.hi, code), _mm512_cmp_pd_mask(a.lo, b.lo, code))}; \
  }
COMPARISON(lt, _CMP_LT_OQ)
COMPARISON(le, _CMP_LE_OQ)
COMPARISON(gt, _CMP_GT_OQ)
COMPARISON(ge, _CMP_GE_OQ)
COMPARISON(eq, _CMP_EQ_OQ)
COMPARISON(ne, _CMP_NEQ_UQ)

static inline M operator&(M a, M b) { return {(__mmask16)(a.bits & b.bits)}; }
static inline M operator|(M a, M b) { return {(__mmask16)(a.bits | b.bits)}; }
static inline M operator^(M a, M b) { return {(__mmask16)(a.bits ^ b.bits)}; }
static inline M operator~(M a) { return {(__mmask16)~a.bits}; }
static inline bool any(M a) { return a.bits != 0; }
static inline M set(bool c, M) { return {(__mmask16)(c ? 0xffff : 0)}; }

static inline F where(M m, F a, F b) { return _mm512_mask_blend_ps(m.bits, b, a); }
static inline D where(M m, D a, D b) {
  return {_mm512_mask_blend_pd((__mmask8)m.bits, b.lo, a.lo), _mm512_mask_blend_pd((__mmask8)(m.bits >> 8), b.hi, a.hi)};
}
static inline M where(M m, M a, M b) { return (m & a) | (~m & b); }

static inline F abs(F x) { return _mm512_abs_ps(x); }
static inline D abs(D x) { return {_mm512_abs_pd(x.lo), _mm512_abs_pd(x.hi)}; }
static inline F neg(F x) { return _mm512_xor_ps(x, _mm512_set1_ps(-0.f)); }
static inline D neg(D x) {
  return {_mm512_xor_pd(x.lo, _mm512_set1_pd(-0.)), _mm512_xor_pd(x.hi, _mm512_set1_pd(-0.))};
}
static inline F sqrt(F x) { return _mm512_sqrt_ps(x); }
static inline D sqrt(D x) { return {_mm512_sqrt_pd(x.lo), _mm512_sqrt_pd(x.hi)}; }
static inline F fma(F x, F y, F z) { return _mm512_fmadd_ps(x, y, z); }
static inline D fma(D x, D y, D z) { return {_mm512_fmadd_pd(x.lo, y.lo, z.lo), _mm512_fmadd_pd(x.hi, y.hi, z.hi)}; }
#define ROUNDING(name, code)                                                   \
  static inline F name(F x) { return _mm512_roundscale_ps(x, code | _MM_FROUND_NO_EXC); } \
  static inline D name(D x) {                                                  \
    return {_mm512_roundscale_pd(x.lo, code | _MM_FROUND_NO_EXC), _mm512_roundscale_pd(x.hi, code | _MM_FROUND_NO_EXC)}; \
  }
ROUNDING(floor, _MM_FROUND_TO_NEG_INF)
ROUNDING(ceil, _MM_FROUND_TO_POS_INF)
ROUNDING(trunc, _MM_FROUND_TO_ZERO)
ROUNDING(round, _MM_FROUND_TO_NEAREST_INT)

static inline D wide(F x) {
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(x)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1))};
}
static inline F narrow(D x) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(x.lo)), _mm512_cvtpd_ps(x.hi), 1);
}

// Logarithms of floats without a call, to 0.91 ulp (`benchmarks/kernel_functions.py` tries floats one after another).
// Where u = 2^e (1 + f) with f from -1/4 to 1/2, log(1 + f) = f - (f^2/2 - s (f^2/2 + r)) with s = f / (2 + f) and
// r = s^2 p(s^2), the rest of the series of 2 artanh s; this arrangement, in which f is exact, is that of FreeBSD's msun.
// p is by interpolation at Chebyshev's points. `lost` is what log1p(x) = log(u) + (x - (u - 1)) / u adds.
#define OWN_LOGARITHMS
static inline F own_log(F u, F lost) {
  const F one = _mm512_set1_ps(1.f);
  const F m = _mm512_getmant_ps(u, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan);
  const F exponent = _mm512_getexp_ps(u);
  const F e = _mm512_mask_add_ps(exponent, _mm512_cmp_ps_mask(m, one, _CMP_LT_OQ), exponent, one);
  const F f = m - one, s = f / (_mm512_set1_ps(2.f) + f), z = s * s, half = _mm512_set1_ps(0.5f) * f * f;
  F p = _mm512_set1_ps(0.237473443f);
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(0.285327435f));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(0.400003105f));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(0.666666687f));
  lost = _mm512_fmadd_ps(e, _mm512_set1_ps(9.0580006144e-06f), lost);  // log 2 is this and what follows
  const F small = _mm512_fmadd_ps(s, _mm512_fmadd_ps(z, p, half), lost);
  return _mm512_fmadd_ps(e, _mm512_set1_ps(6.9313812256e-01f), f - (half - small));
}
static inline F own_log(F x) { return own_log(x, _mm512_setzero_ps()); }
static inline F own_log1p(F x) {
  const F one = _mm512_set1_ps(1.f), u = one + x;
  const __mmask16 large = _mm512_cmp_ps_mask(x, one, _CMP_GT_OQ);
  F y = own_log(u, _mm512_mask_mov_ps(x - (u - one), large, one - (u - x)) / u);
  // of tiny numbers and of infinity it is the number itself, and no pole divides 0 by 0
  y = _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(1e-8f), _CMP_LT_OQ), x);
  y = _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, _mm512_set1_ps(__builtin_inff()), _CMP_EQ_OQ), x);
  return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, _mm512_set1_ps(-1.f), _CMP_EQ_OQ), _mm512_set1_ps(-__builtin_inff()));
}

// e^x - 1 of floats to 0.87 ulp. x = n log 2 + r, e^r - 1 = r + q with q = r^2 p(r), and
// 2^n (r + q) + (2^n - 1) is added up with what the sum of 2^n r and 2^n - 1 loses in rounding.
#define OWN_EXPM1
static inline F own_expm1(F x) {
  const F one = _mm512_set1_ps(1.f);
  // in this order a NaN goes through; below, the result is -1
  const F c = _mm512_min_ps(_mm512_set1_ps(130.f), _mm512_max_ps(_mm512_set1_ps(-30.f), x));
  const F n = _mm512_roundscale_ps(c * _mm512_set1_ps(1.44269504f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const F a = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), c), b = n * _mm512_set1_ps(1.42860677e-06f);
  const F r = a - b, lost = (a - r) - b;
  F p = _mm512_set1_ps(0.00019890991f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.00139336498f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.00833331048f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.0416664667f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.166666672f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
  const F q = _mm512_fmadd_ps(r * r, p, lost), s = _mm512_scalef_ps(one, n), t = s - one, sr = s * r;
  const F sum = t + sr, back = sum - t;
  const F rest = (t - (sum - back)) + (sr - back) + ((s - t) - one);
  F y = sum + _mm512_fmadd_ps(s, q, rest);
  const __mmask16 steep = _mm512_cmp_ps_mask(n, _mm512_set1_ps(127.f), _CMP_GT_OQ);  // where 2^n is infinite
  if (steep) y = _mm512_mask_mov_ps(y, steep, Sleef_expf16_u10(x));
  return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(1e-8f), _CMP_LT_OQ), x);
}

static inline F load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
static inline D load(const double* p) { return {_mm512_loadu_pd(p), _mm512_loadu_pd(p + 8)}; }
static inline void store(double* p, D x) {
  _mm512_storeu_pd(p, x.lo);
  _mm512_storeu_pd(p + 8, x.hi);
}
static inline F load(const half* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
static inline void store(half* p, F x) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline F load(const bfloat* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
static inline void store(bfloat* p, F x) {
  // to nearest, ties to even; a NaN must not round to an infinity
  __m512i bits = _mm512_castps_si512(x);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  rounded = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), rounded, _mm512_set1_epi32(0x7fc0));
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(rounded));
}
static inline M load(const bool* p) {
  __m128i bytes = _mm_loadu_si128((const __m128i*)p);
  return {_mm_test_epi8_mask(bytes, bytes)};
}
static inline void store(bool* p, M x) { _mm_storeu_si128((__m128i*)p, _mm_maskz_set1_epi8(x.bits, 1)); }
