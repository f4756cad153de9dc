#include <cstdint>
#include <cstring>
#ifdef __linux__
#include <sys/mman.h>
#endif

struct half {
  uint16_t bits;
};
struct bfloat {
  uint16_t bits;
};
// A byte of a bool tensor. It may hold any number, of which 0 alone is false: a C++ bool may not.
struct boolean {
  uint8_t byte;
};

// Where truth values of one bit each lie: it counts in these, of which eight share a byte, in steps of eight.
struct Bits {
  uint8_t* at;
  Bits operator+(int64_t n) const { return {at + n / 8}; }
};
