"""From a formula to its certificate: searches for the value and the derivatives, each measured against the original."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from itertools import combinations_with_replacement
from typing import Any

import torch

from pullback.errors import FormulaError, OptionError, PullbackError
from pullback.stable.callee import Callee
from pullback.stable.certificate import Certificate, label
from pullback.stable.formats import DTYPES
from pullback.stable.formula import Formula
from pullback.stable.judgement import Lowering, judged
from pullback.stable.meant import meaning_of
from pullback.stable.parts import Cut
from pullback.stable.sampling import Domain, limits_of
from pullback.stable.search import Search, Wide

Progress = Callable[[int, int, str], None]
"""How many of how many quantities are done, and which is next."""


def certify(
    op: Callable[..., Any],
    dtype: torch.dtype = torch.float32,
    wide: Wide = "where-needed",
    domain: Domain | None = None,
    on_progress: Progress | None = None,
    lowering: Lowering | None = None,
) -> Certificate:
    """Search for stable forms of a pointwise formula, its first and its second derivatives.

    A form is accepted only if at fresh points it is better than the formula as written, differentiated by autograd;
    with `lowering` also when it runs in the lowered kernels.

    Raises:
        FormulaError: if it is not a pointwise formula of known ops, or no form is better than the formula as written.
        OptionError: for an unknown dtype, `wide` or variable of the domain.
        RunnerError: if python-flint is not installed.
    """
    if dtype not in DTYPES or dtype == torch.float64:
        raise OptionError(f"forms are searched for float32, bfloat16 and float16, not for {dtype}.")
    if wide not in ("never", "where-needed", "always"):
        raise OptionError(f'wide is "never", "where-needed" or "always", not {wide!r}.')
    written = Callee(op).formula  # an op may have stable forms already
    meaning, formula = meaning_of(written, dtype), Formula(written)
    term, names = meaning.term, meaning.variables
    search = Search(term, limits_of(meaning.name, names, domain), wide, dtype)
    wanted = [by for order in range(3) for by in combinations_with_replacement(names, order)]
    judgements = {}
    for done, by in enumerate(wanted):
        if on_progress:
            on_progress(done, len(wanted), label(by))
        judgements[by] = judged(formula, search, by, names, lowering)
    if on_progress:
        on_progress(len(wanted), len(wanted), "")
    if not any(j.better for j in judgements.values()):
        raise FormulaError(f"{formula.name} is as accurate as any form that was found")
    if lost := [label(by) for by, j in judgements.items() if j.worse]:
        raise FormulaError(f"{formula.name} has no form of {', '.join(lost)} as good as it is written")
    forms = {by: j.form for by, j in judgements.items()}
    made = f"pullback {version('pullback')}, torch {torch.__version__}"
    if lowering is not None:
        made += ", also in compiled kernels"
    return Certificate(formula.name, str(term), names, str(dtype).removeprefix("torch."), wide, "cpu", made, forms)


def certify_parts(
    op: Callable[..., Any],
    dtype: torch.dtype = torch.float32,
    wide: Wide = "where-needed",
    domain: Domain | None = None,
    on_progress: Progress | None = None,
) -> tuple[list[Certificate], list[tuple[str, str]]]:
    """Search for stable forms of a formula, or, if it is not pointwise, of its pointwise parts.

    Returns:
        The certificates, at least one, and the parts that stay as written, each with the reason.

    Raises:
        FormulaError: if no form is better than the formula as written, or the formula can neither be read nor cut.
        OptionError: for an unknown dtype, `wide` or variable of the domain.
        RunnerError: if python-flint is not installed.
    """
    target: Any = op
    is_op = getattr(type(op), "_is_pullback_op", False)
    written, lowering = (target._formula, target._lowering()) if is_op else (op, None)
    try:
        meaning_of(written, dtype)
    except PullbackError as error:
        whole = error
    else:
        return [certify(op, dtype, wide, domain, on_progress, lowering)], []
    try:
        cut = Cut(written)
        cut.require_meant()
    except FormulaError as error:
        raise FormulaError(f"{str(whole).rstrip('.')}; it is not cut into parts either: {error}") from None
    parts = cut.parts(dtype)
    inner = (name for part in parts for name in part.meaning.variables)
    domain = limits_of(cut.name, list(dict.fromkeys((*cut.variables, *inner))), domain)
    found, left = [], []
    searched = set()
    for part in parts:
        what = (part.meaning.term, part.meaning.variables)
        if what in searched:
            continue
        searched.add(what)
        limits = {name: ends for name, ends in domain.items() if name in part.meaning.variables}
        try:
            found.append(certify(part.function, dtype, wide, limits, on_progress, lowering))
        except FormulaError as error:
            left.append((part.function.__name__, str(error)))
    if not found:
        why = "; ".join(reason for _, reason in left) or "no pointwise part of it can be wrong"
        raise FormulaError(f"{str(whole).rstrip('.')}; {why}")
    return found, left
