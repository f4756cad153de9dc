"""docs/dev/versions.md covers the tested releases and reports no failure."""

import runpy
from pathlib import Path

import pytest

GENERATOR = runpy.run_path(str(Path(__file__).resolve().parents[1] / "docs" / "generate_versions.py"))
PAGE = GENERATOR["PAGE"].read_text(encoding="utf-8")
RELEASES = GENERATOR["releases"]()


def test_versions_page_is_current():
    assert GENERATOR["outdated"](PAGE) == [], "run python docs/generate_versions.py"


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (f"| PyTorch | {RELEASES['oldest']} |", "| PyTorch | 2.10.0 |", "its releases are not"),
        ("| Cells: SILENTLY WRONG | 0 |", "| Cells: SILENTLY WRONG | 1 |", "Cells: SILENTLY WRONG: 1"),
        (
            "| Tutorial: judged right | 11 of 11 |",
            "| Tutorial: judged right | 10 of 11 |",
            "Tutorial: judged right: 10",
        ),
        (", 0 |\n", ", 2 |\n", "Tests of compose"),
        ("| right |", "| wrong |", "`assert_sound` after compiled: wrong"),
        ("# PyTorch versions", "# Versions of PyTorch", "its text is another"),
    ],
)
def test_versions_page_with_a_failure_is_rejected(before, after, says):
    assert before in PAGE
    assert any(line.startswith(says) for line in GENERATOR["outdated"](PAGE.replace(before, after)))
