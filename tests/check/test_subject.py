"""Functions of tensors on other devices than the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pullback
from pullback.check.subject import OnDevice, device_of
from pullback.errors import OptionError

from .making import normal

ROOT = Path(__file__).resolve().parents[2]


def test_on_device_moves_tensors_to_the_device_and_back():
    seen = []

    def call(x, options):
        seen.append(x.device.type)
        return [x, options["scale"] * 2, "a word"]

    out = OnDevice(call, torch.device("meta"))
    with pytest.raises(NotImplementedError, match="meta"):  # meta tensors cannot be copied back
        out(normal(3), options={"scale": normal(2)})
    assert seen == ["meta"]
    same = OnDevice(call, torch.device("cpu"))(normal(3), options={"scale": normal(2)})
    assert [getattr(t, "shape", t) for t in same] == [(3,), (2,), "a word"]


def test_example_on_meta_is_refused():
    here, meta = torch.ones(2), torch.ones(2, device="meta")
    assert device_of([((here, 3), {})]) is None
    with pytest.raises(OptionError, match=r"the example is on meta, where tensors have no values"):
        device_of([((here, meta), {})])
    with pytest.raises(OptionError, match=r"the example is on meta"):
        pullback.check(lambda x: x * 2, meta)


@pytest.fixture(scope="module")
def found():
    """Findings of audits on the fake accelerator, from a new process, since a process can register only one."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "tests.check.accelerator"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


needs_one = pytest.mark.skipif(
    not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this PyTorch has no devices in Python",
)


@needs_one
@pytest.mark.slow
@pytest.mark.parametrize("way", ["given", "guessed"])
def test_right_function_that_requires_a_device_is_not_accused(found, way):
    ((rule, severity, message),) = found[way]["Cube"][0]
    assert (rule, severity) == ("PB006", "info")
    assert "did not run" in message
    assert "fake" in message


@needs_one
@pytest.mark.slow
@pytest.mark.parametrize("way", ["given", "guessed"])
def test_wrong_function_that_requires_a_device_is_an_error(found, way):
    findings, reproduction = found[way]["Wrong"]
    assert [rule for rule, severity, _ in findings if severity == "error"] == ["PB101"]
    assert "t.to('fake" in reproduction


@needs_one
@pytest.mark.slow
def test_dtype_of_the_gradient_is_checked_on_the_device(found):
    findings, _ = found["given"]["Narrow"]
    assert any(rule == "PB105" and "float32" in message and "float64" in message for rule, _, message in findings)


@needs_one
@pytest.mark.slow
def test_gradient_on_another_device_is_an_error(found):
    findings, reproduction = found["given"]["Elsewhere"]
    (message,) = [message for rule, severity, message in findings if (rule, severity) == ("PB105", "error")]
    assert "float64 on cpu for x of float64 on fake" in message
    assert "print('inputs:', 'fake:0')" in reproduction
    assert "fn.__self__ = getattr(on_device, '__self__', None)" in reproduction


@needs_one
@pytest.mark.slow
def test_weights_of_a_module_are_compared_on_the_device(found):
    assert [rule for rule, _, _ in found["given"]["Layer(Cube)"][0]] == ["PB006"]
    findings, reproduction = found["given"]["Layer(Doubled)"]
    ((rule, message),) = [(rule, message) for rule, severity, message in findings if severity == "error"]
    assert rule == "PB101"
    assert "the gradient of w" in message
    assert "torch.func.functional_call(module, weights, args, kwargs)" in reproduction
