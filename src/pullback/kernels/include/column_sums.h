// Sums over rows, one for each column. Shares of the work have sums of their own, as many shares whatever the number of
// threads. What a share computed last is added up in its own type, which takes half the time of doubles; after FEW rows
// these are added to the sums of the share, which are doubles.
#include <algorithm>
#include <memory>

constexpr int64_t FEW = 16;

// Of few rows each: the sums of a share are as large as two rows of floats.
static inline int64_t shares_of(int64_t rows) {
  return rows < 2 * FEW ? 1 : rows < SHARES * FEW ? rows / FEW : SHARES;
}

// Adds to a sum and returns what is rounded off: before + x = after + lost exactly, whichever is larger (Knuth, "The
// Art of Computer Programming", volume 2, section 4.2.2, theorem B). Sums of both are as accurate as in twice the
// precision, then rounded (algorithm Sum2 of Ogita, Rump, Oishi, "Accurate sum and dot product", SIAM J. Sci. Comput.
// 26, 2005).
static inline double add(double& sum, double x) {
  const double before = sum, after = before + x, part = after - before;
  const double lost = (before - (after - part)) + (x - part);
  sum = after;
  return lost == lost ? lost : 0.;  // of infinities nothing
}

template <class T> class ColumnSums {
 public:
  // A share adds to `width` numbers; those a period apart are of one column.
  ColumnSums(int64_t shares, int64_t period, int64_t width)
      : shares(shares), period(period), width(width), sums(new double[shares * period]) {}

  struct Share {
    double* sums;
    int64_t period, width;
    std::unique_ptr<double[]> lost;
    std::unique_ptr<T[]> recent;

    void add_up() const {
      for (int64_t from = 0; from < width; from += period) {
        const int64_t n = width - from < period ? width - from : period;
        for (int64_t i = 0; i < n; i++) lost[i] += add(sums[i], recent[from + i]);
      }
      std::fill_n(recent.get(), width, T(0));
    }
    void finish() const {
      add_up();
      for (int64_t i = 0; i < period; i++) sums[i] += lost[i];
    }
  };
  Share of(int64_t share) const {
    double* of_share = sums.get() + share * period;
    std::fill_n(of_share, period, 0.);
    return {of_share, period, width, std::unique_ptr<double[]>(new double[period]()), std::unique_ptr<T[]>(new T[width]())};
  }

  // Adds up the sums of all shares; V is the vector of what is summed.
  template <class V, class Y> void put(Y* out, double divisor) const {
    constexpr int64_t MANY = TILE * LANES;
    over((period + MANY - 1) / MANY, shares * period, [&](int64_t block) {
      const int64_t begin = block * MANY, n = period - begin < MANY ? period - begin : MANY;
      double all[MANY] = {}, lost[MANY] = {};
      for (int64_t share = 0; share < shares; share++)
        for (int64_t i = 0; i < n; i++) lost[i] += add(all[i], sums[share * period + begin + i]);
      for (int64_t i = 0; i < n; i += LANES) {
        const D sum = (load(all + i) + load(lost + i)) / set(divisor, D{});
        ::put(out + begin + i, as<V>(sum), n - i < LANES ? n - i : LANES);
      }
    });
  }

 private:
  const int64_t shares, period, width;
  const std::unique_ptr<double[]> sums;
};
