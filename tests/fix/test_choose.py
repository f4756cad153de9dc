"""Findings that call for a fix, that make it unsafe, and that show that it failed."""

import pytest

from pullback.check.contexts.compare import SPLIT
from pullback.check.rules import rule_named
from pullback.fix.choose import (
    backward_rules,
    lacks_setup_context,
    resolved_rules,
    still_wrong,
    style_rules,
    unsafe_after,
    unsafe_before,
    wrong_in_style,
)
from pullback.report.model import Finding


def finding(rule, severity="error", verdict="wrong", message="the gradient of x is 1"):
    return Finding("Op", rule, rule_named(rule).name, severity, verdict, message)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (finding("PB101"), ("PB101",)),
        (finding("PB402", "warning"), ("PB402",)),
        (finding("PB304", "warning", "unstable", "the gradient of x is nan"), ("PB304",)),
        (finding("PB301", "warning", "unstable", "the value is inf"), ()),
        (finding("PB410", "warning"), ()),
        (finding("PB101", "warning", "inconclusive"), ()),
        (finding("PB205", "info"), ()),
        (finding("PB402", "info"), ()),
    ],
)
def test_backward_rules_are_errors_and_warnings_about_the_backward(found, wanted):
    assert backward_rules([found], unsafe=False) == wanted


def test_resolved_rules_have_no_finding_left():
    left = [finding("PB406", "info"), finding("PB303")]
    assert resolved_rules(["PB408", "PB101", "PB406", "PB101"], left) == ("PB101", "PB408")


def test_intended_finding_is_fixed_only_as_unsafe():
    meant = finding("PB101", "info", "intended")
    assert backward_rules([meant], unsafe=False) == ()
    assert backward_rules([meant], unsafe=True) == ("PB101",)
    assert unsafe_before([meant]).startswith("PB101: ")
    assert not unsafe_before([finding("PB101")])
    assert unsafe_before([finding("PB101", "info", "inconclusive")]) == "the audit was inconclusive (PB101)"
    assert not unsafe_before([finding("PB303", "info", "inconclusive")])


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (finding("PB101", "warning", "inconclusive"), "PB101 could not be decided"),
        (finding("PB404", "info", "inconclusive"), "PB404 could not be decided"),
        (finding("PB006", "info", "inconclusive", "the budget was spent before PB401, PB405 could run"), "--budget"),
        (finding("PB403", "info", "unsupported"), "cannot be differentiated"),
        (finding("PB006", "info", "inconclusive", "the budget was spent before PB704 could run"), ""),
        (finding("PB302", "info", "inconclusive"), ""),
        (finding("PB404", "warning"), ""),
    ],
)
def test_undecided_audit_makes_the_fix_unsafe(found, reason):
    assert reason in unsafe_after([found])
    assert bool(reason) == bool(unsafe_after([found]))


def test_still_wrong_reports_remaining_errors_and_new_ones():
    wrong, warned = finding("PB101"), finding("PB304", "warning", "unstable")
    assert still_wrong([wrong], []) == still_wrong([wrong, warned], [warned]) == ""
    assert "still has PB101" in still_wrong([wrong], [wrong])
    assert "would have PB119" in still_wrong([wrong], [finding("PB119")])
    assert "has PB304 too" in still_wrong([warned], [warned])
    assert still_wrong([warned], [finding("PB402", "warning")]) == ""
    assert still_wrong([], [finding("PB119", message="it raised:\n  in two lines")]).endswith("PB119: it raised:")
    unaudited = finding("PB001", "warning", "unaudited", "not audited: it raised")
    assert "could not be audited: not audited: it raised" in still_wrong([wrong], [unaudited])


def test_style_rules_are_selected_from_findings():
    refused = Finding("Op", "PB405", "func-grad-differs", "info", "unsupported", "not supported", hint=SPLIT)
    static, called = finding("PB801", "warning"), finding("PB803")
    assert style_rules([refused, static, called, finding("PB101"), finding("PB405")]) == ("PB405", "PB801", "PB803")
    assert lacks_setup_context([static, refused])
    assert not lacks_setup_context([static, called, finding("PB405", "info", "unsupported")])
    assert backward_rules([refused, static, called], unsafe=True) == ()


def test_wrong_in_style_reports_errors_and_new_warnings():
    warned = finding("PB408", "warning", "unsupported", "it raised")
    assert wrong_in_style([], [], ["PB408"]) == wrong_in_style([warned], [warned], ["PB408"]) == ""
    assert wrong_in_style([], [warned], []) == ""  # it was not asked for before
    assert wrong_in_style([], [warned], ["PB408"]) == "in the new style it has PB408: it raised"
    assert "has PB101: the gradient" in wrong_in_style([finding("PB101")], [finding("PB101")], [])
    unaudited = finding("PB001", "warning", "unaudited", "not audited: it raised")
    assert "could not be audited: not audited: it raised" in wrong_in_style([], [unaudited], [])
