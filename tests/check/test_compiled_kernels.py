"""Kernels that run on a device are compared with the same kernels interpreted: on a stand-in for a GPU."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pullback.check.find.kernels import WITHOUT_GPU
from pullback.check.interpreted_process import NotInterpretedError, interpreted
from pullback.check.runner import process

from .compiled import WRONG

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton"),
    pytest.mark.skipif(torch.accelerator.is_available(), reason="a GPU takes the place of the stand-in"),
]
needs_device = pytest.mark.skipif(
    not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this PyTorch has no devices in Python",
)


@pytest.fixture(scope="module")
def found():
    """Findings by compiler and function; each from a new process, since a process can register one device."""

    def audit(**environment):
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        done = subprocess.run(
            [sys.executable, "-m", "tests.check.compiled"], cwd=ROOT, capture_output=True, text=True,
            env=os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1"} | environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return {"right": audit(), "wrong": audit(**{WRONG: "1"})}


def errors(findings):
    return [rule for rule, severity, _ in findings[0] if severity == "error"]


@needs_device
@pytest.mark.slow
def test_right_kernel_is_not_accused(found):
    findings, _ = found["right"]["Exp"]
    assert [(rule, severity) for rule, severity, _ in findings] == [("PB006", "info")]


@needs_device
@pytest.mark.slow
def test_wrong_compiler_is_told_from_a_wrong_formula(found):
    assert errors(found["right"]["WrongExp"]) == ["PB101"]
    assert errors(found["wrong"]["Exp"]) == ["PB909"]
    assert errors(found["wrong"]["WrongExp"]) == ["PB101", "PB909"]


@needs_device
@pytest.mark.slow
def test_both_numbers_are_told(found):
    findings, reproductions = found["wrong"]["Exp"]
    (message,) = [message for rule, _, message in findings if rule == "PB909"]
    e2 = torch.tensor(2.0, dtype=torch.float64).exp()
    assert f"{1.01 * e2:.6g} from the compiled kernels, and {e2:.6g} if they are interpreted" in message
    assert "print('compiled', results[0][36].item(), 'interpreted'" in reproductions["PB909"]


@needs_device
@pytest.mark.slow
def test_configurations_of_compiled_kernels_are_compared(found):
    findings, reproductions = found["right"]["ExpOfTwoBlocks"]
    (message,) = [message for rule, _, message in findings if rule == "PB905"]
    assert "with configuration 2 of 2 is not that with the first: output 0" in message
    assert "with interpreter.picking(), interpreter.inside(interpreter.World(config=1)):" in reproductions["PB905"]
    assert "PB905" not in errors(found["right"]["Exp"])


KERNEL = """
import os

import torch
import triton
import triton.language as tl

assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@triton.jit
def double_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)


def doubled(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 16),)](x, y, x.numel(), BLOCK=16)
    return y


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return doubled(x)

    @staticmethod
    def backward(ctx, g):
        return doubled(g)
"""


def test_interpret_hides_gpus(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNEL)
    command = [sys.executable, "-m", "pullback", "check", "kernels.py", "--select", "PB101", "--format", "json"]
    environment = {name: value for name, value in os.environ.items() if name not in WITHOUT_GPU}
    done = subprocess.run([*command, "--interpret"], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["subjects"][0]["status"] == "ok"


def test_hidden_gpu_is_none(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(process.Path, "exists", lambda self: True)
    for name in WITHOUT_GPU:
        monkeypatch.delenv(name, raising=False)
    assert process.has_gpu()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not process.has_gpu()


def test_function_that_no_file_holds_is_not_compared():
    audit = SimpleNamespace(subject=SimpleNamespace(load="# fn = Local.apply"))
    with pytest.raises(NotInterpretedError, match="define it in a file"):
        interpreted(audit, [])
