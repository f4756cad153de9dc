"""Candidates with Triton kernels, judged without a GPU."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import pullback
from tests.check.triton_functions.mutants import MUTANTS, RIGHT, source

EXAMPLE = torch.linspace(-2, 2, 66).view(6, 11), 1.5
needs_interpreter = pytest.mark.skipif(torch.accelerator.is_available(), reason="kernels run on the GPU")


@pytest.mark.parametrize(
    ("slug", "verdict"), [pytest.param("", "right", marks=pytest.mark.slow), ("zero_in_maximum", "wrong")]
)
def test_a_kernel_against_a_formula(tmp_path, slug, verdict):
    text = (RIGHT / "softmax.py").read_text()
    if slug:
        (mutant,) = (m for m in MUTANTS if m.name == f"softmax.{slug}")
        text = source(mutant)
    candidate = tmp_path / "candidate.py"
    candidate.write_text(text)
    found = pullback.judge(f"{candidate}:Softmax", f"{RIGHT / 'softmax.py'}:reference", *EXAMPLE, seed=0)
    assert found.verdict == verdict, found
    assert found.computed == "float64"  # the kernels are lifted


KERNEL = """
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def square_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(y + i, a * a, mask=i < n)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        square_kernel[(triton.cdiv(x.numel(), 16),)](x, y, x.numel(), BLOCK=16)
        return y

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g
"""
X = torch.linspace(-2, 2, 35).view(5, 7)


COPY = "x = x.contiguous()"
STORE = "tl.store(y + i, a * a, mask=i < n)"


@pytest.fixture
def judged(tmp_path):
    """Judge the kernel with another store; by default with a guessed example."""

    def judge(store, *inputs, takes="x.dtype"):
        (tmp_path / "reference.py").write_text("def square(x):\n    return x * x\n")
        (tmp_path / "candidate.py").write_text(
            KERNEL.replace(STORE, store).replace(COPY, f"assert x.dtype == {takes}; {COPY}")
        )
        return pullback.judge(f"{tmp_path}/candidate.py:Square", f"{tmp_path}/reference.py:square", *inputs, seed=0)

    assert STORE in KERNEL
    assert COPY in KERNEL
    return judge


@needs_interpreter
@pytest.mark.parametrize(
    ("store", "verdict", "kind", "message"),
    [
        ("tl.store(y + i, a * a, mask=i <= n)", "wrong", "memory", "store out of bounds, at index 35 of y"),
        (
            "tl.store(y + i, a * a, mask=(i < n) & (i > 1))",
            "wrong",
            "memory",
            "2 of 35 elements of output 0 are memory",
        ),
        ("pass", "cheats", "unwritten", "it hands out memory that it never wrote"),
        ("tl.store(y + i, libdevice.rcbrt(a), mask=i < n)", "inconclusive", "not-interpreted", "libdevice.rcbrt"),
    ],
)
def test_what_kernels_do_to_memory(judged, store, verdict, kind, message):
    found = judged(store, X)
    assert (found.verdict, found.reasons[0].kind) == (verdict, kind), found
    assert message in found.reasons[0].message


@needs_interpreter
@pytest.mark.parametrize(("factor", "verdict"), [("1.0", "right"), ("1.001", "wrong")])
def test_kernels_for_16_bits_alone_are_judged_in_float64(judged, factor, verdict):
    # In bfloat16 0.1 % is a quarter of an ulp.
    found = judged(f"tl.store(y + i, a * a * {factor}, mask=i < n)", X.bfloat16(), takes="torch.bfloat16")
    assert (found.verdict, found.declared, found.computed) == (verdict, "bfloat16", "float64"), found
    if verdict == "wrong":
        assert "interpreter.present(torch.bfloat16)" in found.smallest.code
        shown = subprocess.run([sys.executable, "-c", found.smallest.code], capture_output=True, text=True, check=True)
        assert "candidate 4.004, reference 4.0" in shown.stdout


@needs_interpreter
def test_candidate_that_does_not_take_the_guessed_example_is_not_judged(tmp_path, judged):
    found = judged("tl.static_assert(False)")
    assert (found.verdict, found.reasons[0].kind, found.refused) == ("inconclusive", "no-example", ())
    message = found.reasons[0].message
    assert re.match(r"the candidate does not take the guessed example \(x: .*\): .*; give one with", message)
    assert judged("tl.static_assert(False)", X).verdict == "wrong"
    typo = judged("tl.strore(y + i, a * a, mask=i < n)")
    assert (typo.verdict, typo.reasons[0].kind) == ("wrong", "raises"), typo


def wrong_from_three_columns(x):
    if x.shape[-1] < 3:
        raise ValueError("give three columns or more")
    return x * x + (x - x.detach())


def squared(x):
    return x * x


def test_smallest_call_fails_as_the_example_does():
    found = pullback.judge(wrong_from_three_columns, squared, X, seed=0)
    assert (found.verdict, found.smallest.kind) == ("wrong", "gradient"), found
    assert re.fullmatch(r"x: float64\(1, [3-7]\)", found.smallest.inputs)


@needs_interpreter
def test_triton_behind_an_import_that_the_source_does_not_show(tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "hidden_squares.py").write_text(KERNEL)
    (tmp_path / "candidate.py").write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path / 'kernels')!r})\nfrom hidden_squares import Square\n"
    )
    found = pullback.judge(f"{tmp_path}/candidate.py:Square", squared, X, seed=0)
    assert (found.verdict, found.computed) == ("right", "float64"), found


CHECKED = """        if weight.shape != (n,):
            raise ValueError(f"weight needs the size of the last dimension of x, {n}")
