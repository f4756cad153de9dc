"""Without a private name of PyTorch, values are right or an error names what is missing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.missing_names import asked_for, private_names

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", private_names())
@pytest.mark.few(1)
def test_missing_private_name_is_never_silently_wrong(name):
    command = [sys.executable, "-m", "tests.missing_names", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found, said = json.loads(done.stdout)
    assert found == name
    assert said.pop("import", "a crash") == "right"
    assert [use for use, outcome in said.items() if outcome == "WRONG"] == []
    last = name.rpartition(".")[2]
    assert said["check"] == "right" or (last in said["check"] and "\n" not in said["check"]), said["check"]


def test_required_private_names_exist():
    from pullback._torch.private import Missing, private

    assert len(asked_for()) > 20
    assert [name for name in asked_for() if isinstance(private(name), Missing)] == []
