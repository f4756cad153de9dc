"""Operators that some PyTorch differentiates wrongly in a nesting of modes, with the formula in place of each.

PyTorch itself is asked when an operator is first met: on the sample of its row, every nesting of the operator and of
the formula gives one number, or PyTorch is at fault. So a row goes by itself once PyTorch has mended the rule.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.nesting import formulas

Operator = Callable[..., Any]
Scalar = Callable[[Tensor], Tensor]

NESTINGS = ("f", "r", "ff", "fr", "rf", "rr", "fff", "ffr", "rff", "rrr")
_SAME = 1e-7


@dataclass(frozen=True, eq=False)
class Row:
    """An operator and its formula.

    Attributes:
        names: of the operator and its other spellings, in `torch`; methods that write in place are found by themselves.
        formula: takes the same arguments.
        sample: a result of the operator as a function of a number around 0, where its rule is wrong.
    """

    names: tuple[str, ...]
    formula: Operator
    sample: Callable[[Operator, Tensor], Tensor]

    @functools.cache  # noqa: B019 - the rows live as long as the process
    def is_wrong_in(self, modes: str) -> bool:
        """Whether this PyTorch differentiates the operator wrongly, or raises, in a nesting: "r" is reverse mode."""
        operator = found(self.names[0])
        assert operator is not None
        with _torch.new_thread() as thread:  # beyond the transforms and modes that run here
            return bool(thread.submit(self._differs, operator, modes).result())

    def _differs(self, operator: Operator, modes: str) -> bool:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of deprecated operators
            return not self._is_right(operator, modes)

    def _is_right(self, operator: Operator, modes: str) -> bool:
        right = derivative(lambda t: self.sample(self.formula, t), modes)
        try:
            got = derivative(lambda t: self.sample(operator, t), modes)
        except RuntimeError:
            return False
        return abs(got - right) <= _SAME * (1 + abs(right))


def derivative(function: Scalar, modes: str) -> float:
    """Return the derivative of a function of one number at 0, by a nesting of modes, the outermost first."""
    for mode in reversed(modes):
        function = torch.func.grad(function) if mode == "r" else _forward(function)
    return float(function(torch.zeros((), dtype=torch.float64)))


def _forward(function: Scalar) -> Scalar:
    return lambda t: torch.func.jvp(function, (t,), (torch.ones_like(t),))[1]


def _numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _row(t: Tensor) -> Tensor:
    return _numbers(0.5, -1.0, 2.0) + t * _numbers(1.0, 0.5, -0.5)


def _matrix(t: Tensor) -> Tensor:
    return _numbers(2.0, 1.0, 0.5, 3.0).view(2, 2) + t * _numbers(1.0, -0.5, 0.25, 2.0).view(2, 2)


_ONES = torch.zeros(2, dtype=torch.int64)

ROWS: tuple[Row, ...] = (
    Row(
        ("nn.functional.layer_norm", "layer_norm"),
        formulas.layer_norm, lambda op, t: op(_row(t), (3,))[0],
    ),
    Row(
        ("native_layer_norm",),
        formulas.native_layer_norm, lambda op, t: op(_row(t), (3,), None, None, 1e-5)[0][0],
    ),
    Row(
        ("native_batch_norm",),
        formulas.native_batch_norm,
        lambda op, t: op(_row(t)[:, None], None, None, None, None, True, 0.1, 1e-5)[0][0, 0],
    ),
    Row(
        ("nn.functional.batch_norm",),
        formulas.functional_batch_norm, lambda op, t: op(_row(t)[:, None], None, None, training=True)[0, 0],
    ),
    Row(
        ("batch_norm",),
        formulas.batch_norm,
        lambda op, t: op(_row(t)[:, None], None, None, None, None, True, 0.1, 1e-5, False)[0, 0],
    ),
    Row(
        ("nn.functional.instance_norm",),
        formulas.functional_instance_norm, lambda op, t: op(_row(t)[None, None])[0, 0, 0],
    ),
    Row(
        ("cumprod", "Tensor.cumprod"),
        formulas.cumprod, lambda op, t: op(_numbers(2.0, 0.0, 3.0) + t, 0)[-1],
    ),
    Row(
        ("prod", "Tensor.prod"),
        formulas.prod, lambda op, t: op(_numbers(2.0, 0.0, 3.0) + t),
    ),
    Row(
        ("linalg.vander",),
        formulas.vander, lambda op, t: op(t[None], N=4)[0, 3],
    ),
    Row(
        ("logaddexp", "Tensor.logaddexp"),
        formulas.logaddexp, lambda op, t: op(t, 800 - t),
    ),
    Row(
        ("logaddexp2", "Tensor.logaddexp2"),
        formulas.logaddexp2, lambda op, t: op(t, 1200 - t),
    ),
    Row(
        ("logcumsumexp", "Tensor.logcumsumexp"),
        formulas.logcumsumexp, lambda op, t: op(torch.stack([t, 800 - t]), 0)[0],
    ),
    Row(
        ("pow", "Tensor.pow", "Tensor.__pow__"),
        formulas.pow, lambda op, t: op(2 + t, 2 * t),
    ),
    Row(
        ("Tensor.__rpow__",),
        formulas.rpow, lambda op, t: op(2 * t, 2 + t),
    ),
    Row(
        ("float_power", "Tensor.float_power"),
        formulas.float_power, lambda op, t: op(2 + t, 2 * t),
    ),
    Row(
        ("ldexp", "Tensor.ldexp"),
        formulas.ldexp, lambda op, t: op(1 + t, torch.tensor(-2)),
    ),
    Row(
        ("sinc", "Tensor.sinc", "special.sinc"),
        formulas.sinc, lambda op, t: op(t),
    ),
    Row(
        ("special.i1",),
        formulas.i1, lambda op, t: op(t),
    ),
    Row(
        ("polar",),
        formulas.polar, lambda op, t: op(t, t + 0.3).imag,
    ),
    Row(
        ("logit", "Tensor.logit", "special.logit"),
        formulas.logit, lambda op, t: op(t, eps=0.2),
    ),
    Row(
        ("nn.functional.poisson_nll_loss",),
        formulas.poisson_nll_loss, lambda op, t: op(t + 1, 1 * t, full=True),
    ),
    Row(
        ("linalg.solve",),
        formulas.solve, lambda op, t: op(_matrix(t), _numbers(1.0, 2.0))[0],
    ),
    Row(
        ("linalg.tensorsolve", "Tensor.tensorsolve"),
        formulas.tensorsolve, lambda op, t: op(_matrix(t), _numbers(1.0, 2.0))[0],
    ),
    Row(
        ("linalg.det", "det", "Tensor.det"),
        formulas.det, lambda op, t: op(_matrix(t)),
    ),
    Row(
        ("linalg.slogdet",),
        formulas.slogdet, lambda op, t: op(_matrix(t))[1],
    ),
    Row(
        ("slogdet", "Tensor.slogdet"),
        formulas.old_slogdet, lambda op, t: op(_matrix(t))[1],
    ),
    Row(
        ("logdet", "Tensor.logdet"),
        formulas.logdet, lambda op, t: op(_matrix(t)),
    ),
    Row(
        ("linalg.householder_product", "orgqr", "Tensor.orgqr"),
        formulas.householder_product, lambda op, t: op(_matrix(t), _row(t)[:2])[0, 0],
    ),
    Row(
        ("cholesky_inverse", "Tensor.cholesky_inverse"),
        formulas.cholesky_inverse, lambda op, t: op(_matrix(t).tril())[0, 0],
    ),
    Row(
        ("cholesky_solve", "Tensor.cholesky_solve"),
        formulas.cholesky_solve,
        lambda op, t: op(_matrix(torch.zeros_like(t)), torch.stack([_matrix(t).tril(), _matrix(-t).tril()]))[0, 0, 0],
    ),
    Row(
        ("triangular_solve", "Tensor.triangular_solve"),
        formulas.triangular_solve, lambda op, t: op(_row(t)[:2, None], _matrix(t))[0][0, 0],
    ),
    Row(
        ("scatter_reduce", "Tensor.scatter_reduce"),
        formulas.scatter_reduce,
        lambda op, t: op((1 + 0 * t)[None], 0, _ONES[:1], (1 + 2 * t)[None], "amax", include_self=False)[0],
    ),
    Row(
        ("as_strided_scatter", "Tensor.as_strided_scatter"),
        formulas.as_strided_scatter, lambda op, t: op((2 * t)[None], 3 * t, (), (), 0).sum(),
    ),
    Row(
        ("nn.functional.linear_cross_entropy",),
        formulas.linear_cross_entropy,
        lambda op, t: op(_matrix(t), _matrix(t), _ONES, options=torch.nn.LinearCrossEntropyOptions(batch_chunk_size=1)),
    ),
)  # fmt: skip


def found(name: str) -> Operator | None:
    """Return the object of a dotted name in `torch`; `None` if there is none."""
    place: Any = torch
    for part in name.split("."):
        place = getattr(place, part, None)
    return place  # type: ignore[no-any-return]


def _in_place(formula: Operator) -> Operator:
    def written(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x.copy_(formula(x.clone(), *args, **kwargs))

    return written


FORMULAS: dict[Operator, tuple[int, Operator]] = {
    operator: (number, formula)
    for number, row in enumerate(ROWS)
    for name in row.names
    for spelling, formula in ((name, row.formula), (f"{name}_", _in_place(row.formula)))
    if (operator := found(spelling)) is not None
}
"""The number of its row and the formula in place of each operator that this PyTorch has."""


@_torch.assume_constant_result
def is_wrong(number: int, order: int | None) -> bool:
    """Whether the operator of a row is wrong in reverse mode up to an order; without one, in any nesting."""
    asked = NESTINGS if order is None else ["r" * k for k in range(1, order + 1)]
    try:
        return any(map(ROWS[number].is_wrong_in, asked))
    except RuntimeError:  # a level of dual numbers is open, which do not nest: the formula is right anyway
        return True
