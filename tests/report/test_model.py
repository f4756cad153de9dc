import json
from dataclasses import replace

from pullback.report.model import (
    Evidence,
    Finding,
    Location,
    Report,
    SubjectResult,
    finding_from_dict,
    finding_to_dict,
    merge,
    worst_verdict,
)

ERROR = Finding(
    subject="Square",
    rule="PB101",
    name="wrong-vjp",
    severity="error",
    verdict="wrong",
    message="The gradient is not the derivative.",
    location=Location("ops.py", 12),
    evidence=Evidence(2.0, float("nan"), 1e-9, (0, 3), "gradient of x", "float64", 5, 8),
    reproduce="fn(1)",
    hint="Look again.",
)
INFO = replace(ERROR, rule="PB405", severity="info", verdict="unsupported", evidence=None)
UNAUDITED = replace(ERROR, rule="PB001", severity="warning", verdict="unaudited")


def report(*findings, allowed=0):
    result = SubjectResult("Square", Location("ops.py", 12), worst_verdict(findings), 3, 0.5)
    return Report((result,), findings, allowed)


def test_a_finding_survives_json():
    finite = replace(ERROR.evidence, got=1.5)
    for finding in (replace(ERROR, evidence=finite), replace(UNAUDITED, evidence=finite), INFO):
        assert finding_from_dict(json.loads(json.dumps(finding_to_dict(finding)))) == finding


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
        }
    ]
    assert set(data) == {"version", "subjects", "findings", "summary"}
    assert set(data["version"]) == {"pullback", "torch", "python"}


def test_ok_needs_every_subject_audited_and_no_error():
    assert report().ok
    assert report(INFO).ok
    assert not report(ERROR).ok
    assert not report(UNAUDITED).ok


def test_worst_verdict():
    assert worst_verdict([]) == "ok"
    assert worst_verdict([INFO, UNAUDITED]) == "unaudited"
    assert worst_verdict([UNAUDITED, ERROR, INFO]) == "wrong"


def test_at_least():
    findings = report(ERROR, UNAUDITED, INFO)
    assert findings.at_least("error") == (ERROR,)
    assert findings.at_least("warning") == (ERROR, UNAUDITED)
    assert findings.at_least("info") == (ERROR, UNAUDITED, INFO)


def test_merge_and_summary():
    merged = merge([report(ERROR, INFO, allowed=1), report(UNAUDITED, allowed=2)])
    assert merged.summary == {
        "subjects": 2,
        "errors": 1,
        "warnings": 1,
        "infos": 1,
        "unaudited": 1,
        "allowed": 3,
    }


def test_str_and_repr():
    assert "PB101 wrong-vjp" in str(report(ERROR))
    assert repr(report(ERROR)).startswith("<pullback.Report not ok: 1 subjects, 1 errors")