"""
ADDED_TO = "dw = torch.zeros(weight.shape, dtype=torch.float32, device=x.device)"


@needs_interpreter
@pytest.mark.parametrize("checked", [CHECKED, ""])
@pytest.mark.parametrize(("added_to", "kinds"), [(ADDED_TO, []), (ADDED_TO.replace("zeros", "empty"), ["memory"])])
def test_guessed_weight_of_a_kernel_is_one_row(tmp_path, checked, added_to, kinds):
    text = (RIGHT / "rms_norm.py").read_text()
    assert CHECKED in text
    assert ADDED_TO in text
    (tmp_path / "candidate.py").write_text(text.replace(CHECKED, checked).replace(ADDED_TO, added_to))
    found = pullback.judge(f"{tmp_path}/candidate.py:RMSNorm", f"{RIGHT / 'rms_norm.py'}:reference", seed=1)
    assert [reason.kind for reason in found.reasons] == kinds, found
    assert found.verdict == ("wrong" if kinds else "right")
    assert any("the example was guessed" in remark for remark in found.remarks) == bool(kinds)


@needs_interpreter
def test_smallest_code_is_a_script_that_shows_the_difference(judged):
    found = judged("tl.store(y + i, 1.25 * a * a, mask=i < n)", X)
    done = subprocess.run([sys.executable, "-c", found.smallest.code], capture_output=True, text=True)
    output, gradient = done.stdout.splitlines()
    assert "candidate" in output, done.stderr
    numbers = [float(text.rsplit(" ", 1)[1]) for text in output.split(",")]
    assert numbers[0] == pytest.approx(1.25 * numbers[1])
    assert gradient.startswith("gradient of x: candidate ")
    assert found.smallest.code.count("import runpy") == 1


def test_kernel_alone_is_not_judged(tmp_path):
    (tmp_path / "candidate.py").write_text(KERNEL)
    found = pullback.judge(f"{tmp_path}/candidate.py:square_kernel", torch.square, X)
    assert (found.verdict, found.reasons[0].kind) == ("wrong", "import"), found
    assert found.reasons[0].message == "square_kernel is a Triton kernel: name the Function that launches it"


@needs_interpreter
def test_kernels_that_round_in_fewer_digits_than_their_inputs_are_wrong(judged):
    rounded = "tl.store(y + i, (a.to(tl.float16) * a.to(tl.float16)).to(tl.float32), mask=i < n)"
    found = judged(rounded, X)
    assert (found.verdict, found.reasons[0].kind) == ("wrong", "precision"), found
    assert "in float32, as the kernels are written, output 0" in found.reasons[0].message
    assert judged(STORE, X).is_right


ADD = """
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n, 0.0) + tl.load(y + i, i < n, 0.0), mask=i < n)


class Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        out = torch.zeros(x.shape, dtype=x.dtype)
        add_kernel[(1,)](x.contiguous(), y.contiguous(), out, x.numel(), BLOCK=1024)
        return out

    @staticmethod
    def backward(ctx, g):
        return g, g
"""


@needs_interpreter
def test_tensors_of_one_shape_reach_beyond_a_block(tmp_path):
    (tmp_path / "candidate.py").write_text(ADD)
    found = pullback.judge(f"{tmp_path}/candidate.py:Add", torch.add, X, X.flip(0), seed=0)
    assert (found.verdict, found.reasons[0].kind) == ("wrong", "size"), found
    (tmp_path / "candidate.py").write_text(ADD.replace("(1,)", "(triton.cdiv(x.numel(), 1024),)"))
    assert pullback.judge(f"{tmp_path}/candidate.py:Add", torch.add, X, X.flip(0), seed=0).is_right


@needs_interpreter
def test_kernels_get_inputs_that_are_sliced_with_a_step(tmp_path):
    flat = torch.linspace(-2, 2, 9), torch.linspace(1, 3, 9)  # of one dimension: there is no transposed call
    blocks = ADD.replace("(1,)", "(triton.cdiv(x.numel(), 1024),)")
    (tmp_path / "candidate.py").write_text(blocks.replace("y.contiguous()", "y"))
    found = pullback.judge(f"{tmp_path}/candidate.py:Add", torch.add, *flat, seed=0)
    assert (found.verdict, found.reasons[0].kind) == ("wrong", "layout"), found
    assert "for inputs sliced with a step" in found.reasons[0].message
    (tmp_path / "candidate.py").write_text(blocks)
    assert pullback.judge(f"{tmp_path}/candidate.py:Add", torch.add, *flat, seed=0).is_right


TOTAL = """
import torch
import triton
import triton.language as tl


@triton.jit
def total_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out, tl.sum(tl.load(x + i, i < n, other=0.0), 0))


class Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.size = x.numel()
        out = torch.empty((), dtype=x.dtype)
        total_kernel[(1,)](x.contiguous(), out, ctx.size, BLOCK=triton.next_power_of_2(ctx.size))
        return out

    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.size)
"""


@needs_interpreter
def test_lanes_that_a_load_leaves_undefined_are_in_no_sum(tmp_path):
    full = torch.linspace(-1, 2, 8)  # a block
    both = f"{tmp_path}/candidate.py:Total", f"{tmp_path}/reference.py:total"
    (tmp_path / "reference.py").write_text("def total(x):\n    return x.sum()\n")
    (tmp_path / "candidate.py").write_text(TOTAL.replace(", other=0.0", ""))
    found = pullback.judge(*both, full, seed=0)
    assert (found.verdict, found.reasons[0].kind) == ("wrong", "memory"), found
    assert "leaves undefined reach the result: output 0 is" in found.reasons[0].message
    done = subprocess.run([sys.executable, "-c", found.smallest.code], capture_output=True, text=True)
    numbers = [float(text.rsplit(" ", 1)[1]) for text in done.stdout.splitlines()[0].split(",")]
    assert numbers[0] > numbers[1] + 900, done.stderr
    (tmp_path / "candidate.py").write_text(TOTAL)
    assert pullback.judge(*both, full, seed=0).is_right


SEGMENTS = """
import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x, scales, offsets, out, width, BLOCK: tl.constexpr):
    part = tl.program_id(1)
    low = tl.load(offsets + part) * width
    high = tl.load(offsets + part + 1) * width
    i = low + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    scale = tl.load(scales + part)
    tl.store(out + i, scale * tl.load(x + i, mask=i < high, other=0.0), mask=i < high)


