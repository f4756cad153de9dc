"""Ops with certificates written by hand, so that no test needs a search.

Their formulas have gradients that are visibly wrong where numbers are large: at −100 that of log(sigmoid(x)) is NaN, at
30 it is 0.
"""

import torch

import pullback
from pullback.stable.certificate import Certificate, Form
from pullback.stable.meaning import meaning_of
from pullback.stable.piecewise import parse_piecewise

LOG_SIGMOID = {
    (): "otherwise: -softplus(-x)",
    ("x",): "otherwise: sigmoid(-x)",
    ("x", "x"): "otherwise: -(sigmoid(x) * sigmoid(-x))",
}
GATE = {  # x σ(x) y
    (): "otherwise: x * sigmoid(x) * y",
    ("x",): "otherwise: sigmoid(x) * (1 + x * sigmoid(-x)) * y",
    ("y",): "otherwise: x * sigmoid(x)",
    ("x", "x"): "otherwise: sigmoid(x) * sigmoid(-x) * (2 + x * (sigmoid(-x) - sigmoid(x))) * y",
    ("x", "y"): "otherwise: sigmoid(x) * (1 + x * sigmoid(-x))",
    ("y", "y"): "otherwise: 0",
}
ROOT = {
    (): "otherwise: sqrt(x)",
    ("x",): "otherwise: 0.5 * rsqrt(x)",
    ("x", "x"): "otherwise: -0.25 * (rsqrt(x) / x)",
}


def log_sigmoid_as_written(x):
    return torch.log(torch.sigmoid(x))


def gate_as_written(x, y):
    return x / (1 + torch.exp(-x)) * y


def certified(formula, forms, dtype=torch.float32):
    """Return a certificate of a formula."""
    meaning = meaning_of(formula, dtype)
    made = {by: Form(parse_piecewise(text.splitlines(), meaning.variables), "by hand") for by, text in forms.items()}
    name = str(dtype).removeprefix("torch.")
    return Certificate(meaning.name, str(meaning.term), meaning.variables, name, "never", "cpu", "by hand", made)


def stable_op(formula, forms, *dtypes):
    """Return an op that uses forms written by hand."""
    op = pullback.function(formula)
    for dtype in dtypes or (torch.float32,):
        op._stable.use(certified(formula, forms, dtype))
    return op


def log_sigmoid(*dtypes):
    return stable_op(log_sigmoid_as_written, LOG_SIGMOID, *dtypes)


def gate(*dtypes):
    return stable_op(gate_as_written, GATE, *dtypes)
