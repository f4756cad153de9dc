// The loop around a kernel's `step`: rows of columns, whole vectors, and a last one padded with zeros.

template <class T> static inline auto splat(const T* p) {
  T kept[LANES];
  for (int64_t i = 0; i < LANES; i++) kept[i] = *p;
  return load(kept);
}
static inline F splat(const float* p) { return set(*p, F{}); }
static inline D splat(const double* p) { return set(*p, D{}); }

// DENSE says that every input has one number for each column; otherwise `step` of an input may be 0.
template <bool DENSE, class T> static inline auto get(const T* p, int64_t i, int64_t step) {
  return DENSE || step ? load(p + i) : splat(p);
}
template <bool DENSE, class T> static inline auto part(const T* p, int64_t i, int64_t step, int64_t n) {
  if (!DENSE && !step) return splat(p);
  T kept[LANES] = {};
  memcpy(kept, p + i, n * sizeof(T));
  return load(kept);
}
template <class T, class V> static inline void put(T* p, V x, int64_t n) {
  T kept[LANES];
  store(kept, x);
  memcpy(p, kept, n * sizeof(T));
}

constexpr int64_t BLOCK = 4096, PARALLEL = 32768;

// Does `count` pieces of work that have `elements` in all, on PyTorch's threads if there are many.
template <class Work> static inline void over(int64_t count, int64_t elements, Work work) {
#ifdef _OPENMP
  if (elements > PARALLEL && omp_get_max_threads() > 1 && !omp_in_parallel()) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) work(i);
    return;
  }
#endif
  for (int64_t i = 0; i < count; i++) work(i);
}