def scaled(x, scales, offsets, longest):
    out, width = torch.empty_like(x), x.shape[1]
    blocks = triton.cdiv(longest * width, 16)
    scale_kernel[(blocks, scales.numel())](x, scales, offsets, out, width, BLOCK=16)
    return out


class Segments(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scales, offsets, longest):
        x, scales, offsets = x.contiguous(), scales.contiguous(), offsets.contiguous()
        ctx.save_for_backward(x, scales, offsets)
        ctx.longest = longest
        return scaled(x, scales, offsets, longest)

    @staticmethod
    def backward(ctx, g):
        x, scales, offsets = ctx.saved_tensors
        sums = torch.cat([x.new_zeros(1), (g * x).sum(1).cumsum(0)])[offsets.long()]
        return scaled(g.contiguous(), scales, offsets, ctx.longest), sums.diff(), None, None


def by_parts(x, scales, offsets):
    return Segments.apply(x, scales, offsets, x.shape[0])


def by_the_longest(x, offsets, longest):
    return Segments.apply(x, x.new_full((offsets.numel() - 1,), 2.0), offsets, longest)
"""
SEGMENTS_REFERENCE = """
import torch


def by_parts(x, scales, offsets):
    return x * torch.repeat_interleave(scales, offsets.diff().long())[:, None]


def by_the_longest(x, offsets, longest):
    return 2 * x
"""
OFFSETS = torch.tensor([0, 5, 23, 26, 31], dtype=torch.int32)
TOKENS = torch.linspace(-2, 2, 31 * 7).view(31, 7)


@needs_interpreter
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "inputs", "right", "wrong"),
    [
        ("by_parts", (TOKENS, torch.linspace(1, 2, 4), OFFSETS), "scales.numel())]", "min(scales.numel(), 4))]"),
        ("by_the_longest", (TOKENS, OFFSETS, 18), "longest * width, 16)", "min(longest, 18) * width, 16)"),
    ],
    ids=["length", "longest"],
)
def test_offsets_keep_what_the_example_shows_of_them(tmp_path, name, inputs, right, wrong):
    candidate, reference = tmp_path / "candidate.py", tmp_path / "reference.py"
    reference.write_text(SEGMENTS_REFERENCE)
    both = f"{candidate}:{name}", f"{reference}:{name}"
    candidate.write_text(SEGMENTS)
    found = pullback.judge(*both, *inputs, seed=0)
    assert found.is_right, found
    assert not found.refused
    assert right in SEGMENTS
    candidate.write_text(SEGMENTS.replace(right, wrong))  # it stops at the example's number, or length, of parts
    assert pullback.judge(*both, *inputs, seed=0).verdict == "wrong"


@pytest.mark.slow
def test_missing_gradient_is_no_fault_of_the_memory(tmp_path):
    candidate, reference = tmp_path / "candidate.py", tmp_path / "reference.py"
    candidate.write_text(KERNEL + "\n\ndef square(x):\n    return Square.apply(x.detach())\n")
    reference.write_text("def square(x):\n    return x * x\n")
    found = pullback.judge(f"{candidate}:square", f"{reference}:square", torch.linspace(-2, 2, 19), seed=0)
    assert found.verdict == "wrong"
    assert {reason.kind for reason in found.reasons} == {"gradient"}, found


def test_without_triton_nothing_is_decided(tmp_path):
    (tmp_path / "candidate.py").write_text(KERNEL)
    (tmp_path / "reference.py").write_text("def square(x):\n    return x * x\n")
    program = (
        "import sys; sys.modules['triton'] = None; import pullback; "
        "print(pullback.judge('candidate.py:Square', 'reference.py:square', seed=0).verdict)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "inconclusive\n", done.stderr
