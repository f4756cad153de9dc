"""Peers of a formula, ready to be timed: forward and backward of each on the same tensors."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
from formulas import Case
from torch import Tensor

from pullback import Op
from pullback.call import Call, key_of
from pullback.errors import PullbackError
from pullback.kernels.backend import lower
from pullback.kernels.native import Kernel, is_kernel
from pullback.plan import KernelPlan

Calls = dict[str, Callable[[], object]]


def ops_of(case: Case, wide: bool) -> dict[str, Op]:
    """Return the ops: as `pullback.function` makes them, and fused as written.

    `wide` adds the op with searched forms. The others must have looked up theirs before, in this process.
    """
    ops = {"op": case.op(), "written": case.op(stable=False, backend="native")}
    if wide and case.is_searched:
        for op in ops.values():
            _both(op, case.inputs(8, "cpu"), None)()
        searched = case.op()
        try:
            searched.stabilise(torch.float32, wide="where-needed")
            ops["wide"] = searched
        except PullbackError as error:
            print(f"{case.name}: no forms are searched, {error}")
    return ops


def calls_of(case: Case, ops: Mapping[str, Op], inputs: tuple[Tensor, ...], compiled: bool) -> Calls:
    """Return forward and backward of each peer, warmed up and compared with each other."""
    with torch.no_grad():
        g = torch.ones_like(case.eager(*inputs))
    functions = {**ops, "eager": case.eager, "hand": case.hand.apply}
    calls = {name: _both(function, inputs, g) for name, function in functions.items()}
    if compiled and (call := _compiled(case, inputs, g)) is not None:
        calls["compile"] = call
    _require_same(case, calls)
    return {**calls, **references(inputs, g)}


def _both(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], g: Tensor | None) -> Callable[[], object]:
    leaves = [x for x in inputs if x.requires_grad]

    def call() -> tuple[Tensor, ...]:
        out = function(*inputs)
        return (out, *torch.autograd.grad(out, leaves, torch.ones_like(out) if g is None else g))

    return call


def _compiled(case: Case, inputs: tuple[Tensor, ...], g: Tensor) -> Callable[[], object] | None:
    torch._dynamo.reset()
    call = _both(torch.compile(case.eager, fullgraph=True, dynamic=False), inputs, g)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(3):
                call()
    except Exception as error:
        print(f"{case.name}: torch.compile cannot, {type(error).__name__}")
        return None
    return call


def _require_same(case: Case, calls: Calls) -> None:
    """Raise if a peer computes something else."""
    right = calls["eager"]()
    for name, call in calls.items():
        for got, wanted in zip(call(), right, strict=True):
            scale = wanted.abs().max().clamp_min(1e-30)
            if not bool((got - wanted).abs().max() <= 1e-3 * scale):
                raise SystemExit(f"{case.name}: {name} computes something else than the formula")


def references(inputs: tuple[Tensor, ...], g: Tensor) -> Calls:
    """Return `torch.sigmoid` of the size of the largest tensor, and a copy of the bytes that have to be moved.

    The bytes are those of inputs and outputs in the forward, and of inputs, cotangent and gradients in the backward.
    The target pages are mapped already, so the copy is the lower limit.
    """
    x = torch.randn(max(t.numel() for t in (*inputs, g)), device=g.device).requires_grad_()
    moved = 2 * sum(t.nbytes for t in (*inputs, g)) + sum(t.nbytes for t in inputs if t.requires_grad)
    source = torch.ones(moved // 8, device=g.device)  # of which half are read, half written, 4 bytes each
    target = torch.ones_like(source)
    return {"sigmoid": _both(torch.sigmoid, (x,), torch.ones_like(x)), "copy": lambda: target.copy_(source)}


def kernels_alone(op: Op, inputs: tuple[Tensor, ...], g: Tensor) -> Callable[[], object] | None:
    """Return the compiled forward and backward on allocated outputs; `None` unless each is one function."""
    plan = op._plans.known(key_of(inputs, True))
    if not isinstance(plan, KernelPlan) or g.device.type != "cpu":
        return None
    joint, exact = plan.joint, op._handler.functions(Call(inputs, {}, True)).exact
    graphs = [module for module, _ in lower([joint.forward, joint.backward], exact, op._plans._backend or "auto")]
    calls = [
        [n for n in module.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]
        for module in graphs
    ]
    if any(len(nodes) != 1 or not is_kernel(nodes[0].target) for nodes in calls):
        return None
    kept = [inputs[i] for i in joint.saved if i is not None]
    if len(kept) != len(joint.saved):
        return None
    (forward,), (backward,) = calls
    runs = [_run(forward.target.kernel, inputs), _run(backward.target.kernel, (*kept, g))]
    return lambda: [run() for run in runs]


def _run(kernel: Kernel, given: Sequence[Tensor]) -> Callable[[], object]:
    """Return the compiled function, bound to its arguments."""
    layout, steps, scattered = kernel._layout(tuple(t.stride() for t in given))
    assert not scattered  # all of them lie as they did when the graph was recorded
    outputs = [torch.empty_strided(kernel.shape, stride, dtype=dtype).zero_() for stride, dtype in kernel.outputs]
    outputs += [torch.zeros(size, dtype=dtype) for size, _, dtype in kernel.sums]
    pointers = [t.data_ptr() for t in (*given, *outputs)]
    keep, run = (given, outputs), kernel._run

    def call() -> object:
        run(*pointers, steps, layout.rows, layout.columns, *kernel.last)
        return keep

    return call


def sigmoid_alone(n: int, device: str) -> Callable[[], object]:
    """Return the kernels of `torch.sigmoid`, forward and backward, on allocated outputs."""
    x, g, y, gx = (torch.randn(n, device=device) for _ in range(4))
    backward = torch.ops.aten.sigmoid_backward.grad_input
    return lambda: (torch.sigmoid(x, out=y), backward(g, y, grad_input=gx))
