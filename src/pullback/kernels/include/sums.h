// Partial sums of a loop over blocks: as many whatever the number of threads, so that the result is the same. Addition
// is not associative in floating point: each order of the same terms has errors of its own.

constexpr int64_t SHARES = 64;

static inline D total(const double (&partial)[SHARES][LANES]) {
  D sum = set(0., D{});
  for (int64_t i = 0; i < SHARES; i++) sum = sum + load(partial[i]);
  return lanes_sum(sum);
}
