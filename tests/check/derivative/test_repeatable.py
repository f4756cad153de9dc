"""Uninitialised memory in values and gradients."""

import contextlib
import io

import pytest
import torch

from pullback.check.derivative.repeatable import unwritten
from pullback.check.find.discover import subject_of
from pullback.check.run_audit import run_audit
from pullback.check.subject import Options

from ..making import Silent, case_of, function, normal
from ..modules import import_source


def part(gradient):
    """Return a gradient whose last element is never written."""

    def backward(g, x):
        made = torch.empty_like(x)
        made.flatten()[:-1] = gradient(g, x).flatten()[:-1]
        return made

    return backward


cosine = function(torch.sin, part(lambda g, x: g * x.cos()))
placeholder = function(lambda x: x.new_empty(x.shape), lambda g, x: g)
filled = function(lambda x: torch.empty_like(x).copy_(x), lambda g, x: torch.empty_like(g).copy_(g))


def found(target, *args, select=("PB1",)):
    events = Silent()
    run_audit(subject_of(target), Options(select=select, budget=30), [(args, {})] if args else None, events)
    return events.findings


@pytest.mark.parametrize("shape", [(), (3,), (100,), (3, 4)], ids=str)
def test_unwritten_gradient_element_is_found_every_time(shape):
    for _ in range(10):
        here = unwritten(subject_of(cosine), case_of(cosine, normal(*shape)))
        assert (here.kind, here.tensor_index, here.index) == ("gradient", 0, tuple(n - 1 for n in shape))


def test_fully_written_memory_is_not_reported():
    for target in (filled, function(torch.sin, lambda g, x: g * x.cos())):
        assert unwritten(subject_of(target), case_of(target, normal(3))) is None


def test_computed_nan_is_not_reported():
    target = function(torch.log, lambda g, x: g / x.log() * x.log() / x)
    assert unwritten(subject_of(target), case_of(target, -normal(3).abs())) is None


def test_unwritten_gradient_is_an_error_with_its_index():
    for _ in range(3):
        (wrong,) = found(cosine, normal(3))
        assert (wrong.rule, wrong.severity, wrong.evidence.worst_index) == ("PB101", "error", (2,))
        assert "never wrote" in wrong.message


def test_forward_that_writes_nothing_is_inconclusive():
    for _ in range(3):
        (told,) = found(placeholder, normal(3))
        assert (told.rule, told.severity, told.verdict) == ("PB101", "warning", "inconclusive")
    (told,) = found(placeholder, normal(3), select=("PB109", "PB119"))
    assert (told.rule, told.severity, told.verdict) == ("PB109", "warning", "inconclusive")
    assert "never wrote" in told.message


def test_settings_are_restored_and_warnings_suppressed(recwarn):
    def scatter(x):
        return x.clone().index_put_((torch.tensor([0]),), x[:1])  # is warned of, where there is no other form

    target = function(scatter, lambda g, x: g)
    before = torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory
    assert unwritten(subject_of(target), case_of(target, normal(3))) is None
    assert (torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory) == before
    assert not recwarn.list


SOURCE = """
import torch

class {name}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return {forward}

    @staticmethod
    def backward(ctx, g):
        return {backward}
"""


@pytest.mark.parametrize(("forward", "backward"), [("2 * x", "torch.empty_like(g)"), ("torch.empty_like(x)", "g")])
def test_reproduction_runs(forward, backward, tmp_path):
    text = SOURCE.format(name="Unwritten", forward=forward, backward=backward)
    module = import_source(text, tmp_path, "unwritten_source")
    (told,) = found(module.Unwritten, normal(3))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(told.reproduce, {})
    assert "NaN" in printed.getvalue()
    assert "nan" in printed.getvalue()
