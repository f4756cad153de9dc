"""Functions that launch Triton kernels are audited without a GPU; no other audit imports Triton or the interpreter."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import pullback
from pullback.check import kernel_runs
from pullback.check.case import make_case
from pullback.check.cases.sizes import around_blocks, even, keeps_ratios, keeps_sizes, parted_sizes, resized
from pullback.check.find.discover import discover
from pullback.check.find.kernels import _file_uses_triton, _module_uses_triton
from pullback.check.numeric.scaled import _changes
from pullback.check.rules.pb506_tail_mishandled import _fits as fits_tail
from pullback.check.rules.pb908_unreached_branch import _missed
from pullback.check.run_audit import unaudited
from pullback.check.subject import Subject
from pullback.report.model import Location

from .making import audit_of, function, normal

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("swish_by_triton.py")
needs_interpreter = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or torch.accelerator.is_available(), reason="no Triton, or a GPU"
)
X = torch.linspace(-2, 2, 19, dtype=torch.float64)
QUICK = ("PB101", "PB119", "PB411", "PB901", "PB902", "PB903", "PB904", "PB905")


def reported(report):
    return {(finding.rule, finding.severity) for finding in report.findings if finding.severity != "info"}


def printed_by(code):
    """Run a script from the root; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False, timeout=120,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_interpreter
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Swish", set()),
        ("WrongFormula", {("PB101", "error")}),
        ("WrongTail", {("PB101", "error")}),
        ("OutOfBounds", {("PB901", "error")}),
        ("WrongOrder", {("PB902", "error")}),
        ("WithoutPadding", {("PB904", "warning")}),
    ],
)
def test_function_of_a_file(name, expected):
    report = pullback.check(f"{FILE}:{name}", X, select=QUICK, budget=3)
    assert reported(report) == expected
    assert not [finding for finding in report.findings if finding.verdict == "unaudited"]


def the_error(report):
    (found,) = [finding for finding in report.findings if finding.severity == "error"]
    return found


PAIRS = """
import torch, triton, triton.language as tl


@triton.jit
def weigh_kernel(x, labels, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    label = tl.load(labels + i, mask=i < n, other=0)
    tl.store(y + i, tl.load(x + i) * (1.0 + label), mask=i < n)


class Weighed(torch.autograd.Function):
    @staticmethod
    def compute(x, labels):
        y = torch.empty_like(x)
        weigh_kernel[(triton.cdiv(x.numel(), 16),)](x, labels, y, x.numel(), BLOCK=16)
        return y

    @staticmethod
    def forward(ctx, x, labels):
        ctx.save_for_backward(labels)
        return Weighed.compute(x.contiguous(), labels.contiguous())

    @staticmethod
    def backward(ctx, g):
        return Weighed.compute(g.contiguous(), *ctx.saved_tensors), None


def inputs():
    return [((torch.randn(n), torch.arange(n) % 3), {}) for n in SIZES]
"""


SAVED = """
import torch, triton, triton.language as tl


@triton.jit
def double_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, 2 * tl.load(x + i, mask=i < n, other=0.0), mask=i < n)


def doubled(x):
    x, y = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    double_kernel[(triton.cdiv(x.numel(), 16),)](x, y, x.numel(), BLOCK=16)
    return y


class InBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y * y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return doubled(g * y * y)


class InForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y, z = x.exp(), x.square()
        ctx.save_for_backward(x, y, z)
        return doubled(y * z)

    @staticmethod
    def backward(ctx, g):
        x, y, z = ctx.saved_tensors
        return 2 * g * (y * z + 2 * x * y)
"""


@needs_interpreter
@pytest.mark.parametrize(
    ("name", "cause", "hint"),
    [
        ("InBackward", "; its backward launches kernels, which PyTorch does not differentiate", "is_grad_enabled"),
        ("InForward", "; it uses 2 saved tensors that are neither inputs nor outputs", "recompute the rest"),
    ],
)
def test_second_derivative_is_lost_in_kernels_or_in_saved_tensors(tmp_path, name, cause, hint):
    (tmp_path / "saved.py").write_text(SAVED)
    found = the_error(pullback.check(f"{tmp_path}/saved.py:{name}", X, select=("PB404",), budget=3))
    assert cause in found.message
    assert hint in found.hint


