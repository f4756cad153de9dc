"""Pullback must catch every mutant and say nothing against any base."""

from dataclasses import replace

import pytest

from ..bulk import OPTIONS, audit_all
from .catalogue import MUTANTS
from .load import base_names, build, function_of, load_base


def findings_on(module, select=()):
    (found,) = audit_all([(function_of(module), module.inputs)], replace(OPTIONS, select=select))
    return found


def case(mutant):
    """One that is known to survive is an expected failure with its reason."""
    marks = [pytest.mark.xfail(reason=mutant.survives, strict=True)] if mutant.survives else []
    return pytest.param(mutant, id=mutant.id, marks=marks)


@pytest.mark.parametrize("mutant", [case(mutant) for mutant in MUTANTS])
@pytest.mark.parametrize("select", ["expected", pytest.param("all", marks=pytest.mark.slow)])
def test_mutant_is_caught(mutant, select, tmp_path):
    findings = findings_on(build(mutant, tmp_path), mutant.expects if select == "expected" else ())
    seen = [(finding.rule, finding.severity, finding.verdict) for finding in findings]
    assert mutant.caught_by(findings), f"{mutant.note} Findings: {seen}"


@pytest.mark.parametrize("name", base_names())
def test_base_is_sound(name):
    assert [finding for finding in findings_on(load_base(name)) if finding.severity == "error"] == []
