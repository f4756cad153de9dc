from dataclasses import replace

from pullback.report.groups import groups_of

from .findings import ERROR, INFO

SECOND = replace(ERROR, rule="PB401")
VMAP = replace(ERROR, rule="PB406", severity="warning")
NONFINITE = replace(ERROR, rule="PB301", verdict="unstable")
DIGITS = replace(NONFINITE, rule="PB303", severity="info")
UNRUN = replace(VMAP, rule="PB409", verdict="unsupported")
LEAK = replace(ERROR, rule="PB204")


def rules_of(*findings):
    return [[group.first.rule, *(f.rule for f in group.also)] for group in groups_of(findings)]


def test_a_wrong_gradient_leads_what_else_it_is_wrong_in():
    assert rules_of(ERROR, SECOND, VMAP) == [["PB101", "PB401", "PB406"]]


def test_the_range_is_a_cause_of_its_own():
    assert rules_of(ERROR, NONFINITE, SECOND, DIGITS) == [["PB101", "PB401"], ["PB301", "PB303"]]


def test_what_is_refused_or_of_another_kind_stands_alone():
    assert rules_of(ERROR, LEAK, SECOND, UNRUN, INFO) == [["PB101", "PB401"], ["PB204"], ["PB409"], ["PB405"]]


def test_nothing_is_lost():
    found = [ERROR, NONFINITE, LEAK, SECOND, DIGITS, INFO]
    told = [f for group in groups_of(found) for f in (group.first, *group.also)]
    assert sorted(map(id, told)) == sorted(map(id, found))
