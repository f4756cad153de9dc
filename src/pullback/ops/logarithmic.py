"""Logarithms."""

from __future__ import annotations

from typing import Any

import torch

from pullback.ops.balls import method
from pullback.ops.bounds import Interval, monotone
from pullback.ops.lowering import call
from pullback.ops.record import Continuity, Given, PointwiseOp, TermOp


def _log2_ball(a: Any) -> Any:
    return a.log() / type(a)(2).log()


def _log10_ball(a: Any) -> Any:
    return a.log() / type(a)(10).log()


def _negative(a: Interval) -> Any:
    return a.high < 0


def _logit_reading(given: Given) -> str:
    if given.get("eps") is None:
        return "log(self/(1 - self))"
    inside = "where(self < eps, eps, where(self > 1 - eps, 1 - eps, self))"
    return f"log({inside}/(1 - {inside}))"


OPS = (
    TermOp(
        name="log",
        aten=("log",),
        value=torch.log,
        partials=("1/a",),
        ball=method("log"),
        bounds=monotone(torch.log, outside=_negative),
        mpmath="log",
        cost=4,
        singular=("a",),
        domain="log: its argument must be positive",
        noun="log_{}",
        lowering=call("log"),
    ),
    TermOp(
        name="log2",
        aten=("log2",),
        value=torch.log2,
        partials=("1/(a*LN2)",),
        ball=_log2_ball,
        bounds=monotone(torch.log2, outside=_negative),
        mpmath=lambda mp, a: mp.log(a, 2),
        cost=4,
        singular=("a",),
        domain="log2: its argument must be positive",
        lowering=call("log2"),
    ),
    TermOp(
        name="log10",
        aten=("log10",),
        value=torch.log10,
        partials=("1/(a*LN10)",),
        ball=_log10_ball,
        bounds=monotone(torch.log10, outside=_negative),
        mpmath="log10",
        cost=4,
        singular=("a",),
        domain="log10: its argument must be positive",
        lowering=call("log10"),
    ),
    TermOp(
        name="log1p",
        aten=("log1p",),
        value=torch.log1p,
        partials=("1/(1 + a)",),  # 1 + a is exact near its zero: from −2 to −1/2 (Sterbenz' lemma)
        ball=method("log1p"),
        bounds=monotone(torch.log1p, outside=lambda a: a.high < -1),
        mpmath="log1p",
        cost=5,
        singular=("1 + a",),
        domain="log1p: its argument must be greater than −1",
        noun="log1p_{}",
        lowering=call("log1p"),
    ),
    PointwiseOp(
        name="logit",
        aten=("logit",),
        reading=_logit_reading,
        domain="logit: its argument must lie in (0, 1)",
        lowering=call("logit", plain=True),
    ),
    PointwiseOp(
        name="logit_backward",
        aten=("logit_backward",),
        continuity=Continuity.JUMPS,
        lowering=call("logit_backward", 2, plain=True),
    ),
    PointwiseOp(
        name="xlogy",
        aten=("xlogy",),
        reading="where(logical_and(self == 0, other <= 0), 0, self*log(other))",
        domain="xlogy: its second argument must be positive, or the first 0",
        lowering=call("xlogy", 2, overloads=("Tensor",)),
    ),
    PointwiseOp(
        name="xlog1py",
        aten=("special_xlog1py",),
        reading="where(logical_and(self == 0, other <= -1), 0, self*log1p(other))",
        domain="xlog1py: its second argument must be greater than −1, or the first 0",
        lowering=call("xlog1py", 2),
    ),
    PointwiseOp(
        name="entr",
        aten=("special_entr",),
        reading="where(self == 0, sqrt(self), -(self*log(self)))",  # sqrt has the infinite slope at 0, too
        domain="entr: −∞ where its argument is negative; its derivative is infinite at 0",
        empty={"lowering": "left to PyTorch's kernel"},
    ),
)
