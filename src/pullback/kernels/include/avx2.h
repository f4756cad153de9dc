// Vectors of 8 numbers on AVX2: F of floats, D of doubles, M of truth values. avx512.h says the same with 16.
#include <immintrin.h>
#include <sleef.h>

constexpr int64_t LANES = 8;
typedef __m256 F;
typedef __m256d Q;
struct D {
  Q lo, hi;
};
struct M {
  __m256i lanes;  // of 32 bits, all ones or all zeros
};
struct N {  // of a Q
  Q lanes;
};

#define SLEEF(name, accuracy)                                              \
  static inline F name(F x) { return Sleef_##name##f8_##accuracy(x); }      \
  static inline D name(D x) {                                               \
    return {Sleef_##name##d4_##accuracy(x.lo), Sleef_##name##d4_##accuracy(x.hi)}; \
  }
#define SLEEF2(name, accuracy)                                             \
  static inline F name(F x, F y) { return Sleef_##name##f8_##accuracy(x, y); } \
  static inline D name(D x, D y) {                                          \
    return {Sleef_##name##d4_##accuracy(x.lo, y.lo), Sleef_##name##d4_##accuracy(x.hi, y.hi)}; \
  }

static inline F set(float c, F) { return _mm256_set1_ps(c); }
static inline D set(double c, D) { return {_mm256_set1_pd(c), _mm256_set1_pd(c)}; }

static inline D operator+(D a, D b) { return {a.lo + b.lo, a.hi + b.hi}; }
static inline D operator-(D a, D b) { return {a.lo - b.lo, a.hi - b.hi}; }
static inline D operator*(D a, D b) { return {a.lo * b.lo, a.hi * b.hi}; }
static inline D operator/(D a, D b) { return {a.lo / b.lo, a.hi / b.hi}; }

// Two masks of 4 lanes of 64 bits as one of 8 lanes of 32, and back.
static inline __m256i joined(__m256d lo, __m256d hi) {
  __m256i mixed = _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castpd_ps(lo), _mm256_castpd_ps(hi), 0x88));
  return _mm256_permute4x64_epi64(mixed, 0xd8);
}
static inline __m256d lower(M m) { return _mm256_castsi256_pd(_mm256_cvtepi32_epi64(_mm256_castsi256_si128(m.lanes))); }
static inline __m256d upper(M m) {
  return _mm256_castsi256_pd(_mm256_cvtepi32_epi64(_mm256_extracti128_si256(m.lanes, 1)));
}

#define COMPARISON(name, code)                                                                       \
  static inline M name(F a, F b) { return {_mm256_castps_si256(_mm256_cmp_ps(a, b, code))}; }        \
  static inline M name(D a, D b) {                                                                   \
    return {joined(_mm256_cmp_pd(a.lo, b.lo, code), _mm256_cmp_pd(a.hi, b.hi, code))};               \
  }
COMPARISON(lt, _CMP_LT_OQ)
COMPARISON(le, _CMP_LE_OQ)
COMPARISON(gt, _CMP_GT_OQ)
COMPARISON(ge, _CMP_GE_OQ)
COMPARISON(eq, _CMP_EQ_OQ)
COMPARISON(ne, _CMP_NEQ_UQ)

static inline M operator&(M a, M b) { return {_mm256_and_si256(a.lanes, b.lanes)}; }
static inline M operator|(M a, M b) { return {_mm256_or_si256(a.lanes, b.lanes)}; }
static inline M operator^(M a, M b) { return {_mm256_xor_si256(a.lanes, b.lanes)}; }
static inline M operator~(M a) { return {_mm256_xor_si256(a.lanes, _mm256_set1_epi32(-1))}; }
static inline bool any(M a) { return !_mm256_testz_si256(a.lanes, a.lanes); }
static inline M set(bool c, M) { return {_mm256_set1_epi32(c ? -1 : 0)}; }

static inline F where(M m, F a, F b) { return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(m.lanes)); }
static inline D where(M m, D a, D b) {
  return {_mm256_blendv_pd(b.lo, a.lo, lower(m)), _mm256_blendv_pd(b.hi, a.hi, upper(m))};
}
static inline M where(M m, M a, M b) { return (m & a) | (~m & b); }

// In the compiler's own operations, so that it sees that |-x| is |x|.
static inline F abs(F x) { return (F)((__v8si)x & 0x7fffffff); }
static inline F neg(F x) { return (F)((__v8si)x ^ (int)0x80000000); }
static inline Q abs(Q x) { return (Q)((__v4di)x & 0x7fffffffffffffff); }
static inline Q neg(Q x) { return (Q)((__v4di)x ^ (long long)0x8000000000000000); }
static inline D abs(D x) { return {abs(x.lo), abs(x.hi)}; }
static inline D neg(D x) { return {neg(x.lo), neg(x.hi)}; }
static inline F times_sign(F x, F y) { return (F)((__v8si)x ^ ((__v8si)y & (int)0x80000000)); }
static inline Q times_sign(Q x, Q y) { return (Q)((__v4di)x ^ ((__v4di)y & (long long)0x8000000000000000)); }
static inline F sqrt(F x) { return _mm256_sqrt_ps(x); }
static inline D sqrt(D x) { return {_mm256_sqrt_pd(x.lo), _mm256_sqrt_pd(x.hi)}; }
static inline F fma(F x, F y, F z) { return _mm256_fmadd_ps(x, y, z); }
static inline D fma(D x, D y, D z) { return {_mm256_fmadd_pd(x.lo, y.lo, z.lo), _mm256_fmadd_pd(x.hi, y.hi, z.hi)}; }
#define ROUNDING(name, code)                                                                \
  static inline F name(F x) { return _mm256_round_ps(x, code | _MM_FROUND_NO_EXC); }        \
  static inline D name(D x) {                                                               \
    return {_mm256_round_pd(x.lo, code | _MM_FROUND_NO_EXC), _mm256_round_pd(x.hi, code | _MM_FROUND_NO_EXC)}; \
  }
ROUNDING(floor, _MM_FROUND_TO_NEG_INF)
ROUNDING(ceil, _MM_FROUND_TO_POS_INF)
ROUNDING(trunc, _MM_FROUND_TO_ZERO)
ROUNDING(round, _MM_FROUND_TO_NEAREST_INT)

static inline D wide(F x) {
  return {_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))};
}
static inline F narrow(D x) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(x.lo)), _mm256_cvtpd_ps(x.hi), 1);
}

