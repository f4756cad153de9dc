"""The command `pullback accuracy`: measurements, output and errors."""

import json
import math
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from pullback.check.find.resolve import load_function
from pullback.cli import main
from pullback.cli.options import domain_of

OPS = """
    import torch
    import pullback

    print("import noise")
    limit = 3.0


    @pullback.function
    def swish(x):
        return x * torch.sigmoid(x)


    def scaled(x, y):
        return x * y


    def normed(x):
        return x.softmax(0)


    class Group:
        @staticmethod
        def tripled(x):
            return 3 * x
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    (folder / "ops.py").write_text(textwrap.dedent(OPS))
    (folder / "broken.py").write_text("import there_is_no_such_module\n")
    return folder


@pytest.fixture
def call(folder, monkeypatch, capfd):
    """Run the command in this process, where torch is already loaded."""

    def call(*arguments):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["pullback", "accuracy", *arguments])
        monkeypatch.setattr(sys, "path", [*sys.path])
        with pytest.raises(SystemExit) as exit:
            main()
        return exit.value.code, *capfd.readouterr()

    before = signal.getsignal(signal.SIGTERM)
    yield call
    signal.signal(signal.SIGTERM, before)


def test_function_of_a_file_is_measured(call):
    status, out, err = call("ops.py:swish", "--dtype", "bfloat16", "--order", "2")
    assert status == 0
    assert out.startswith("swish(x)\n")
    assert "d²/dx²" in out
    assert "every finite input" in out
    assert "\x1b" not in out
    assert err == "import noise\n"


def test_function_of_torch_is_measured_on_a_domain(call):
    status, out, err = call("torch.nn.functional:gelu", "--dtype", "float32", "--domain", "x>0,x<=2")
    assert (status, err) == (0, "")
    assert out.startswith("gelu(x) for x > 0 and x <= 2\n")
    assert "a sample, so a maximum is a lower bound" in out


def test_json_is_alone_on_standard_output(call):
    status, out, _ = call("ops.py:scaled", "--dtype", "float32,bfloat16", "--format", "json", "--order", "0")
    assert status == 0
    assert [row["dtype"] for row in json.loads(out)["rows"]] == ["float32", "bfloat16"]


BAD = {
    "no such file": (["nosuch.py:f"], "no such file"),
    "no such function": (["ops.py:swsh"], "did you mean swish?"),
    "no name": (["ops.py"], "name a function of ops.py, as in ops.py:NAME; there are normed, scaled, swish"),
    "not a function": (["ops.py:limit"], "is of type float"),
    "does not import": (["broken.py:f"], "there_is_no_such_module"),
    "not pointwise": (["ops.py:normed"], "normed: _softmax is not in the table of pointwise ops"),
    "dtype": (["ops.py:swish", "--dtype", "float31"], "there is no dtype 'float31'"),
    "order": (["ops.py:swish", "--order", "3"], "order is 0, 1 or 2"),
    "domain": (["ops.py:swish", "--domain", "x~3"], "a domain is written as"),
    "domain of another variable": (["ops.py:swish", "--domain", "y>3"], "no variable 'y'"),
    "empty domain": (["ops.py:swish", "--domain", "x>3,x<2"], "is empty"),
    "jobs": (["ops.py:swish", "--jobs", "0"], "'--jobs'"),
    "exhaustive of two": (["ops.py:scaled", "--exhaustive", "--jobs", "1"], "takes 2 tensors"),
    "resume elsewhere": (
        ["ops.py:swish", "--exhaustive", "--jobs", "1", "--dtype", "float32", "--resume", "no/such/folder"],
        "No such file",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_arguments_are_one_line_of_error(call, case):
    arguments, message = BAD[case]
    status, out, err = call(*arguments)
    assert (status, out) == (2, "")
    lines = [line for line in err.splitlines() if line != "import noise"]
    assert len(lines) == 1
    assert lines[0].startswith("pullback: ")
    assert message in lines[0]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["x>0"], {"x": (5e-324, math.inf)}),
        (["x>=-1.5,x<2"], {"x": (-1.5, math.nextafter(2, 0))}),
        (["x=0:1", "y = -1e3 : .5"], {"x": (0.0, 1.0), "y": (-1000.0, 0.5)}),
        (["long_name<=inf"], {"long_name": (-math.inf, math.inf)}),
    ],
)
def test_domain_option_is_parsed(texts, expected):
    assert domain_of(texts) == expected


def test_method_and_module_are_loaded_by_path(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert load_function("ops.py:Group.tripled")(2) == 6
    assert load_function("torch.nn.functional:gelu").__name__ == "gelu"


@pytest.mark.slow
def test_ctrl_c_ends_an_exhaustive_measurement_and_its_processes(folder, tmp_path):
    """On a terminal with a progress bar; finished parts are kept."""
    command = [sys.executable, "-m", "pullback", "accuracy", "ops.py:swish", "--exhaustive", "--dtype", "float32"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "TERM": "xterm", "COLUMNS": "80"}
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [*command, "--jobs", "2"], cwd=folder, env=environment, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    shown = b""
    try:
        while not re.search(rb" [1-9]\d*/4081", shown):
            shown += os.read(ours, 4096)
        os.killpg(child.pid, signal.SIGINT)
        assert child.wait(30) == 130
        while chunk := _read(ours):
            shown += chunk
    finally:
        child.kill()
        child.wait()
        os.close(ours)
    assert b"Traceback" not in shown
    (kept,) = tmp_path.glob("pullback/sweeps/*.jsonl")
    assert len(kept.read_text().splitlines()) > 1
    for _ in range(500):  # the last of them, multiprocessing's own, ends a moment later
        try:
            os.killpg(child.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail("processes are left")


def _read(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other end is closed
        return b""
