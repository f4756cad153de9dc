import pytest
import torch

from pullback.check.cases import call_samples
from pullback.check.cases.call_samples import CallSamples


class A: ...


class B: ...


class Sub(torch.Tensor): ...


def test_one_copy_is_kept_of_each_kind_of_call():
    kept, x = CallSamples(), torch.ones(2, 3).t().requires_grad_()
    kept.record(A, (x, 2, "mode", [x, None]))
    kept.record(A, (torch.zeros(3, 2).requires_grad_(), 2, "mode", [x, None]))
    kept.record(B, (torch.ones(2),))
    assert kept.functions == [A, B]
    (args, kwargs), _ = kept.of(A)
    assert kwargs == {}
    assert args[1:3] == (2, "mode")
    assert torch.equal(args[0], torch.ones(3, 2))
    assert args[0].stride() == x.stride()
    assert args[0].is_leaf
    assert args[0].requires_grad
    assert args[0].data_ptr() != x.data_ptr()


def test_equal_kind_is_kept_once():
    kept = CallSamples()
    for value in range(5):
        kept.record(A, (torch.full((2,), float(value)),))
    ((args, _),) = kept.of(A)
    assert args[0].tolist() == [0, 0]


def test_small_calls_are_preferred():
    kept = CallSamples()
    for n in (50, 7, 30, 3, 40, 5):
        kept.record(A, (torch.ones(n),))
    assert [args[0].numel() for args, _ in kept.of(A)] == [3, 5, 7]


def test_number_of_examined_calls_is_bounded():
    kept = CallSamples()
    for n in range(500, 0, -1):
        kept.record(A, (torch.ones(n),))
    assert [args[0].numel() for args, _ in kept.of(A)] == [401, 402, 403]


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(call_samples, "_LARGEST", 100)
    monkeypatch.setattr(call_samples, "_MOST", 150)
    kept = CallSamples()
    kept.record(A, (torch.ones(26),))
    assert kept.of(A) is None
    kept.record(A, (torch.ones(25),))
    kept.record(B, (torch.ones(13),))
    assert kept.of(B) is None
    kept.record(B, (torch.ones(12),))
    assert kept.of(B) is not None


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(2, device="meta"), torch.ones(2).as_subclass(Sub)],
    ids=["meta", "subclass"],
)
def test_meta_tensors_and_subclasses_are_not_kept(tensor):
    kept = CallSamples()
    kept.record(A, (tensor,))
    assert kept.functions == [A]
    assert kept.of(A) is None


def test_sparse_tensors_are_copied():
    kept = CallSamples()
    given = torch.eye(2).to_sparse()
    kept.record(A, (given,))
    ((copy,), _) = kept.of(A)[0]
    given.mul_(2)
    assert torch.equal(copy.to_dense(), torch.eye(2))


def test_random_state_is_unchanged():
    before = torch.get_rng_state()
    CallSamples().record(A, (torch.ones(3),))
    assert torch.equal(torch.get_rng_state(), before)
