"""Progress of a command: on a terminal, elsewhere, and with --quiet."""

import os
import pty
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

from pullback.cli import console
from pullback.cli.console import progress


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def test_progress_without_a_terminal_is_a_line_every_ten_seconds(clock, capsys):
    with progress("auditing", "functions") as show:
        for second in range(35):
            clock.seconds = float(second)
            known = 200 if second > 10 else 0
            show(second // 2, known, "PB3 of Foo\x1b[2J" if known else "")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "pullback: auditing",
        "pullback: auditing: 10 of 200 functions, PB3 of Foo\\x1b[2J",
        "pullback: auditing: 15 of 200 functions, PB3 of Foo\\x1b[2J",
    ]


def test_progress_without_a_unit_shows_the_count_alone(clock, capsys):
    with progress("measuring") as show:
        clock.seconds = 10.0
        show(3, 8)
    assert capsys.readouterr().err == "pullback: measuring: 3 of 8\n"


def test_quiet_prints_no_progress(clock, capsys):
    with progress("auditing", "functions", is_quiet=True) as show:
        clock.seconds = 100.0
        show(3, 8, "PB3 of Foo")
    assert capsys.readouterr() == ("", "")


SLOW = """
import time
import torch
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(0.05)
        return x + 1
    @staticmethod
    def backward(ctx, g):
        return g.clone()
"""
EVERY = "from pullback import cli; cli.console._EVERY = 0.2; cli.main()"


@pytest.mark.parametrize("quiet", [False, True])
def test_only_the_report_is_on_standard_output(quiet, tmp_path):
    (tmp_path / "ops.py").write_text(SLOW)
    command = [sys.executable, "-c", EVERY, "check", "ops.py", "--select", "PB102,PB103", *["-q"] * quiet]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "\n1 function: nothing found, on guessed inputs" in done.stdout
    assert len(done.stdout.splitlines()) <= 3
    assert ("pullback: auditing: 0 of 1 functions, " in done.stderr) != quiet
    assert all(line.startswith("pullback: auditing") for line in done.stderr.splitlines())
    assert " of Slow" in done.stderr or quiet


def test_terminal_shows_a_bar_and_the_current_step(tmp_path):
    script = textwrap.dedent(
        """
        from pullback.cli.console import progress
        with progress("auditing", "functions") as show:
            show(12, 200, "PB3 of [red]Foo")
        """
    )
    parent, child = pty.openpty()
    subprocess.run([sys.executable, "-c", script], stderr=child, env={**os.environ, "COLUMNS": "80", "TERM": "xterm"})
    os.close(child)
    shown = os.read(parent, 100_000).decode()
    os.close(parent)
    assert "12/200" in shown
    assert "PB3 of [red]Foo" in shown
