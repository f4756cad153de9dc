"""Python names of a target and its tensors."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence

_TAKEN = {"torch", "F", "ctx", "inputs", "output", "out", "g", "Tensor", "Function", *keyword.kwlist, "math"}


def names_of(found: Sequence[str]) -> list[str]:
    """Return identifiers for tensors with such names as "tensors[0]"."""
    names: list[str] = []
    for name in found:
        plain = re.sub(r"\W+", "_", name).strip("_") or "x"
        plain = f"{plain}_" if plain in _TAKEN or plain[0].isdigit() else plain
        number = 1
        while plain in names:
            number += 1
            plain = f"{re.sub(r'_?[0-9]+$', '', plain)}_{number}"
        names.append(plain)
    return names


def camel(name: str) -> str:
    """Return the name of a class for a function of that name."""
    words = [w for w in re.split(r"\W|_", name) if w]
    made = "".join(w[0].upper() + w[1:] for w in words) or "Written"
    return made if not made[0].isdigit() else f"F{made}"
