// Vectors of 16 numbers on AVX-512: F of floats, D of doubles, M of truth values. avx2.h says the same with 8.
#include <immintrin.h>
#include <sleef.h>

constexpr int64_t LANES = 16;
typedef __m512 F;
typedef __m512d Q;
struct D {
  Q lo, hi;
};
struct M {
  __mmask16 bits;
};
struct N {  // of a Q
  __mmask8 bits;
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

// In the compiler's own operations, so that it sees that |-x| is |x|.
static inline F abs(F x) { return (F)((__v16si)x & 0x7fffffff); }
static inline F neg(F x) { return (F)((__v16si)x ^ (int)0x80000000); }
static inline Q abs(Q x) { return (Q)((__v8di)x & 0x7fffffffffffffff); }
static inline Q neg(Q x) { return (Q)((__v8di)x ^ (long long)0x8000000000000000); }
static inline D abs(D x) { return {abs(x.lo), abs(x.hi)}; }
static inline D neg(D x) { return {neg(x.lo), neg(x.hi)}; }
static inline F times_sign(F x, F y) { return (F)((__v16si)x ^ ((__v16si)y & (int)0x80000000)); }
static inline Q times_sign(Q x, Q y) { return (Q)((__v8di)x ^ ((__v8di)y & (long long)0x8000000000000000)); }
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

// What functions.h is written in, for F and for the halves of D alike. The first argument of `least` and `most` is a
// number: a NaN in the second goes through.
static inline Q set(double c, Q) { return _mm512_set1_pd(c); }
static inline Q sqrt(Q x) { return _mm512_sqrt_pd(x); }
static inline Q fma(Q x, Q y, Q z) { return _mm512_fmadd_pd(x, y, z); }
static inline Q round(Q x) { return _mm512_roundscale_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline N lt(Q a, Q b) { return {_mm512_cmp_pd_mask(a, b, _CMP_LT_OQ)}; }
static inline Q where(N m, Q a, Q b) { return _mm512_mask_blend_pd(m.bits, b, a); }
static inline F least(F number, F x) { return _mm512_min_ps(number, x); }
static inline Q least(Q number, Q x) { return _mm512_min_pd(number, x); }
static inline F most(F number, F x) { return _mm512_max_ps(number, x); }
static inline Q most(Q number, Q x) { return _mm512_max_pd(number, x); }
static inline F with_sign(F x, F y) {  // bit by bit: that of y where -0 has one, else that of x
  return (F)_mm512_ternarylogic_epi32((__m512i)set(-0.f, x), (__m512i)y, (__m512i)x, 0xca);
}
static inline Q with_sign(Q x, Q y) {
  return (Q)_mm512_ternarylogic_epi64((__m512i)set(-0., x), (__m512i)y, (__m512i)x, 0xca);
}

// n as a whole number, of which the last bits count; whether it is odd; and x with the other sign where its second bit
// is set.
typedef __m512i W;
static inline W whole(F n) { return (W)(n + set(0x1.8p23f, n)); }
static inline W whole(Q n) { return (W)(n + set(0x1.8p52, n)); }
static inline M odd(W n, F) { return {_mm512_test_epi32_mask(n, _mm512_set1_epi32(1))}; }
static inline N odd(W n, Q) { return {_mm512_test_epi64_mask(n, _mm512_set1_epi64(1))}; }
static inline F turned(F x, W n) { return times_sign(x, (F)_mm512_slli_epi32(n, 30)); }
static inline Q turned(Q x, W n) { return times_sign(x, (Q)_mm512_slli_epi64(n, 62)); }

// x 2^n and 2^(n-1); n is whole.
static inline F scaled(F x, F n) { return _mm512_scalef_ps(x, n); }
static inline Q scaled(Q x, Q n) { return _mm512_scalef_pd(x, n); }
static inline F half_power(F n) { return scaled(set(0.5f, n), n); }
static inline Q half_power(Q n) { return scaled(set(0.5, n), n); }

// x = 2^exponent mantissa, the mantissa from 3/4 to 3/2. The exponent of zero and of infinity is infinite, the mantissa
// of a negative number is a NaN.
template <class R> struct Parts {
  R exponent, mantissa;
};
static inline Parts<F> parts_of(F x) {
  const F one = set(1.f, x), e = _mm512_getexp_ps(x);
  const F m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan);
  return {_mm512_mask_add_ps(e, _mm512_cmp_ps_mask(m, one, _CMP_LT_OQ), e, one), m};
}
static inline Parts<Q> parts_of(Q x) {
  const Q one = set(1., x), e = _mm512_getexp_pd(x);
  const Q m = _mm512_getmant_pd(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan);
  return {_mm512_mask_add_pd(e, _mm512_cmp_pd_mask(m, one, _CMP_LT_OQ), e, one), m};
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
static inline M load(const boolean* p) {
  __m128i bytes = _mm_loadu_si128((const __m128i*)p);
  return {_mm_test_epi8_mask(bytes, bytes)};
}
static inline void store(boolean* p, M x) { _mm_storeu_si128((__m128i*)p, _mm_maskz_set1_epi8(x.bits, 1)); }
static inline M load(Bits p) {
  M x;
  memcpy(&x.bits, p.at, sizeof(x.bits));
  return x;
}
static inline void store(Bits p, M x) { memcpy(p.at, &x.bits, sizeof(x.bits)); }
