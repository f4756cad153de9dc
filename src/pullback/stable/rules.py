"""Equations between terms: those of the search by family, and the few that are safe without one.

`left => right`, or `left <=> right` for both directions; small letters match anything.

An equation of the search need not hold everywhere nor be an improvement: a merge whose values differ is refused, and a
form is used only where it is measured to be better. Commutativity of addition and multiplication, and constant folding,
need no rules.

A rule of the quick pass is valid wherever its left side has a value. Both sides have a value at the same points,
infinite ones included if the left side has one there, and the right side is nowhere less accurate, up to the errors of
a kernel: docs/numerics.md has a measurement of each. Most come from the search's table. The others would not help the
search, which finds them by smaller steps, or would mislead it: 0 − a is +0 at both zeros, as 1 − eᵃ is, and −a is not.
"""

from __future__ import annotations

from functools import cache

from pullback.stable.rewriting import RewriteRule, parse_rules

FAMILIES = {
    # Associativity of sums, differences and products, distributivity, squares of binomials.
    "ring": """
        (a + b) + c => a + (b + c)
        (a * b) * c => a * (b * c)
        a * (b + c) <=> a * b + a * c
        a * (b - c) <=> a * b - a * c
        a + a <=> 2 * a
        a * b + a => a * (b + 1)
        a * b - a => a * (b - 1)
        a - a * b => a * (1 - b)
        a * a - b * b <=> (a - b) * (a + b)
        a * a - 1 => (a - 1) * (a + 1)
        1 - a * a => (1 - a) * (1 + a)
        (a + b) - c => a + (b - c)
        (a - b) - c => a - (b + c)
        a - (b - c) => (a + c) - b
        (a - b) + c => (a + c) - b
        a - (b + c) => (a - b) - c
        (a + b) * (a + b) => a * a + (2 * (a * b) + b * b)
        (a - b) * (a - b) => a * a - (2 * (a * b) - b * b)
    """,
    "sign": """
        a - b <=> a + (-b)
        -(a + b) => -a - b
        -(a - b) => b - a
        (-a) * b <=> -(a * b)
        (-a) * (-b) => a * b
        -(-a) => a
        (-a) / b <=> -(a / b)
        a / (-b) => -(a / b)
        a - (-b) => a + b
        -1 * a <=> -a
        a + 0 => a
        a * 1 => a
        a - 0 => a
        0 - a => -a
    """,
    # A common denominator avoids the difference of two large quotients; a division of numerator and denominator by the
    # same term avoids their overflow.
    "fractions": """
        a / b <=> a * (1 / b)
        (a / b) * c => (a * c) / b
        (a / b) * c => a * (c / b)
        (a / b) * (c / d) <=> (a * c) / (b * d)
        a / (b / c) => (a * c) / b
        (a / b) / c <=> a / (b * c)
        (a * b) / a => b
        a / (a * b) => 1 / b
        (a * b) / (a * c) => b / c
        (a * b) / c => a * (b / c)
        (a + b) / c <=> a / c + b / c
        (a - b) / c <=> a / c - b / c
        a + b / c => (a * c + b) / c
        a - b / c => (a * c - b) / c
        b / c - a => (b - a * c) / c
        a / b + c / d => (a * d + c * b) / (b * d)
        a / b - c / d => (a * d - c * b) / (b * d)
        c / a - c / b => (c * (b - a)) / (a * b)
        1 / a - 1 / b => (b - a) / (a * b)
        1 / a + 1 / b => (a + b) / (a * b)
        a / a => 1
        a / 1 => a
        1 / (a * b) <=> (1 / a) * (1 / b)
        1 / (1 / a) => a
        a / (b + a) => 1 / (1 + b / a)
        a / (a * a + b) => 1 / (a + b / a)
        a / (b + c) => 1 / (b / a + c / a)
    """,
    # eᵃ − 1 and the like without the rounding of eᵃ near 1; gauss(a) = exp(−a²/2) is computed without the rounding of
    # a². expm1(2a) = (eᵃ − 1)(eᵃ + 1), and eᵃ + 1 = expm1(a) + 2.
    "exponentials": """
        exp(a) * exp(b) <=> exp(a + b)
        exp(a) / exp(b) => exp(a - b)
        1 / exp(a) <=> exp(-a)
        a / exp(b) => a * exp(-b)
        exp(a) - 1 <=> expm1(a)
        1 - exp(a) => -expm1(a)
        exp(a) + 1 => expm1(a) + 2
        exp(a) - exp(b) => exp(b) * expm1(a - b)
        expm1(a) => -(exp(a) * expm1(-a))
        expm1(2 * a) => expm1(a) * (expm1(a) + 2)
        expm1(a) => expm1(a * 0.5) * (expm1(a * 0.5) + 2)
        expm1(a) => 2 * (exp(a * 0.5) * sinh(a * 0.5))
        exp(a) * exp(a) => exp(2 * a)
        exp(a) => exp(a * 0.5) * exp(a * 0.5)
        exp(log(a)) => a
        exp(log1p(a)) => 1 + a
        exp(a * log(b)) <=> pow(b, a)
        exp(a - b) => exp(a) * exp(-b)
        a * exp(b) => (a * exp(b * 0.5)) * exp(b * 0.5)
        exp(-((a * a) / 2)) => gauss(a)
        exp(-(0.5 * (a * a))) => gauss(a)
        exp((a * a) * -0.5) => gauss(a)
        exp(-(a * a)) => gauss(a * SQRT2)
        exp(-((a * SQRT1_2) * (a * SQRT1_2))) => gauss(a)
        gauss(a * SQRT2) => exp(-(a * a))
        gauss(a) => qgauss(a) * qgauss(a)
        exp2(a) <=> exp(a * LN2)
    """,
    # log(1 + u) without the rounding of 1 + u, and logarithms of quotients near 1 as those of a difference: the
    # quotient a/b is 1 + (a − b)/b, and (1 + a)/(1 + b) is 1 + (a − b)/(1 + b). 2 atanh(a) = log((1 + a)/(1 − a)), and
    # for log(a/(1 − a)) its argument is 2a − 1, since 1 + (2a − 1) = 2a and 1 − (2a − 1) = 2(1 − a).
    "logarithms": """
        log(1 + a) <=> log1p(a)
        log(1 - a) => log1p(-a)
        log(a) => log1p(a - 1)
        log(a * b) <=> log(a) + log(b)
        log(a / b) <=> log(a) - log(b)
        log(a * b) => log(abs(a)) + log(abs(b))
        log(a / b) => log(abs(a)) - log(abs(b))
        log(1 / a) => -log(a)
        log(a + b) => log(a) + log1p(b / a)
        log(a * a) => 2 * log(abs(a))
        log(sqrt(a)) => 0.5 * log(a)
        log(pow(a, b)) => b * log(a)
        log(exp(a)) => a
        log1p(expm1(a)) => a
        log1p(-exp(a)) <=> log(-expm1(a))
        log(a) - log(b) => log1p((a - b) / b)
        log1p(a) - log(b) => log1p((1 + a - b) / b)
        log(a) - log1p(b) => -log1p((1 + b - a) / a)
        log1p(a) - log1p(b) => log1p((a - b) / (1 + b))
        log1p(a) + log1p(b) => log1p(a + (b + a * b))
        log((1 + a) / (1 - a)) => 2 * atanh(a)
        log1p(a) - log1p(-a) => 2 * atanh(a)
        log(a / (1 - a)) => 2 * atanh(2 * a - 1)
        log2(a) <=> log(a) / LN2
        log10(a) <=> log(a) / LN10
    """,
    # softplus(a) = log(1 + eᵃ) = −log σ(−a), so powers of 1 + eᵃ and of σ are exponentials of its multiples. The
    # difference σ(a) − σ(b) is (e⁻ᵇ − e⁻ᵃ)/((1 + e⁻ᵃ)(1 + e⁻ᵇ)) = σ(a) σ(−b) (1 − e^(b − a)).
    "sigmoids": """
        1 / (1 + exp(a)) <=> sigmoid(-a)
        exp(a) / (1 + exp(a)) => sigmoid(a)
        1 - sigmoid(a) <=> sigmoid(-a)
        sigmoid(a) <=> exp(a) * sigmoid(-a)
        log(sigmoid(a)) => -softplus(-a)
        log1p(exp(a)) <=> softplus(a)
        log(1 + exp(a)) => softplus(a)
        softplus(a) => a + softplus(-a)
        softplus(a) - softplus(-a) => a
        softplus(a) => -log(sigmoid(-a))
        exp(softplus(a)) => 1 + exp(a)
        exp(-softplus(a)) <=> sigmoid(-a)
        rsqrt(1 + exp(a)) => exp(softplus(a) * -0.5)
        rsqrt(1 + exp(a)) => sqrt(sigmoid(-a))
        sqrt(1 + exp(a)) => exp(softplus(a) * 0.5)
        sigmoid(a) * sigmoid(-a) => exp(a) / ((1 + exp(a)) * (1 + exp(a)))
        sigmoid(a) * sigmoid(-a) => exp(-abs(a)) / ((1 + exp(-abs(a))) * (1 + exp(-abs(a))))
        sigmoid(a) - sigmoid(b) => sigmoid(a) * (sigmoid(-b) * -expm1(b - a))
        sigmoid(a) - 0.5 => 0.5 * tanh(a * 0.5)
        log(exp(a) + exp(b)) => a + softplus(b - a)
        log(expm1(a)) => a + log(-expm1(-a))
        log(expm1(a)) => a + log1p(-exp(-a))
        softplus(a) - LN2 => log1p(expm1(a) * 0.5)
        exp(a) / 2 <=> exp(a - LN2)
        1 - exp(a) * 0.5 => -expm1(a - LN2)
        exp(a) * 0.5 - 1 => expm1(a - LN2)
        exp(a) - 2 => 2 * expm1(a - LN2)
    """,
    # DLMF §4.35 (identities) and §4.37 (inverse functions). tanh(softplus(a)) is (t² − 1)/(t² + 1) with t = 1 + eᵃ, and
    # t² − 1 = eᵃ(eᵃ + 2); for large a both are divided by e^(2a). log cosh a is log((e^|a| (1 + e^(−2|a|)))/2), and
    # near 0 it is log1p(cosh a − 1) with cosh a − 1 = 2 sinh²(a/2).
    "hyperbolic": """
        tanh(a) <=> 2 * sigmoid(2 * a) - 1
        tanh(a) <=> expm1(2 * a) / (expm1(2 * a) + 2)
        tanh(a) => -expm1(-2 * a) / (1 + exp(-2 * a))
        1 - tanh(a) * tanh(a) => 4 * (sigmoid(2 * a) * sigmoid(-2 * a))
        1 - tanh(a) * tanh(a) <=> 1 / (cosh(a) * cosh(a))
        1 - tanh(a) => 2 * sigmoid(-2 * a)
        1 + tanh(a) => 2 * sigmoid(2 * a)
        tanh(softplus(a)) => (exp(a) * (exp(a) + 2)) / (exp(a) * (exp(a) + 2) + 2)
        tanh(softplus(a)) => (1 + 2 * exp(-a)) / (1 + 2 * exp(-a) + 2 * exp(-2 * a))
        exp(a) + exp(-a) <=> 2 * cosh(a)
        exp(a) - exp(-a) <=> 2 * sinh(a)
        cosh(a) - 1 => 2 * (sinh(a * 0.5) * sinh(a * 0.5))
        cosh(a) + sinh(a) => exp(a)
        cosh(a) - sinh(a) => exp(-a)
        cosh(a) * cosh(a) - sinh(a) * sinh(a) => 1
        log(cosh(a)) => softplus(-2 * abs(a)) + (abs(a) - LN2)
        log(cosh(a)) => log1p(2 * (sinh(a * 0.5) * sinh(a * 0.5)))
        sinh(a) / cosh(a) <=> tanh(a)
        sinh(2 * a) <=> 2 * (sinh(a) * cosh(a))
        cosh(2 * a) <=> 1 + 2 * (sinh(a) * sinh(a))
        cosh(a) => 1 + 2 * (sinh(a * 0.5) * sinh(a * 0.5))
        sinh(a) => (expm1(a) + expm1(a) / (expm1(a) + 1)) * 0.5
        sinh(a) => -0.5 * (exp(a) * expm1(-2 * a))
        cosh(a) => 0.5 * (exp(a) * (1 + exp(-2 * a)))
        log(sinh(a)) => log1p(-exp(-2 * a)) + (a - LN2)
        sinh(a) - sinh(b) => 2 * (cosh((a + b) * 0.5) * sinh((a - b) * 0.5))
        cosh(a) - cosh(b) => 2 * (sinh((a + b) * 0.5) * sinh((a - b) * 0.5))
        (exp(a) - 1) / (exp(a) + 1) => tanh(a * 0.5)
        sinh(a) / (1 + cosh(a)) => tanh(a * 0.5)
        (cosh(a) - 1) / sinh(a) => tanh(a * 0.5)
        0.5 * log((1 + a) / (1 - a)) => atanh(a)
        log(a + sqrt(a * a + 1)) => asinh(a)
        log(a + hypot(1, a)) => asinh(a)
        log(a + sqrt(a * a - 1)) => acosh(a)
        log(a + sqrt(a - 1) * sqrt(a + 1)) => acosh(a)
        tanh(a) - tanh(b) => sinh(a - b) / (cosh(a) * cosh(b))
    """,
    # Conjugates: √a − √b = (a − b)/(√a + √b), and with h = hypot(1, a), h² − a² = 1: so h − a = 1/(h + a), and
    # 1 − a/h = (h − a)/h = 1/(h(h + a)). hypot(a, b) does not overflow where a² does.
    "roots": """
        sqrt(a) - sqrt(b) => (a - b) / (sqrt(a) + sqrt(b))
        sqrt(a) - b => (a - b * b) / (sqrt(a) + b)
        b - sqrt(a) => (b * b - a) / (sqrt(a) + b)
        b + sqrt(a) => (b * b - a) / (b - sqrt(a))
        rsqrt(a) <=> 1 / sqrt(a)
        sqrt(a) * sqrt(a) => a
        sqrt(a) * sqrt(b) <=> sqrt(a * b)
        sqrt(a) / sqrt(b) <=> sqrt(a / b)
        sqrt(a * a) => abs(a)
        rsqrt(a) * rsqrt(a) => 1 / a
        a / sqrt(a) => sqrt(a)
        sqrt(a) / a => rsqrt(a)
        1 / sqrt(a) - 1 / sqrt(b) => (b - a) / (sqrt(a) * sqrt(b) * (sqrt(a) + sqrt(b)))
        rsqrt(a) - rsqrt(b) => (b - a) / (sqrt(a) * sqrt(b) * (sqrt(a) + sqrt(b)))
        sqrt(1 + a * a) <=> hypot(1, a)
        sqrt(a * a + b * b) <=> hypot(a, b)
        sqrt(a * a + 4) => hypot(2, a)
        hypot(1, a) * hypot(1, a) => 1 + a * a
        hypot(1, a) - a => 1 / (hypot(1, a) + a)
        a - hypot(1, a) => -(1 / (hypot(1, a) + a))
        a + hypot(1, a) => 1 / (hypot(1, a) - a)
        hypot(1, a) - 1 => a * (a / (hypot(1, a) + 1))
        a / hypot(1, a) => 1 - (1 / hypot(1, a)) * (1 / (hypot(1, a) + a))
        1 - a / hypot(1, a) => 1 / (hypot(1, a) * (hypot(1, a) + a))
        1 + a / hypot(1, a) => 1 / (hypot(1, a) * (hypot(1, a) - a))
        sqrt(a * a - 1) => sqrt(a - 1) * sqrt(a + 1)
        pow(a, 0.5) <=> sqrt(a)
        pow(a, -0.5) <=> rsqrt(a)
        pow(a, 1.5) <=> a * sqrt(a)
        pow(a, -1) <=> 1 / a
        pow(a, -2) => 1 / (a * a)
        pow(a, b) * pow(a, c) <=> pow(a, b + c)
        a * pow(a, b) => pow(a, b + 1)
        pow(a, b) / a => pow(a, b - 1)
        pow(a * b, c) <=> pow(a, c) * pow(b, c)
        pow(1 + a, b) => exp(b * log1p(a))
        pow(a, b) - 1 => expm1(b * log(a))
        pow(a, b) - pow(c, b) => pow(c, b) * expm1(b * (log(a) - log(c)))
    """,
    # DLMF §4.21 (identities) and §4.24 (inverse functions); half angles for 1 − cos a, sum to product for differences.
    # For asin and acos by atan2: Kahan, "Branch cuts for complex elementary functions", 1987. With a = cos t they are
    # tan(t/2) = √((1 − a)/(1 + a)), and with a = sin t, tan(t/2) = a/(1 + √(1 − a²)). The product (1 − a)(1 + a) has
    # the errors of three roundings, where 1 − a² loses digits near |a| = 1. 1 − cos t = 2 sin²(t/2) gives acos(1 − a).
    "circular": """
        1 - cos(a) <=> 2 * (sin(a * 0.5) * sin(a * 0.5))
        cos(a) - 1 => -2 * (sin(a * 0.5) * sin(a * 0.5))
        1 + cos(a) => 2 * (cos(a * 0.5) * cos(a * 0.5))
        sin(a) => 2 * (sin(a * 0.5) * cos(a * 0.5))
        sin(2 * a) <=> 2 * (sin(a) * cos(a))
        cos(2 * a) <=> 1 - 2 * (sin(a) * sin(a))
        cos(a) * cos(a) <=> 1 - sin(a) * sin(a)
        sin(a) * sin(a) + cos(a) * cos(a) => 1
        sin(a) / cos(a) <=> tan(a)
        tan(a) * cos(a) => sin(a)
        (1 - cos(a)) / sin(a) => tan(a * 0.5)
        sin(a) / (1 + cos(a)) => tan(a * 0.5)
        1 + tan(a) * tan(a) <=> 1 / (cos(a) * cos(a))
        sin(a) - sin(b) => 2 * (cos((a + b) * 0.5) * sin((a - b) * 0.5))
        sin(a + b) <=> sin(a) * cos(b) + cos(a) * sin(b)
        sin(a - b) <=> sin(a) * cos(b) - cos(a) * sin(b)
        cos(a) - cos(b) => -2 * (sin((a + b) * 0.5) * sin((a - b) * 0.5))
        cos(a + b) <=> cos(a) * cos(b) - sin(a) * sin(b)
        cos(a - b) <=> cos(a) * cos(b) + sin(a) * sin(b)
        tan(a) - tan(b) => sin(a - b) / (cos(a) * cos(b))
        tan(a) + tan(b) => sin(a + b) / (cos(a) * cos(b))
        1 / tan(a) - 1 / tan(b) => sin(b - a) / (sin(a) * sin(b))
        sin(-a) => -sin(a)
        cos(-a) => cos(a)
        tan(-a) => -tan(a)
        atan(a) - atan(b) => atan2(a - b, 1 + a * b)
        atan(a) + atan(b) => atan2(a + b, 1 - a * b)
        asin(a) => 2 * atan2(a, 1 + sqrt((1 - a) * (1 + a)))
        acos(a) => 2 * atan2(sqrt(1 - a), sqrt(1 + a))
        asin(a) <=> atan2(a, sqrt((1 - a) * (1 + a)))
        acos(1 - a) => 2 * asin(sqrt(a * 0.5))
        cos(acos(a)) => a
        sin(asin(a)) => a
        tan(atan(a)) => a
        sin(PI * a) <=> sinpi(a)
        cos(PI * a) <=> cospi(a)
        tan(PI * a) => sinpi(a) / cospi(a)
        tan(a + b) => (tan(a) + tan(b)) / (1 - tan(a) * tan(b))
        tan(PI / 4 + a) => (1 + tan(a)) / (1 - tan(a))
        atan(tan(a)) => a
    """,
    # erfc(a) = exp(−a²) erfcx(a), where erfcx(a), DLMF's w(ia) (§7.2), neither under- nor overflows for a > 0: there it
    # lies between 1 and 0, about 1/(a √π) for large a. gauss(a) is the square of qgauss(a), which underflows later:
    # a large factor is multiplied by one qgauss, then by the other.
    "error function": """
        1 + erf(a) <=> erfc(-a)
        1 - erf(a) <=> erfc(a)
        erfc(-a) => 2 - erfc(a)
        erf(-a) => -erf(a)
        erfc(a) <=> exp(-(a * a)) * erfcx(a)
        erfc(a * SQRT1_2) => gauss(a) * erfcx(a * SQRT1_2)
        erfc(-(a * SQRT1_2)) => gauss(a) * erfcx(-(a * SQRT1_2))
        log(erfc(a)) => log(erfcx(a)) - a * a
        a * gauss(b) => (a * qgauss(b)) * qgauss(b)
        gauss(a) / (gauss(a) * b) => 1 / b
    """,
    "symmetry": """
        tanh(-a) => -tanh(a)
        sinh(-a) => -sinh(a)
        cosh(-a) => cosh(a)
        asinh(-a) => -asinh(a)
        atan(-a) => -atan(a)
        atanh(-a) => -atanh(a)
        abs(-a) => abs(a)
        abs(sinh(a)) <=> sinh(abs(a))
        abs(tanh(a)) <=> tanh(abs(a))
        abs(a) * abs(a) => a * a
        abs(a * b) <=> abs(a) * abs(b)
        a / abs(a) => sgn(a)
        a * sgn(a) <=> abs(a)
        sgn(a) * abs(a) => a
        hypot(a, -b) => hypot(a, b)
        gauss(-a) => gauss(a)
    """,
}


