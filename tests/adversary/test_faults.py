"""Seeded faults can be put into the library: the text that each replaces exists."""

import shutil

import pytest

from tests.adversary.faults import FAULTS
from tests.adversary.power import PACKAGE


def test_there_are_thirty_or_more():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_changes_the_library(fault, tmp_path):
    files = [fault.file, *(["kernels/include/avx2.h"] if fault.in_avx2 else [])]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PACKAGE / file, tmp_path / file)
    fault.put_into(tmp_path)
    for file in files:
        assert (tmp_path / file).read_text() != (PACKAGE / file).read_text()
