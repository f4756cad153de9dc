"""Contexts that make a graph of a program: `torch.export`, tracers, `torch.cond`, compiled gradients.

The PyTorch side runs the program itself, since a graph that PyTorch makes may lose a derivative. Where PyTorch cannot
make a graph of the formula, the context has no result.
"""

from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from tests.adversary.contexts import (
    Observed,
    Side,
    _derivatives,
    _function_of_leaves,
    _gradients,
    cotangent,
    leaves_of,
    loss_of,
)


class _Model(torch.nn.Module):
    """A program as a module: leaves are parameters, other tensors are arguments, numbers are constants."""

    def __init__(self, side: Side, inputs: dict[str, Any]) -> None:
        super().__init__()
        self.call, self.leaves = side.call, leaves_of(inputs)
        self.order, self.fixed = list(inputs), {k: x for k, x in inputs.items() if not isinstance(x, Tensor)}
        for name, x in self.leaves.items():
            self.register_parameter(f"of_{name}", torch.nn.Parameter(x.detach()))

    def forward(self, **others: Tensor) -> list[Tensor]:
        given = {k: getattr(self, f"of_{k}") if k in self.leaves else others.get(k) for k in self.order} | self.fixed
        return self.call({k: given[k] for k in self.order})


def exported(side: Side, strict: bool = False) -> Observed:
    """`torch.export` of a model whose leaves are parameters: their first and second derivatives."""
    inputs = side.inputs()
    model = _Model(side, inputs)
    others = {k: x for k, x in inputs.items() if k not in model.leaves and isinstance(x, Tensor)}
    graph = model if side.is_wide else torch.export.export(model, (), others, strict=strict).module()
    if not side.is_ours:
        graph = model
    torch.manual_seed(side.program.seed)
    outs = tree_leaves(graph(**others))
    parameters = dict(graph.named_parameters())
    live = {k: parameters[f"of_{k}"] for k in model.leaves if f"of_{k}" in parameters}  # what is not used is left out
    unused = dict.fromkeys([f"gradient of {k}, order {i}" for i in (1, 2) for k in model.leaves])
    return {f"output {i}": out.detach() for i, out in enumerate(outs)} | unused | _derivatives(outs, live, 2)


def traced(side: Side) -> Observed:
    """`make_fx` of the value: its first and second derivatives."""
    function, leaves = _function_of_leaves(side)
    graph: Any = function
    if not side.is_wide:
        graph = make_fx(function)(*leaves.values())
        torch.manual_seed(side.program.seed)
    live = {k: x.detach().requires_grad_() for k, x in leaves.items()}
    outs = list((graph if side.is_ours else function)(*live.values()))
    return {f"output {i}": out.detach() for i, out in enumerate(outs)} | _derivatives(outs, live, 2)


def _gradient(side: Side, order: int = 1) -> tuple[Any, dict[str, Tensor]]:
    """Return the gradient as a function of the leaves, and the leaves. Cotangents are no part of the graph.

    For the second order the inputs of the op are computed values: Dynamo treats a rule differently there.
    """
    function, leaves = _function_of_leaves(side)
    at = tuple(range(len(leaves)))
    gs = [cotangent(out.detach(), seed=i) for i, out in enumerate(function(*leaves.values()))]
    torch.manual_seed(side.program.seed)
    if order == 1:
        return torch.func.grad(loss_of(function, gs), at), leaves
    first = torch.func.grad(loss_of(lambda *values: function(*[x * 1 for x in values]), gs), at)
    gs = [cotangent(x, seed=i) for i, x in enumerate(leaves.values())]
    return torch.func.grad(loss_of(lambda *values: list(first(*values)), gs), at), leaves


def traced_gradient(side: Side) -> Observed:
    """`make_fx` of the gradients."""
    grad, leaves = _gradient(side)
    graph = grad if side.is_wide else make_fx(grad)(*leaves.values())
    torch.manual_seed(side.program.seed)
    found = (graph if side.is_ours else grad)(*leaves.values())
    return {f"gradient of {name}": g for name, g in zip(leaves, found, strict=True)}


def compiled_gradient(side: Side, order: int = 1) -> Observed:
    """`torch.compile` of `torch.func.grad`."""
    grad, leaves = _gradient(side, order)
    torch._dynamo.reset()
    graph = grad if side.is_wide else torch.compile(grad, backend="aot_eager")
    found = graph(*leaves.values())
    if not side.is_ours:
        torch.manual_seed(side.program.seed)
        found = grad(*leaves.values())
    return {f"gradient of {name}, order {order}": g for name, g in zip(leaves, found, strict=True)}


def branch(side: Side) -> Observed:
    """Either branch of `torch.cond`, both of which are the program."""
    function, leaves = _function_of_leaves(side)
    live = {k: x.detach().requires_grad_() for k, x in leaves.items()}

    def either(*values: Tensor) -> tuple[Tensor, ...]:
        return tuple(x * 1 for x in function(*values))

    def seen(outs: Any) -> Observed:
        return {f"output {i}": out.detach() for i, out in enumerate(outs)} | _gradients(list(outs), live)

    def chosen() -> Observed:
        torch._dynamo.reset()
        return seen(torch.cond(torch.tensor(True), either, either, tuple(live.values())))

    if side.is_ours:
        return chosen()
    if not side.is_wide:
        with torch.random.fork_rng(devices=[]):  # whether PyTorch takes it; what it draws is not to count
            chosen()
    return seen(either(*live.values()))


def symbolic(side: Side) -> Observed:
    """`torch.fx.symbolic_trace` of a function that calls the op, which becomes a node of the graph."""
    inputs = side.inputs()
    moving = [k for k, x in inputs.items() if isinstance(x, Tensor)]
    space = {"call": side.program.call, "function": side.function, "inputs": inputs}
    call: Any = eval(
        f"lambda {', '.join(moving)}: call(function, inputs | dict({', '.join(f'{k}={k}' for k in moving)}))", space
    )
    if side.is_ours:
        call = torch.fx.symbolic_trace(call)
    outs = tree_leaves(call(*[inputs[k] for k in moving]))
    return {f"output {i}": out.detach() for i, out in enumerate(outs)} | _gradients(outs, leaves_of(inputs))
