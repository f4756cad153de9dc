"""Large intermediates share a workspace of reused memory."""

import pytest
import torch
import torch.nn.functional as F

from pullback import _torch
from pullback.kernels import eager
from pullback.kernels import memory as workspace
from pullback.kernels.memory import with_workspace


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch):
    monkeypatch.setattr(workspace, "_LARGE", 1)


def run(function, *tensors, times=2):
    graph = _torch.trace_ops(function, *tensors)
    slots = with_workspace(graph.graph)
    lowered, space = eager.lower(graph), [slot.empty() for slot in slots]
    for _ in range(times):
        found = lowered(*tensors, *space)
    return slots, found, space


def gradient(x, w, k):
    leaves = [x.detach().requires_grad_(), w.detach().requires_grad_()]
    with torch.enable_grad():
        loss = F.cross_entropy(leaves[0] @ leaves[1].t(), k)
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def test_workspace_holds_three_tensors_and_results_match():
    x, w, k = torch.randn(5, 3), torch.randn(7, 3), torch.randint(7, (5,))
    slots, found, _ = run(gradient, x, w, k)
    assert [slot.numel for slot in slots] == [35, 35, 35]
    assert all(map(torch.equal, found, gradient(x, w, k)))


def test_memory_under_a_view_is_not_reused_before_the_last_read():
    def views(x):
        first = (x @ x).t()[1:]
        second = x @ (x @ x)
        return [first.sum() + second.sum()]

    x = torch.randn(4, 4)
    slots, found, _ = run(views, x)
    assert len(slots) == 3
    torch.testing.assert_close(found, views(x))


def test_outputs_are_not_in_the_workspace():
    x = torch.randn(4, 4)
    slots, (out, view), space = run(lambda x: [x @ x, (x @ x.exp()).t()], x)
    assert not slots
    assert not space
    assert torch.equal(out, x @ x)
    assert torch.equal(view, (x @ x.exp()).t())


def test_dtypes_do_not_share_slots():
    def two(x):
        return [(x @ x).sum(), (x.double() @ x.double()).sum()]

    slots, found, _ = run(two, torch.ones(3, 3))
    assert {slot.dtype for slot in slots} == {torch.float32, torch.float64}
    assert [float(f) for f in found] == [27.0, 27.0]
