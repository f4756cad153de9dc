"""Plan of a call by chunks of rows: the proof that it is valid, and the graphs to run for each chunk."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback._torch import trace_ops
from pullback.call import Call
from pullback.chunked.loop import ChunkedLoss, Differentiation, run
from pullback.chunked.row_proof import Rows, RowSplit, wide
from pullback.chunked.row_rules import split_by_rows
from pullback.chunked.step import StepCompiler
from pullback.dtypes import has_derivative
from pullback.errors import FormulaError
from pullback.graph.captures import Captures
from pullback.graph.facts import Flat, facts_of
from pullback.graph.trace import graph_of
from pullback.kernels import eager
from pullback.kernels.backend import Backend
from pullback.plan import ChunkPlan, Functions, InlinePlan, while_current

AUTO = "auto"
_BYTES = 2**24
"""Largest size of one value of a chunk, in bytes, if the number of rows is not given."""


def chunk_plan(
    call: Call, name: str, functions: Functions, captures: Captures, grad: bool, backend: Backend, size: int | str
) -> ChunkPlan | InlinePlan:
    """Prove that a call is a function of sums over rows, and plan it by chunks of a given number of rows.

    Raises:
        FormulaError: if there is no proof.
    """
    with _torch.without_saved_tensors_hooks(), torch.autograd.set_detect_anomaly(False), torch.inference_mode(False):
        return _chunk_plan(call, name, functions, captures, grad, backend, size)


def _chunk_plan(
    call: Call, name: str, functions: Functions, captures: Captures, grad: bool, backend: Backend, size: int | str
) -> ChunkPlan | InlinePlan:
    if call.obstacle:
        advice = "Pass a copy of one" if call.repeats else "Pass the tensors that it needs as arguments"
        raise _unfit(name, call.obstacle, advice)
    structure: list[Any] = []
    flat = call.flat(functions.derivative, structure)
    facts = facts_of(flat, call.tensors, name, in_place=True)
    if captures.obstacle and not facts.obstacle:
        raise _unfit(name, captures.obstacle, "Pass the tensors that it needs as arguments")
    asks = "it asks for `requires_grad` of a tensor" if facts.asks_grad else ""
    obstacle = facts.obstacle or asks or _not_a_loss(facts.outputs, structure[0])
    if obstacle:
        raise _unfit(name, obstacle, "Change that")
    first = next((x for x in call.tensors if x.dim()), None)
    if first is None or first.size(0) < 2 or not all(x.numel() for x in call.tensors):
        return InlinePlan("it has less than two rows, or an input is empty")
    wanted = [i for i, x in enumerate(call.tensors) if grad and x.requires_grad and facts.outputs[0].requires_grad]
    graph = graph_of(flat, call.tensors, wanted)
    split = split_by_rows(graph) if isinstance(graph, fx.GraphModule) else graph
    if isinstance(split, str):
        raise _refusal(name, split)
    composite = while_current(call.flat(functions.composite), captures, name)
    chunks = _chunks(name, call.tensors, split, composite, wanted, backend, functions.exact, size)
    return ChunkPlan(functools.partial(run, chunks), len(call.tensors), split.rows, chunks.size)


def _unfit(name: str, why: str, advice: str) -> FormulaError:
    return FormulaError(f"{name} cannot be computed by chunks: {why}. {advice}, or leave out chunk=.")


def _refusal(name: str, why: str) -> FormulaError:
    return FormulaError(
        f"{name} is to be computed by chunks of rows (the first dimension of its first tensor), and is not known to be "
        f"made of sums over them: {why}. Take that out of the op, or leave out chunk=."
    )


def _not_a_loss(outputs: Sequence[Any], spec: Any) -> str:
    out = outputs[0] if spec == _torch.tree_leaves(None)[1] else None
    if isinstance(out, Tensor) and out.numel() == 1 and has_derivative(out) and not out.is_complex():
        return ""
    returned = f"a tensor of shape {tuple(out.shape)}, {out.dtype}" if isinstance(out, Tensor) else "no tensor alone"
    return f"it is to return one real number, and returns {returned}"


def _chunks(
    name: str,
    tensors: Sequence[Tensor],
    split: RowSplit,
    composite: Flat,
    wanted: Sequence[int],
    backend: Backend,
    exact: tuple[bool, bool],
    size: int | str,
) -> ChunkedLoss:
    before, after = eager.lower(split.before), eager.lower(split.after)
    shared, rows = _without_values(split, tensors, wanted)
    live = [x.requires_grad for x in (*shared, *rows)]
    steps = StepCompiler(split, shared, rows, live, backend, exact[bool(wanted)])
    n = min(_rows_by_bytes(split) if size == AUTO else int(size), split.rows)
    numbers = dict.fromkeys((n, split.rows % n or n))
    differentiation, ahead = None, tuple(range(len(steps.sums)))
    if wanted:
        differentiation = _slopes(split, steps, shared, rows, wanted, tuple(numbers))
        ahead = differentiation.ahead
    plain = (
        {m: steps.plain(m, ahead) for m in numbers} if ahead and not (differentiation and differentiation.alone) else {}
    )
    sums = tuple((s.shape, s.dtype) for s in steps.sums)
    return ChunkedLoss(name, split, n, composite, before, after, sums, plain, differentiation)


def _without_values(
    split: RowSplit, tensors: Sequence[Tensor], wanted: Sequence[int]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return blank tensors for shared values and values with rows; the differentiated ones require grad."""
    stand_ins = [_empty(x) for x in tensors]
    with _torch.fake_mode() as mode, torch.enable_grad():
        fakes = [mode.from_tensor(x, static_shapes=True) for x in stand_ins]
        fakes = [x.requires_grad_(i in wanted) for i, x in enumerate(fakes)]
        made: list[Tensor] = split.before(*fakes)
    return made[: split.n_shared], [*(fakes[i] for i in split.inputs), *made[split.n_shared :]]


