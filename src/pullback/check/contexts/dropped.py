"""Where PyTorch itself replaces a custom backward: when that is worth saying."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pullback.check.contexts.transforms import base_setting

if TYPE_CHECKING:
    from pullback.check.state import Audit


def may_drop(audit: Audit) -> bool:
    """Whether a gradient that a tracer derives from the forward may be held against the one of the backward.

    Not if the backward is wrong by mistake, for the tracer's is then the right one; nor at a kink, where each
    may choose its own.
    """
    result = audit.base_result
    if result is None:
        return True
    if any(comparison.kink for comparison in result.comparisons):
        return False
    return all(audit.intent_of(result, comparison) is not None for comparison in result.wrong)


def is_comparable(audit: Audit) -> bool:
    """Whether there is a steady eager gradient to hold a tracer's against."""
    return base_setting(audit) is not None and may_drop(audit)
