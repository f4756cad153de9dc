"""Assertion for test suites that a custom function is sound."""

from __future__ import annotations

from typing import Any

from pullback.check.api import check
from pullback.errors import NotSoundError, PullbackError
from pullback.report.terminal import render_failure


def assert_sound(fn: Any, *inputs: Any, **options: Any) -> None:
    """Audit a custom function, and fail the test if it is unsound.

    Args:
        fn: the target, as for `pullback.check`.
        inputs: the positional arguments of one example call.
        options: the options of `pullback.check`.

    Raises:
        NotSoundError: an AssertionError, if the audit found an error or could not be done; its text is the report.
        PullbackError: as `pullback.check` does.
    """
    __tracebackhide__ = True
    try:
        report = check(fn, *inputs, **options)
    except PullbackError as error:
        raise error.with_traceback(None) from None  # the frames of Pullback are of no use to the user
    if not report.ok:
        raise NotSoundError(render_failure(report))