@cache
def search_rules() -> tuple[RewriteRule, ...]:
    """Every rule, both directions of those that have two."""
    return tuple(rule for table in FAMILIES.values() for rule in parse_rules(table))


_SHARED = """
    exp(a) - 1 => expm1(a)
    log(1 + a) => log1p(a)
    log(1 - a) => log1p(-a)
    1 / (1 + exp(a)) => sigmoid(-a)
    exp(a) / (1 + exp(a)) => sigmoid(a)
    1 - sigmoid(a) => sigmoid(-a)
    log(sigmoid(a)) => -softplus(-a)
    log1p(exp(a)) => softplus(a)
    exp(-softplus(a)) => sigmoid(-a)
    rsqrt(1 + exp(a)) => exp(softplus(a) * -0.5)
    sqrt(1 + exp(a)) => exp(softplus(a) * 0.5)
    sigmoid(a) - 0.5 => 0.5 * tanh(a * 0.5)
    1 - tanh(a) => 2 * sigmoid(-2 * a)
    1 + tanh(a) => 2 * sigmoid(2 * a)
    exp(a) + exp(-a) => 2 * cosh(a)
    exp(a) - exp(-a) => 2 * sinh(a)
    sinh(a) / cosh(a) => tanh(a)
    0.5 * log((1 + a) / (1 - a)) => atanh(a)
    log(a + hypot(1, a)) => asinh(a)
    sqrt(1 + a * a) => hypot(1, a)
    sqrt(a * a + b * b) => hypot(a, b)
    1 + erf(a) => erfc(-a)
    1 - erf(a) => erfc(a)
"""

