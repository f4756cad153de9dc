"""Help texts of the command line, and shell completion."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from pullback.cli import program

COMMANDS = [
    "",
    "check",
    "judge",
    "run",
    "accuracy",
    "stabilise",
    "write",
    "cache",
    "cache info",
    "cache clear",
    "rules",
]


OPS = """
raise SystemExit("completion reads a file, and does not run it")
import torch
class Square(torch.autograd.Function):
    pass
class Outer:
    class Scale(torch.autograd.Function):
        pass
def double(x):
    class Local(torch.autograd.Function):
        pass
def _private(x):
    pass
"""


def help_of(command):
    """Return the help of a command, on a terminal of 80 columns."""
    shown = CliRunner().invoke(program, [*command.split(), "--help"], prog_name="pullback", env={"COLUMNS": "80"})
    assert shown.exit_code == 0
    return shown.output


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_screen(command):
    out = help_of(command)
    lines = out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert not re.search(r"^  .*\.\.\.$", out, re.MULTILINE), "a summary was cut"


def test_help_names_every_command():
    listed = re.findall(r"^  (\w+)  ", help_of("").partition("Commands:")[2], re.MULTILINE)
    assert set(listed) == {command.split()[0] for command in COMMANDS if command}


def complete(shell, *words):
    """Return what completion prints in a shell that joins words at colons, as zsh and fish do."""
    typed = {"COMP_WORDS": " ".join(["pullback", *words]), "COMP_CWORD": str(len(words))}
    environment = {**os.environ, **typed, "_PULLBACK_COMPLETE": f"{shell}_complete"}
    code = "import sys\nfrom pullback.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_zsh_completion_shows_rule_summaries_and_whole_words(tmp_path):
    file = tmp_path / "ops.py"
    file.write_text(OPS)
    shown = complete("zsh", "check", ".", "--select", "PB101")
    assert shown == ["plain", "PB101", "the gradient is not the derivative of the forward"]
    assert complete("zsh", "write", f"{file}:S")[:2] == ["plain", f"{file}:Square"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("che", ["check"]),
        ("check --fail-on n", ["never"]),
        ("check --update", ["--update-baseline"]),
        ("check op", ["files"]),
        ("check . --select PB", [f"PB{family}" for family in range(10)]),
        ("check . --ignore PB00,pb70", [f"PB00,PB70{number}" for number in range(1, 6)]),
        ("rules PB70", [f"PB70{number}" for number in range(1, 6)]),
        ("rules nonsense", []),
        ("rules wrong-j", ["wrong-jvp"]),
        ("check . --select PB205,spurious-z", ["PB205,spurious-zero"]),
        ("check ops.py :", ["Square", "Outer.Scale", "double"]),  # bash splits words at colons
        ("check ops.py : S", ["Square"]),
        ("check ops.py:S", ["ops.py:Square"]),  # unless it is configured not to
        ("check ops :: d", ["double"]),
        ("check . --inputs ops.py : d", ["double"]),
        ("check broken.py :", []),
        ("check absent.py :", []),
    ],
)
def test_bash_completion(typed, offered, tmp_path):
    (tmp_path / "ops.py").write_text(OPS)
    (tmp_path / "broken.py").write_text("class")
    script = tmp_path / "pullback"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pullback "$@"\n')
    script.chmod(0o755)
    words = ["pullback", *typed.split()]
    typing = f"""
    compopt() {{ [ "$2" = default ] && echo files; }}  # bash has this builtin only during completion
    eval "$(_PULLBACK_COMPLETE=bash_source pullback)"
    complete -p pullback >&2
    COMP_WORDS=({" ".join(words)}) COMP_CWORD={len(words) - 1}
    _pullback_completion pullback
    echo "${{COMPREPLY[@]}}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", typing], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "-F _pullback_completion pullback" in done.stderr
    assert done.stdout.split() == offered
