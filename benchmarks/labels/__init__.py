"""What is known of custom functions in published packages: `benchmarks/truth.py` holds the audit against it.

A module for each package. Its labels come from reading the source and from plain PyTorch, and were written before the
audit was run on the package. Each bug has a proof that does without Pullback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Purpose = Literal["derivative", "other"]
"""Whether the gradient is meant to be the derivative of the forward, or something else (straight-through, say)."""


@dataclass(frozen=True)
class Package:
    """A published package.

    Attributes:
        name, version: of it, as pip takes them.
        field: what it is for.
        needs: what else it imports, beside PyTorch and NumPy, as pip takes it.
    """

    name: str
    version: str
    field: str
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bug:
    """Something that is wrong on inputs that the function is for.

    Attributes:
        what: is wrong, in one sentence.
        rules: of the audit, any of which tells it.
        proof: in plain PyTorch; returns `True` where it is there.
    """

    what: str
    rules: tuple[str, ...]
    proof: Callable[[], bool]


def is_loud(what: str) -> bool:
    """Whether a bug stops the program, by its description."""
    return "raise" in what and "silent" not in what


@dataclass(frozen=True)
class Call:
    """A call of a custom function, as the package itself makes it.

    Attributes:
        make: returns what is called (a `Function` class or a callable) and the positional arguments.
        purpose: what its gradient is meant to be.
        bugs: that are known; none means that it is right.
        doubtful: what may be said of it without being wrong, by rule: why it is neither a bug nor a false alarm.
        judged: of errors that the audit reported and no bug covers, by rule: whether they are right, and why.
    """

    make: Callable[[], tuple[Any, tuple[Any, ...]]]
    purpose: Purpose = "derivative"
    bugs: tuple[Bug, ...] = ()
    doubtful: Mapping[str, str] = field(default_factory=dict)
    judged: Mapping[str, tuple[bool, str]] = field(default_factory=dict)
