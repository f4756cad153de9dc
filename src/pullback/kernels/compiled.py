"""Base of compiled regions on the CPU: kernels for other sizes, and outputs written over inputs."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Self

from torch import Tensor

from pullback.graph.extents import Kind, Numbers, at

NOTHING_TAKEN: Mapping[int, int] = MappingProxyType({})


class Compiled(ABC):
    """A compiled region, for inputs of the sizes and dtypes that it was made for and any strides.

    Attributes:
        source: in C++.
        over: see `source.Source`.
        call: takes the inputs, allocates the outputs and returns them: one tensor, or a list of several.
    """

    source: str
    over: frozenset[tuple[int, int]]
    call: Any
    _kinds: tuple[list[Kind], ...]

    def at(self, numbers: Numbers) -> Self:
        """Return the same, made for the sizes that extents among its own are in a call."""
        made = copy.copy(self)
        made._prepare(at(self._kinds, numbers))
        return made

    def writing_over(self, taken: Mapping[int, int]) -> Callable[..., Any]:
        """Return a call that writes outputs to the memory of inputs, where these are as dense as them."""

        def over(*inputs: Tensor) -> Any:
            return self._any(*inputs, taken=taken)

        over.kernel, over.taken = self, taken  # type: ignore[attr-defined]
        return over

    @abstractmethod
    def _prepare(self, kinds: tuple[list[Kind], ...]) -> None:
        """Prepare everything that depends on sizes."""

    @abstractmethod
    def _any(self, *inputs: Tensor, taken: Mapping[int, int] = NOTHING_TAKEN) -> Any:
        """Run it on inputs of any strides; `taken` maps outputs to the inputs whose memory they overwrite."""
