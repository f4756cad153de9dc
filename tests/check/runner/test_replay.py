"""A finding is an error only if its reproduction shows it in a new process."""

import importlib
from dataclasses import replace

import pytest
import torch

import pullback
from pullback.check.runner.replay import can_replay, complaint, hangs, unshown
from pullback.report.model import Evidence, Finding, Location

SLIP = """
import torch


class Slip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return {gradient}
"""
SHOWN = Finding(
    subject="f",
    rule="PB101",
    name="wrong-vjp",
    severity="error",
    verdict="wrong",
    message="the gradient of x is 2, the derivative of the forward is 3",
    location=Location("f.py", 1),
    evidence=Evidence(expected=3.0, got=2.0),
    reproduce="print('gradient', 2.0000001, 'and finite difference', 3.0)",
)


def audited(folder, monkeypatch, gradient):
    (folder / "slips.py").write_text(SLIP.format(gradient=gradient))
    monkeypatch.chdir(folder)
    return [f for f in pullback.check("slips.py:Slip", select="PB101").findings if f.rule == "PB101"]


def test_reproduced_finding_is_an_error(tmp_path, monkeypatch):
    (finding,) = audited(tmp_path, monkeypatch, "g * x.sin()")
    assert finding.severity == "error"


def test_finding_that_needs_earlier_calls_is_a_warning(tmp_path, monkeypatch):
    after = "g * x.cos() * (2 if len(calls) > 3 else 1) if calls.append(1) is None else None"
    finding, *_ = audited(tmp_path, monkeypatch, f"{after}\n\ncalls = []")
    assert (finding.severity, finding.verdict) == ("warning", "inconclusive")
    assert "in a new process, the script did not reproduce this: it printed no " in finding.message


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (SHOWN.reproduce, ""),
        ("print('gradient', 3.0, 'and finite difference', 3.0)", "it printed no 2"),
        ("print(2.0, 2.0)", "it printed no 3"),
        ("print(2.0, 2.95)", ""),  # within the noise of a difference
        ("import no_such_module", "it raised ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_reproduction_must_print_the_numbers_of_the_finding(code, said):
    assert complaint(replace(SHOWN, reproduce=code)) == said


def test_reproduction_must_raise_the_reported_exception():
    told = replace(SHOWN, message="backward raised ValueError: no such size", evidence=None)
    assert complaint(replace(told, reproduce="raise ValueError('no such size')")) == ""
    assert complaint(replace(told, reproduce="pass")) == "it did not raise"
    assert complaint(replace(told, reproduce="raise KeyError('a')")) == "it raised KeyError: 'a'"


@pytest.mark.parametrize(
    "line",
    [
        "# fn = <lambda>  (defined at f.py:3)",
        "fn = f  # in the program or notebook that defines it",
        "x = torch.zeros(9)  # other values than the audit's, which are too many to print",
        "# ... stands for config, of type Config, which has no literal",
    ],
)
def test_incomplete_reproduction_is_not_run(line):
    assert can_replay(SHOWN, may_run_files=False)
    assert not can_replay(replace(SHOWN, reproduce=f"{line}\n{SHOWN.reproduce}"), may_run_files=True)


def test_script_that_requests_the_audit_is_not_run_again():
    runs = replace(SHOWN, reproduce=f'import runpy\nfn = runpy.run_path("f.py")["f"]\n{SHOWN.reproduce}')
    assert can_replay(runs, may_run_files=True)
    assert not can_replay(runs, may_run_files=False)


def test_warning_is_not_replayed():
    assert not can_replay(unshown(SHOWN, "why"), may_run_files=True)


CALL = """
fn = torch.sin
x = torch.ones(2, requires_grad=True)
out = fn(x)
"""
ENDLESS = """
class Endless(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        while True:
            pass
"""


def test_hang_must_repeat_in_a_new_interpreter():
    beats = []
    assert not hangs(CALL, 60, lambda: beats.append(1))
    assert beats
    assert hangs(ENDLESS + CALL.replace("torch.sin", "Endless.apply"), 6, lambda: None)


CRASHES = """
import os
import signal

import torch

calls = []


class Crashes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        calls.append(len(x))
        if {when}:
            os.kill(os.getpid(), signal.SIGSEGV)
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g
"""


@pytest.mark.parametrize(
    ("when", "severity"),
    [
        pytest.param("x.shape == (1, 4)", "error", id="at a variant"),
        # as if an earlier call had written out of bounds
        pytest.param("len(x) == 11 and 7 in calls", "warning", id="after a variant"),
    ],
)
def test_crash_is_an_error_if_its_call_alone_crashes(tmp_path, monkeypatch, when, severity):
    (tmp_path / "crashes.py").write_text(CRASHES.format(when=when))
    monkeypatch.chdir(tmp_path)
    report = pullback.check("crashes.py:Crashes", torch.randn(3, 4, dtype=torch.float64), select="PB101,PB104,PB504")
    crashes = [f for f in report.findings if f.rule == "PB002"]
    assert {f.severity for f in crashes} == {severity}
    if severity == "error":
        assert all("x: float64(1, 4) [size 3 -> 1]" in f.message for f in crashes)
    else:
        assert all("run alone it ended well" in f.message for f in crashes)


OF_ROWS = """
import os
import signal

import torch


class Rows:
    # made for a number of rows, as a factorisation is
    def __init__(self, n):
        self.n = n

    def __call__(self, x):
        if len(x) != self.n:
            os.kill(os.getpid(), signal.SIGSEGV)
        return 2 * x


class Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, x):
        return rows(x)

    @staticmethod
    def backward(ctx, g):
        return None, 2 * g


class Remembers(torch.autograd.Function):
    # takes no other dtype than its first call, and nothing after one
    @staticmethod
    def forward(ctx, known, x):
        known.n = x.dtype if known.n in (0, x.dtype) else "nothing any more"
        if known.n != x.dtype:
            raise RuntimeError(f"expected {known.n}")
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return None, 2 * g
"""


def test_crash_on_a_size_an_object_may_not_support_is_one_warning(tmp_path, monkeypatch):
    (tmp_path / "of_rows.py").write_text(OF_ROWS)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("of_rows")
    report = pullback.check(module.Solve, module.Rows(3), torch.randn(3, 4, dtype=torch.float64), select="PB101")
    (crash,) = [f for f in report.findings if f.rule == "PB002"]
    assert crash.severity == "warning"
    assert "if that fits]. It may be an invalid call." in crash.message


def test_example_that_does_not_run_twice_is_reported(tmp_path, monkeypatch):
    (tmp_path / "remembers.py").write_text(OF_ROWS)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("remembers")
    report = pullback.check(module.Remembers, module.Rows(0), torch.randn(3, dtype=torch.float64))
    assert "PB001" not in {f.rule for f in report.findings}
    report = pullback.check(module.Remembers, module.Rows(0), torch.randn(3))
    (told,) = [f for f in report.findings if f.rule == "PB001"]
    assert "what runs at first does not run again: forward raised RuntimeError" in told.message
