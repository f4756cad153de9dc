"""The command line for the one who types: help that fits a screen, and completion."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from pullback.cli import program

COMMANDS = ["", "check", "run", "accuracy", "stabilise", "write", "cache", "cache info", "cache clear", "rules"]


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


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("che", ["check"]),
        ("check --fail-on n", ["never"]),
        ("check --update", ["--update-baseline"]),
        ("check op", ["files"]),
    ],
)
def test_bash_completes(typed, offered, tmp_path):
    script = tmp_path / "pullback"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pullback "$@"\n')
    script.chmod(0o755)
    words = ["pullback", *typed.split()]
    typing = f"""
    compopt() {{ [ "$2" = default ] && echo files; }}  # bash has it only while it completes
    eval "$(_PULLBACK_COMPLETE=bash_source pullback)"
    complete -p pullback >&2
    COMP_WORDS=({" ".join(words)}) COMP_CWORD={len(words) - 1}
    _pullback_completion pullback
    echo "${{COMPREPLY[@]}}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", typing], env=environment, capture_output=True, text=True)
    assert "-F _pullback_completion pullback" in done.stderr
    assert done.stdout.split() == offered
