"""Generator of `src/pullback/kernels/include/coefficients.h`: polynomials of the kernels' elementary functions.

    python benchmarks/kernel_coefficients.py [--check]

Each polynomial is fitted by weighted least squares on Chebyshev points, which is close to the minimax fit. The leading
coefficients are rounded one by one; after each, the others are fitted to the remainder. Prints the largest weighted
error of each polynomial as a power of 2. `--check` writes nothing and fails if the file differs.
"""

import argparse
import struct
import sys
from pathlib import Path

import mpmath as mp

FILE = Path(__file__).resolve().parents[1] / "src/pullback/kernels/include/coefficients.h"
HEAD = "// What `functions.h` computes with, of floats and of doubles: made by `benchmarks/kernel_coefficients.py`."
LEAST = mp.mpf(10) ** -12
"""Argument in the place of 0, for functions that are quotients."""


FAR = mp.mpf(71) / 64
"""Near the middle of 16 / x, where the polynomials of Bessel functions have constants that double precision holds to a
tenth of an ulp."""


def scaled_erfc(t):
    x = mp.mpf(15) / 4 * (1 + t) / (1 - t)
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x) - mp.mpf(5) / 4


def position(x):
    return (mp.mpf(x) - mp.mpf(15) / 4) / (mp.mpf(x) + mp.mpf(15) / 4)


def log_tail(z):
    s = mp.sqrt(z)
    return 2 * (mp.atanh(s) - s) / (s * z)


def log_erfcx(t):
    return -((1 + t) ** 2) - mp.log(mp.erfc(1 + t))


def erfc_by_exp(t):
    x = mp.mpf(15) / 4 * (1 + t) / (1 - t)
    return (x + mp.mpf(15) / 4) * mp.exp(x * x) * mp.erfc(x)


def exp_rest(t):
    return mp.hyp1f1(1, 3, t) / 2


def erfcx(t):
    return mp.exp((1 + t) ** 2) * mp.erfc(1 + t)


def exp_tail(t):
    return mp.hyp1f1(1, 4, t) / 6


def sin_tail(z):
    t = mp.sqrt(z)
    return (mp.sin(t) / t - 1) / z


