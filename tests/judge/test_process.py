"""The process of a candidate, and modules with weights."""

import os
import re
import socket
import tempfile
import time
from pathlib import Path

import pytest
import torch

import pullback
from pullback.judge.api import _ensure_known
from pullback.judge.wire import received, sent

from ..check.making import normal


@pytest.fixture(autouse=True)
def _no_shrinking(monkeypatch):
    monkeypatch.setattr("pullback.judge.api._SHRINK_SECONDS", 0.0)


def cube(x):
    return x**3


def kinds(verdict):
    return {reason.kind for reason in verdict.reasons}


def test_candidate_has_caches_of_its_own_which_are_removed(tmp_path):
    told = tmp_path / "told"

    def candidate(x):
        folders = [os.environ["TRITON_CACHE_DIR"], os.environ["TORCHINDUCTOR_CACHE_DIR"], tempfile.gettempdir()]
        told.write_text("\n".join(folders))
        return x * x * x

    before = os.environ.get("TRITON_CACHE_DIR")
    assert pullback.judge(candidate, cube, normal(3)).is_right
    folders = [Path(line) for line in told.read_text().splitlines()]
    assert len({*folders}) == 3
    assert not any(folder.exists() for folder in folders)
    assert os.environ.get("TRITON_CACHE_DIR") == before


def test_endless_call_ends():
    def candidate(x):
        while True:
            pass

    verdict = pullback.judge(candidate, cube, normal(3), seconds=1.5)
    assert kinds(verdict) == {"crash"}
    assert "did not return" in verdict.reasons[0].message


@pytest.mark.slow
def test_call_that_would_take_too_long_is_left_out_and_named():
    def candidate(x):
        end = time.process_time() + 2e-4 * x.numel()
        while time.process_time() < end:
            pass
        return x**3

    verdict = pullback.judge(candidate, cube, normal(12))
    assert verdict.is_right, str(verdict)
    assert not verdict.refused
    (remark,) = verdict.remarks
    assert remark.startswith("left out, since they would take too long: ")
    assert "a large size (12 -> " in remark
    assert f"  {remark}" in str(verdict).splitlines()


def test_every_exception_of_larger_calls_is_told():
    def candidate(x):
        if x.numel() > 1000:
            raise ValueError("too large")
        if x.numel() == 1:
            raise RuntimeError("too small")
        return x**3

    verdict = pullback.judge(candidate, cube, normal(12))
    told = [line for line in str(verdict).splitlines() if "it refuses calls that the reference takes" in line]
    assert len(told) == len(verdict.refused) == 2
    assert "too large" in str(told)
    assert "too small" in str(told)


def test_memory_is_limited():
    verdict = pullback.judge(lambda x: torch.ones(2**28).sum() * 0 + x**3, cube, normal(3), memory=0.5)
    assert verdict.verdict == "wrong"
    assert kinds(verdict) <= {"raises", "crash"}


def test_network_is_refused():
    def candidate(x):
        with socket.socket() as client:
            client.connect(("127.0.0.1", 9))
        return x**3

    verdict = pullback.judge(candidate, cube, normal(3))
    assert {"network", "raises"} <= kinds(verdict)


def test_random_reference_is_inconclusive():
    verdict = pullback.judge(lambda x: x * 2, lambda x: x * torch.empty(x.shape).exponential_().to(x), normal(4, 5))
    assert verdict.verdict == "inconclusive"
    assert "draws random numbers" in verdict.reasons[0].message


def test_discontinuous_reference_is_inconclusive():
    verdict = pullback.judge(lambda x: 0 * x, lambda x: (1e18 * x).sin(), normal(4, 5))
    assert (verdict.verdict, kinds(verdict)) == ("inconclusive", {"blunt"})


@pytest.mark.parametrize("name", ["nosuchop", "torch.nosuchop", "aten::nosuchop", "nosuch.module", ""])
def test_unknown_name_cannot_be_forbidden(name):
    with pytest.raises(pullback.OptionError, match=f"--forbid: no operator or module '{name}'"):
        pullback.judge(torch.sin, torch.sin, torch.ones(2), forbid=[name])


@pytest.mark.parametrize(
    "name",
    ["softmax", "_softmax", "torch.layer_norm", "aten::mm", "mine::op", "numpy", "torch.nn.functional", "beside"],
)
def test_names_that_can_be_forbidden(tmp_path, name):
    (tmp_path / "beside.py").write_text("")
    _ensure_known(name, f"{tmp_path}/beside.py:f", torch.sin)


