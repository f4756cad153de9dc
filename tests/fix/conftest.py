"""Functions in files, for tests of fixes."""

import importlib.util
import itertools
import sys

import pytest

from pullback.check.find.discover import subject_of

_NUMBERS = itertools.count()
HEADER = """
import torch
from torch.autograd import Function
"""


@pytest.fixture
def subject(tmp_path, monkeypatch):
    """Return the subject of a Function `Op` with some methods, defined in a file."""

    def make(source, name="Op"):
        path = tmp_path / f"made_{next(_NUMBERS)}.py"
        path.write_text(HEADER + source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
        return subject_of(getattr(module, name))

    return make
