// Functions of doubles to 43 bits, for what is rounded to floats: `pullback.kernels.reduced_precision` says where they
// serve. The errors that are told bound the relative ones, of results that are normal numbers.

// x = n log(2) / 16 + t, so that e^x = 2^(n / 16) e^t, t of at most log(2) / 32. The last four bits of n choose a power
// of 2 from a table, and `scaled` takes the others: 2 to the whole part of n / 16. As log(2) / 16 is not split, t is
// off by n times its rounding error, 1.5e-18, which is up to 2^-45; the polynomial is by 2^-47. 2^-44.
static inline Q short_exp_within(Q x) {
  const Q shift = c<Q>(0x1.8p52), k = fma(x, c<Q>(16 * 1.4426950408889634), shift), n = k - shift;
  const Q t = fma(n, c<Q>(-0.69314718055994531 / 16), x), e = fma(polynomial<Of<Q>::SHORT_EXP>(t), t * t, t);
  const Q low = _mm512_loadu_pd(Of<Q>::ROOTS_OF_2), high = _mm512_loadu_pd(Of<Q>::ROOTS_OF_2 + 8);
  const Q power = _mm512_permutex2var_pd(low, (W)k, high);
  return scaled(fma(e, power, power), n * c<Q>(1. / 16));
}
static inline Q short_exp(Q x) {
  return short_exp_within(most(c<Q>(Limits<Q>::EXP_LOW), least(c<Q>(Limits<Q>::EXP_HIGH), x)));
}
static inline Q short_exp_of_negative(Q x) { return short_exp_within(most(c<Q>(Limits<Q>::EXP_LOW), x)); }

// As `own_sigmoid`. 2^-44.
static inline Q short_sigmoid(Q x) { return share(lt(c<Q>(0), x), short_exp_of_negative(neg(abs(x)))); }
static inline Q short_mirrored_sigmoid(Q x) { return share(lt(x, c<Q>(0)), short_exp_of_negative(neg(abs(x)))); }

// erfc x = e^(-x^2) p(t) / (x + K), with t = (x - K) / (x + K), K = 15/4, and 2 less that of -x below 0. An e^(-x^2)
// beside it is the same, as a compiler sees. The polynomial is off by 2^-42.8, the exponential by 2^-44.9, and its
// argument, below 1024, by half of its last place, 2^-44. 2^-42.
static inline Q short_erfc(Q x) {
  const Q inverse = c<Q>(1) / (least(c<Q>(1e9), abs(x)) + c<Q>(3.75)), t = fma(c<Q>(-7.5), inverse, c<Q>(1));
  const Q y = short_exp(neg(x * x)) * (inverse * polynomial<Of<Q>::SHORT_ERFC>(t));
  return where(lt(x, c<Q>(0)), c<Q>(2) - y, y);
}

#define SHORT(name) \
  static inline D short_##name(D x) { return {short_##name(x.lo), short_##name(x.hi)}; }
SHORT(exp)
SHORT(sigmoid)
SHORT(mirrored_sigmoid)
SHORT(erfc)

// Whether a sum has less than a share of one of its terms.
static inline M lost(D sum, D term, double share) { return lt(abs(sum), abs(term) * set_D(share)); }
