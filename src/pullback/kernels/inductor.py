"""Graphs compiled by PyTorch's Inductor: it fuses reductions and the ops around matrix products, too.

Neither Dynamo nor its guards take part: the graph exists already, and is called only for the inputs that it was
recorded for. A graph that holds for all sizes is compiled for all of them, as far as Inductor can.
Inductor computes some functions differently (on the CPU expm1 as exp − 1, atanh by logarithms), so stable forms lose
their accuracy there; it is never chosen unless the user asks for it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.errors import report_internal_error
from pullback.graph.symbolic import Numbers, as_inputs, at, formulas_in, kind_of
from pullback.kernels import eager
from pullback.kernels.progress import noticed

MOST_KERNELS = 8
"""Number of attempts to compile a graph for all sizes, if Inductor's code for it does not hold for all sizes."""
_FEWEST = 512
"""Numbers for each thread: with fewer, Inductor has one."""

Run = Callable[..., list[Any]]
Warn = Callable[[str], None]


def lowered(module: fx.GraphModule, warn: Warn) -> Run | ForSizes:
    """Return a function of the graph's placeholders that returns the list of its results.

    Args:
        module: the graph; for one that holds for many sizes, `ForSizes` is returned, which gives such a function for
            each.
        warn: receives the reason if Inductor cannot compile and PyTorch's kernels take over.
    """
    nodes = module.graph.find_nodes(op="placeholder")
    if formulas_in([[kind_of(_torch.traced_value(node)) for node in nodes], _arguments(module)]):
        return ForSizes(module, warn)
    examples = [_torch.traced_value(node) for node in nodes]
    made = _compiled(lambda: _torch.compile_by_inductor(module, examples), warn)
    return eager.lower(module) if made is None else made


def _compiled(make: Callable[[], Any], warn: Warn) -> Any:
    """Return the result of `make`; `None`, with a warning, if Inductor cannot compile."""
    try:
        with noticed("compiling by Inductor"):
            return make()
    except Exception as error:  # a missing compiler, an op that it has no lowering for
        report_internal_error(error)
        first, *_ = f"{type(error).__name__}: {error}".splitlines()
        warn(f"Inductor cannot compile a graph ({first})")
        return None


class ForSizes:
    """A graph that holds for all sizes, compiled for those of a call and all others that satisfy Inductor's guards.

    Inductor decides by the sizes of the example whether loops are worth several threads, and its disk cache keeps that
    decision for all other sizes: so there are separate kernels for small and for large tensors.
    """

    def __init__(self, module: fx.GraphModule, warn: Warn) -> None:
        kinds = [kind_of(_torch.traced_value(node)) for node in module.graph.find_nodes(op="placeholder")]
        formulas = formulas_in([kinds, _arguments(module)])
        symbols = _torch.free_symbols(formulas)
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
            lambda: _torch.compile_for_sizes(self._module, example, others, self._kinds, is_small), self._give_up
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
    """Return the PyTorch settings that Inductor's code depends on."""
    return torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(), torch.get_num_threads()
