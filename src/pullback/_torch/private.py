"""Private names of PyTorch: looked up once, with a one-line error on use if they do not exist.

An import of Pullback looks up all of them and needs none. Code that uses a missing one raises, so that an op without
its guards is refused, and never runs unguarded.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NoReturn

import torch

from pullback.errors import RunnerError


def private(name: str) -> Any:
    """Return PyTorch's object of a name with its module; a stand-in that raises on use if there is none."""
    home, _, attribute = name.rpartition(".")
    try:
        return getattr(torch.Tensor if home == "torch.Tensor" else import_module(home), attribute)
    except (ImportError, AttributeError):
        return Missing(name)


class Missing:
    """Stand-in for a name that PyTorch does not have: a function, a class, a module or a table."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self) -> NoReturn:
        raise RunnerError(
            f"PyTorch {torch.__version__} has no {self._name}, on which this Pullback relies here: use an older "
            "PyTorch or a newer Pullback."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse."""
        self._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        """Raise, except for attributes that Python itself asks of any object."""
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def __instancecheck__(self, instance: object) -> NoReturn:
        """Raise, since the answer is unknown."""
        self._refuse()

    def __or__(self, other: Any) -> NoReturn:
        self._refuse()

    def __ror__(self, other: Any) -> NoReturn:
        self._refuse()
