"""The page on coverage of failure modes agrees with the mutants and the rules."""

import runpy
from collections import defaultdict
from pathlib import Path

from pullback.check.rules import rule_named

from .mutants.catalogue import MUTANTS

ROOT = Path(__file__).resolve().parents[1]
GENERATOR = runpy.run_path(str(ROOT / "docs" / "generate_coverage.py"))
MODES = GENERATOR["MODES"]


def test_coverage_page_is_current():
    assert GENERATOR["PAGE"].read_text(encoding="utf-8") == GENERATOR["page"]()


def test_rules_of_every_mode_exist():
    for mode in MODES:
        assert all(rule_named(rule) is not None for rule in mode.rules.split()), mode


def test_most_modes_are_covered_and_the_others_have_a_remark():
    assert sum(bool(mode.rules) for mode in MODES) >= 60
    assert all(mode.rules or mode.remark for mode in MODES)


def test_rules_of_a_mode_include_those_expected_by_its_mutants():
    expected = defaultdict(set)
    for mutant in MUTANTS:
        expected[mutant.mode] |= set(mutant.expects)
    del expected[0]  # mutants that only waste time or memory
    for number, rules in expected.items():
        assert rules & set(MODES[number - 1].rules.split()), (number, rules)


def test_every_fault_rule_is_in_the_table():
    named = {rule for mode in MODES for rule in mode.rules.split()}
    apart = {
        "PB001",
        "PB004",
        "PB005",
        "PB006",
        "PB007",
        "PB414",
        "PB505",
        "PB506",
    }  # not among the observed failure modes
    apart |= {"PB205", "PB701", "PB702", "PB703", "PB705", "PB807", "PB908"}
    from pullback.check.rules import all_rules

    missing = {rule.id for rule in all_rules()} - named
    assert missing == apart, "docs/failure_modes.py: name the rule at the failure that it finds, or add it to `apart`"
