"""The eager lowering, against the graph run by PyTorch."""

import weakref

import pytest
import torch

from pullback import _torch
from pullback.kernels.eager import BINDINGS, lower

CONSTANT = torch.tensor([1.0, 2.0, 3.0])


def several(x, y):
    values, places = torch.sort(x * y, descending=True)
    return [values[:2], places, torch.cat([x, y]).sum()]


def sliced(x, y):
    return [x[1:] * 0.1, torch.where(y > 0, x, float("-inf")), x.to(torch.float64)]


def constant(x, y):
    return [x + CONSTANT, y]


def missing(x, y):
    return [x + y, None]


@pytest.mark.parametrize("function", [several, sliced, constant, missing])
def test_lowered_graph_matches_the_graph(function):
    x, y = torch.randn(3), torch.randn(3)
    graph = _torch.trace_ops(function, x, y)
    for ours, expected in zip(lower(graph)(x, y), graph(x, y), strict=True):
        assert (ours is None and expected is None) or torch.equal(ours, expected)


def test_values_are_freed_after_their_last_use():
    alive = []

    def watched(x):
        alive.append(weakref.ref(x))
        return x

    graph = _torch.trace_ops(lambda x: [x.exp().sin().cos()], torch.randn(3))
    names = [node for node in graph.graph.nodes if node.op == "call_function"]
    with graph.graph.inserting_after(names[0]):
        seen = graph.graph.call_function(watched, (names[0],))
    names[1].replace_input_with(names[0], seen)

    def check(x):
        assert alive[0]() is None
        return x

    with graph.graph.inserting_after(names[1]):
        checked = graph.graph.call_function(check, (names[1],))
    names[2].replace_input_with(names[1], checked)
    (out,) = lower(graph)(torch.zeros(3))
    assert torch.allclose(out, torch.cos(torch.sin(torch.ones(3))))


@pytest.mark.parametrize("op", BINDINGS, ids=str)
def test_binding_calls_its_aten_op(op):
    x = torch.rand(2, 2) + 0.5
    arguments = {
        "where.self": (x > 1, x, x),
        "masked_fill.Scalar": (x, x > 1, 0.0),
        "pow.Tensor_Scalar": (x, 3),
        "bmm.default": (x[None], x[None]),
        "addmm.default": (x, x, x),
    }
    names = [a.name for a in op._schema.arguments if str(a.type) == "Tensor"]
    calls = [arguments.get(op.__name__, (x,) * len(names))]
    calls += [(x, 2.5), (x, 2)] if op.__name__ in {"add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor"} else []
    for call in calls:
        graph = _torch.trace_ops(lambda *tensors, call=call: BINDINGS[op](*_refilled(call, tensors)), *_tensors(call))
        assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [op]


def _tensors(call):
    return [a for a in call if isinstance(a, torch.Tensor)]


def _refilled(call, tensors):
    waiting = iter(tensors)
    return [next(waiting) if isinstance(a, torch.Tensor) else a for a in call]
