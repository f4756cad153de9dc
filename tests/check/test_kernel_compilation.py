"""Functions whose kernels are interpreted, and that a GPU would not run, since their kernels do not compile."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import pullback
from pullback.check import kernel_compilation
from pullback.check.case import make_case
from pullback.interpreter.worlds import Specialisation

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("uncompilable_functions.py")
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or torch.accelerator.is_available(), reason="no Triton, or a GPU"
)
X = torch.linspace(-2, 2, 19)


def findings(name, *inputs, budget=5):
    report = pullback.check(f"{FILE}:{name}", *inputs, select="PB910", budget=budget)
    return [finding for finding in report.findings if finding.rule == "PB910"]


def line_of(text):
    return 1 + next(n for n, line in enumerate(FILE.read_text().splitlines()) if text in line)


def test_finding_names_the_line_the_message_and_the_launch():
    (finding,) = findings("Double", X)
    line = line_of("FACTOR * tl.load")
    assert (finding.severity, finding.verdict, finding.location.line) == ("error", "wrong", line)
    assert finding.message.startswith(f"kernel doubled_kernel (uncompilable_functions.py:{line}) does not compile: ")
    assert "Cannot access global variable FACTOR" in finding.message
    assert finding.message.endswith("; launched with x: *fp32, out: *fp32, n: i32, BLOCK=16")


@pytest.mark.parametrize(("dtype", "kind"), [(torch.float64, "fp32"), (torch.float32, "fp32"), (torch.float16, "fp16")])
def test_kernels_are_launched_in_the_dtypes_that_are_given(dtype, kind):
    (finding,) = findings("Double", X.to(dtype))
    assert f"x: *{kind}, out: *{kind}" in finding.message


@pytest.mark.parametrize(
    ("dtype", "count"), [(torch.float64, 0), (torch.float32, 1), (torch.bfloat16, 0), (torch.float16, 1)]
)
def test_kernel_for_one_dtype_is_refused_in_another_that_is_given(dtype, count):
    assert len(findings("Narrow", X.to(dtype))) == count


def test_buffer_that_an_earlier_call_made_in_float64_refuses_nothing():
    assert findings("Kept", X) == []


def test_hint_is_about_types_where_the_message_is():
    (finding,) = findings("Double", X)
    assert finding.hint == "Triton's compiler rejects this line; see its message"
    (finding,) = findings("Narrow", X)
    assert finding.hint.startswith("give each variable one type and shape")


def test_kernel_that_fails_when_interpreted_is_left_out():
    assert findings("Misspelt", X) == []


def test_guessed_call_that_may_not_fit_is_no_error():
    assert [finding.severity for finding in findings("Scaled")] == ["warning"]
    assert [finding.severity for finding in findings("Scaled", X, torch.tensor(3.0))] == ["error"]


def test_branch_that_another_call_takes():
    (finding,) = findings("Option", X)
    assert finding.location.line == line_of("FACTOR * y / 2")
    assert "is_masked = True" in finding.message


def test_tail_that_the_example_does_not_have_is_a_warning():
    (finding,) = findings("Tail", torch.linspace(-2, 2, 32))
    assert (finding.severity, finding.location.line) == ("warning", line_of("FACTOR * y * 0.5"))
    assert "size 32 -> " in finding.message
    assert [finding.severity for finding in findings("Tail", X)] == ["error"]


def test_blocks_that_are_too_small_count_at_the_sizes_of_the_example_alone():
    assert findings("Square", torch.randn(16, 16)) == []
    (finding,) = findings("Square", torch.randn(4, 4))
    assert "K >= " in finding.message


@pytest.mark.parametrize("name", ["Double", "DoubleForward"])
def test_reproduction_is_a_script_without_a_gpu(name):
    (finding,) = findings(name, X)
    done = subprocess.run(
        [sys.executable, "-c", finding.reproduce], capture_output=True, text=True, cwd=ROOT, check=False, timeout=120,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Cannot access global variable FACTOR" in done.stdout


@pytest.mark.parametrize(
    ("values", "expected"),
    [((X.double(), 3, True), False), ((X[:5], 3, True), True), ((X, 4, True), True), ((X, 3, False), False)],
)
def test_other_sizes_and_numbers(values, expected):
    audit = SimpleNamespace(base=make_case((X, 3, True), {}, ()))
    assert kernel_compilation.has_other_sizes(audit, make_case(values, {}, ())) is expected


def refusals_of(monkeypatch, *answers):
    """Return what is found of launches, each of which the front end answers by a call."""
    launches = [Specialisation(lambda: None, answer, {}, "") for answer in answers]
    monkeypatch.setattr(kernel_compilation, "refusal_of", lambda one: one.source())
    return kernel_compilation._refused(SimpleNamespace(events=SimpleNamespace(beat=lambda: None)), launches)


def test_crash_of_the_compiler_refuses_nothing(monkeypatch):
    found = refusals_of(
        monkeypatch,
        lambda: None,
        lambda: {"line": 1},
        lambda: os.kill(os.getpid(), signal.SIGSEGV),
        lambda: {"line": 2},
    )
    assert found == [None, {"line": 1}, None, None]


def test_compiler_that_takes_forever_is_stopped(monkeypatch):
    monkeypatch.setattr(kernel_compilation, "_MOST", 0.5)
    start = time.monotonic()
    assert refusals_of(monkeypatch, lambda: {"line": 1}, lambda: time.sleep(60)) == [{"line": 1}, None]
    assert time.monotonic() - start < 10


def test_output_of_the_compiler_is_not_printed(monkeypatch, capfd):
    assert refusals_of(monkeypatch, lambda: os.write(2, b"module {}\n") and None) == [None]
    assert capfd.readouterr() == ("", "")
