"""The workflow and the hook of docs/ci.md run, on a package with a wrong backward."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from tests.test_docs import ROOT, blocks

WORKFLOW, LOCAL_HOOK = map(yaml.safe_load, blocks(ROOT / "docs" / "ci.md", "yaml"))
STEPS = WORKFLOW["jobs"]["audit"]["steps"]
SHELL = [step["run"] for step in STEPS if "run" in step]

OPS = """import torch


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A checkout with `mypackage` in it, and a folder with the program `pullback`."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "mypackage").mkdir()
    (folder / "mypackage" / "__init__.py").touch()
    (folder / "mypackage" / "ops.py").write_text(OPS)
    (folder / "bin").mkdir()
    (folder / "bin" / "pullback").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pullback "$@"\n')
    (folder / "bin" / "pullback").chmod(0o755)
    return folder


def run(line, folder):
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", "-e", "-c", f"{line} -q --select PB1"]  # some rules, to be quick; -e as in a workflow
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_workflow_audits_and_uploads_the_sarif_log(package):
    """Without its two lines of pip, whose packages are installed already."""
    installs = [line for line in SHELL if line.startswith("pip install ")]
    (audit,) = [line for line in SHELL if line not in installs]
    assert '"$PULLBACK"' in installs[-1]
    assert WORKFLOW["env"]["PULLBACK"]

    done = run(audit, package)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")

    (upload,) = [step for step in STEPS if step.get("uses", "").startswith("github/codeql-action/upload-sarif@")]
    assert upload["if"] == "success() || failure()"
    assert WORKFLOW["permissions"]["security-events"] == "write"
    uploaded(json.loads((package / upload["with"]["sarif_file"]).read_text()))


def uploaded(log):
    """Assert what a code host requires of a SARIF log to annotate lines."""
    assert log["version"] == "2.1.0"
    (found,) = log["runs"]
    driver = found["tool"]["driver"]
    assert driver["name"]
    for rule in driver["rules"]:
        assert rule["id"]
        assert rule["shortDescription"]["text"]
        assert rule["help"]["text"]
    (result,) = [result for result in found["results"] if result["ruleId"] == "PB101"]
    assert result["level"] == "error"
    assert result["message"]["text"]
    assert driver["rules"][result["ruleIndex"]]["id"] == "PB101"
    for each in found["results"]:
        (place,) = each["locations"]
        assert place["physicalLocation"]["artifactLocation"]["uri"] == "mypackage/ops.py"
        assert 1 <= place["physicalLocation"]["region"]["startLine"] <= len(OPS.splitlines())


@pytest.mark.slow
def test_hook_fails_on_a_wrong_backward(package):
    (hook,) = LOCAL_HOOK["repos"][0]["hooks"]
    assert hook["pass_filenames"] is False
    done = run(hook["entry"], package)
    assert done.returncode == 1
    assert "PB101 wrong-vjp" in done.stdout


def test_hook_of_the_repository_matches_the_page():
    (own,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    (hook,) = LOCAL_HOOK["repos"][0]["hooks"]
    assert {"id", "name", "entry", "language", "types", "pass_filenames"} <= own.keys()
    same = ("id", "name", "language", "types", "pass_filenames")
    assert {name: own[name] for name in same} == {name: hook[name] for name in same}
    assert hook["entry"].startswith(f"{own['entry']} ")
