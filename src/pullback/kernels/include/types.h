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
