"""Graphs compiled by PyTorch's Inductor: it fuses reductions too, and what is around matrix products.

Neither Dynamo nor its guards take part: the graph is there, and it is called with what it was recorded for alone. A
graph that holds for all sizes is compiled for all of them, as far as Inductor does that.
Inductor computes some functions in its own way (on the CPU expm1 as exp − 1, atanh by logarithms), so that stable
forms lose there what they gained; it is never chosen for a user who did not ask for it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.errors import tell_mistake
from pullback.graph.extents import Numbers, as_inputs, at, formulas_in, kind_of
from pullback.kernels import eager
from pullback.kernels.notice import noticed

MOST_KERNELS = 8
"""How often a graph that holds for all sizes is compiled, where what Inductor makes of it does not."""
_FEWEST = 512
"""Numbers for each thread: with fewer, Inductor has one."""

Run = Callable[..., list[Any]]
Warn = Callable[[str], None]


def lowered(module: fx.GraphModule, warn: Warn) -> Run | ForSizes:
    """Return a function of the graph's placeholders that returns the list of its results.

    Args:
        module: the graph; if it holds for many sizes, what gives such a function for each is returned.
        warn: is told why PyTorch's kernels take over, where Inductor cannot compile.
    """
    nodes = module.graph.find_nodes(op="placeholder")
    if formulas_in([[kind_of(_torch.traced_value(node)) for node in nodes], _arguments(module)]):
        return ForSizes(module, warn)
    examples = [_torch.traced_value(node) for node in nodes]
    made = _compiled(lambda: _torch.compiled_by_inductor(module, examples), warn)
    return eager.lower(module) if made is None else made


def _compiled(make: Callable[[], Any], warn: Warn) -> Any:
    """Return what is made; `None` if Inductor cannot."""
    try:
        with noticed("compiling by Inductor"):
            return make()
    except Exception as error:  # a missing compiler, an op that it has no lowering for
        tell_mistake(error)
        first, *_ = f"{type(error).__name__}: {error}".splitlines()
        warn(f"Inductor cannot compile a graph ({first})")
        return None


class ForSizes:
    """A graph that holds for all sizes, compiled for those of a call and all others that Inductor does not rule out.

    Whether loops are worth several threads Inductor decides by the sizes of the example, and keeps on disk what that
    gave for all others: so there are kernels for small tensors and for large ones.
    """

    def __init__(self, module: fx.GraphModule, warn: Warn) -> None:
        kinds = [kind_of(_torch.traced_value(node)) for node in module.graph.find_nodes(op="placeholder")]
        formulas = formulas_in([kinds, _arguments(module)])
        symbols = _torch.symbols_in(formulas)
        self._n_symbols = len(symbols)
        self._module, self._inputs = as_inputs(module, symbols)
        self._kinds = at(kinds, {formula: formula for formula in formulas})
        self._shapes = [shape for node in module.graph.nodes for shape in _shapes(node.meta.get("val"))]
        self._warn = warn
        self._made: list[tuple[bool, Callable[[Sequence[int]], bool], Run]] = []
        self._instead: Run | None = None

    def at(self, numbers: Numbers) -> Run:
        """Return a function of the graph's placeholders for the sizes of a call."""
        given = [numbers[formula] for formula in self._inputs]
        return functools.partial(self._run(given[: self._n_symbols], self._is_small(numbers)), *given)

    def _is_small(self, numbers: Numbers) -> bool:
        threads = torch.get_num_threads()
        return threads == 1 or all(math.prod(at(shape, numbers)) < _FEWEST * threads for shape in self._shapes)

    def _run(self, sizes: list[int], is_small: bool) -> Run:
        for is_for_small, admits, run in self._made:
            if is_small == is_for_small and admits(sizes):
                return run
        if self._instead is None:
            self._make(sizes, is_small)
        return self._instead or self._made[-1][-1]

    def _make(self, sizes: list[int], is_small: bool) -> None:
        if len(self._made) == MOST_KERNELS:
            self._give_up(f"Inductor would compile a graph for sizes more than {MOST_KERNELS} times")
            return
        symbols, others = self._inputs[: len(sizes)], self._inputs[len(sizes) :]
        example = dict(zip(symbols, sizes, strict=True))
        made = _compiled(
            lambda: _torch.compiled_for_sizes(self._module, example, others, self._kinds, is_small), self._give_up
        )
        if made is not None:
            run, admits = made
            self._made.append((is_small, admits, run))

    def _give_up(self, why: str) -> None:
        self._warn(why)
        self._instead = eager.lower(self._module)


def _arguments(module: fx.GraphModule) -> list[Any]:
    return [(node.args, node.kwargs) for node in module.graph.nodes]


def _shapes(value: Any) -> Iterator[tuple[int, ...]]:
    for one in value if isinstance(value, tuple | list) else [value]:
        if isinstance(one, Tensor):
            yield kind_of(one)[0]


def settings() -> tuple[Any, ...]:
    """Return what Inductor reads of PyTorch's settings when it compiles."""
    return torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(), torch.get_num_threads()