// What functions.h is written in, for F and for the halves of D alike. The first argument of `least` and `most` is a
// number: a NaN in the second goes through.
static inline Q set(double c, Q) { return _mm256_set1_pd(c); }
static inline Q sqrt(Q x) { return _mm256_sqrt_pd(x); }
static inline Q fma(Q x, Q y, Q z) { return _mm256_fmadd_pd(x, y, z); }
static inline Q round(Q x) { return _mm256_round_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline N lt(Q a, Q b) { return {_mm256_cmp_pd(a, b, _CMP_LT_OQ)}; }
static inline N ge(Q a, Q b) { return {_mm256_cmp_pd(a, b, _CMP_GE_OQ)}; }
static inline N eq(Q a, Q b) { return {_mm256_cmp_pd(a, b, _CMP_EQ_OQ)}; }
static inline Q where(N m, Q a, Q b) { return _mm256_blendv_pd(b, a, m.lanes); }
static inline F least(F number, F x) { return _mm256_min_ps(number, x); }
static inline Q least(Q number, Q x) { return _mm256_min_pd(number, x); }
static inline F most(F number, F x) { return _mm256_max_ps(number, x); }
static inline Q most(Q number, Q x) { return _mm256_max_pd(number, x); }
static inline F with_sign(F x, F y) { return _mm256_or_ps(_mm256_and_ps(set(-0.f, x), y), abs(x)); }
static inline Q with_sign(Q x, Q y) { return _mm256_or_pd(_mm256_and_pd(set(-0., x), y), abs(x)); }

// n as a whole number, of which the last bits count; whether it is odd, for `where` alone, which looks at the first bit
// of a lane; and x with the other sign where the second bit of n is set.
typedef __m256i W;
static inline W whole(F n) { return (W)(n + set(0x1.8p23f, n)); }
static inline W whole(Q n) { return (W)(n + set(0x1.8p52, n)); }
static inline M odd(W n, F) { return {_mm256_slli_epi32(n, 31)}; }
static inline N odd(W n, Q) { return {(__m256d)_mm256_slli_epi64(n, 63)}; }
static inline F turned(F x, W n) { return times_sign(x, (F)_mm256_slli_epi32(n, 30)); }
static inline Q turned(Q x, W n) { return times_sign(x, (Q)_mm256_slli_epi64(n, 62)); }

// 2^n and 2^(n-1) where they are normal numbers, and x 2^n in two steps, as 2^n may not be; n is whole. A sum with 3/2
// of the power of 2 at which numbers are whole has n among its last bits, from where it goes to those of the exponent.
static inline F shifted(F n, float bias) { return (F)_mm256_slli_epi32((__m256i)(n + set(0x1.8p23f + bias, n)), 23); }
static inline Q shifted(Q n, double bias) { return (Q)_mm256_slli_epi64((__m256i)(n + set(0x1.8p52 + bias, n)), 52); }
static inline F power(F n) { return shifted(n, 127); }
static inline Q power(Q n) { return shifted(n, 1023); }
static inline F half_power(F n) { return shifted(n, 126); }
static inline Q half_power(Q n) { return shifted(n, 1022); }
template <class R> static inline R scaled(R x, R n) {
  const R half = round(n * set(0.5, n));
  return x * power(half) * power(n - half);
}

// x = 2^exponent mantissa, the mantissa from 3/4 to 3/2. The exponent of zero and of infinity is infinite, the mantissa
// of a negative number is a NaN. Half of the range of mantissa bits, added to the pattern, carries into the exponent of
// numbers from 3/2 of a power of 2 on, which thus have a larger one and a mantissa below 1. Subnormal numbers are
// multiplied by 2^24, or 2^54, before, which makes them normal.
template <class R> struct Parts {
  R exponent, mantissa;
};
template <class R> static inline Parts<R> or_special(R exponent, R mantissa, R x) {
  const R zero = set(0, x), infinity = set(__builtin_inf(), x);
  exponent = where(eq(x, infinity), x, where(eq(x, zero), zero - infinity, exponent));
  return {exponent, where(ge(x, zero), mantissa, set(__builtin_nan(""), x))};
}
static inline Parts<F> parts_of(F x) {
  const M tiny = lt(x, set(0x1p-126f, x));
  const __m256i bits = (__m256i)where(tiny, x * set(0x1p24f, x), x);
  const __m256i e = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(1 << 22)), 23);  // more by 127
  const __m256i m = _mm256_sub_epi32(bits, _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(127)), 23));
  return or_special(_mm256_cvtepi32_ps(e) - where(tiny, set(127 + 24, x), set(127, x)), (F)m, x);
}
static inline Parts<Q> parts_of(Q x) {
  const N tiny = lt(x, set(0x1p-1022, x));
  const __m256i bits = (__m256i)where(tiny, x * set(0x1p54, x), x);
  const __m256i e = _mm256_srli_epi64(_mm256_add_epi64(bits, _mm256_set1_epi64x(1LL << 51)), 52);  // more by 1023
  const __m256i m = _mm256_sub_epi64(bits, _mm256_slli_epi64(_mm256_sub_epi64(e, _mm256_set1_epi64x(1023)), 52));
  const Q more = (Q)_mm256_or_si256(e, (__m256i)set(0x1p52, x));  // by 2^52
  return or_special(more - where(tiny, set(0x1p52 + 1023 + 54, x), set(0x1p52 + 1023, x)), (Q)m, x);
}

