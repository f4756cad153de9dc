"""docs/composition.md has the rows and columns of the tests, and the verdicts that they expect."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "composition.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def outdated():
    return runpy.run_path(str(ROOT / "docs" / "generate_composition.py"))["outdated"]


def test_composition_page_is_current(outdated):
    assert outdated(PAGE) == [], "run python docs/generate_composition.py"


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("| jit.trace | kept |", "| jit.trace | refused |", "jit.trace, derived: refused, expected kept"),
        ("| DTensor, sharded |", "| DTensor, halved |", "no row: DTensor, sharded"),
        ("| context | derived |", "| context | derivd |", "the columns are not"),
    ],
)
def test_outdated_page_is_reported(outdated, before, after, says):
    assert before in PAGE
    assert any(line.startswith(says) for line in outdated(PAGE.replace(before, after)))