# With t = 1 + eᵃ, tanh(log t) = (t² − 1)/(t² + 1), and 1 − tanh² is (2t/(t² + 1))² = (2 t⁻¹/(1 + t⁻²))², where
# t⁻¹ = σ(−a). (eᵃ − 1)/(1 + eᵃ) = tanh(a/2), and 2σ(a) − 1 is the same.
_OWN = """
    1 - exp(a) => 0 - expm1(a)
    log1p(-exp(a)) => log(0 - expm1(a))
    a / (1 + exp(b)) => a * sigmoid(-b)
    exp(a) / (exp(a) + exp(b)) => sigmoid(a - b)
    2 * sigmoid(a) - 1 => tanh(a * 0.5)
    sigmoid(-a) - sigmoid(a) => -tanh(a * 0.5)
    1 - (1 - tanh(a) * tanh(a)) => tanh(a) * tanh(a)
    1 - tanh(softplus(a)) * tanh(softplus(a)) => (2 * sigmoid(-a) / (1 + sigmoid(-a) * sigmoid(-a))) ** 2
    a * (b * a) - (b * a) * b => (b * a) * (a - b)
    (2 * sinh(a)) / (2 * cosh(a)) => tanh(a)
    expm1(a) / (1 + exp(a)) => tanh(a * 0.5)
    (2 * a) / 2 => a
    0.5 * (2 * a) => a
    sqrt(1 + a) - sqrt(a) => 1 / (sqrt(1 + a) + sqrt(a))
"""

