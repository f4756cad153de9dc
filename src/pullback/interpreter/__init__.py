"""Runs Triton kernels on CPU tensors, without a GPU: `enter`, then call.

Kernels are evaluated from their source, many programs at once, in float64 or rounded as on the device. Every access
to memory is checked.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch

from pullback.interpreter.front_end import Refusal, refusal, refusals
from pullback.interpreter.host import enter, hosting, is_entered, is_useful, picking
from pullback.interpreter.worlds import Irregularity, World, inside, present, presented, world

__all__ = [
    "LINES", "Irregularity", "Refusal", "World", "enter", "hosting", "inside", "is_entered", "is_possible", "is_useful",
    "picking", "present", "presented", "refusal", "refusals", "world",
]  # fmt: skip

LINES = ("from pullback import interpreter", "interpreter.enter()")
"""Lines of a script after which kernels are interpreted: before it imports them."""


def is_possible() -> bool:
    """Whether kernels are to be interpreted here: Triton is installed, and there is no accelerator to run them."""
    return find_spec("triton") is not None and not torch.accelerator.is_available()
