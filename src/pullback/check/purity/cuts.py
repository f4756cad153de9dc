"""Where a computation leaves the autograd graph: the call, the line, and which tensor is lost there."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.overrides import TorchFunctionMode, resolve_name

from pullback._torch import tree_leaves
from pullback.check.find.objects import live_functions
from pullback.dtypes import has_derivative

_LEAVES_TORCH = frozenset({"item", "numpy", "tolist", "__float__", "__int__", "__complex__", "__array__"})
"""Methods that turn a tensor into something that autograd knows nothing of."""
_OF_SHAPE = frozenset(
    [f"{name}_like" for name in ("empty", "full", "ones", "rand", "randint", "randn", "zeros")]
    + [f"new_{name}" for name in ("empty", "full", "ones", "zeros")]
)
"""Functions that read the shape of a tensor, but no numbers."""
_OF_TORCH = f"{Path(torch.__file__).resolve().parent}{os.sep}"
_OURS = f"{Path(__file__).resolve().parents[2]}{os.sep}"


@dataclass(frozen=True)
class GraphCut:
    """One call that took a tensor of the graph and gave something outside of it.

    Attributes:
        call: the call as a reader would write it, e.g. "detach" or "item".
        file, line: file and line of the audited code.
        lost: the tensors of the graph that went in.
    """

    call: str
    file: str
    line: int
    lost: tuple[Tensor, ...]

    @property
    def is_stop(self) -> bool:
        """Whether it is a deliberate way to stop a gradient."""
        return self.call in ("detach", "data") or self.call.endswith("under no_grad")

    @property
    def where(self) -> str:
        """The call and its place, for a message."""
        return f"{self.call} in line {self.line} of {Path(self.file).name}"

    def loses(self, x: Tensor) -> bool:
        """Whether an operand depends on `x`."""
        return any(_depends(t, x) for t in self.lost)


class watch_cuts(TorchFunctionMode):  # noqa: N801 - used like a function
    """Collect, in `cuts`, the calls of PyTorch that leave the graph; not those inside of a Function's forward."""

    def __init__(self) -> None:
        super().__init__()
        self.cuts: list[GraphCut] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = _name(func)
        lost = tuple(t for t in tree_leaves((args, kwargs or {}))[0] if isinstance(t, Tensor) and t.requires_grad)
        if lost and _is_outside(name, result) and (frame := _caller()) is not None:
            call = name if torch.is_grad_enabled() else f"{name} under no_grad"
            self.cuts.append(GraphCut(call, frame.f_code.co_filename, frame.f_lineno, lost))
        return result


def culprits(cuts: Sequence[GraphCut], x: Tensor) -> Iterator[GraphCut]:
    """Yield, once for each line, the cuts that lose `x`."""
    seen = set()
    for cut in cuts:
        if (cut.file, cut.line) not in seen and cut.loses(x):
            seen.add((cut.file, cut.line))
            yield cut


def deliberate_stop(found: Sequence[Sequence[GraphCut]]) -> GraphCut | None:
    """Return the first cut, if each of several tensors is lost, and by deliberate ways to stop a gradient alone."""
    return found[0][0] if all(cuts and all(cut.is_stop for cut in cuts) for cuts in found) else None


def _is_outside(name: str, result: Any) -> bool:
    """Whether a call gave numbers outside of the graph. Masks and whole numbers are outside of any."""
    if name in _LEAVES_TORCH:
        return True
    if name in _OF_SHAPE:
        return False
    tensors = [t for t in tree_leaves(result)[0] if isinstance(t, Tensor)]
    return bool(tensors) and all(has_derivative(t) and not t.requires_grad for t in tensors)


def _name(func: Callable[..., Any]) -> str:
    """Return "data" for the getter of `Tensor.data`, and the last name of any other function."""
    name = str(resolve_name(func) or getattr(func, "__name__", ""))
    return name.removesuffix(".__get__").rpartition(".")[2]


def _caller() -> FrameType | None:
    """Return the innermost frame that is not PyTorch's; `None` inside of a Function's forward, and where it is ours."""
    forwards = {getattr(inspect.unwrap(cls.forward), "__code__", None) for cls in live_functions()}
    found: FrameType | None = None
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code in forwards:
            return None
        if found is None and not (file := os.path.realpath(frame.f_code.co_filename)).startswith(_OF_TORCH):
            if file.startswith(_OURS):
                return None
            found = frame
        frame = frame.f_back
    return found


def _depends(t: Tensor, x: Tensor) -> bool:
    """Whether the graph of `t` reaches `x`: followed, not run, since a nested backward may have freed it."""
    sought, start = _edge(x), _edge(t)
    pending, seen = [start], {start}
    while pending:
        edge = pending.pop()
        if edge == sought:
            return True
        new = {(node, number) for node, number in edge[0].next_functions if node is not None} - seen
        seen |= new
        pending += new
    return False


def _edge(t: Tensor) -> tuple[Node, int]:
    edge = get_gradient_edge(t)
    return edge.node, edge.output_nr
