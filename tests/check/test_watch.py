import os
import re

import pytest
import torch

import pullback
from pullback.errors import OptionError

from .watched import Square, cube, ones, square

QUICK = {"select": "PB101", "budget": 1}


def watched(block, **options):
    seen = []
    with pullback.watch(show=seen.append, **QUICK, **options) as found:
        block()
    assert seen == [found.report]
    return found.report


def test_called_function_is_audited_on_its_inputs():
    report = watched(lambda: square(ones()).sum().backward())
    assert [subject.name for subject in report.subjects] == ["Square"]
    (finding,) = report.findings
    assert finding.rule == "PB101"
    assert finding.location.file.endswith("watched.py")


def test_uncalled_function_is_not_audited():
    assert watched(lambda: torch.ones(3).sin()).subjects == ()


def test_bound_apply_is_captured_inside_the_block_only():
    report = watched(lambda: cube(ones()))
    square(ones())
    assert [subject.name for subject in report.subjects] == ["Cube"]


def test_report_is_shown_though_the_block_raises():
    def block():
        square(ones())
        raise KeyError("x")

    seen = []
    with pytest.raises(KeyError), pullback.watch(show=seen.append, **QUICK):
        block()
    assert not seen[0].ok


def test_results_and_random_numbers_are_unchanged():
    def run():
        torch.manual_seed(0)
        x = torch.randn(4, requires_grad=True)
        square(x * torch.rand(4)).sum().backward()
        return torch.cat([x.grad, torch.rand(3)])

    expected, got = run(), []
    watched(lambda: got.append(run()))
    assert torch.equal(got[0], expected)


def test_ops_of_pullback_are_not_captured():
    op = pullback.function(lambda x: torch.sigmoid(x) * x)
    assert watched(lambda: op(ones()).sum().backward()).subjects == ()


class Twice(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def test_transforms_work_inside_the_block():
    def block():
        assert torch.func.grad(lambda x: Twice.apply(x).sum())(torch.ones(2)).tolist() == [2, 2]
        assert torch.vmap(Twice.apply)(torch.ones(2, 2)).tolist() == [[2, 2], [2, 2]]

    assert watched(block).ok


def test_compiled_function_works_and_is_not_captured():
    def block():
        compiled = torch.compile(lambda x: Twice.apply(x) + 1, backend="aot_eager", fullgraph=True)
        x = ones()
        compiled(x).sum().backward()
        assert x.grad.tolist() == [2, 2, 2]

    assert watched(block).subjects == ()


def test_forked_process_captures_and_reports_nothing():
    def block():
        child = os.fork()
        if not child:
            with_status = 0
            try:
                square(ones())
            except BaseException:
                with_status = 1
            os._exit(with_status)
        assert os.waitpid(child, 0)[1] == 0

    assert watched(block).subjects == ()


def test_blocks_may_be_nested():
    inner = []

    def block():
        with pullback.watch(show=inner.append, **QUICK):
            square(ones())
        cube(ones())

    outer = watched(block)
    assert [s.name for s in inner[0].subjects] == ["Square"]
    assert [s.name for s in outer.subjects] == ["Square", "Cube"]


def test_report_is_printed(capsys):
    with pullback.watch(**QUICK):
        square(ones())
    assert re.search(r"^Square +wrong", capsys.readouterr().out, re.MULTILINE)


def test_invalid_option_is_refused_before_the_block():
    with pytest.raises(OptionError, match="no rule"):
        pullback.watch(select="PB999")


def test_apply_is_restored():
    before = vars(torch.autograd.Function)["apply"]
    watched(lambda: Square.apply(ones()))
    assert vars(torch.autograd.Function)["apply"] is before
    assert "apply" not in vars(torch.autograd.function._SingleLevelFunction)
