"""fast-vollib: what is known of its custom function.

`_JackelImpliedVolatilityFunction` is covered by `implied_volatility_autograd`, which applies it, with its three models.
Truth: float64 central differences. Double backward, strided inputs and cotangents, frozen arguments, two backwards,
checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import second_is_wrong

PACKAGE = Package(
    "fast-vollib",
    "0.2.4",
    "option prices",
    ("scipy==1.17.1", "pandas==2.3.3", "python-dateutil", "pytz", "tzdata", "six", "psutil", "joblib"),
)

NONE = "documented: a price that no volatility gives has none, and gradients of NaN, or of 0 where nobody asks"
DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    **dict.fromkeys(("PB301", "PB302", "PB304", "PB305", "PB109"), NONE),
    "PB505": "a number is made a row of one, with one flag for all",
    "PB303": "far from the money the price hardly changes with the volatility",
    **dict.fromkeys(("PB105", "PB119", "PB413"), "PyTorch's erfcx has no half precision: the forward says so"),
}


def _priced(model, flag, prices, *more):
    from fast_vollib.jackel.differentiable import implied_volatility_autograd

    def volatility(price, spot, strike, time, rate, *dividends):
        return implied_volatility_autograd(price, spot, strike, time, rate, flag, *dividends, model=model)

    rows = (prices, [100.0, 95.0, 105.0], [100.0, 100.0, 98.0], [0.5, 1.0, 0.25], [0.02, 0.03, 0.01], *more)
    return volatility, tuple(torch.tensor(row, dtype=torch.float64) for row in rows)


# First order right: differences.
def futures():
    return _priced("black", "c", [6.0, 7.0, 9.5])


# First order right: differences.
def calls():
    return _priced("black_scholes", "c", [6.0, 7.0, 9.5])


# First order right: differences.
def puts():
    return _priced("black_scholes", "p", [6.0, 9.0, 2.5])


# First order right: differences.
def calls_with_dividends():
    return _priced("black_scholes_merton", "c", [6.0, 7.0, 9.5], [0.01, 0.02, 0.005])


CALLS = tuple(
    Call(
        make,
        bugs=(
            Bug(
                "the backward differentiates the price at detached tensors: the second derivative is silently wrong",
                ("PB401", "PB402", "PB403", "PB404", "PB604"),
                partial(second_is_wrong, make),
            ),
        ),
        doubtful=DOUBTFUL,
        judged={"PB101": (False, "the strike is the same tensor as the price: no option has such numbers")},
    )
    for make in (futures, calls, puts, calls_with_dividends)
)
