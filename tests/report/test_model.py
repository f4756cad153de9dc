import json
import math
from dataclasses import replace

from pullback.report.model import (
    ContextResult,
    GradientCurve,
    Measurements,
    UlpErrors,
    finding_from_dict,
    status_of,
    to_plain,
)
from pullback.report.report import Report

from .findings import ERROR, INFO, UNAUDITED, report


def test_finding_round_trips_through_json():
    for got in (1.5, float("inf"), "a text"):
        finding = replace(ERROR, evidence=replace(ERROR.evidence, got=got))
        assert finding_from_dict(json.loads(json.dumps(to_plain(finding)))) == finding
    back = finding_from_dict(json.loads(json.dumps(to_plain(ERROR))))
    assert math.isnan(back.evidence.got)


def test_report_round_trips_through_json():
    whole = report(replace(ERROR, evidence=None), UNAUDITED, INFO, allowed=2)
    whole = replace(whole, findings=tuple(replace(finding, evidence=None) for finding in whole.findings))
    assert Report.from_dict(json.loads(whole.to_json())) == whole


def test_measurements_round_trip_through_json():
    slope = GradientCurve("x", (0.0, 1.0), (None, 1.5), (None, 1.0), (2.0, 1.0))
    errors = UlpErrors("value", "float32", (-1.0,), (None,), True)
    measured = Measurements((ContextResult("func.grad", "unsupported"),), (slope,), (errors,))
    whole = report()
    whole = replace(whole, subjects=(replace(whole.subjects[0], measured=measured),))
    assert Report.from_dict(json.loads(whole.to_json())) == whole


def test_json_is_strict():
    data = json.loads(report(ERROR).to_json(), parse_constant=lambda name: 1 / 0)
    assert data["findings"][0]["evidence"]["got"] == "nan"
    assert data["findings"][0]["location"] == {"file": "ops.py", "line": 12}
    assert data["subjects"] == [
        {
            "name": "Square",
            "location": {"file": "ops.py", "line": 12},
            "status": "wrong",
            "cases": 3,
            "seconds": 0.5,
            "measured": {"contexts": [], "slopes": [], "errors": [], "guessed": False, "interpreted": False},
            "absent": [],
        }
    ]
    assert set(data) == {"version", "subjects", "findings", "summary"}
    assert set(data["version"]) == {"pullback", "torch", "python"}


def test_report_is_ok_without_errors_and_unaudited_functions():
    assert report().ok
    assert report(INFO).ok
    assert not report(ERROR).ok
    assert not report(UNAUDITED).ok


def test_status_of_warnings_is_warned_or_unstable():
    warning = replace(ERROR, severity="warning")
    assert status_of([warning, INFO]) == "warned"
    assert status_of([warning, ERROR]) == "wrong"
    assert status_of([warning, replace(warning, verdict="unsupported")]) == "warned"
    assert status_of([replace(warning, verdict="unstable")]) == "unstable"


def test_status_is_that_of_the_worst_finding():
    assert status_of([]) == "ok"
    assert status_of([INFO, UNAUDITED]) == "unaudited"
    assert status_of([UNAUDITED, ERROR, INFO]) == "wrong"


def test_at_least_filters_by_severity():
    findings = report(ERROR, UNAUDITED, INFO)
    assert findings.at_least("error") == (ERROR,)
    assert findings.at_least("warning") == (ERROR, UNAUDITED)
    assert findings.at_least("info") == (ERROR, UNAUDITED, INFO)


def test_summary_counts_findings():
    of_two, of_one = report(ERROR, INFO, allowed=1), report(UNAUDITED)
    both = Report((*of_two.subjects, *of_one.subjects), (*of_two.findings, *of_one.findings), allowed=3)
    assert both.summary == {
        "subjects": 2,
        "errors": 1,
        "warnings": 1,
        "infos": 1,
        "unaudited": 1,
        "allowed": 3,
        "known": 0,
    }


def test_str_and_repr():
    assert "PB101 wrong-vjp" in str(report(ERROR))
    assert repr(report(ERROR)).startswith("<pullback.Report not ok: 1 subjects, 1 errors")