static inline F load(const float* p) { return _mm256_loadu_ps(p); }
static inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
static inline D load(const double* p) { return {_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4)}; }
static inline void store(double* p, D x) {
  _mm256_storeu_pd(p, x.lo);
  _mm256_storeu_pd(p + 4, x.hi);
}
static inline F load(const half* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
static inline void store(half* p, F x) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline F load(const bfloat* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
static inline void store(bfloat* p, F x) {
  // to nearest, ties to even; a NaN must not round to an infinity
  __m256i bits = _mm256_castps_si256(x);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  rounded = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
  __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0xd8);
  _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(packed));
}
static inline M load(const boolean* p) {
  __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
  return {_mm256_xor_si256(_mm256_cmpeq_epi32(wide, _mm256_setzero_si256()), _mm256_set1_epi32(-1))};
}
static inline void store(boolean* p, M x) {
  __m256i ones = _mm256_and_si256(x.lanes, _mm256_set1_epi32(1));
  __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(ones), _mm256_extracti128_si256(ones, 1));
  _mm_storel_epi64((__m128i*)p, _mm_packus_epi16(words, words));
}
static inline M load(Bits p) {
  __m256i places = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return {_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(*p.at), places), places)};
}
static inline void store(Bits p, M x) { *p.at = (uint8_t)_mm256_movemask_ps(_mm256_castsi256_ps(x.lanes)); }
