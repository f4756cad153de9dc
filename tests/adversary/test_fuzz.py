"""Findings that the fuzzer reports of a finished batch."""

from types import SimpleNamespace

import pytest

from tests.adversary.agree import in_pytorch
from tests.adversary.fuzz import Batch

TRIAL = "from tests.adversary.agree import agree\n\n"
CRASH = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"


@pytest.mark.parametrize(
    ("status", "text", "is_of_pytorch"),
    [
        (-11, TRIAL + CRASH, True),
        (-6, TRIAL + CRASH, False),
        (1, TRIAL + CRASH, False),
        (-11, TRIAL + "agree('a = torch.randn(3).requires_grad_()', 'return a.exp()')", False),
    ],
)
def test_crash_is_attributed_to_pytorch_if_its_side_alone_crashes(status, text, is_of_pytorch, tmp_path):
    (tmp_path / "last").write_text(text)
    process = SimpleNamespace(returncode=status)
    assert Batch("eager", 0, process, tmp_path).is_of_pytorch is is_of_pytorch


def test_pytorch_side_runs_without_making_an_op(monkeypatch):
    monkeypatch.setattr("pullback.function", lambda *args, **kwargs: pytest.fail("an op is made"))
    in_pytorch("a = torch.randn(n).requires_grad_()", "return a.exp()", "backward(); second()", sizes={"n": 3})
