"""The command `pullback run`, in a process."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

PROGRAM = """
import sys

import torch
from torch.autograd import Function


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x


torch.manual_seed(0)
w = torch.randn(3, requires_grad=True)
for step in range(5):
    Square.apply(w * torch.rand(3)).sum().backward()
    print("step", step, flush=True)
print(__name__, sys.argv, w.grad.tolist(), torch.rand(2).tolist())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    ends = {
        "train": "",
        "raises": "raise ValueError('lost')\n",
        "exits": "sys.exit(7)\n",
        "says": "sys.exit('no data')\n",
        "hangs": "import time\ntime.sleep(1000)\n",
        "loads": """
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, i):
                x = torch.full((2,), float(i + 1), requires_grad=True)
                return Square.apply(x).detach()


        print(sum(batch.sum().item() for batch in torch.utils.data.DataLoader(Data(), num_workers=2)))
        """,
    }
    for name, end in ends.items():
        (folder / f"{name}.py").write_text(PROGRAM + textwrap.dedent(end))
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("value = 3\n")
    (package / "__main__.py").write_text("from .part import value\nprint('value', value)\n")
    plain = "import torch\ntorch.ones(1, requires_grad=True).sum().backward()\nprint('done')\n"
    (folder / "plain.py").write_text(plain)
    (folder / "plain_fails.py").write_text(plain + "raise SystemExit(7)\n")
    (folder / "no_python.py").write_text("class (:\n")
    return folder


def plain(*arguments, folder):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=folder, timeout=120)


def run(*arguments, folder, env=None):
    command = [sys.executable, "-m", "pullback", "run", "-q", "--select", "PB101", "--budget", "1", *arguments]
    env = {**os.environ, **(env or {})}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120, env=env)


@pytest.mark.slow
def test_program_runs_unchanged_and_the_report_follows(folder):
    expected = plain("train.py", "--lr", "3", "-m", folder=folder)
    got = run("train.py", "--lr", "3", "-m", folder=folder)
    assert got.stdout.startswith(expected.stdout)
    report = got.stdout.removeprefix(expected.stdout)
    assert re.search(r"^Square +wrong +train.py:8 ", report, re.MULTILINE)
    assert got.returncode == 1
    assert got.stderr == ""


@pytest.mark.slow
def test_module_runs_as_with_python_m(folder):
    for name in ("train", "package"):
        expected = plain("-m", name, "x", folder=folder)
        assert expected.returncode == 0
        assert run("-m", name, "x", folder=folder).stdout.startswith(expected.stdout)


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [("raises", 1, "ValueError: lost\n"), ("exits", 7, ""), ("says", 1, "no data\n")],
)
@pytest.mark.few(1)
def test_report_follows_a_program_that_fails_or_exits(name, status, said, folder):
    got = run("--fail-on", "never", f"{name}.py", folder=folder)
    assert got.returncode == status
    assert got.stderr.endswith(said)
    assert "pullback" not in got.stderr
    assert "PB101" in got.stdout


@pytest.mark.parametrize("arguments", [["plain.py"], ["--fail-on", "never", "--steps", "1", "plain.py"]])
def test_program_without_custom_functions_is_reported(arguments, folder):
    got = run(*arguments, folder=folder)
    assert (got.returncode, got.stdout) == (2, "done\n")
    assert got.stderr == "pullback: no custom function was called (calls inside torch.compile are not seen)\n"


def test_failing_program_keeps_its_status(folder):
    got = run("plain_fails.py", folder=folder)
    assert got.returncode == 7
    assert "no custom function was called" in got.stderr


def test_program_continues_after_the_audited_steps(folder):
    out = run("--steps", "2", "train.py", folder=folder).stdout
    assert out.index("step 0") < out.index("PB101") < out.index("step 1") < out.index("step 4")
    assert out.count("error PB101") == 1


def test_ctrl_c_ends_the_program_and_the_report_follows(folder):
    command = [sys.executable, "-m", "pullback", "run", "-q", "--select", "PB101", "--budget", "1", "hangs.py"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    program = subprocess.Popen(command, cwd=folder, text=True, preexec_fn=heard, **pipes)
    while "__main__" not in program.stdout.readline():
        pass
    time.sleep(0.2)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=60)
    assert program.returncode == 130
    assert "PB101" in out
    assert err.startswith("interrupted")
    assert err.count("\n") == 1


def test_dataloader_workers_do_not_report(folder):
    got = run("loads.py", folder=folder)
    assert got.stderr == ""
    assert "30.0" not in got.stdout.splitlines()[0]
    assert got.stdout.count("error PB101") == 1


@pytest.mark.slow
def test_only_rank_0_reports(folder):
    got = run("train.py", folder=folder, env={"RANK": "1"})
    assert (got.returncode, got.stdout.count("PB101")) == (0, 0)
    assert "PB101" in run("train.py", folder=folder, env={"RANK": "0"}).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("missing.py",), "missing.py: No such file or directory."),
        (("no_python.py",), "no_python.py is not valid Python: "),
        (("-m", "missing"), "there is no module missing that can be run."),
        ((), "Missing argument 'PROGRAM'."),
    ],
)
@pytest.mark.few(2)
def test_invalid_arguments_are_one_line_of_error(arguments, said, folder):
    got = run(*arguments, folder=folder)
    assert (got.returncode, got.stdout) == (2, "")
    assert got.stderr.startswith(f"pullback: {said}")
    assert got.stderr.count("\n") == 1
