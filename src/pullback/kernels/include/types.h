#include <cstdint>
#include <cstring>
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

struct half {
  uint16_t bits;
};
struct bfloat {
  uint16_t bits;
};

// Where truth values of one bit each lie: it counts in these, of which eight share a byte, in steps of eight.
struct Bits {
  uint8_t* at;
  Bits operator+(int64_t n) const { return {at + n / 8}; }
};
