"""Audits on an NVIDIA GPU; skipped without one."""

import importlib.util
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch.autograd import Function

import pullback

from .controls import CONTROLS
from .making import normal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]

CUDA = "cuda"
needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="no Triton")


class Cube(Function):
    """x³ of what is on a GPU."""

    @staticmethod
    def forward(ctx, x):
        if not x.is_cuda:
            raise RuntimeError("expected a CUDA tensor")
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class Wrong(Cube):
    """Its gradient misses a factor."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return x**2 * g


class Elsewhere(Cube):
    """Its gradient is on the CPU."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (3 * x**2 * g).cpu()


class Scale(Function):
    """x times a weight."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g * weight, (g * x).sum(0)


class Doubled(Scale):
    """The gradient of its weight is twice what it should be."""

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g * weight, 2 * (g * x).sum(0)


class Layer(nn.Module):
    """Holds the weight of a scale."""

    def __init__(self, function=Scale):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(normal(4))

    def forward(self, x):
        return self.function.apply(x, self.weight)


def loud(report):
    return {f.rule for f in report.findings if f.severity == "error"}


def test_right_function_is_not_accused():
    report = pullback.check(Cube, normal(3, 4).to(CUDA))
    assert report.ok, str(report)
    assert report.subjects[0].status == "ok"


def test_inputs_are_guessed_on_the_gpu():
    report = pullback.check(Cube)
    assert report.ok, str(report)
    assert report.subjects[0].status == "ok"
    assert loud(pullback.check(Wrong)) == {"PB101"}


def test_wrong_function_has_a_reproduction_that_runs():
    report = pullback.check(Wrong, normal(3, 4).to(CUDA))
    (found,) = [f for f in report.findings if f.severity == "error"] or pytest.fail(str(report))
    assert found.rule == "PB101"
    assert "cuda" in found.reproduce
    done = subprocess.run([sys.executable, "-c", found.reproduce], capture_output=True, text=True)
    assert "the gradient is" in done.stdout, done.stderr


def test_gradient_on_the_cpu_is_an_error():
    report = pullback.check(Elsewhere, normal(3, 4).to(CUDA))
    assert "PB105" in loud(report), str(report)


@pytest.mark.parametrize(("function", "told"), [(Scale, set()), (Doubled, {"PB101"})])
def test_weights_of_a_cuda_module_are_compared(function, told):
    report = pullback.check(Layer(function).to(CUDA), normal(3, 4).to(CUDA))
    assert loud(report) == told, str(report)


def test_uncompared_weights_of_a_closure_are_reported():
    weight = normal(4).to(CUDA).requires_grad_()
    report = pullback.check(lambda x: Scale.apply(x, weight), normal(3, 4).to(CUDA))
    assert report.ok, str(report)
    assert any(f.rule == "PB006" and "weights that it holds were not compared" in f.message for f in report.findings)


def test_cpu_example_is_moved_to_the_device_of_the_module():
    report = pullback.check(Layer().to(CUDA), normal(3, 4))
    assert report.ok, str(report)


@pytest.mark.parametrize("control", [pytest.param(c, id=c.name) for c in CONTROLS])
def test_controls_are_not_accused_on_the_gpu(control):
    inputs = [x.to(CUDA) if isinstance(x, torch.Tensor) else x for x in control.inputs()]
    report = pullback.check(control.target, *inputs)
    assert not [f for f in report.findings if f.severity == "error"], str(report)


TRITON = """
import torch, triton
import triton.language as tl


@triton.jit
def _sin(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.sin(tl.load(x + at, mask=at < n)), mask=at < n)


@triton.jit
def _slope(x, g, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    slope = tl.FACTOR(tl.load(x + at, mask=inside))
    tl.store(out + at, tl.load(g + at, mask=inside) * slope, mask=inside)


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        if x.numel():
            _sin[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y

    @staticmethod
    def backward(ctx, g):
        if torch.is_grad_enabled():
            raise NotImplementedError("no second derivative")
        (x,) = ctx.saved_tensors
        g = g.contiguous()
        out = torch.empty_like(x)
        if x.numel():
            _slope[(triton.cdiv(x.numel(), 64),)](x, g, out, x.numel(), BLOCK=64)
        return out
"""


@needs_triton
@pytest.mark.parametrize(("factor", "status"), [("cos", "ok"), ("sin", "wrong")])
def test_triton_kernels_are_audited_from_the_command_line(tmp_path, factor, status):
    (tmp_path / "kernels.py").write_text(TRITON.replace("FACTOR", factor))
    command = [sys.executable, "-m", "pullback", "check", "kernels.py", "--format", "json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == (0 if status == "ok" else 1), done.stdout + done.stderr


PROGRAM = """
import torch
from pullback.testing import assert_sound
from kernels import Sine

x = torch.randn(8, device="cuda", requires_grad=True)
torch.compile(lambda x: x.sin().sum())(x).backward()
try:
    assert_sound(Sine, torch.randn(3, 4, device="cuda"))
except AssertionError as error:
    print("unsound:", error)
torch.cuda.synchronize()
print("still here", float(x.grad.sum()))
"""


@needs_triton
@pytest.mark.parametrize("factor", ["cos", "sin"])
def test_training_program_survives_an_audit(tmp_path, factor):
    (tmp_path / "kernels.py").write_text(TRITON.replace("FACTOR", factor))
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True)
    assert ("unsound" in done.stdout) == (factor == "sin"), done.stdout + done.stderr
    assert "still here" in done.stdout


class Lost(Function):
    """Indexes past the end, on the GPU: from then on every call of its process fails."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.flatten()[torch.arange(x.numel(), device=x.device) + 10_000].view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g


def test_gpu_fault_ends_only_its_own_audit():
    lost, right = (pullback.check(target, normal(3, 4).to(CUDA)) for target in (Lost, Cube))
    assert not lost.ok
    assert right.ok, str(right)
    assert float(torch.ones(3, device=CUDA).sum()) == 3
