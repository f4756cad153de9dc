// What a loop over the columns of a row needs beside `loop.h`.

static inline M first(int64_t n) {
  boolean on[LANES] = {};
  for (int64_t i = 0; i < n; i++) on[i].byte = 1;
  return load(on);
}
static inline D wide(D x) { return x; }
template <class V> static inline V as(D x);
template <> inline F as<F>(D x) { return narrow(x); }
template <> inline D as<D>(D x) { return x; }

// All lanes of the result are alike.
static inline D lanes_sum(D x) {
  double kept[LANES];
  store(kept, x);
  for (int64_t step = LANES / 2; step; step /= 2)
    for (int64_t i = 0; i < step; i++) kept[i] += kept[i + step];
  return set(kept[0], D{});
}
template <class T, class V> static inline V largest_lane(V x) {
  T kept[LANES];
  store(kept, x);
  T most = kept[0];
  for (int64_t i = 1; i < LANES; i++) most = kept[i] != kept[i] || kept[i] > most ? kept[i] : most;
  return set(most, V{});
}
static inline F lanes_maximum(F x) { return largest_lane<float>(x); }
static inline D lanes_maximum(D x) { return largest_lane<double>(x); }