def cos_tail(z):
    return (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2


def atan_tail(z):
    s = mp.sqrt(z)
    return (mp.atan(s) / s - 1) / z


def bessel_near(order):
    """Return I0(x) = 1 + z p(z) and I1(x) = x (1/2 + z p(z)), z = x^2/4, as functions of z: p, and its weight."""

    def scaled(z):  # I0(x), or I1(x) / x
        x = 2 * mp.sqrt(z)
        return mp.besseli(order, x) / x**order

    return lambda z: (scaled(z) - mp.mpf(1) / 2**order) / z, lambda z: z / scaled(z)


def bessel_far(order):
    """Return sqrt(x) e^-x I(x) of t = 16 / x - FAR, from x = 8 to infinity."""

    def scaled(t):
        x = 16 / (FAR + t)
        return mp.sqrt(x) * mp.exp(-x) * mp.besseli(order, x)

    return scaled


def equally(_):
    return 1


WICHURA = {
    "CENTRE": (
        "3.387132872796366608 133.14166789178437745 1971.5909503065514427 13731.693765509461125 45921.953931549871457 "
        "67265.770927008700853 33430.575583588128105 2509.0809287301226727",
        "1 42.313330701600911252 687.1870074920579083 5394.1960214247511077 21213.794301586595867 39307.89580009271061 "
        "28729.085735721942674 5226.495278852545925",
    ),
    "NEAR": (
        "1.42343711074968357734 4.6303378461565452959 5.7694972214606914055 3.64784832476320460504 "
        "1.27045825245236838258 0.24178072517745061177 0.0227238449892691845833 7.7454501427834140764e-4",
        "1 2.05319162663775882187 1.6763848301838038494 0.68976733498510000455 0.14810397642748007459 "
        "0.0151986665636164571966 5.475938084995344946e-4 1.05075007164441684324e-9",
    ),
    "FAR": (
        "6.6579046435011037772 5.4637849111641143699 1.7848265399172913358 0.29656057182850489123 "
        "0.026532189526576123093 0.0012426609473880784386 2.71155556874348757815e-5 2.01033439929228813265e-7",
        "1 0.59983220655588793769 0.13692988092273580531 0.0148753612908506148525 7.868691311456132591e-4 "
        "1.8463183175100546818e-5 1.4215117583164458887e-7 2.04426310338993978564e-15",
    ),
}
"""Numerators and denominators of the inverse of the normal distribution (Algorithm AS 241, Applied Statistics 37, 1988)
about the centre in 0.180625 - q^2, in the tails in r - 1.6, and in r - 5 from r = 5 on, with r = sqrt(-log p)."""


def shifted(coefficients):
    """Return the coefficients of p(0.180625 - w) in w."""
    shift, degree = mp.mpf("0.180625"), len(coefficients)
    return [
        (-1) ** k * sum(mp.binomial(i, k) * coefficients[i] * shift ** (i - k) for i in range(k, degree))
        for k in range(degree)
    ]


def inverse_normal():
    """Return these coefficients, those of the centre for sqrt(2 pi) + w over(w) / under(w), w = q^2."""
    over, under = ({name: [mp.mpf(c) for c in pair[i].split()] for name, pair in WICHURA.items()} for i in (0, 1))
    top, bottom = shifted(over["CENTRE"]), shifted(under["CENTRE"])
    over["CENTRE"] = [(t - mp.sqrt(2 * mp.pi) * b) / bottom[0] for t, b in zip(top, bottom, strict=True)][1:]
    under["CENTRE"] = [b / bottom[0] for b in bottom]
    return {f"NDTRI_{name}_{i}": part[name] for name in WICHURA for i, part in (("OVER", over), ("UNDER", under))}


def fits(bits):
    """Return for each polynomial its function, interval, degree, weight of an error, and number of coefficients that
    are rounded one by one."""
    narrow = bits == 24
    half = mp.log(2) / 2 * mp.mpf("1.0001")
    floats = {"ERFCX": (erfcx, -0.0001, 3, 8, lambda t: mp.exp(-((1 + t) ** 2)), 1)}
    doubles = {
        "LOG_ERFCX": (log_erfcx, -0.0001, 5, 17, lambda t: mp.erfc(1 + t), 3),
        "SHORT_EXP": (exp_rest, -half / 16, half / 16, 3, lambda t: t * t, 1),
        "I0_NEAR": (bessel_near(0)[0], LEAST, 16.001, 16, bessel_near(0)[1], 4),
        "I1_NEAR": (bessel_near(1)[0], LEAST, 16.001, 16, bessel_near(1)[1], 4),
        "I0_FAR": (bessel_far(0), -FAR, 2.0001 - FAR, 26, equally, 4),
        "I1_FAR": (bessel_far(1), -FAR, 2.0001 - FAR, 26, equally, 4),
        "POSITIVE_ERFCX": (scaled_erfc, -1, 1, 24, equally, 4),
        "SHORT_ERFC": (erfc_by_exp, position(0), position(27.3), 16, lambda t: 1 / erfc_by_exp(t), 1),
    }
    return (floats if narrow else doubles) | {
        "EXP_TAIL": (exp_tail, -half, half, 3 if narrow else 9, lambda t: abs(t) ** 3, 4),
        "LOG_TAIL": (log_tail, LEAST, 0.04001, 3 if narrow else 7, lambda z: z, 4),
        "SIN_TAIL": (sin_tail, LEAST, 0.63, 2 if narrow else 5, lambda z: z, 2),
        "COS_TAIL": (cos_tail, LEAST, 0.63, 2 if narrow else 5, lambda z: z * z, 2),
        "ATAN_TAIL": (atan_tail, LEAST, 1.0001, 9 if narrow else 20, lambda z: z, 2),
        "ERF_REST": (lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1, LEAST, 1.0002, 6 if narrow else 12, equally, 4),
        "SCALED_ERFC": (
            scaled_erfc,
            position(0.74),
            position(10.1 if narrow else 27.3),
            10 if narrow else 22,
            equally,
            1,
        ),
    }


def rounded(value, bits):
    return mp.mpf(struct.unpack("f", struct.pack("f", value))[0] if bits == 24 else float(value))


def parts_of(value, bits):
    """Return three numbers whose sum is a value."""
    parts = []
    for _ in range(3):
        parts.append(float(rounded(value, bits)))
        value -= parts[-1]
    return parts


def fit(function, lowest, highest, degree, weight, one_by_one, bits):
    """Return the coefficients, constant first, and the largest weighted error."""
    middle, width = (mp.mpf(highest) + lowest) / 2, (mp.mpf(highest) - lowest) / 2
    points = [middle + width * mp.cos(mp.pi * (2 * k + 1) / (8 * degree + 16)) for k in range(4 * degree + 8)]
    values, weights, found = [function(x) for x in points], [abs(weight(x)) for x in points], []
    while len(found) <= degree:
        first = len(found)
        rest = [w * (y - mp.polyval(found[::-1] or [0], x)) for x, y, w in zip(points, values, weights, strict=True)]
        terms = [[w * x**k for k in range(first, degree + 1)] for x, w in zip(points, weights, strict=True)]
        fitted = [rounded(c, bits) for c in mp.lu_solve(mp.matrix(terms), mp.matrix(rest))]
        found += fitted[:1] if first < one_by_one else fitted
    errors = [w * abs(y - mp.polyval(found[::-1], x)) for x, y, w in zip(points, values, weights, strict=True)]
    return found, max(errors)


def lines_of(name, numbers):
    """Return the lines of an array."""
    lines = [f"  static constexpr double {name}[] = {{"]
    for number in numbers:
        text = f"{number}, "
        if len(lines[-1] + text) > 119:
            lines.append("      ")
        lines[-1] += text
    lines[-1] = lines[-1].rstrip(", ") + "};"
    return [line.rstrip() for line in lines]


def header():
    """Return the text of the file."""
    lines = [HEAD, "template <class R> struct Of;"]
    for register, bits, shorter in (("F", 24, 9), ("Q", 53, 11)):  # an exponent has 8 or 11 bits; two more stay free
        high = mp.floor(mp.ldexp(mp.log(2), bits - shorter)) / 2 ** (bits - shorter)
        low = rounded(mp.log(2) - high, bits)
        lines += [f"template <> struct Of<{register}> {{"]
        lines += [f"  static constexpr double LOG2_HIGH = {float(high).hex()}, LOG2_LOW = {float(low).hex()};"]
        parts = [f"HALF_PI_{i} = {part.hex()}" for i, part in enumerate(parts_of(mp.pi / 2, bits))]
        lines += [f"  static constexpr double {parts[0]},", f"      {', '.join(parts[1:])};"]
        for name, given in fits(bits).items():
            found, error = fit(*given, bits)
            print(f"{register} {name}: 2^{float(mp.log(error, 2)):.1f}", file=sys.stderr)
            lines += lines_of(name, [f"{float(c):.9g}" if bits == 24 else repr(float(c)) for c in found])
        if bits == 53:
            for name, found in inverse_normal().items():
                lines += lines_of(name, [repr(float(c)) for c in found])
            lines += lines_of("ROOTS_OF_2", [repr(float(mp.mpf(2) ** (mp.mpf(i) / 16))) for i in range(16)])
        lines += ["};"]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    mp.mp.dps = 60
    text = header()
    if options.check:
        return text != FILE.read_text()
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
