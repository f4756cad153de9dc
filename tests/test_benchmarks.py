"""The benchmarks run and give complete results; the figures are not judged."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pullback.check.rules import all_rules
from tests.mutants.catalogue import MUTANTS
from tests.mutants.load import base_names

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def quick(script, tmp_path, *options):
    """Run a benchmark for a few seconds, and return what it found."""
    path = tmp_path / "found.json"
    run = [sys.executable, str(BENCHMARKS / script), "--quick", "--json", str(path), *options]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())["found"]


@pytest.mark.slow
def test_kernel_benchmark_runs(tmp_path):
    rows = quick("kernels.py", tmp_path, "--only", "sin²")
    assert {"op", "written", "eager", "hand", "sigmoid", "copy"} <= rows[0]["seconds"].keys()
    assert [(row["n"], row["large_pages"]) for row in rows] == [(8, False), (2**12, False), (2**12, True)]


@pytest.mark.slow
def test_second_order_benchmark_runs(tmp_path):
    (of,) = quick("second_order.py", tmp_path)["seconds"].values()
    assert all(seconds.keys() == {"op", "written", "eager"} for seconds in of.values())


@pytest.mark.slow
def test_cotangent_memory_benchmark_runs(tmp_path):
    for record in quick("cotangent_memory.py", tmp_path):
        assert record["seconds"].keys() == {"op", "held", "sigmoid", "compile"}


def test_kernel_coefficients_match_the_fit():
    run = [sys.executable, str(BENCHMARKS / "kernel_coefficients.py"), "--check"]
    assert subprocess.run(run, capture_output=True).returncode == 0


@pytest.mark.slow
def test_kernel_function_benchmark_runs(native):
    for options in (["--every", "2000", "exp", "erfc"], ["--double", "2000", "tanh", "erf"]):
        run = [sys.executable, str(BENCHMARKS / "kernel_functions.py"), *options]
        done = subprocess.run(run, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_benchmark_page_counts_mutants_and_rules():
    page = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    (mutants,) = re.findall(r"There are (\d+) mutants of (\d+) correct functions\.", page)
    assert [int(n) for n in mutants] == [len(MUTANTS), len(base_names())]
    assert "`pullback.check` finds all but one" in page
    assert sum(bool(mutant.survives) for mutant in MUTANTS) == 1
    (rules,) = re.findall(r"All (\d+) runtime rules ran", page)
    assert int(rules) == sum(rule.runtime is not None for rule in all_rules())


def test_labels_name_existing_rules(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    rules = {rule.id for rule in all_rules()}
    halves = importlib.import_module("truth").halves()
    later = {"fresh", "blind", "last", "unseen", "outside", "beyond", "afield", "anew"}
    assert set(halves.values()) == {"tuned", "held-out", *later}
    for part in later:
        assert {name for name, half in halves.items() if half == part} == {
            n for n in halves if n.startswith(f"{part}.")
        }
    for name in halves:
        labels = importlib.import_module(f"labels.{name}")
        assert len({call.make.__name__ for call in labels.CALLS}) == len(labels.CALLS), name
        named = {rule for call in labels.CALLS for bug in call.bugs for rule in bug.rules}
        named |= {rule for call in labels.CALLS for rule in (*call.doubtful, *call.judged)}
        assert named <= rules, (name, named - rules)


class Cubed(torch.autograd.Function):
    """x³ with a factor in its backward, and y, whose cotangent is dropped."""

    @staticmethod
    def forward(ctx, x, factor, y):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x**3, y.clone()

    @staticmethod
    def backward(ctx, dx, _):
        (x,) = ctx.saved_tensors
        return ctx.factor * x**2 * dx, None, None


@pytest.mark.parametrize(("factor", "is_right"), [(3.0, True), (3.0003, False)])
def test_calls_of_kernels_are_compared_with_differences(monkeypatch, factor, is_right):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    calls, wild = map(importlib.import_module, ("kernel_calls", "kernels_in_the_wild"))
    make = lambda: {"x": calls.normal(5, scale=1e-3), "factor": factor, "y": calls.normal(3)}  # noqa: E731
    error, bar, first, second, _ = wild._compared(Cubed.apply, calls.arguments(Cubed, make))
    assert bar < 1e-9
    assert error > 0.5  # y's
    assert second == "right"  # the derivative of the gradient as it is
    assert (first < 1e-9) == is_right
    if not is_right:
        assert first == pytest.approx(1e-4, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "second"), [(torch.Tensor.detach, "omitted"), (lambda x: 2 * x - x.detach(), "wrong")]
)
def test_second_derivative_of_a_call_is_compared_with_differences(monkeypatch, change, second):
    class Slope(Cubed):
        @staticmethod
        def backward(ctx, dx, _):
            (x,) = ctx.saved_tensors
            return 3 * change(x) ** 2 * dx, None, None

    monkeypatch.syspath_prepend(str(BENCHMARKS))
    calls, wild = map(importlib.import_module, ("kernel_calls", "kernels_in_the_wild"))
    make = lambda: {"x": calls.normal(5), "factor": 3.0, "y": calls.normal(3)}  # noqa: E731
    assert wild._compared(Slope.apply, calls.arguments(Slope, make))[3] == second


def test_every_call_of_a_kernel_makes_arguments(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    calls = importlib.import_module("kernel_calls")
    unsloth = {name: make for name, make in calls.UNSLOTH.items() if name not in calls.MADE_BY_THE_PACKAGE}
    tables = {**calls.LIGER, **calls.FLA, **unsloth, **calls.XFORMERS, **calls.MAMBA, **calls.ATTORCH}
    assert calls.MEANT.keys() <= tables.keys()
    assert not calls.SKIPPED.keys() & tables.keys()
    for name, make in tables.items():
        made = make()
        values = made.values() if isinstance(made, dict) else made
        assert any(isinstance(x, torch.Tensor) and x.requires_grad for x in values), name


def test_every_past_fault_of_a_kernel_has_calls_and_a_sign(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    faults = importlib.import_module("kernel_faults")
    rules = {rule.id for rule in all_rules()}
    assert len({fault.name for fault in faults.FAULTS}) == len(faults.FAULTS)
    for fault in faults.FAULTS:
        for pattern in (fault.sign, *fault.known, *faults.KNOWN):
            assert set(re.findall(r"PB\d{3}", re.compile(pattern).pattern)) <= rules
        for make in fault.calls.values():
            made = make()
            values = made.values() if isinstance(made, dict) else made
            assert any(isinstance(x, torch.Tensor) and x.requires_grad for x in values), fault.name


def test_only_its_own_finding_shows_a_past_fault_and_what_is_known_accuses_nobody(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    replay, faults = importlib.import_module("kernel_replay"), importlib.import_module("kernel_faults")
    row = importlib.import_module("kernel_audits").Row
    fault = faults.Fault(
        "FLA", "0", "m:F", "the gradient of k", r"PB101: the gradient of k\b", dict, telling=dict,
        known={r"PB502": "another fault"},
    )  # fmt: skip
    other, own = "error PB101: the gradient of q is 1", "error PB101: the gradient of k is 1"
    strided = "error PB502: changes"

    def shown(**messages):
        rows = {
            (fault.name, *key.split("_")): row(fault.name, "wrong", messages=list(found))
            for key, found in messages.items()
        }
        return replay._before(fault, rows), replay._after(fault, rows)

    assert shown(natural_before=[own], natural_after=[strided]) == ("found: PB101", "confirmed: PB502")
    assert shown(natural_before=[other], telling_before=[own], natural_after=[]) == (
        "with the call of the commit's test: PB101", "–"
    )  # fmt: skip
    assert shown(natural_before=[other, strided], natural_after=[other, strided]) == (
        "missed", "false positive: PB101; confirmed: PB502"
    )  # fmt: skip
