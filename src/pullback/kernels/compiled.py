"""Compiled regions on the CPU: their call as a generated Python function, other sizes, outputs written over inputs.

The call is generated because most of the cost of a small call is Python.
"""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor

from pullback.graph.symbolic import Kind, Numbers, at

NOTHING_TAKEN: Mapping[int, int] = MappingProxyType({})


class Compiled(ABC):
    """A compiled region, for inputs of the sizes and dtypes that it was made for and any strides.

    Attributes:
        source: C++ source.
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


def direct_call(
    run: Callable[..., Any],
    inputs: Sequence[Kind],
    outputs: Sequence[Kind],
    last: Sequence[Any],
    otherwise: Callable[..., Any],
) -> Callable[..., Any]:
    """Generate a function that allocates a kernel's outputs, runs it and returns one tensor, or a list of several.

    Args:
        run: the kernel: takes pointers to inputs and outputs, then `last`.
        inputs: shape, strides and dtype of each, in the strides that `last` is for.
        outputs: shape, strides and dtype of each.
        last: further arguments of the kernel.
        otherwise: runs it for inputs of other strides.
    """
    xs, ys = [f"x{i}" for i in range(len(inputs))], [f"y{i}" for i in range(len(outputs))]
    scope: dict[str, Any] = {"__name__": __name__, "run": run, "otherwise": otherwise, "last": tuple(last)}
    scope |= {"empty_like": torch.empty_like, "empty_strided": torch.empty_strided}
    known = {stride: f"s{k}" for k, stride in enumerate(dict.fromkeys(stride for _, stride, _ in inputs))}
    scope |= {name: stride for stride, name in known.items()}
    differs = [f"{x}.stride() != {known[stride]}" for x, (_, stride, _) in zip(xs, inputs, strict=True)]
    lines = [f"def call({', '.join(xs)}):"]
    if differs:
        lines += [f"    if {' or '.join(differs)}:", f"        return otherwise({', '.join(xs)})"]
    for i, (y, kind) in enumerate(zip(ys, outputs, strict=True)):
        like = next((x for x, given in zip(xs, inputs, strict=True) if given == kind), None)
        scope[f"of{i}"] = kind[:2]
        lines.append(f"    {y} = " + (f"empty_like({like})" if like else f"empty_strided(*of{i}, dtype={kind[2]})"))
    pointers = "".join(f"{t}.data_ptr(), " for t in (*xs, *ys))
    lines.append(f"    run({pointers}*last)")
    lines.append(f"    return {ys[0] if len(ys) == 1 else '[' + ', '.join(ys) + ']'}")
    scope["torch"] = torch
    exec(_code("\n".join(lines)), scope)
    made: Callable[..., Any] = scope["call"]
    return made


@functools.cache
def _code(text: str) -> CodeType:
    """Compile the text of a call; it is cached, since calls of other sizes have the same text."""
    return compile(text, "<call of a kernel>", "exec")
