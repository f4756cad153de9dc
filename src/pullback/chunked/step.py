"""Kernels for one chunk of rows: its sums, and their gradient, added to that of the previous chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback._torch import trace_ops
from pullback.chunked.row_proof import Rows, RowSplit
from pullback.errors import FormulaError
from pullback.graph.decisions import round_before_choices
from pullback.graph.trace import simplify
from pullback.kernels import eager
from pullback.kernels.backend import Backend, lower
from pullback.kernels.memory import Slot, with_workspace

_aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class ChunkStep:
    """Kernels of one chunk.

    Attributes:
        run: takes shared values, rows, cotangents of the sums, and buffers for the gradients of shared values; returns
            the sums, the gradients of rows, and the buffers, to which it adds.
        transposed: for each differentiated shared value whether its buffer is transposed; `None` without a buffer,
            where no sum depends on the value.
        slots: its last inputs, scratch memory that the next chunk reuses.
    """

    run: Callable[..., list[Any]]
    slots: list[Slot]
    transposed: tuple[bool | None, ...] = ()


class StepCompiler:
    """Compiles steps for given numbers of rows.

    Args:
        split: the formula.
        shared: the shared values, without data.
        rows: the values with rows, all of them, without data.
        live: which of both are differentiated.
        backend: backend of the kernels.
        exact: whether the gradient must be bit-identical to PyTorch's kernels.

    Attributes:
        sums: without data; the differentiated ones require grad.
    """

    def __init__(
        self,
        split: RowSplit,
        shared: Sequence[Tensor],
        rows: Sequence[Tensor],
        live: Sequence[bool],
        backend: Backend,
        exact: bool,
    ) -> None:
        self._split, self._live, self._backend, self._exact = split, tuple(live), backend, exact
        self._shared, self._rows = [_stand_in(x, x.shape) for x in shared], rows
        with _torch.fake_mode() as mode, torch.enable_grad():
            examples = [mode.from_tensor(x, static_shapes=True) for x in self._examples(split.rows)]
            given = [x.requires_grad_() if on else x for x, on in zip(examples, live, strict=True)]
            self.sums: list[Tensor] = self._sums(split.rows, given)

    def differentiated(self, n: int) -> ChunkStep:
        """Return a step with its gradient, for chunks of n rows."""
        examples, n_shared = self._examples(n), len(self._shared)
        cotangents = [_stand_in(s, s.shape) for s in self.sums if s.requires_grad]

        def both(*given: Tensor) -> list[Any]:
            tensors = [
                x.detach().requires_grad_() if on else x.detach()
                for x, on in zip(given[: len(examples)], self._live, strict=True)
            ]
            with torch.enable_grad():
                sums = self._sums(n, tensors)
            leaves = [x for x, on in zip(tensors, self._live, strict=True) if on]
            roots = [s for s in sums if s.requires_grad]
            if not roots:
                return [*sums, *(None for _ in leaves)]
            return [*sums, *torch.autograd.grad(roots, leaves, given[len(examples) :], allow_unused=True)]

        module = self._lowered(trace_ops(both, *examples, *cotangents))
        transposed = _accumulate(module.graph, len(self.sums), sum(self._live[:n_shared]))
        slots = with_workspace(module.graph)
        return ChunkStep(eager.lower(module), slots, transposed)

    def plain(self, n: int, wanted: Sequence[int]) -> ChunkStep:
        """Return a step that gives some of the sums alone, for chunks of n rows."""

        def some(*given: Tensor) -> list[Tensor]:
            with torch.no_grad():
                sums = self._sums(n, given)
            return [sums[i] for i in wanted]

        module = self._lowered(trace_ops(some, *self._examples(n)))
        slots = with_workspace(module.graph)
        return ChunkStep(eager.lower(module), slots)

    def _sums(self, n: int, given: Sequence[Tensor]) -> list[Tensor]:
        shared, rows = given[: len(self._shared)], given[len(self._shared) :]
        sums: list[Tensor] = _Checked(self._split.per_chunk, n).run(n, *rows, *shared)
        return sums

    def _examples(self, n: int) -> list[Tensor]:
        return [*self._shared, *(_stand_in(x, (n, *x.shape[1:])) for x in self._rows)]

    def _lowered(self, module: fx.GraphModule) -> fx.GraphModule:
        simplify(module.graph)
        results: Any = module.graph.output_node().args[0]
        round_before_choices(module.graph, results[: len(self.sums)])
        ((lowered, _),) = lower([module], [self._exact], self._backend)
        return lowered


def _stand_in(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a tensor of a given shape with the strides of another; its values are never read."""
    return torch.empty_strided(tuple(shape), x.stride(), dtype=x.dtype, device=x.device)


class _Checked(fx.Interpreter):
    """Interpreter of a chunk's graph that asserts that rows are where they were proven to be."""

    def __init__(self, module: fx.GraphModule, rows: int) -> None:
        super().__init__(module)
        self._rows = rows

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Lowered an op, `view` as `reshape`: a chunk may have strides that do not admit the view of the whole."""
        return super().call_function(torch.reshape if target is _aten.view.default else target, args, kwargs)

    def run_node(self, n: fx.Node) -> Any:
        result, rows, whole = super().run_node(n), n.meta.get("rows"), n.meta.get("val")
        if isinstance(rows, Rows) and isinstance(whole, Tensor):
            shape = list(whole.shape)
            shape[rows.dim] = self._rows * rows.block
            if list(result.shape) != shape:
                raise FormulaError(f"{n.target} has shape {tuple(result.shape)} for {self._rows} rows, not {shape}.")
        return result


def _accumulate(graph: fx.Graph, n_sums: int, n_buffers: int) -> tuple[bool | None, ...]:
    """Have a graph add its results after the sums to buffers, which it takes last and returns last.

    A matrix product is added to its buffer by the kernel that computes it. Returns for each whether the graph takes the
    buffer transposed; `None` where there is nothing to add.
    """
    output = graph.output_node()
    results: Any = output.args[0]
    last, transposed, added = graph.find_nodes(op="placeholder")[-1], list[bool | None](), []
    for result in results[n_sums : n_sums + n_buffers]:
        base, is_transposed = _without_transposes(result)
        transposed.append(is_transposed if base is not None else None)
        if base is None:
            continue
        with graph.inserting_after(last):
            last = buffer = graph.placeholder("buffer")
        with graph.inserting_before(output):
            if _is_product(base):
                added.append(graph.call_function(_aten.addmm_.default, (buffer, *base.args)))
            else:
                added.append(graph.call_function(_aten.add_.Tensor, (buffer, base)))
    output.args = ([*results[:n_sums], *results[n_sums + n_buffers :], *added],)
    graph.eliminate_dead_code()
    return tuple(transposed)


def _without_transposes(result: Any) -> tuple[Any, bool]:
    """Return the matrix product that a result is a transpose of, and whether it is; the result where it is none."""
    # Autograd gives the gradient of W in x Wᵀ as (xᵀ g)ᵀ. Adding xᵀ g to a transposed buffer saves a pass over it.
    base, is_transposed = result, False
    while isinstance(base, fx.Node) and base.target is _aten.t.default and len(base.users) == 1:
        base, is_transposed = base.args[0], not is_transposed
    return (base, is_transposed) if isinstance(base, fx.Node) and _is_product(base) else (result, False)


def _is_product(node: fx.Node) -> bool:
    """Whether a node is a matrix product that nothing else reads, in the dtype of its buffer."""
    wide = (torch.float32, torch.float64)
    return node.target is _aten.mm.default and len(node.users) == 1 and _torch.traced_value(node).dtype in wide
