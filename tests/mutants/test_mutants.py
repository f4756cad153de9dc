"""Every mutant is caught, and no base is reported."""

from dataclasses import replace

import pytest

from ..bulk import OPTIONS, audit_all
from .catalogue import MUTANTS
from .load import base_names, build, function_of, load_base
from .model import INFORMS


def findings_on(module, select=()):
    (found,) = audit_all([(function_of(module), module.inputs)], replace(OPTIONS, select=select))
    return found


FIRST = {(mutant.mode, mutant.expects): mutant for mutant in reversed(MUTANTS)}
"""The first mutant for each failure mode and set of expected rules: these rules also run alone, in the short run."""


def case(mutant, select):
    """A mutant as a parameter; a known survivor is an expected failure with its reason."""
    marks = [pytest.mark.xfail(reason=mutant.survives, strict=True)] if mutant.survives else []
    if select == "all":
        marks.append(pytest.mark.slow)
    return pytest.param(mutant, select, id=f"{select}-{mutant.id}", marks=marks)


ALONE = [case(mutant, "expected") for mutant in MUTANTS if FIRST[mutant.mode, mutant.expects] is mutant]


@pytest.mark.parametrize(("mutant", "select"), [*ALONE, *(case(mutant, "all") for mutant in MUTANTS)])
@pytest.mark.few(39)
def test_mutant_is_caught(mutant, select, tmp_path):
    findings = findings_on(build(mutant, tmp_path), mutant.expects if select == "expected" else ())
    seen = [(finding.rule, finding.severity, finding.verdict) for finding in findings]
    assert mutant.caught_by(findings), f"{mutant.note} Findings: {seen}"


@pytest.mark.parametrize("name", base_names())
@pytest.mark.few(5)
def test_base_is_sound(name):
    findings = findings_on(load_base(name))
    assert [finding for finding in findings if finding.severity == "error"] == []
    # an info that the base has too would kill any mutant
    informs = [finding.rule for finding in findings if finding.rule in INFORMS and finding.verdict == "wrong"]
    assert informs == [], name
