"""Seeded faults apply to the current source: the text that each replaces exists."""

import shutil

import pytest

from tests.adversary.faults import FAULTS
from tests.adversary.power import PACKAGE


def test_at_least_thirty_faults_have_distinct_names():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_changes_the_library(fault, tmp_path):
    files = [fault.file, *(["kernels/include/avx2.h"] if fault.in_avx2 else [])]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PACKAGE / file, tmp_path / file)
    fault.put_into(tmp_path)
    for file in files:
        assert (tmp_path / file).read_text() != (PACKAGE / file).read_text()
