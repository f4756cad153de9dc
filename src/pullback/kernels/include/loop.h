// The loops of a kernel: rows of columns, blocks, tiles of whole vectors, and a last one padded with zeros.

// One number of a tensor, which need not be aligned.
template <class T> static inline T one(const T* p) {
  T x;
  memcpy(&x, p, sizeof x);
  return x;
}

template <class T> static inline auto splat(const T* p) {
  T kept[LANES];
  for (int64_t i = 0; i < LANES; i++) kept[i] = one(p);
  return load(kept);
}
static inline F splat(const float* p) { return set(one(p), F{}); }
static inline D splat(const double* p) { return set(one(p), D{}); }
static inline M splat(const boolean* p) { return set(one(p).byte != 0, M{}); }

// DENSE says that every input has one number for each column; otherwise `step` of an input may be 0.
template <bool DENSE, class T> static inline auto get(const T* p, int64_t i, int64_t step) {
  return DENSE || step ? load(p + i) : splat(p);
}
template <bool DENSE> static inline M get(Bits p, int64_t i, int64_t) { return load(p + i); }

// Less than a vector: n numbers, and zeros.
template <class T> struct Padded {
  T kept[LANES] = {};
  Padded() = default;
  Padded(const T* p, int64_t step, int64_t n) {
    for (int64_t i = 0; i < n; i++) kept[i] = one(p + i * step);
  }
  void put(T* p, int64_t n) const { memcpy(p, kept, n * sizeof(T)); }
};
template <> struct Padded<Bits> {
  uint8_t bytes[LANES / 8] = {};
  const Bits kept{bytes};
  Padded() = default;
  Padded(Bits p, int64_t, int64_t n) { memcpy(bytes, p.at, (n + 7) / 8); }
  void put(Bits p, int64_t n) const { memcpy(p.at, bytes, (n + 7) / 8); }
};
template <class T> static inline auto part(const T* p, int64_t step, int64_t n) {
  return load(Padded<T>(p, step, n).kept);
}
static inline M part(Bits p, int64_t step, int64_t n) { return load(Padded<Bits>(p, step, n).kept); }
template <class T, class V> static inline void put(T* p, V x, int64_t n) {
  Padded<T> kept;
  store(kept.kept, x);
  kept.put(p, n);
}

static inline void put(Bits p, M x, int64_t n) {
  Padded<Bits> kept;
  store(kept.kept, x);
  kept.put(p, n);
}

constexpr int64_t TILE = 16, BLOCK = 4096, PARALLEL = 32768, LARGE = 1 << 25;  // TILE in vectors, LARGE in bytes

// Asks for large pages for a large result, as NumPy does: new memory is mapped in pieces of 4 KiB otherwise, which takes
// longer than to write it. From LARGE on glibc's allocator has nothing but new memory.
template <class T> static inline void huge(T* p, int64_t n) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t PAGE = 1 << 21;
  const uintptr_t begin = ((uintptr_t)p + PAGE - 1) / PAGE * PAGE, end = (uintptr_t)(p + n) / PAGE * PAGE;
  if (n * (int64_t)sizeof(T) >= LARGE && begin < end) madvise((void*)begin, end - begin, MADV_HUGEPAGE);
#endif
}

#ifdef THREADS
// What g++ compiles `#pragma omp parallel` to. LLVM's and Intel's OpenMP export it too, and PyTorch has loaded one of
// them; so threads depend on no compiler's own OpenMP.
extern "C" {
int omp_get_max_threads();
int omp_get_num_threads();
int omp_get_thread_num();
int omp_in_parallel();
void GOMP_parallel(void (*)(void*), void*, unsigned threads, unsigned flags);
}

template <class Work> struct Team {
  const Work& work;
  const int64_t count;

  static void member(void* team) {
    const auto& [work, count] = *(const Team*)team;
    const int64_t threads = omp_get_num_threads(), number = omp_get_thread_num();
    for (int64_t i = number * count / threads; i < (number + 1) * count / threads; i++) work(i);
  }
};
#endif

// Does `count` pieces of work that have `elements` in all, on PyTorch's threads if there are many.
template <class Work> static inline void over(int64_t count, int64_t elements, Work work) {
#ifdef THREADS
  if (elements > PARALLEL && omp_get_max_threads() > 1 && !omp_in_parallel()) {
    Team<Work> team{work, count};
    GOMP_parallel(&Team<Work>::member, &team, 0, 0);
    return;
  }
#endif
  for (int64_t i = 0; i < count; i++) work(i);
}
