"""Turns what a user asks for into `Options`, or says in one line what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pullback.check.drawn import require_hypothesis
from pullback.check.pages import all_pages, page_named, unknown_rule
from pullback.check.subject import Options
from pullback.errors import OptionError


def make_options(
    select: str | Iterable[str] = (),
    ignore: str | Iterable[str] = (),
    seed: int = 0,
    budget: float = 10.0,
    deep: bool = False,
    jobs: int | None = None,
) -> Options:
    """Return options whose values are known to make sense.

    Args:
        select: rule id prefixes to run, as strings or one string with commas; empty for all.
        ignore: rule id prefixes to leave out.
        seed: of every random choice.
        budget: seconds for each subject.
        deep: also run what takes long.
        jobs: how many subjects at once.

    Raises:
        OptionError: if a prefix is of no rule, a number is out of range, or `deep` lacks a package that it needs.
    """
    if deep:
        require_hypothesis()
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise OptionError(f"seed must be an integer from 0 to 2**63 - 1, not {seed!r}")
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < math.inf:
        raise OptionError(f"budget must be a positive number of seconds, not {budget!r}")
    return Options(_prefixes("select", select), _prefixes("ignore", ignore), seed, float(budget), bool(deep), jobs)


def _prefixes(option: str, given: str | Iterable[str]) -> tuple[str, ...]:
    values = [given] if isinstance(given, str) else list(given)
    if not all(isinstance(value, str) for value in values):
        raise OptionError(f"{option} takes rule id prefixes such as 'PB1', not {given!r}")
    prefixes = [prefix.strip().upper() for value in values for prefix in value.split(",") if prefix.strip()]
    for prefix in prefixes:
        if any(page.id.startswith(prefix) for page in all_pages()):
            continue
        named = page_named(prefix)
        if named is not None:
            raise OptionError(f"{option} takes rule ids: {named.name} is {named.id}")
        raise OptionError(f"{option}: {unknown_rule(prefix)}")
    return tuple(prefixes)
