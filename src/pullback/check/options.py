"""Turns the user's options into `Options`, or says in one line why one is invalid."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable

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
    """Return validated options.

    Args:
        select: rules to run, by prefixes of ids or by names, as strings or one string with commas; empty for all.
        ignore: rules to leave out.
        seed: seed of all random choices.
        budget: seconds for each subject.
        deep: also run slow checks.
        jobs: number of concurrent subjects.

    Raises:
        OptionError: if a prefix matches no rule, no rule is left, a number is out of range, or `deep` lacks a package
            that it needs.
    """
    if deep:
        _require_hypothesis()
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise OptionError(f"seed must be an integer from 0 to 2**63 - 1, not {seed!r}")
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < math.inf:
        raise OptionError(f"budget must be a positive number of seconds, not {budget!r}")
    chosen, left_out = _prefixes("select", select), _prefixes("ignore", ignore)
    asked = [id_ for page in all_pages() for id_ in page.ids if not chosen or id_.startswith(chosen)]
    if left_out and all(id_.startswith(left_out) for id_ in asked):
        raise OptionError("select and ignore leave no rule to run")
    return Options(chosen, left_out, seed, float(budget), bool(deep), jobs)


def _prefixes(option: str, given: str | Iterable[str]) -> tuple[str, ...]:
    if not isinstance(given, Iterable):
        raise OptionError(f"{option} takes ids of rules, as 'PB1' or 'PB101', or names, not {given!r}")
    values = [given] if isinstance(given, str) else list(given)
    if not all(isinstance(value, str) for value in values):
        raise OptionError(f"{option} takes ids of rules, as 'PB1' or 'PB101', or names, not {given!r}")
    if not isinstance(given, str) and any(not value.strip() for value in values):
        raise OptionError(f"{option} names no rule; without it, all rules run")
    words = [word.strip() for value in values for word in value.split(",") if word.strip()]
    return tuple(_prefix(option, word) for word in words)


def _prefix(option: str, word: str) -> str:
    """The prefix of ids that a word is, or the id of the rule, or of the static half, that it names."""
    if any(id_.startswith(word.upper()) for page in all_pages() for id_ in page.ids):
        return word.upper()
    named = page_named(word)
    if named is None:
        raise OptionError(f"{option}: {unknown_rule(word)}")
    return dict(zip(named.names, named.ids, strict=True))[word.lower()]


def _require_hypothesis() -> None:
    """Check that hypothesis is installed.

    Raises:
        OptionError: if it is not installed.
    """
    if importlib.util.find_spec("hypothesis") is None:
        raise OptionError("deep draws inputs with hypothesis, which is not installed: pip install 'pullback[deep]'")