def test_options_are_checked():
    with pytest.raises(pullback.OptionError, match="seconds must be a positive number"):
        pullback.judge(cube, cube, normal(3), seconds=0)
    with pytest.raises(pullback.OptionError, match="on meta"):
        pullback.judge(cube, cube, torch.ones(3, device="meta"))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(5, 4)
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(self.first(x).relu())


class Fused(Net):
    def forward(self, x):
        y = torch.clamp(x @ self.first.weight.T + self.first.bias, min=0)
        y = y - y.mean(-1, keepdim=True)
        y = y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return y * self.norm.weight + self.norm.bias


class Frozen(Fused):
    def __init__(self):
        super().__init__()
        self.kept = self.first.weight.detach().clone()

    def forward(self, x):
        self.first.weight.data.copy_(self.kept)
        return super().forward(x)


def test_modules_share_the_weights_of_the_reference():
    x = normal(3, 5, dtype=torch.float32)
    assert pullback.judge(Fused(), Net(), x).is_right
    assert pullback.judge(Fused, Net, x).is_right
    assert pullback.judge(Frozen(), Net(), x).verdict in ("wrong", "cheats")
    verdict = pullback.judge(lambda x: x, Net(), x)
    assert "has no weight first.weight" in verdict.reasons[0].message


def test_structured_arguments_and_several_outputs():
    def reference(pair, scale=2.0):
        return {"sum": pair[0] + scale * pair[1], "top": pair[0].max(-1)}

    def candidate(pair, scale=2.0):
        values, indices = pair[0].sort(-1, descending=True)
        return {"sum": torch.add(pair[0], pair[1], alpha=scale), "top": (values[..., 0], indices[..., 0])}

    pair = [normal(3, 4), normal(3, 4, seed=1)]
    assert pullback.judge(candidate, reference, pair).is_right
    assert not pullback.judge(lambda pair, scale=2.0: candidate(pair[::-1], scale), reference, pair).is_right


def test_both_sides_of_a_kink_are_right():
    verdict = pullback.judge(lambda x: torch.where(x >= 0, x, 0 * x), torch.relu, normal(4, 5))
    assert verdict.is_right, verdict


def test_refused_sizes_are_listed():
    def candidate(x):
        if x.shape[-1] != 5:
            raise ValueError("five columns only")
        return x * x * x

    verdict = pullback.judge(candidate, cube, normal(4, 5))
    assert verdict.is_right
    (line,) = verdict.refused
    assert re.fullmatch(r"ValueError: five columns only \(\d+ calls: other sizes \(.*; …\)", line), line


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64, torch.bool, torch.int32])
def test_tensors_cross_the_pipe(dtype):
    t = normal(2, 3).to(dtype).T
    there = received(sent(t))
    assert torch.equal(there.tensor(), t)
    assert there.shape == (3, 2)


@pytest.mark.parametrize(
    "forged",
    [
        None,
        {},
        {"dtype": "float32", "shape": [2], "data": "AAAA"},
        {"dtype": "object", "shape": [], "data": ""},
        {"dtype": "float32", "shape": [-1], "data": ""},
        {"dtype": "float32", "shape": ["x"], "data": "!"},
    ],
)
def test_forged_tensor_is_refused(forged):
    with pytest.raises(ValueError, match="tensor"):
        received(forged)


def test_modules_that_pytorch_imports_are_no_patches():
    def candidate(x):

        return x * x * x

    assert pullback.judge(candidate, cube, normal(3)).is_right


def test_reference_that_is_loaded_by_its_path_is_read(tmp_path):
    (tmp_path / "reference.py").write_text("def formula(x):\n    return x**3\n")
    (tmp_path / "candidate.py").write_text(
        "import importlib.util\n\n\ndef late(x):\n"
        f"    spec = importlib.util.spec_from_file_location('other', {str(tmp_path / 'reference.py')!r})\n"
        "    module = importlib.util.module_from_spec(spec)\n"
        "    spec.loader.exec_module(module)\n"
        "    return module.formula(x)\n"
    )
    verdict = pullback.judge(f"{tmp_path}/candidate.py:late", f"{tmp_path}/reference.py:formula", normal(3))
    assert kinds(verdict) & {"reads-reference", "calls-reference"}
    assert verdict.verdict == "cheats"


def test_numbers_at_their_defaults_are_varied():
    def reference(x, scale=2.0):
        return x * scale

    assert pullback.judge(lambda x, scale=2.0: scale * x, reference, normal(3)).is_right
    assert "settings" in kinds(pullback.judge(lambda x, scale=2.0: 2 * x, reference, normal(3)))