_FINAL_SHARED = """
    1 - tanh(a) * tanh(a) => 1 / (cosh(a) * cosh(a))
    1 - a * a => (1 - a) * (1 + a)
    a * a - 1 => (a - 1) * (a + 1)
    a * a - b * b => (a - b) * (a + b)
    1 - cos(a) => 2 * (sin(a * 0.5) * sin(a * 0.5))
    cos(a) - 1 => -2 * (sin(a * 0.5) * sin(a * 0.5))
"""

# softplus(a) = max(a, 0) + log(1 + e^−|a|), and 1 + e^−|a| = 1/σ(|a|): so e^(softplus/2) is a product with the exact
# exponent max(a, 0)/2, whereas a relative error u of the softplus is one of u · softplus/2 in its exponential.
# log(1 − eᵃ) is log(−expm1(a)) down to a = −log 2 and log1p(−eᵃ) below: neither cancels (Mächler, "Accurately computing
# log(1 − exp(−|a|))", 2012).
_FINAL_OWN = """
    exp(softplus(a) * -0.5) => exp(relu(a) * -0.5) * sqrt(sigmoid(abs(a)))
    exp(softplus(a) * 0.5) => exp(relu(a) * 0.5) * sqrt(1 + exp(-abs(a)))
    log(0 - expm1(a)) => where(a > -LN2, log(0 - expm1(a)), log1p(-exp(a)))
    sqrt(1 + a) - 1 => where(a < 1, a / (sqrt(1 + a) + 1), sqrt(1 + a) - 1)
    log(exp(a) + exp(b)) => where(a == b, a + LN2, maximum(a, b) + log1p(exp(-abs(a - b))))
"""

