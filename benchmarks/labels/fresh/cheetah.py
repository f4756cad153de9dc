"""cheetah-accelerator: what is known of its custom functions.

All nine are covered; they are functions of numbers with a removable singularity at 0 (or where both arguments are
equal), which is what the package needs them for: a magnet that is off, a drift. Truth: the same formulas with 60 digits
(mpmath), whose derivatives are differences. Away from the singularity all are right at first and second order, in
reverse and forward mode and under vmap, but for one.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import far

PACKAGE = Package("cheetah-accelerator", "0.8.4", "particle accelerators")

NAN = ("PB304", "PB301", "PB401")
DIGITS = ("PB303", "PB302", "PB101")
COMPLEX = "bfloat16 and float16 are refused, for want of complex numbers of that width"
SINGULAR = "the second derivative is NaN {}, which the function is for: the quotient is only masked there"
LOST = "in float32 the gradient has {} right digits at {}, near the singularity"


def _function(name):
    import cheetah.utils.autograd as functions

    return getattr(functions, name)


ANGLES = (0.7, -1.3, 2.5, 0.3)
FIRST, OTHER = (0.7, -1.3, 2.5, 0.4), (1.1, 0.6, -0.8, -0.9)


def log1pdiv():
    return _function("Log1PDiv"), (torch.tensor([0.7, -0.3, 2.5, 0.3]),)


def si1mdiv():
    return _function("Si1MDiv"), (torch.tensor((*ANGLES, 0.0)),)


def sicos1mdiv():
    return _function("SiCos1MDiv"), (torch.tensor(ANGLES),)


def sipsicos3mdiv():
    return _function("SiPSiCos3MDiv"), (torch.tensor((*ANGLES, 0.0)),)


def sicoskuddelmuddel15mdiv():
    return _function("SiCosKuddelMuddel15MDiv"), (torch.tensor(ANGLES),)


def cossqrtmcosdivdiff():
    return _function("CosSqrtMCosDivDiff"), (torch.tensor(FIRST), torch.tensor(OTHER))


def simsidivdiff():
    return _function("SiMSiDivDiff"), (torch.tensor((*FIRST, 0.5)), torch.tensor((*OTHER, 0.5)))


def si2msi2divdiff():
    return _function("Si2MSi2DivDiff"), (torch.tensor(FIRST), torch.tensor(OTHER))


def sqrta2minusbdiva():
    return _function("SqrtA2MinusBDivA"), (torch.tensor([0.7, 1.3, 0.5]), torch.tensor([1.1, 0.6, -0.1]))


# --- the proofs


def _at(make, *values, dtype=torch.float64):
    x = [torch.tensor(value, dtype=dtype, requires_grad=True) for value in values]
    return x, make()[0].apply(*x)


def second_is_nan(make, *values):
    x, y = _at(make, *values)
    gradient = torch.autograd.grad(y, x, create_graph=True)
    second = torch.autograd.grad(gradient[0], x[0])[0]
    return bool(y.isfinite() and gradient[0].isfinite() and second.isnan())


def float32_is_off(make, part, *values):
    """Whether the float32 gradient differs by a part from that of float64, which is exact to 1e-6 there."""
    x, y = _at(make, *values)
    narrow, z = _at(make, *values, dtype=torch.float32)
    expected, found = torch.autograd.grad(y, x), torch.autograd.grad(z, narrow)
    return any(far(a.double(), b, part) for a, b in zip(found, expected, strict=True))


def value_at_zero_jumps():
    _, zero = _at(sicos1mdiv, 0.0)
    _, near = _at(sicos1mdiv, 1e-4)
    return abs(float(zero - near)) > 0.4


def gradient_at_zero_is_nan():
    x, y = _at(sicoskuddelmuddel15mdiv, 0.0)
    return bool(y.isfinite() and torch.autograd.grad(y, x)[0].isnan())


def forward_mode_differs():
    from torch.autograd import forward_ad

    x, y = _at(sicoskuddelmuddel15mdiv, 0.7)
    (reverse,) = torch.autograd.grad(y, x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x[0].detach(), torch.ones_like(x[0]))
        forward = forward_ad.unpack_dual(sicoskuddelmuddel15mdiv()[0].apply(dual)).tangent
    return far(forward, reverse, 0.01)


def _nan(make, where, *values):
    return Bug(SINGULAR.format(where), NAN, partial(second_is_nan, make, *values))


def _lost(make, digits, part, *values):
    at = " and ".join(f"{value:g}" for value in values)
    return Bug(LOST.format(digits, at), DIGITS, partial(float32_is_off, make, part, *values))


NARROW = {"PB413": COMPLEX, "PB105": COMPLEX}
FORWARD = "documented: forward mode doesn't work where one argument is 0"
CALLS = (
    Call(
        log1pdiv,
        bugs=(_nan(log1pdiv, "at 0", 0.0), _lost(log1pdiv, "hardly any", 0.01, 1e-6)),
        doubtful={"PB302": "in float32, at 1e-8, the gradient is 0"},
    ),
    Call(si1mdiv, bugs=(_nan(si1mdiv, "at 0", 0.0), _lost(si1mdiv, "no", 1.0, 1e-3)), doubtful=NARROW),
    Call(
        sicos1mdiv,
        bugs=(
            Bug(
                "the value at 0 is 1/6, where the limit is 2/3",
                ("PB101", "PB301", "PB302", "PB303", "PB305"),
                value_at_zero_jumps,
            ),
            _nan(sicos1mdiv, "at 0", 0.0),
            _lost(sicos1mdiv, "hardly any", 0.1, 1e-3),
        ),
        doubtful=NARROW,
    ),
    Call(
        sipsicos3mdiv,
        bugs=(_nan(sipsicos3mdiv, "at 0", 0.0), _lost(sipsicos3mdiv, "no", 1.0, 1e-3)),
        doubtful=NARROW,
    ),
    Call(
        sicoskuddelmuddel15mdiv,
        bugs=(
            Bug("the forward-mode derivative has a term with the wrong sign", ("PB102", "PB110"), forward_mode_differs),
            Bug(
                "the gradient at 0 is NaN, where the value has been given a limit",
                ("PB301", "PB304"),
                gradient_at_zero_is_nan,
            ),
        ),
        doubtful={
            **NARROW,
            "PB303": "the formula is another one than that in the docstring, and grows without bound towards 0",
            "PB305": "the formula is another one than that in the docstring, and grows without bound towards 0",
        },
    ),
    Call(
        cossqrtmcosdivdiff,
        bugs=(
            _nan(cossqrtmcosdivdiff, "where both are equal", 0.5, 0.5),
            _lost(cossqrtmcosdivdiff, "hardly any", 0.1, 1e-3, 2e-3),
        ),
        doubtful=NARROW,
    ),
    Call(
        simsidivdiff,
        bugs=(_nan(simsidivdiff, "where both are equal", 0.5, 0.5), _lost(simsidivdiff, "no", 1.0, 1e-3, 2e-3)),
        doubtful=NARROW,
    ),
    Call(
        si2msi2divdiff,
        bugs=(
            _nan(si2msi2divdiff, "where both are equal", 0.5, 0.5),
            _lost(si2msi2divdiff, "no", 1.0, 1e-3, 2e-3),
        ),
        doubtful={**NARROW, "PB102": FORWARD, "PB110": FORWARD, "PB301": FORWARD, "PB407": FORWARD},
    ),
    Call(
        sqrta2minusbdiva,
        bugs=(
            _nan(sqrta2minusbdiva, "where the second argument is 0", 0.5, 0.0),
            _lost(sqrta2minusbdiva, "hardly two", 0.01, 0.5, 1e-3),
        ),
        doubtful={"PB302": "in float32, where the second argument is 1e-8, the gradient is 0"},
    ),
)