def _slopes(
    split: RowSplit,
    steps: StepCompiler,
    shared: Sequence[Tensor],
    rows: Sequence[Tensor],
    wanted: Sequence[int],
    numbers: Sequence[int],
) -> Differentiation:
    live = [i for i, s in enumerate(steps.sums) if s.requires_grad]
    ahead = _needed_ahead(split, steps.sums, live, shared)
    differentiated = any(s.requires_grad for i, s in enumerate(steps.sums) if i in ahead)
    with _torch.fake_mode() as mode, torch.enable_grad():
        sums = [mode.from_tensor(torch.empty(s.shape, dtype=wide(s.dtype)), static_shapes=True) for s in steps.sums]
        fakes = [mode.from_tensor(_empty(x), static_shapes=True).requires_grad_(x.requires_grad) for x in shared]
        direct = split.after(*sums, *fakes)[0].requires_grad
    return Differentiation(
        {m: steps.differentiated(m) for m in numbers},
        ahead,
        differentiated and len(live) == 1 and steps.sums[live[0]].numel() == 1,
        tuple(live),
        tuple(i for i, x in enumerate(shared) if x.requires_grad),
        tuple(i for i, x in enumerate(rows) if x.requires_grad),
        tuple(wanted),
        direct,
        any(wide(x.dtype) != x.dtype for x in (*shared, *rows) if x.requires_grad),
    )


def _needed_ahead(
    split: RowSplit, sums: Sequence[Tensor], live: Sequence[int], shared: Sequence[Tensor]
) -> tuple[int, ...]:
    """Return the sums on which the derivatives of the result by the differentiated ones depend."""

    def derivatives(*given: Tensor) -> list[Any]:
        leaves = [x.detach().requires_grad_() if i in live else x.detach() for i, x in enumerate(given)]
        with torch.enable_grad():
            result = split.after(*leaves)[0]
            if not result.requires_grad:  # the sums are converted to integers, for example
                return []
            one = torch.ones(result.shape, dtype=result.dtype, device=result.device)  # `ones_like` would read it
            return list(torch.autograd.grad(result, [leaves[i] for i in live], one, allow_unused=True))

    if not live:
        return ()
    examples = [torch.empty(s.shape, dtype=wide(s.dtype), device=s.device) for s in sums]
    graph = trace_ops(derivatives, *examples, *map(_empty, shared)).graph
    graph.eliminate_dead_code()
    read = graph.find_nodes(op="placeholder")[: len(sums)]
    return tuple(i for i, node in enumerate(read) if node.users)


def _empty(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def _rows_by_bytes(split: RowSplit) -> int:
    """Return how many rows make the largest value of a chunk as large as it may be."""
    values = [n.meta["val"] for n in split.per_chunk.graph.nodes if isinstance(n.meta.get("rows"), Rows)]
    largest = max((v.numel() * v.element_size() for v in values if isinstance(v, Tensor)), default=1)
    rows = max(1, _BYTES * split.rows // max(1, largest))
    return rows // 8 * 8 or rows