@needs_interpreter
@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "status"), [("(16,)", 0), ("(16, 17)", 1)])
def test_further_given_calls_have_their_accesses_checked(tmp_path, sizes, status):
    (tmp_path / "pairs.py").write_text(PAIRS.replace("SIZES", sizes))
    command = [sys.executable, "-m", "pullback", "check", "pairs.py", "--inputs", "pairs.py:inputs"]
    done = subprocess.run([*command, "--select", "PB901"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr


@needs_interpreter
@pytest.mark.slow
@pytest.mark.parametrize(("make", "rules"), [("zeros", set()), ("empty", {"PB101", "PB903"})])
def test_guessed_weight_is_a_row_of_floats_also_where_its_gradient_is_unwritten(tmp_path, make, rules):
    text = (FILE.parent / "triton_functions" / "right" / "rms_norm.py").read_text()
    for old, new in {"if weight.shape != (n,):": "if False:", "dw = torch.zeros(": f"dw = torch.{make}("}.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "norm.py").write_text(text)
    report = pullback.check(f"{tmp_path}/norm.py:RMSNorm", select=("PB101", "PB903", "PB905"), budget=5)
    found = [finding for finding in report.findings if finding.severity != "info"]
    assert {finding.rule for finding in found} == rules, str(report)
    assert all(re.search(r"weight = torch\.tensor\(\[-?\d", finding.reproduce) for finding in found)


EVEN = """
import torch, triton, triton.language as tl


@triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["width"])
@triton.heuristics({"EVEN": lambda args: args["width"] % DIVISOR == 0})
@triton.jit
def sum_kernel(x, y, width, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = 0.0
    for start in range(0, width, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x + row * width + i, mask=(i < width) | EVEN, other=0.0))
    tl.store(y + row, total)


class RowSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.width = x.shape[1]
        y = x.new_empty(len(x))
        sum_kernel[(len(x),)](x.contiguous(), y, ctx.width)
        return y

    @staticmethod
    def backward(ctx, g):
        return g[:, None].expand(-1, ctx.width)


def inputs():
    return (INPUT,)
"""
CANCELLING = "torch.linspace(-2, 2, 19, dtype=torch.float64)[None]"  # its sum is 0, or a rounding error


@needs_interpreter
@pytest.mark.slow
@pytest.mark.parametrize(
    ("divisor", "x", "rules"),
    [
        ('args["BLOCK"]', "torch.randn(3, 5)", []),
        ('args["BLOCK"]', CANCELLING, []),
        ("16", "torch.randn(3, 5)", ["PB905"]),
    ],
)
def test_masks_left_out_where_16_divides_a_size_and_a_later_block_does_not(tmp_path, divisor, x, rules):
    (tmp_path / "rows.py").write_text(EVEN.replace("DIVISOR", divisor).replace("INPUT", x))
    command = [sys.executable, "-m", "pullback", "check", "rows.py", "--inputs", "rows.py:inputs", "--format", "json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert [f["rule"] for f in json.loads(done.stdout)["findings"] if f["severity"] == "error"] == rules


FAST = """
import torch, triton, triton.language as tl


@triton.jit
def scale_kernel(x, y, rows, columns, R: tl.constexpr, C: tl.constexpr, EVEN: tl.constexpr):
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.program_id(1) * C + tl.arange(0, C)
    at = row[:, None] * columns + column[None, :]
    if EVEN:
        tl.store(y + at, 2 * tl.load(x + at))
    else:
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        tl.store(y + at, 2 * tl.load(x + at, mask=inside, other=0.0), mask=inside)


def scaled(x):
    y, (rows, columns) = torch.empty_like(x), x.shape
    grid = (triton.cdiv(rows, 16), triton.cdiv(columns, 16))
    scale_kernel[grid](x, y, rows, columns, 16, 16, EVEN=CONDITION)
    return y


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return scaled(x.contiguous())

    @staticmethod
    def backward(ctx, g):
        if torch.is_grad_enabled():
            raise NotImplementedError("no second derivative")
        return scaled(g.contiguous())


def inputs():
    return (torch.randn(32, 48),)
"""


@needs_interpreter
@pytest.mark.slow
@pytest.mark.parametrize(
    ("condition", "rules"), [("rows % 16 == 0", {"PB901"}), ("rows % 16 == 0 and columns % 16 == 0", set())]
)
def test_fast_path_whose_condition_forgets_a_size(tmp_path, condition, rules):
    """Other sizes of the rows avoid it, but are no remedy."""
    (tmp_path / "twice.py").write_text(FAST.replace("CONDITION", condition))
    command = [sys.executable, "-m", "pullback", "check", "twice.py", "--inputs", "twice.py:inputs", "--format", "json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert {f["rule"] for f in json.loads(done.stdout)["findings"] if f["severity"] == "error"} == rules


TUNED = """
import torch, triton, triton.language as tl


@triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"], RESET)
@triton.jit
def sum_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y, tl.sum(tl.load(x + i, mask=i < n, other=0.0)))


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        y = x.new_zeros(())
        sum_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x.contiguous(), y, x.numel())
        return y

    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.shape)
"""


@needs_interpreter
@pytest.mark.parametrize(
    ("reset", "rules"),
    [
        ("", ["the result when the autotuner benchmarks the kernel first is not that of a later call"]),
        ('reset_to_zero=["y"]', []),
    ],
)
def test_benchmark_of_an_autotuner_that_adds_to_the_result(tmp_path, reset, rules):
    (tmp_path / "sums.py").write_text(TUNED.replace("RESET", reset))
    report = pullback.check(f"{tmp_path}/sums.py:Sum", X + 1, select="PB905", budget=3)
    assert [f.message.partition(":")[0] for f in report.findings if f.severity == "error"] == rules, str(report)


@needs_interpreter
def test_first_call_of_a_counter_that_is_not_reset():
    file = FILE.with_name("triton_variants.py")
    assert not reported(pullback.check(f"{file}:Counted", X[:5], select="PB120", budget=3))
    found = the_error(pullback.check(f"{file}:CountedOnce", X[:5], select="PB120", budget=3))
    what = "equal calls after the first one in a process return another output 0: expected -4, got 0 at [0]"
    assert found.message == what
    first, second = printed_by(found.reproduce).split("second:")
    assert "-4." in first
    assert "-4." not in second


@needs_interpreter
def test_wrong_gradient_is_located_where_a_kernel_stores_it():
    found = the_error(pullback.check(f"{FILE}:WrongFormula", X, select="PB101", budget=3))
    line = found.location.line
    assert "tl.store(dx + i, g * slope" in FILE.read_text().splitlines()[line - 1]
    assert found.message.endswith(f"; kernel backward_kernel stores it ({FILE.name}:{line})")


@needs_interpreter
def test_wrong_gradient_that_no_kernel_stores_is_located_at_the_backward(tmp_path):
    call = "return Swish.differentiate(*ctx.saved_tensors, dy)"
    file = tmp_path / "scaled.py"
    file.write_text(FILE.read_text().replace(call, call.replace("return ", "return 1.5 * ")))
    found = the_error(pullback.check(f"{file}:Swish", X, select="PB101", budget=3))
    assert "def backward" in file.read_text().splitlines()[found.location.line - 1]
    assert "stores it" not in found.message


@needs_interpreter
@pytest.mark.parametrize(("name", "expected"), [("Swish", set()), ("OutOfBounds", {("PB901", "error")})])
def test_live_function_is_interpreted_in_its_process(name, expected):
    from . import swish_by_triton

    report = pullback.check(getattr(swish_by_triton, name), X, select=QUICK, budget=3)
    assert reported(report) == expected
    with pytest.raises(TypeError, match="on a GPU"):  # this process has not entered
        swish_by_triton.Swish.apply(X)


@needs_interpreter
@pytest.mark.parametrize(
    ("name", "inputs", "expected"),
    [
        ("Gated", (), set()),
        ("GatedBlocks", (), {("PB101", "error")}),
        ("Labelled", (), set()),
        ("LabelledAll", (), {("PB101", "error")}),
        ("Affine", (), set()),
        ("WrongAffine", (), {("PB101", "error")}),
        ("Narrow", (X[:5].bfloat16(),), set()),
        ("Doubled", (X[:5],), set()),
        ("DoubledInOneBlock", (X[:5],), {("PB101", "error")}),
    ],
)
def test_calls_that_no_example_makes(name, inputs, expected, request):
    if name == "Narrow":  # with more time it is also called with float32, and a warning says that its backward raises
        request.getfixturevalue("budgets_as_given")
    file = FILE.with_name("triton_variants.py")
    report = pullback.check(f"{file}:{name}", *inputs, select=("PB101", "PB119"), budget=10)
    assert reported(report) == expected, str(report)


@needs_interpreter
def test_other_strides_are_no_want_of_a_larger_size():
    """A contiguous input of another size leaves no bounds, but has other strides."""
    file = FILE.with_name("triton_variants.py")
    report = pullback.check(f"{file}:StridesOfTheInput", torch.randn(2, 3, 10), select=("PB1", "PB9"), ignore="PB906")
    out_of_bounds = [f for f in report.findings if f.rule == "PB901" and f.severity == "error"]
    assert "store of" in out_of_bounds[0].message
    assert ("PB101", "error") in reported(report)


HALF = torch.linspace(-2, 2, 12).reshape(2, 6).bfloat16()


@needs_interpreter
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_wrong_gradient_of_host_code_that_takes_16_bits_alone(dtype):
    file = FILE.with_name("triton_variants.py")
    found = the_error(pullback.check(f"{file}:WrongHalfGated", HALF.to(dtype), select="PB101", budget=10))
    assert found.rule == "PB101"
    assert f"interpreter.present({dtype})" in found.reproduce.splitlines()
    said = re.search(r"gradient (\S+) and finite difference (\S+)", printed_by(found.reproduce))
    gradient, quotient = map(float, said.groups())
    assert gradient == pytest.approx(-quotient, rel=1e-6)


@needs_interpreter
@pytest.mark.parametrize(("name", "expected"), [("HalfGated", set()), ("WrongHalfGated", {("PB101", "error")})])
@pytest.mark.parametrize("inputs", [(HALF,), ()])
def test_host_code_that_takes_16_bits_alone(name, expected, inputs):
    file = FILE.with_name("triton_variants.py")
    report = pullback.check(f"{file}:{name}", *inputs, select=("PB1", "PB901", "PB903", "PB907"), budget=10)
    assert reported(report) == expected, str(report)
    assert not [f for f in report.findings if f.rule == "PB101" and f.verdict == "inconclusive"]


@needs_interpreter
def test_guess_for_host_code_that_takes_float16_alone():
    file = FILE.with_name("triton_variants.py")
    found = the_error(pullback.check(f"{file}:WrongFloat16Gated", select="PB101", budget=10))
    assert "interpreter.present(torch.float16)" in found.reproduce.splitlines()


@needs_interpreter
def test_host_code_that_takes_float32_is_shown_it():
    file = FILE.with_name("triton_variants.py")
    found = the_error(pullback.check(f"{file}:WrongAffine", HALF, HALF[0], HALF[1], select="PB101", budget=5))
    assert "dtype=torch.float64" in found.reproduce
    assert "interpreter.present" not in found.reproduce


@needs_interpreter
def test_each_audit_of_a_process_begins_with_float32():
    printed = printed_by("""
from pullback import interpreter
interpreter.enter()
import torch
from pullback.check.find.discover import subject_of
from pullback.check.run_audit import run_audit
from pullback.check.subject import Options
from tests.check.making import Silent
from tests.check.triton_variants import Gated, HalfGated
for function in (HalfGated, Gated):
    run_audit(subject_of(function), Options(select=("PB119",)), [((torch.randn(2, 6).bfloat16(),), {})], Silent())
    print(interpreter.presented())
""")
    assert printed.split() == ["torch.bfloat16", "torch.float32"]


@needs_interpreter
@pytest.mark.parametrize(
    ("x", "labels"),
    [
        (X.abs(), ["inputs times 1", "x times 10", "x times 30", "inputs times 100"]),
        (X.sigmoid(), ["inputs times 1"]),
        (X / X.norm(), ["inputs times 1"]),
    ],
)
def test_numbers_that_a_kernel_may_rely_on_are_not_scaled(x, labels):
    subject = Subject("Op", "function", None, Location("op.py", 1), is_interpreted=True)
    base = case(x)
    assert [change(base, amount).label for change, amount, _ in _changes(subject, base)] == labels


@needs_interpreter
def test_gradient_that_no_kernel_wrote_is_told():
    report = pullback.check(f"{FILE.with_name('triton_variants.py')}:GatedBlocks", select="PB101", budget=10)
    assert any("memory that no kernel wrote" in finding.message for finding in report.findings)


@pytest.mark.parametrize(
    ("axes", "told"),
    [
        (["one"], "`forward_kernel` (swish_by_triton.py:{}) never has two programs along axis 0"),
        (["one", "several"], ""),
    ],
)
def test_axis_that_never_has_two_programs_is_told(axes, told):
    line = 1 + FILE.read_text().splitlines().index("def forward_kernel(x, y, n, BLOCK: tl.constexpr):")
    ways = {f"{many} along axis 0" for many in axes} | {"one along axis 1", "one along axis 2"}
    assert _missed(str(FILE), line, ways) == told.format(line)


@needs_interpreter
def test_ops_and_their_backwards_are_interpreted():
    report = pullback.check(str(FILE.with_name("triton_ops.py")), select=("PB101", "PB9"), budget=5)
    status = {subject.name.partition("::")[2]: subject.status for subject in report.subjects}
    assert status["sine"] in ("ok", "inconclusive")  # where the time does not suffice for each way
    assert status["wrong_sine"] == "wrong"
    assert [found.rule for found in report.findings if found.severity == "error"] == ["PB101"]


@needs_interpreter
def test_nan_of_excess_lanes_is_an_error():
    x = torch.rand(2, 5, dtype=torch.float64) + 0.1
    (found,) = (f for f in pullback.check(f"{FILE}:Entropy", x, select="PB101", budget=3).findings if f.rule == "PB101")
    assert (found.severity, found.message) == (
        "error", "the output is not finite on the example, and finite with size 5 -> 8"
    )  # fmt: skip


@needs_interpreter
def test_search_leads_kernels_to_a_branch_in_the_second_round_of_a_loop():
    x = torch.randn(2, 3, dtype=torch.float64)
    report = pullback.check(f"{FILE}:WrongFarAway", x, select=("PB101", "PB908"), budget=20)
    (wrong,) = (finding for finding in report.findings if finding.severity == "error")
    assert wrong.rule == "PB101"
    assert re.search(r"is_halved = True, size 3 -> \d+|size 3 -> \d+, is_halved = True", wrong.message)
    assert not [finding for finding in report.findings if finding.rule == "PB908"]


def test_search_leaves_out_runs_that_take_too_long(monkeypatch):
    audit, runs = audit_of(function(torch.exp, lambda g, x: g * x.exp()), normal(2, 3)), []
    monkeypatch.setattr(kernel_runs, "run_in_world", lambda _, case: runs.append(case.values[0].shape[1]))
    per_element = audit.options.budget / 10_000
    monkeypatch.setattr(kernel_runs, "Stopwatch", lambda: SimpleNamespace(seconds=lambda: per_element * runs[-1]))
    search = kernel_runs._Search(audit)
    for size in (100, 900, 1100, 950, 2000):
        search._run(resized(audit.base, {3: size}))
    assert runs == [100, 900, 950]


@needs_interpreter
def test_search_goes_beyond_lengths_in_the_source():
    x = torch.randn(2, 5, dtype=torch.float64)
    report = pullback.check(f"{FILE}:WrongBeyondChunk", x, select="PB101", budget=20)
    (wrong,) = (finding for finding in report.findings if finding.severity == "error")
    assert "size 5 -> 129" in wrong.message


@needs_interpreter
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("LeakySum", set()),
        ("WrongState", {("PB101", "error", "the gradient of initial_state")}),
        ("StateLayout", {("PB502", "error", "with a transposed cotangent, the gradient of initial_state")}),
    ],
)
def test_optional_tensors_are_given(name, expected):
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    report = pullback.check(f"{FILE}:{name}", x, select=("PB1", "PB502", "PB901"), budget=20)
    found = {(f.rule, f.severity, f.message.split(" changes")[0].split("[")[0]) for f in report.findings}
    assert {one for one in found if one[1] in ("error", "warning")} == expected
    messages = [f.message for f in report.findings if f.severity == "error"]
    assert all("a tensor of shape (2, 5) for initial_state" in message for message in messages)


@needs_interpreter
@pytest.mark.parametrize(
    ("name", "inputs", "expected"),
    [
        ("Decayed", (torch.randn(14), -torch.rand(14)), None),
        ("NaivelyDecayed", (torch.randn(14), -torch.rand(14)), "with gates times"),
        ("NaiveSoftplus", (torch.randn(14),), "it begins at x = 88.7"),
    ],
)
def test_overflow_of_float32_that_float64_hides(name, inputs, expected):
    inputs = [x.double() for x in inputs]
    report = pullback.check(f"{FILE}:{name}", *inputs, select=("PB101", "PB301"), budget=20)
    found = [f for f in report.findings if f.severity in ("error", "warning")]
    assert all(f.rule == "PB301" and expected in f.message for f in found)
    assert bool(found) == (expected is not None)
    for finding in found:
        assert "nan and should be" in printed_by(finding.reproduce) or "inf" in printed_by(finding.reproduce)


@needs_interpreter
def test_operation_on_two_dtypes_under_autocast_is_a_warning():
    inputs = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    report = pullback.check(f"{FILE}:TwoDtypes", *inputs, select=("PB101", "PB413"), budget=20)
    (found,) = (f for f in report.findings if f.severity != "info")
    assert (found.rule, found.severity) == ("PB413", "warning")
    assert re.match(r"raises under torch.autocast.*mat1 and mat2 must have the same dtype", found.message)


@needs_interpreter
@pytest.mark.parametrize(("name", "expected"), [("Levels", set()), ("LevelsPastTheEnd", {("PB901", "error")})])
def test_a_size_that_the_logarithm_of_another_bounds_does_not_stay(name, expected):
    x, w = torch.randn(11, dtype=torch.float64), torch.randn(5, dtype=torch.float64)  # ⌈log₂ 11⌉ + 1 levels
    report = pullback.check(f"{FILE}:{name}", x, w, select=("PB101", "PB901"), budget=10)
    errors = [finding for finding in report.findings if finding.severity == "error"]
    assert {(finding.rule, finding.severity) for finding in errors} == expected
    assert all("of x, whose storage" in finding.message for finding in errors)


@needs_interpreter
@pytest.mark.parametrize(("name", "expected"), [("SortedRows", 0), ("SortedRowsIn32Bits", 1)])
def test_offsets_of_loaded_rows_overflow(name, expected):
    x = torch.randn(6, 20, dtype=torch.float64)
    report = pullback.check(f"{FILE}:{name}", x, select="PB906", budget=5)
    found = [finding.message for finding in report.findings if finding.rule == "PB906"]
    assert len(found) == expected
    # The last row of 2³¹ elements and more, as int32 holds its offset.
    rows = -(-(2**31 + 2**27) // 20)
    first = int(torch.tensor((rows - 1) * 20).to(torch.int32))
    assert all(f"the first at index {first} of x" in message for message in found)


@needs_interpreter
@pytest.mark.slow
def test_a_loop_with_as_many_rounds_as_there_are_rows_is_left_out():
    x = torch.randn(6, 5, dtype=torch.float64)
    report = pullback.check(f"{FILE}:ScaledInChunks", x, select="PB906", budget=5)
    assert {finding.rule for finding in report.findings} <= {"PB006"}


@needs_interpreter
def test_a_name_without_a_value_is_an_error_with_an_option_too():
    report = pullback.check(f"{FILE}:WithoutFactor", X, select="PB119", budget=5)
    assert reported(report) == {("PB119", "error")}
    (message,) = (finding.message for finding in report.findings if finding.severity == "error")
    assert message.endswith("the name 'factor' is not defined here (with is_doubled = False)")


@needs_interpreter
@pytest.mark.parametrize(("name", "expected"), [("Gated", set()), ("GatedPastTheEnd", {("PB901", "error")})])
def test_an_even_size_that_becomes_odd_may_have_no_halves(name, expected):
    x = torch.randn(3, 14, dtype=torch.float64)
    assert reported(pullback.check(f"{FILE}:{name}", x, select=("PB1", "PB901", "PB902"), budget=20)) == expected


@needs_interpreter
def test_a_length_does_not_outgrow_a_table():
    x, table = torch.randn(5, 3, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    report = pullback.check(f"{FILE}:TimesPositions", x, table, select=("PB1", "PB901"), budget=20)
    assert {one for one in reported(report) if one[1] == "error"} == set()


@needs_interpreter
@pytest.mark.parametrize(("name", "expected"), [("TimesBlocks", set()), ("WrongTimesBlocks", {("PB101", "error")})])
def test_a_number_of_blocks_follows_the_length(name, expected):
    x, w = torch.randn(2, 11, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    file = FILE.with_name("triton_relations.py")
    assert reported(pullback.check(f"{file}:{name}", x, w, 4, select=("PB1", "PB901", "PB902"), budget=4)) == expected


@needs_interpreter
@pytest.mark.parametrize(("name", "expected"), [("Shifted", set()), ("SqueezedShifted", {("PB104", "error")})])
def test_gradient_has_the_shape_of_a_bias_that_fits(name, expected):
    x, bias = torch.randn(5, 2, 16, dtype=torch.float64), torch.randn(32, dtype=torch.float64)
    file = FILE.with_name("triton_relations.py")
    assert reported(pullback.check(f"{file}:{name}", x, bias, select=("PB1", "PB901", "PB902"), budget=4)) == expected


@needs_interpreter
@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("TimesStart", (3, 1, 5), set()),
        ("TimesKey", (3, 1, 5), set()),
        ("TimesFirstKey", (3, 1, 5), {("PB101", "error")}),
    ],
)
def test_a_size_of_1_that_stays_1(name, shape, expected):
    x, second = torch.randn(3, 4, 5, dtype=torch.float64), torch.randn(*shape, dtype=torch.float64)
    file = FILE.with_name("triton_relations.py")
    report = pullback.check(f"{file}:{name}", x, second, select=("PB1", "PB901", "PB902"), budget=4)
    assert reported(report) == expected, str(report)


@needs_interpreter
@pytest.mark.parametrize("is_interpreted", [True, False])
def test_smaller_calls_of_kernels_keep_sizes_that_fit_each_other(is_interpreted):
    audited = audit_of(lambda x, bias: (x.flatten(1) + bias).square(), normal(5, 2, 16), normal(32))
    audited.subject = replace(audited.subject, is_interpreted=is_interpreted)

    def is_too_short(case):
        x, bias = case.tensors
        return bias.numel() < x.shape[1] * x.shape[2]  # then a kernel reads what lies behind the bias

    smaller = audited.shrink(audited.base, is_too_short)
    assert is_too_short(smaller) is not is_interpreted  # PyTorch's own operations would have raised


@needs_interpreter
@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "expected", "label"),
    [
        ("CheckedGates", set(), ""),
        ("Gates", {("PB101", "warning")}, "(with a tensor of shape (5,) for gamma)"),
        ("WrongGamma", {("PB101", "error")}, "(with a tensor of shape (5,) for gamma, gates=None)"),
    ],
)
def test_optional_tensors_that_exclude_each_other(name, expected, label):
    x, gates = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    report = pullback.check(f"{FILE.with_name('triton_relations.py')}:{name}", x, gates, select="PB101", budget=10)
    assert reported(report) == expected
    assert all(label in finding.message for finding in report.findings if finding.severity != "info")


