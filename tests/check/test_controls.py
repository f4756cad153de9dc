"""Nothing is held against functions that are right."""

import pytest

from ..bulk import audit_all, chosen
from .controls import CONTROLS, FAMILIES


@pytest.fixture(scope="session")
def findings_of_controls(request):
    """The findings on each selected control, by its name; audited in bulk, on every core."""
    unique = {control.name: control for control in chosen(request, "control")}
    found = audit_all([(control.target, control.inputs) for control in unique.values()])
    return dict(zip(unique, found, strict=True))


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_no_error_is_found(control, findings_of_controls):
    found = findings_of_controls[control.name]
    bad = [f for f in found if f.severity == "error" or f.verdict == "unaudited"]
    assert not bad, "\n".join(f"{control.name}: {f.rule} {f.name}: {f.message}\n{f.reproduce}" for f in bad)


def test_there_are_many_and_each_has_a_name():
    names = [control.name for control in CONTROLS]
    assert len(set(names)) == len(names) >= 250
    assert len(FAMILIES) >= 20
    assert sum(not control.exact for control in CONTROLS) >= 20
