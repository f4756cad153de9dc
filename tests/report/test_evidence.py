"""Groups of findings by cause, and excerpts of their source."""

from dataclasses import replace

import pytest

from pullback.report.evidence import ALTERED, excerpt, groups_of, inputs_in
from pullback.report.model import Location

from .findings import ERROR, INFO

SECOND = replace(ERROR, rule="PB401")
VMAP = replace(ERROR, rule="PB406", severity="warning")
NONFINITE = replace(ERROR, rule="PB301", verdict="unstable")
DIGITS = replace(NONFINITE, rule="PB303", severity="info")
UNRUN = replace(VMAP, rule="PB409", verdict="unsupported")
LEAK = replace(ERROR, rule="PB204")


def rules_of(*findings):
    return [[group.first.rule, *(f.rule for f in group.also)] for group in groups_of(findings)]


def test_wrong_gradient_leads_its_consequences():
    assert rules_of(ERROR, SECOND, VMAP) == [["PB101", "PB401", "PB406"]]


def test_range_findings_form_their_own_group():
    assert rules_of(ERROR, NONFINITE, SECOND, DIGITS) == [["PB101", "PB401"], ["PB301", "PB303"]]


def test_refusals_and_unrelated_findings_are_not_grouped():
    assert rules_of(ERROR, LEAK, SECOND, UNRUN, INFO) == [["PB101", "PB401"], ["PB204"], ["PB409"], ["PB405"]]


def test_every_finding_is_in_a_group():
    found = [ERROR, NONFINITE, LEAK, SECOND, DIGITS, INFO]
    told = [f for group in groups_of(found) for f in (group.first, *group.also)]
    assert sorted(map(id, told)) == sorted(map(id, found))


F32 = "dtype=torch.float32"


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (f"torch.tensor([1.0, 2.0], {F32}).requires_grad_()", "x = [1.0, 2.0]"),
        (f"torch.randn((200, 32), {F32}).requires_grad_()  {ALTERED}", "x of shape (200, 32), float32 (not printed)"),
        (f"torch.zeros((300,), dtype=torch.int64)  {ALTERED}", "x of shape (300,), int64 (not printed)"),
        (f"torch.randn((300, 1), {F32}).expand((300, 5))  {ALTERED}", "x of shape (300, 5), float32 (not printed)"),
        (
            f"torch.empty_strided((20, 30), (1, 20), {F32}).copy_(torch.randn((20, 30), {F32}))  {ALTERED}",
            "x of shape (20, 30), float32 (not printed)",
        ),
    ],
)
def test_input_is_shown_by_its_values_or_if_they_are_too_many_by_its_shape(made, shown):
    assert inputs_in(f"import torch\nx = {made}\nout = fn(x)\nprint(out)") == shown


TEXT = "def f(x):\n    return x \x1b[31m\n\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "ops.py"
    path.write_text(TEXT)
    return str(path)


def test_excerpt_is_the_line_and_those_after_it(file):
    lines = excerpt(Location(file, 1))
    assert [(line.number, line.marked) for line in lines] == [(1, True), (2, False), (3, False)]
    assert lines[1].text == "    return x \\x1b[31m"


def test_excerpt_at_the_last_line_is_one_line(file):
    assert [line.number for line in excerpt(Location(file, 3))] == [3]


@pytest.mark.parametrize("line", [None, 4, 4000])
def test_excerpt_of_a_missing_line_is_empty(file, line):
    assert excerpt(Location(file, line)) == []


def test_excerpt_of_a_missing_file_is_empty(tmp_path):
    for file in (None, "<string>", str(tmp_path), str(tmp_path / "no.py")):
        assert excerpt(Location(file, 1)) == []


def test_excerpt_of_a_binary_file_is_empty(tmp_path):
    path = tmp_path / "ops.py"
    path.write_bytes(b"\xff\xfe\x00")
    assert excerpt(Location(str(path), 1)) == []


def test_excerpt_of_a_large_file_is_empty(tmp_path):
    path = tmp_path / "ops.py"
    path.write_text("x = 1\n" * 200_000)
    assert excerpt(Location(str(path), 1)) == []
