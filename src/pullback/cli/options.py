"""Options that several commands share, and the values that their texts stand for."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from pullback.cli.completion import TargetType
from pullback.errors import OptionError

if TYPE_CHECKING:
    import torch

TARGET = TargetType()

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?inf"
_INEQUALITY = re.compile(rf"\s*([^\W\d]\w*)\s*(>=|<=|>|<)\s*({_NUMBER})\s*")
_INTERVAL = re.compile(rf"\s*([^\W\d]\w*)\s*=\s*({_NUMBER})\s*:\s*({_NUMBER})\s*")

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def dtype_option(help: str) -> _Decorator:
    """Return the option `--dtype`, which may be repeated; `dtypes_of` converts its values."""
    return click.option("--dtype", "dtypes", multiple=True, metavar="float32 …", help=help)


domain_option: _Decorator = click.option(
    "--domain", multiple=True, metavar="'x>0' …", help="Restrict an input: x>0, x<=2 or x=0:1."
)
"""The option `--domain`, which may be repeated; `domain_of` converts its values."""


def dtypes_of(names: Iterable[str]) -> list[torch.dtype] | None:
    """Return the dtypes of these names, which may be separated by commas; `None` for none.

    Raises:
        OptionError: if errors cannot be measured in one of them.
    """
    from pullback.check.find.target import similar
    from pullback.stable.formats import DTYPES

    known = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
    chosen = [name.strip() for names_ in names for name in names_.split(",")]
    for name in chosen:
        if name not in known:
            raise OptionError(f"there is no dtype {name!r} to measure in{similar(name, known)}")
    return [known[name] for name in chosen] or None


def domain_of(texts: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Return the closed interval of each variable in conditions such as "x>0" and "y=0:1".

    Conditions on one variable are intersected. An open end is the next float64 inside.

    Raises:
        OptionError: if a text is not a condition.
    """
    domain: dict[str, tuple[float, float]] = {}
    for text in (part for texts_ in texts for part in texts_.split(",")):
        name, low, high = _limits(text)
        before = domain.get(name, (-math.inf, math.inf))
        domain[name] = max(before[0], low), min(before[1], high)
    return domain


def _limits(text: str) -> tuple[str, float, float]:
    if match := _INTERVAL.fullmatch(text):
        return match[1], float(match[2]), float(match[3])
    match = _INEQUALITY.fullmatch(text)
    if match is None:
        raise OptionError(f"a domain is written as 'x>0', 'x<=2' or 'x=0:1', not {text!r}")
    name, sign, end = match[1], match[2], float(match[3])
    if sign in (">", "<"):
        end = math.nextafter(end, math.inf if sign == ">" else -math.inf)
    return (name, end, math.inf) if sign[0] == ">" else (name, -math.inf, end)