# tanh(log t) = (1 − t⁻²)/(1 + t⁻²) with t⁻¹ = σ(−a), and 1 − t⁻¹ = σ(a).
_FLOAT64 = """
    tanh(softplus(a)) => sigmoid(a) * (1 + sigmoid(-a)) / (1 + sigmoid(-a) * sigmoid(-a))
    exp(softplus(a) * -0.5) => sqrt(sigmoid(-a))
"""


@cache
def shared_with_search() -> tuple[RewriteRule, ...]:
    """Rules that the search has too."""
    return (*parse_rules(_SHARED), *parse_rules(_FINAL_SHARED))


@cache
def differentiable_rules() -> tuple[RewriteRule, ...]:
    """Rules whose results are also good to differentiate."""
    return (*parse_rules(_SHARED), *parse_rules(_OWN))


@cache
def final_rules() -> tuple[RewriteRule, ...]:
    """Rules for terms that are not differentiated further; their results are not rewritten again."""
    return (*parse_rules(_FINAL_SHARED), *parse_rules(_FINAL_OWN))


@cache
def float64_only() -> tuple[RewriteRule, ...]:
    """Rules that hold over the range of float32 only when computed in float64."""
    return tuple(parse_rules(_FLOAT64))


@cache
def final_rules_in_float64() -> tuple[RewriteRule, ...]:
    """Rules for such terms that are computed in float64 in place of a narrower dtype."""
    return (
        *float64_only(),
        *(rule for rule in final_rules() if rule.left not in {other.left for other in float64_only()}),
    )
