"""The tested PyTorch releases: each is named in one place, which make and CI read."""

import os
import re
import runpy
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GENERATOR = runpy.run_path(str(ROOT / "docs" / "generate_versions.py"))
RELEASES = GENERATOR["releases"]()


def made(*words):
    """Return what make would run, without the options of an outer make."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "-n", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def test_package_requires_the_oldest_tested_release():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (bound,) = [line.removeprefix("torch>=") for line in project["dependencies"] if line.startswith("torch")]
    assert RELEASES["oldest"].startswith(bound + ".")


def test_pyproject_lists_the_tested_releases():
    line = re.search(r'"torch>=.*', (ROOT / "pyproject.toml").read_text(encoding="utf-8")).group()
    assert re.findall(r"\d+\.\d+\.\d+", line) == [*RELEASES.values()]


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize("name", ["newest", "oldest", "2.14.0"])
def test_make_test_installs_another_release(name):
    release = RELEASES.get(name, name)
    lines = made("test", f"TORCH={name}", "VENVS=elsewhere")
    folder = f"elsewhere/.venv-torch-{release}"
    assert f"-c {folder}/constraints.txt torch=={release} " in lines
    assert f"{folder}/bin/python -m pytest" in lines
    assert "ruff" not in lines