@needs_interpreter
def test_ways_that_no_call_leads_to_are_named():
    report = pullback.check(f"{FILE}:Swish", X, select="PB908", budget=3)
    (told,) = (finding.message for finding in report.findings if finding.rule == "PB908")
    assert re.fullmatch(
        r"some branches of its kernels were never reached: "
        r'`if FAULT == "bounds".*` \(swish_by_triton.py:\d+\) is always false; '
        r'`if FAULT == "formula"` \(swish_by_triton.py:\d+\) is always false',
        told,
    )


@needs_interpreter
def test_callable_is_interpreted_with_its_functions():
    from . import swish_by_triton

    report = pullback.check(swish_by_triton.swish, X, select=("PB101", "PB901"), budget=3)
    assert reported(report) == set()
    assert report.subjects[0].status == "ok"


@needs_interpreter
@pytest.mark.parametrize(("name", "rule"), [("WrongFormula", "PB101"), ("OutOfBounds", "PB901")])
def test_reproduction_needs_no_gpu(name, rule):
    report = pullback.check(f"{FILE}:{name}", X, select=(rule,), budget=3)
    (finding,) = (finding for finding in report.findings if finding.rule == rule)
    assert finding.reproduce.startswith("from pullback import interpreter\ninterpreter.enter()\n")
    printed = printed_by(finding.reproduce)
    if rule == "PB901":
        assert "out-of-bounds" in printed
    else:
        numbers = [float(text) for text in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", printed)]
        assert min(abs(number - finding.evidence.got) for number in numbers) < 1e-9


@needs_interpreter
def test_finding_names_kernel_line_program_and_element():
    report = pullback.check(f"{FILE}:OutOfBounds", X, select=("PB901",), budget=3)
    (finding,) = (finding for finding in report.findings if finding.severity == "error")
    line = next(n for n, text in enumerate(FILE.read_text().splitlines(), 1) if text.endswith("tl.load(dy + i)"))
    assert finding.message.startswith(
        f"kernel backward_kernel (swish_by_triton.py:{line}), program (2, 0, 0): load of "
    )
    assert "at index 19 of dy, whose storage has 19 elements" in finding.message
    assert finding.location.line == line


@needs_interpreter
def test_rules_that_compile_are_left_out():
    report = pullback.check(f"{FILE}:Swish", select=("PB101", "PB4"), budget=2)
    assert not [finding for finding in report.findings if finding.rule in ("PB409", "PB410", "PB415")]
    assert [f.message for f in report.findings if "rules that compile or export" in f.message]


def test_other_code_imports_neither_triton_nor_the_interpreter(tmp_path):
    path = tmp_path / "plain.py"
    path.write_text(
        "import sys\nimport torch\n\nassert 'triton' not in sys.modules, 'Triton'\n\n\n"
        "class Twice(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n"
        "        assert 'pullback.interpreter' not in sys.modules  # PyTorch's compiler imports Triton\n"
        "        return 2 * x\n\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return 2 * g\n"
    )
    code = f"""
import sys, pullback
report = pullback.check({str(path)!r}, select="PB101")
print([subject.status for subject in report.subjects], {{"triton", "pullback.interpreter"}} & set(sys.modules))
"""
    assert printed_by(code) == "['ok'] set()\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"one.py": "import triton.language as tl\n"}, True),
        ({"one.py": "# triton is not needed\nimport torch\n"}, False),
        ({"one.py": "import two\n", "two.py": "from triton import jit\n"}, True),
        ({"one.py": "from pack.three import f\n", "pack/__init__.py": "", "pack/three.py": "import triton\n"}, True),
        ({"one.py": "try:\n    import triton\nexcept ImportError:\n    triton = None\n"}, True),
        ({"one.py": "import importlib\ntriton = importlib.import_module('triton')\n"}, True),
        ({"one.py": "import torch, two\n", "two.py": "import numpy\nimport one\n"}, False),
        ({"one.py": "not Python\n"}, False),
    ],
)
def test_code_that_uses_triton_is_told_from_its_source(files, expected, tmp_path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert _file_uses_triton(tmp_path / "one.py") is expected


def test_module_of_this_test_uses_no_triton():
    assert not _module_uses_triton(torch.nn.functional)
    assert not _module_uses_triton(sys.modules["pullback.report.model"])


def test_hint_without_triton():
    subject = Subject("Op", "function", None, Location("op.py", 1))
    for why in (
        "could not be imported: ModuleNotFoundError: No module named 'triton'",
        "it needs triton.language, which could not be imported here",
    ):
        assert unaudited(subject, why).hint.endswith("pip install triton")
    assert unaudited(subject, "No module named 'tritonic'").hint == unaudited(subject, "").hint


def test_hint_on_what_is_not_interpreted():
    subject = Subject("Op", "function", None, Location("op.py", 1))
    why = "the given inputs do not work: forward raised UnsupportedError: k (op.py:7): tl.some: not interpreted"
    assert unaudited(subject, why).hint.endswith("audit it on a machine with a GPU")


def test_subject_of_a_plain_file_is_not_interpreted(tmp_path):
    path = tmp_path / "plain.py"
    path.write_text("import torch\n\n\ndef f(x):\n    return x\n")
    (subject,) = discover(f"{path}:f")
    assert not subject.is_interpreted
    assert replace(subject, is_interpreted=True).kind == "callable"


def case(*args):
    return make_case(args, {}, ["x", "w", "n"][: len(args)], "example")


def test_sizes_around_the_largest_block():
    labels = [found.label for found in around_blocks(case(torch.randn(3, 5)), {16, 8, 1024})]
    assert labels == [
        "each size doubled",
        *("size 5 -> 17", "size 3 -> 17"),
        *("size 5 -> 15", "size 3 -> 15"),
        *("size 5 -> 33", "size 3 -> 33"),
        *("size 5 -> 34", "size 3 -> 34"),
        *("size 5 -> 9", "size 3 -> 9"),
    ]
    assert list(around_blocks(case(torch.randn(3, 5)), set())) == []
    large = [found.label for found in around_blocks(case(torch.randn(3, 500)), {512})]
    assert large == [  # not 500 columns 513 times
        "each size doubled", "size 500 -> 513", "size 500 -> 511", "size 500 -> 528",
    ]  # fmt: skip


def test_sizes_that_16_divides_and_the_largest_block_does_not():
    assert [found.label for found in even(case(torch.randn(3, 5)), {16, 64})] == ["size 5 -> 80", "size 3 -> 80"]
    assert list(even(case(torch.randn(3, 5)), {16, 40})) == list(even(case(torch.randn(3, 5)), set())) == []


@pytest.mark.parametrize("is_interpreted", [True, False])
def test_length_of_a_tail_fits_the_other_sizes_of_kernels(is_interpreted):
    base = case(torch.randn(2, 3, 4), torch.randn(2, 12))
    audit = SimpleNamespace(subject=SimpleNamespace(is_interpreted=is_interpreted), base=base)
    assert fits_tail(audit, resized(base, {2: 37}))
    assert fits_tail(audit, resized(base, {4: 37})) == (not is_interpreted)  # of 12 = 3 * 4


def test_variants_whose_sizes_fit_each_other():
    base = case(torch.randn(3, 5), torch.randn(5), 5)
    assert keeps_sizes(base, base)
    assert keeps_sizes(base, resized(base, {5: 17}))
    assert keeps_sizes(base, base.with_values({0: torch.randn(5, 3).t()}))
    assert not keeps_sizes(base, base.with_values({1: torch.randn(17)}, "w"))
    assert not keeps_sizes(base, base.with_values({1: torch.randn(1)}, "w with size 1"))
    assert not keeps_sizes(base, base.with_values({2: 4}, "n"))
    assert not keeps_sizes(base, resized(base, {5: 0}))
    one_head = case(torch.randn(3, 4), torch.randn(3, 1, 4))
    assert not keeps_sizes(one_head, resized(one_head, {1: 2, 3: 6, 4: 8}))
    assert keeps_sizes(one_head, resized(one_head, {3: 6, 4: 8}))
    grouped = case(torch.randn(3, 2, 7), torch.randn(3, 1, 7))
    assert keeps_sizes(grouped, resized(grouped, {1: 2, 2: 4, 3: 6, 7: 14}))


def test_products_and_indices_do_not_change_alone():
    heads = case(torch.randn(3, 8), torch.randn(2, 4))
    assert not keeps_sizes(heads, resized(heads, {8: 17}))
    shared_key = case(torch.randn(3, 16, 5), torch.randn(3, 1, 5))
    assert keeps_sizes(shared_key, resized(shared_key, {1: 2}))
    assert not keeps_sizes(shared_key, resized(shared_key, {1: 7}))
    numbered = case(torch.randn(3, 8), torch.randn(4), 2)
    assert not keeps_sizes(numbered, resized(numbered, {8: 17}))
    by_chance = case(torch.randn(4, 16), torch.randn(16))
    assert keeps_sizes(by_chance, resized(by_chance, {16: 17}))
    labels = case(torch.randn(3, 5), torch.tensor([0, 4, 2]))
    assert not keeps_sizes(labels, resized(labels, {3: 17}))
    square = case(torch.randn(4, 4))
    assert not any(keeps_sizes(square, found) for found in parted_sizes(square))


def test_a_number_of_blocks_of_a_given_length_follows():
    base = make_case((torch.randn(2, 70, 5), torch.randn(2, 3, 5), 32), {}, ["x", "w", "block_size"], "example")
    shorter = resized(base, {70: 33})
    assert [tuple(t.shape) for t in shorter.all_tensors.values()] == [(2, 33, 5), (2, 2, 5)]
    assert shorter.label == "size 70 -> 33, size 3 -> 2"
    assert keeps_sizes(base, shorter)
    assert keeps_sizes(base, resized(base, {70: 65}))
    assert not keeps_sizes(base, resized(base, {3: 2}))
    assert [tuple(t.shape) for t in resized(base, {70: 140, 3: 6}).tensors] == [(2, 140, 5), (2, 5, 5)]
    heads = make_case((torch.randn(2, 70, 3), torch.randn(2, 3), 32), {}, ["x", "w", "block_size"], "example")
    assert [tuple(t.shape) for t in resized(heads, {70: 33}).tensors] == [(2, 33, 3), (2, 3)]  # no number of blocks
    assert keeps_sizes(heads, resized(heads, {70: 33}))


def test_a_multiple_of_another_size_does_not_change_alone():
    packed = case(torch.randn(3, 8), torch.randn(4))
    assert keeps_ratios(packed, resized(packed, {3: 5}))
    assert keeps_ratios(packed, resized(packed, {4: 6, 8: 12}))
    assert not keeps_ratios(packed, resized(packed, {8: 17}))
