"""Right Functions, in the styles of published packages, against formulas in PyTorch's operations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from tests.check.triton_functions.mutants import right_names

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def report() -> dict[str, list[tuple[float, int]]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.interpreter.run_right"],
        capture_output=True, text=True, cwd=ROOT, check=False, timeout=300,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", right_names())
def test_values_and_gradients_are_those_of_the_formula(report, name):
    assert len(report[name]) >= 8
    assert max(error for error, _ in report[name]) < 1e-13
    assert all(count == 0 for _, count in report[name])
