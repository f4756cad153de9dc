"""The faults of which the fuzz is to find most: each can be put into the library as it stands."""

import shutil

import pytest

from tests.adversary.faults import FAULTS
from tests.adversary.power import PACKAGE


def test_there_are_thirty_or_more():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_changes_the_library(fault, tmp_path):
    at = tmp_path / fault.file
    at.parent.mkdir(parents=True)
    shutil.copy(PACKAGE / fault.file, at)
    before = at.read_text()
    fault.put_into(tmp_path)
    assert at.read_text() != before
