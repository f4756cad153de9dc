import json
from dataclasses import replace

import pytest

from pullback.errors import OptionError
from pullback.report.baseline import read_baseline, without, write_baseline
from pullback.report.model import Location

from .findings import ERROR, INFO, UNAUDITED, report


@pytest.fixture
def path(tmp_path):
    return tmp_path / "baseline.json"


def test_known_findings_are_left_out_and_new_ones_stay(path):
    assert write_baseline(report(ERROR, INFO), path) == 2
    new = replace(ERROR, rule="PB104")
    left = without(report(ERROR, INFO, new), read_baseline(path))
    assert left.findings == (new,)
    assert left.known == left.summary["known"] == 2
    assert not left.ok


def test_known_finding_matches_despite_other_lines_and_numbers(path):
    write_baseline(report(ERROR), path)
    moved = replace(ERROR, location=Location("ops.py", 99), message="other numbers", evidence=None)
    left = without(report(moved), read_baseline(path))
    assert left.ok
    assert left.subjects[0].status == "known"  # the function still has a finding


@pytest.mark.parametrize(
    "change",
    [{"severity": "warning"}, {"subject": "Cube"}, {"location": Location("other.py", 12)}, {"rule": "PB106"}],
    ids=str,
)
def test_finding_of_another_severity_function_file_or_rule_is_new(path, change):
    write_baseline(report(replace(ERROR, **change)), path)
    assert without(report(ERROR), read_baseline(path)).findings == (ERROR,)


def test_static_half_matches_its_former_id(path):
    write_baseline(report(replace(ERROR, rule="PB804", name="tensor-on-ctx-in-source")), path)
    now = replace(ERROR, rule="PB201", name="tensor-on-ctx", alias="PB804")
    assert without(report(now), read_baseline(path)).findings == ()
    assert without(report(replace(now, alias="")), read_baseline(path)).findings != ()


def test_second_finding_of_the_same_rule_is_new(path):
    write_baseline(report(ERROR), path)
    again = replace(ERROR, message="and of y")
    assert without(report(ERROR, again), read_baseline(path)).findings == (again,)


def test_unaudited_function_can_be_in_the_baseline(path):
    write_baseline(report(UNAUDITED), path)
    assert without(report(UNAUDITED), read_baseline(path)).ok


def test_status_follows_the_remaining_findings(path):
    warning = replace(ERROR, rule="PB303", severity="warning")
    write_baseline(report(ERROR), path)
    assert without(report(ERROR, warning), read_baseline(path)).subjects[0].status == "warned"


def test_baseline_is_independent_of_the_order_of_findings(path):
    write_baseline(report(ERROR, INFO), path)
    first = path.read_text()
    write_baseline(report(INFO, ERROR), path)
    assert path.read_text() == first
    assert list(path.parent.iterdir()) == [path]


def test_missing_baseline_error_names_the_option_that_writes_it(path):
    with pytest.raises(OptionError, match="--update-baseline writes it"):
        read_baseline(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1, "findings": [{}]}', '{"version": 1}', "\x00"])
def test_malformed_baseline_is_refused(path, text):
    path.write_text(text)
    with pytest.raises(OptionError, match="is not a baseline"):
        read_baseline(path)


def test_baseline_of_another_version_is_refused(path):
    path.write_text(json.dumps({"version": 2, "findings": []}))
    with pytest.raises(OptionError, match="of another version"):
        read_baseline(path)


def test_missing_folder_is_an_error(tmp_path):
    with pytest.raises(OptionError, match="cannot be written"):
        write_baseline(report(ERROR), tmp_path / "no" / "baseline.json")
