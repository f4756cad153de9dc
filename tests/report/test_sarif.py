import json
from dataclasses import replace

from pullback.check.rules import all_rules
from pullback.report.model import Location
from pullback.report.report import Report
from pullback.report.sarif import to_sarif

from .findings import ERROR, INFO, report

PAGES = {rule.id: rule.page for rule in all_rules()}


def run_of(found: Report):
    log = json.loads(to_sarif(found, PAGES))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    return run


def test_each_finding_is_a_result_of_its_rule():
    run = run_of(report(ERROR, INFO))
    rules = run["tool"]["driver"]["rules"]
    assert [(r["ruleId"], r["level"]) for r in run["results"]] == [("PB101", "error"), ("PB405", "note")]
    assert all(rules[r["ruleIndex"]]["id"] == r["ruleId"] for r in run["results"])
    assert all(rule["shortDescription"]["text"] and rule["help"]["markdown"] for rule in rules)


def test_result_has_location_message_and_hint():
    (result,) = run_of(report(ERROR))["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "ops.py"}, "region": {"startLine": 12}}
    assert ERROR.message in result["message"]["text"]
    assert ERROR.hint in result["message"]["text"]


def test_paths_are_uris_and_locations_are_optional():
    found = report(replace(ERROR, location=Location("my ops\\a#b.py")), replace(ERROR, location=Location()))
    first, second = run_of(found)["results"]
    assert first["locations"] == [{"physicalLocation": {"artifactLocation": {"uri": "my%20ops/a%23b.py"}}}]
    assert second["locations"] == []


def test_fingerprint_is_independent_of_the_line():
    moved = replace(ERROR, location=Location("ops.py", 40), message="The gradient is off by 2.")
    other = replace(ERROR, subject="Cube")
    prints = [r["partialFingerprints"]["pullback/v1"] for r in run_of(report(ERROR, moved, other))["results"]]
    assert prints[0] == prints[1] != prints[2]


def test_report_without_findings_is_a_valid_log():
    assert run_of(report())["results"] == []


def test_control_characters_are_escaped():
    (result,) = run_of(report(replace(ERROR, subject="\x1b[31mred")))["results"]
    assert "\x1b" not in json.loads(json.dumps(result["message"]["text"]))
    assert "\\x1b" in result["message"]["text"]
