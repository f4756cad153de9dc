"""Pullback must catch every mutant and say nothing against any base."""

import pytest

from ..bulk import audit_all, chosen
from .catalogue import MUTANTS
from .load import base_names, build, function_of, load_base


@pytest.fixture(scope="session")
def findings_of_mutants(request, tmp_path_factory):
    """The findings on each selected mutant, by its id."""
    folder = tmp_path_factory.mktemp("mutants")
    unique = {mutant.id: mutant for mutant in chosen(request, "mutant")}
    modules = [build(mutant, folder) for mutant in unique.values()]
    found = audit_all([(function_of(module), module.inputs) for module in modules])
    return dict(zip(unique, found, strict=True))


@pytest.fixture(scope="session")
def findings_of_bases():
    """The findings on each base, by its name."""
    modules = [load_base(name) for name in base_names()]
    found = audit_all([(function_of(module), module.inputs) for module in modules])
    return dict(zip(base_names(), found, strict=True))


def case(mutant):
    """One that is known to survive is an expected failure with its reason."""
    marks = [pytest.mark.xfail(reason=mutant.survives, strict=True)] if mutant.survives else []
    return pytest.param(mutant, id=mutant.id, marks=marks)


@pytest.mark.parametrize("mutant", [case(mutant) for mutant in MUTANTS])
def test_mutant_is_caught(mutant, findings_of_mutants):
    findings = findings_of_mutants[mutant.id]
    seen = [(finding.rule, finding.severity, finding.verdict) for finding in findings]
    assert mutant.caught_by(findings), f"{mutant.note} Findings: {seen}"


@pytest.mark.parametrize("name", base_names())
def test_base_is_sound(name, findings_of_bases):
    assert [finding for finding in findings_of_bases[name] if finding.severity == "error"] == []
