"""Audits in new interpreters, as for a program whose forks cannot run a backward; the fixture pretends so."""

import copy
import faulthandler
import importlib
import inspect
import os
import random
import subprocess
import sys
import textwrap
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.autograd import Function

import pullback
from pullback.check import api
from pullback.check.find.discover import subject_of
from pullback.check.runner import fresh, subjects, targets
from pullback.check.runner.process import fork_is_clean
from pullback.check.runner.subjects import run_subjects
from pullback.check.runner.task import Limits
from pullback.check.subject import Options
from pullback.errors import OptionError, TargetError

from ..making import function, normal
from ..modules import import_source

in_new = pytest.mark.usefixtures("threads")
pytestmark = pytest.mark.slow


@pytest.fixture
def threads(monkeypatch):
    """Let `fork_is_clean` be false in this process alone."""
    here = os.getpid()
    for module in (api, targets, subjects):
        monkeypatch.setattr(module, "fork_is_clean", lambda: os.getpid() != here)


class Wrong(Function):
    """Not the derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.sin()


@in_new
def test_module_level_class():
    report = pullback.check(Wrong, normal(3), select=("PB1", "PB4", "PB8"))
    (error,) = [f for f in report.findings if f.severity == "error"]
    assert error.rule == "PB101"
    assert Path(error.location.file).resolve() == Path(__file__)
    assert not any(f.rule == "PB414" for f in report.findings)  # it can be pickled in both processes


@in_new
def test_closure_and_its_example():
    factor = normal(3)
    (subject,) = pullback.check(lambda x: factor * x, normal(3), select="PB1").subjects
    assert subject.status == "ok"
    made = function(lambda x: factor * x, lambda g, x: g)
    assert [f.rule for f in pullback.check(made, normal(3), select="PB101").findings] == ["PB101"]


@in_new
def test_op_without_an_import_path():
    op = pullback.function(lambda x: x * x)
    op.vjp(lambda g, out, x: 3 * g * x)
    assert [f.severity for f in pullback.check(op, normal(3), select="PB101").findings] == ["error"]
    op.vjp(lambda g, out, x: 2 * g * x)
    assert pullback.check(op, normal(3), select="PB101").ok


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("relaxation", [None, torch.sigmoid])
def test_op_made_again_from_its_fields_has_the_same_options(relaxation, stable):
    op = pullback.function(derivative_of=relaxation, stable=stable, save="fast")(lambda x: x * x)
    make, fields = op.by_value()
    options = [(one._wants_stable, one._relaxation, one._save, one.is_stable) for one in (op, make(*fields))]
    assert options[0] == options[1]


@in_new
def test_target_of_the_command_line(tmp_path, monkeypatch):
    text = f"import torch\nfrom torch.autograd import Function\n\n{inspect.getsource(Wrong)}"
    (tmp_path / "ops.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert [f.rule for f in pullback.check("ops.py:Wrong", select="PB101").findings] == ["PB101"]


@in_new
def test_module_as_target():
    with pytest.raises(TargetError):
        pullback.check(textwrap)
    report = pullback.check(sys.modules[__name__], select="PB101")
    found = {subject.name: subject.status for subject in report.subjects}
    assert (found["Wrong"], found["InAThread"]) == ("wrong", "ok")


@in_new
def test_crashing_function_is_reported():
    def dies(x):
        os.kill(os.getpid(), 11)
        return x

    report = pullback.check(dies, normal(3), select="PB101")
    assert "PB002" in {f.rule for f in report.findings}


@in_new
def test_unpicklable_function_is_audited_in_this_process():
    lock = threading.Lock()
    wrong = function(lambda x: x.sin() + lock.locked(), lambda g, x: g * x.sin())
    torch.manual_seed(0)
    before = torch.get_rng_state(), torch.get_num_threads(), faulthandler.is_enabled(), warnings.filters[:]
    with pytest.warns(
        UserWarning, match=r"cannot be sent to a new process.*\(TypeError: .*lock.*takes the program down"
    ):
        report = pullback.check(wrong, normal(3), select=("PB101", "PB401"))
    assert {f.rule for f in report.findings if f.severity == "error"} == {"PB101"}
    after = torch.get_rng_state(), torch.get_num_threads(), faulthandler.is_enabled(), warnings.filters[:]
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


KERNEL = """
import torch, triton
import triton.language as tl

