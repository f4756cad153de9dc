"""Nothing is held against functions that are right."""

import pytest

from ..bulk import audit_all
from .controls import CONTROLS, FAMILIES

QUICK = {family.CONTROLS[0].name for family in FAMILIES} - {"newton-sqrt"} | {"kepler"}
"""One control of each family, for the short run. Auditing Newton's iteration takes more than 5 s."""


def case(control):
    return pytest.param(control, id=control.name, marks=[] if control.name in QUICK else [pytest.mark.slow])


@pytest.mark.parametrize("control", [case(control) for control in CONTROLS])
@pytest.mark.few(6)
def test_no_error_is_found(control):
    (found,) = audit_all([(control.target, control.inputs)])
    bad = [f for f in found if f.severity == "error" or f.verdict == "unaudited"]
    assert not bad, "\n".join(f"{control.name}: {f.rule} {f.name}: {f.message}\n{f.reproduce}" for f in bad)


def test_there_are_many_and_each_has_a_name():
    names = [control.name for control in CONTROLS]
    assert len(set(names)) == len(names) >= 250
    assert len(FAMILIES) >= 20
    assert sum(not control.exact for control in CONTROLS) >= 20
