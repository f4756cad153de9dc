"""Terms evaluated by mpmath, which shares nothing with the oracle."""

import math

import mpmath
import numpy as np
from mpmath import mp

from pullback.stable.term import CONST, NAMED, VAR, topological


def sigmoid(a):
    return 1 / (1 + mp.exp(-a))


FUNCTIONS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
    "abs": abs,
    "sgn": mp.sign,
    "sqrt": mp.sqrt,
    "rsqrt": lambda a: 1 / mp.sqrt(a),
    "hypot": mp.hypot,
    "pow": mp.power,
    "exp": mp.exp,
    "exp2": lambda a: mp.power(2, a),
    "expm1": mp.expm1,
    "log": mp.log,
    "log2": lambda a: mp.log(a, 2),
    "log10": mp.log10,
    "log1p": mp.log1p,
    "sigmoid": sigmoid,
    "softplus": lambda a: mp.log1p(mp.exp(a)),
    "sin": mp.sin,
    "cos": mp.cos,
    "tan": mp.tan,
    "sinpi": mp.sinpi,
    "cospi": mp.cospi,
    "asin": mp.asin,
    "acos": mp.acos,
    "atan": mp.atan,
    "atan2": mp.atan2,
    "sinh": mp.sinh,
    "cosh": mp.cosh,
    "tanh": mp.tanh,
    "asinh": mp.asinh,
    "acosh": mp.acosh,
    "atanh": mp.atanh,
    "erf": mp.erf,
    "erfc": mp.erfc,
    "erfcx": lambda a: mp.exp(a * a) * mp.erfc(a),
    "ndtri": lambda a: mp.sqrt(2) * mp.erfinv(2 * a - 1) if 0 < a < 1 else mp.inf,
    "i0": lambda a: mp.besseli(0, a),
    "i0e": lambda a: mp.exp(-abs(a)) * mp.besseli(0, a),
    "i1": lambda a: mp.besseli(1, a),
    "i1e": lambda a: mp.exp(-abs(a)) * mp.besseli(1, a),
    "gauss": lambda a: mp.exp(-a * a / 2),
    "qgauss": lambda a: mp.exp(-a * a / 4),
    "lgamma": lambda a: mp.log(abs(mp.gamma(a))),
    "digamma": mp.digamma,
    "trigamma": lambda a: mp.psi(1, a),
    "relu": lambda a: max(a, mp.zero),
    "maximum": max,
    "minimum": min,
    "floor": mp.floor,
    "ceil": mp.ceil,
    "where": lambda condition, a, b: a if condition else b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "logical_and": lambda a, b: a and b,
    "logical_or": lambda a, b: a or b,
    "logical_not": lambda a: not a,
}

NUMBERS = {
    "LN2": lambda: mp.log(2),
    "LN10": lambda: mp.log(10),
    "PI": lambda: +mp.pi,
    "E": lambda: +mp.e,
    "SQRT2": lambda: mp.sqrt(2),
    "SQRT1_2": lambda: 1 / mp.sqrt(2),
    "INV_SQRT_2PI": lambda: 1 / mp.sqrt(2 * mp.pi),
    "SQRT_2_OVER_PI": lambda: mp.sqrt(2 / mp.pi),
    "TWO_OVER_SQRTPI": lambda: 2 / mp.sqrt(mp.pi),
    **{f"EXP{'_M' if n < 0 else '_'}{abs(n)}": lambda n=n: mp.exp(n) for n in range(-20, 21) if abs(n) > 1},
    **{f"LN{n}": lambda n=n: mp.log(n) for n in (3, 5, 7)},
    **{f"SQRT{n}": lambda n=n: mp.sqrt(n) for n in (3, 5, 6, 7, 10)},
}


def value(root, **point):
    """The value of a term; `None` where mpmath has no real value."""
    found = {}
    try:
        for term in topological([root]):
            if term.op == VAR:
                found[term] = mp.mpf(point[term.value])
            elif term.op == CONST:
                found[term] = mp.mpf(term.value.numerator) / term.value.denominator
            elif term.op == NAMED:
                found[term] = NUMBERS[term.value]()
            else:
                assert term.op in FUNCTIONS, f"add {term.op}, by mpmath, to FUNCTIONS in tests/stable/reference.py"
                found[term] = FUNCTIONS[term.op](*(found[a] for a in term.args))
                if isinstance(found[term], mpmath.mpc) or mp.isinf(found[term]):
                    return None
    except (ValueError, ZeroDivisionError):
        return None
    return found[root]


def agrees(high, low, expected):
    """Whether an exact value matches an expected one (`None`: undefined) to its promised accuracy."""
    if expected is None or np.isnan(high):
        return expected is None and np.isnan(high)
    if abs(expected) > 1.7976931348623158e308:
        return high == mp.sign(expected) * math.inf
    off = abs(mp.mpf(float(high)) + mp.mpf(float(low)) - expected)
    return off <= abs(expected) * mp.mpf(2) ** -69 or (abs(expected) < 2.0**-400 and close(high, expected))


def close(high, expected):
    """Whether a number is zero or right to its last digit, as promised of values below 2⁻⁴⁰⁰."""
    return high == 0 or abs(mp.mpf(float(high)) - expected) <= math.ulp(high)