@triton.jit
def twice(x, factor: tl.constexpr):
    return x * factor

@triton.jit
def scale(x, out, n, factor: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, twice(tl.load(x + i, mask=i < n, other=0.0), factor), mask=i < n)

def scaled(x, factor):
    out = torch.empty_like(x)
    scale[(triton.cdiv(x.numel(), 4),)](x.contiguous(), out, x.numel(), factor, BLOCK=4)
    return out

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return scaled(x, 2)

    @staticmethod
    def backward(ctx, g):
        return scaled(g, 3)
"""


@in_new
def test_kernels_that_no_import_finds_travel(tmp_path):
    pytest.importorskip("triton", reason="Triton is not installed")
    module = import_source(KERNEL, tmp_path, "kernels_by_value")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        report = pullback.check(module.Scale, normal(3), select="PB101")
    # PB006 tells that the kernels are interpreted.
    assert [(f.rule, f.severity) for f in report.findings] == [("PB101", "error"), ("PB006", "info")]


CUSTOM_OP = """
import torch

@torch.library.custom_op("pullback_fresh::cube", mutates_args=())
def cube(x: torch.Tensor) -> torch.Tensor:
    return x**3

cube.register_autograd(
    lambda ctx, g: 2 * ctx.saved_tensors[0] ** 2 * g,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
"""


@in_new
def test_custom_op_of_a_module_is_imported_there(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = import_source(CUSTOM_OP, tmp_path, "op_that_is_imported")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        report = pullback.check(module.cube, normal(3), select="PB101")
    assert [(f.rule, f.severity) for f in report.findings] == [("PB101", "error")]


@in_new
def test_example_on_another_device_is_refused():
    with pytest.raises(OptionError, match="the example is on meta, where tensors have no values"):
        pullback.check(Wrong, torch.ones(3, device="meta"))


POOL = ThreadPoolExecutor(1)


class InAThread(Function):
    """Computes in a thread of the program."""

    @staticmethod
    def forward(ctx, x):
        return POOL.submit(lambda: 2 * x).result()

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def test_function_that_waits_for_a_thread_runs_in_a_new_interpreter():
    assert POOL.submit(int).result() == 0  # the thread exists here, but in no fork
    example = [((normal(3),), {})]
    limits = Limits(silence=2.0, total=60.0)
    (outcome,) = run_subjects([subject_of(InAThread)], Options(select=("PB1",)), lambda _: example, limits=limits)
    assert (outcome.result.status, [f.rule for f in outcome.findings if f.severity != "info"]) == ("ok", [])


def ends_forks(x):
    """Refuse to run in a fork, as GNU's OpenMP does."""
    if "fork" in sys.modules:
        os.write(2, b"Terminating: fork() called from a process already using GNU OpenMP, this is unsafe.")
        os.kill(os.getpid(), 15)
    return 2 * x


def test_function_that_refuses_to_fork_runs_in_a_new_interpreter(monkeypatch):
    monkeypatch.setitem(sys.modules, "fork", sys)  # a new interpreter lacks this entry
    (subject,) = pullback.check(ends_forks, normal(3), select="PB1").subjects
    assert subject.status == "ok"


@in_new
def test_watched_program():
    with pullback.watch(select="PB101", show=str) as watched:
        Wrong.apply(normal(3).requires_grad_()).sum().backward()
    assert [f.rule for f in watched.report.findings] == ["PB101"]


def test_fork_is_unclean_once_cuda_is_initialised(monkeypatch):
    assert fork_is_clean()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert not fork_is_clean()


def test_source_without_a_file_is_sent_along():
    fresh.linecache.cache["<cell>"] = (3, None, ["a\n"], "<cell>")
    try:
        assert fresh._sources_without_file()["<cell>"][2] == ["a\n"]
        assert __file__ not in fresh._sources_without_file()
    finally:
        del fresh.linecache.cache["<cell>"]


@in_new
def test_module_whose_file_is_not_importable(tmp_path):
    """Plug-in systems load such files and register them in `sys.modules`."""
    text = f"import torch\nfrom torch.autograd import Function\n\n{inspect.getsource(Wrong)}"
    module = import_source(text, tmp_path, "plugged_in")
    assert [f.rule for f in pullback.check(module.Wrong, normal(3), select="PB101").findings] == ["PB101"]


@in_new
def test_local_class_keeps_its_source():
    class Unrecorded(Wrong):
        @staticmethod
        @torch.no_grad()
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x.cos()

    (found,) = pullback.check(Unrecorded, normal(3), select="PB401").findings
    assert "once_differentiable" in found.hint  # the source shows the decorator


@in_new
def test_backend_settings_in_a_closure():
    cudnn = torch.backends.cudnn
    (subject,) = pullback.check(lambda x: x * (2 if cudnn.benchmark else 3), normal(3), select="PB101").subjects
    assert subject.status == "ok"


@in_new
def test_changes_to_an_imported_module_are_sent_along(tmp_path, monkeypatch):
    text = "from torch.autograd import Function\n\nFACTOR = 2.0\n\n\n" + inspect.getsource(Scaled)
    (tmp_path / "scaled_ops.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("scaled_ops")

    def errors():
        return [f.rule for f in pullback.check(module.Scaled, normal(3), select="PB101").findings]

    assert errors() == []
    module.FACTOR = 3.0
    assert errors() == ["PB101"]
    module.FACTOR = 2.0
    monkeypatch.setattr(module.Scaled, "backward", staticmethod(lambda ctx, g: g))
    assert errors() == ["PB101"]
    monkeypatch.delitem(sys.modules, "scaled_ops")


FACTOR = 2.0


class Scaled(Function):
    """2x, by a number of its module."""

    @staticmethod
    def forward(ctx, x):
        return FACTOR * x

    @staticmethod
    def backward(ctx, g):
        return 2.0 * g


class Normed(torch.nn.Module):
    """Cannot be pickled."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
        self.norm = torch.nn.BatchNorm1d(2).double()

    def forward(self, x):
        return self.norm(x)


@in_new
def test_model_is_restored_after_an_audit_in_this_process():
    module = Normed()
    module(normal(5, 2)).sum().backward()
    before = copy.deepcopy([*module.norm.state_dict().values(), module.norm.weight.grad])
    drawn = random.getstate()
    with pytest.warns(UserWarning, match=r"Normed cannot be sent") as told:
        pullback.check(module, normal(5, 2), select="PB1")
    assert Path(told[0].filename) == Path(__file__)
    after = [*module.norm.state_dict().values(), module.norm.weight.grad]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert module.training
    assert random.getstate() == drawn


@pytest.mark.parametrize(
    "setting", ["signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "[os.close(fd) for fd in (0, 1, 2)]"]
)
def test_programs_that_ignore_sigchld_or_close_their_streams(setting, tmp_path):
    program = f"""
import os, signal, sys
from pathlib import Path
import torch, pullback
from tests.check.runner.test_fresh import Wrong
{setting}
report = pullback.check(Wrong, torch.ones(3, dtype=torch.float64), select="PB0,PB101")
Path({str(tmp_path / "found")!r}).write_text(" ".join(f.rule for f in report.findings))
"""
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[3], check=True, capture_output=True)
    assert (tmp_path / "found").read_text() == "PB101"
