"""Pullback must catch every mutant and say nothing against any base."""

import pytest

import pullback

from .catalogue import MUTANTS
from .load import base_names, build, function_of, load_base


def case(mutant):
    """One that is known to survive is an expected failure with its reason."""
    marks = [pytest.mark.xfail(reason=mutant.survives, strict=True)] if mutant.survives else []
    return pytest.param(mutant, id=mutant.id, marks=marks)


@pytest.mark.parametrize("mutant", [case(mutant) for mutant in MUTANTS])
def test_mutant_is_caught(mutant, tmp_path):
    module = build(mutant, tmp_path)
    report = pullback.check(function_of(module), *module.inputs())
    seen = [(finding.rule, finding.severity, finding.verdict) for finding in report.findings]
    assert mutant.caught_by(report.findings), f"{mutant.note} Findings: {seen}"


@pytest.mark.parametrize("name", base_names())
def test_base_is_sound(name):
    module = load_base(name)
    report = pullback.check(function_of(module), *module.inputs())
    assert [finding for finding in report.findings if finding.severity == "error"] == []
