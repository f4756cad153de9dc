"""The names of `import pullback`, in any order of imports."""

import subprocess
import sys

import pytest

import pullback
from pullback.report.report import Report


def test_public_names_exist():
    for name in (
        "Report",
        "Finding",
        "SubjectResult",
        "Evidence",
        "Location",
        "PullbackError",
        "TargetError",
    ):
        assert name in dir(pullback)
        assert getattr(pullback, name).__name__ == name
    assert pullback.__version__[0].isdigit()
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        _ = pullback.chekc


@pytest.mark.parametrize(
    "first",
    ["import pullback", "import pullback.check.api as api", "from pullback.testing import assert_sound"],
)
@pytest.mark.few(1)
def test_check_is_callable_in_any_import_order(first):
    use = "import pullback\ntry: pullback.check('nosuch.py')\nexcept pullback.TargetError: print('ok')"
    code = f"{first}\n{use}"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "ok\n"


def test_check_is_both_function_and_package():
    from pullback import check
    from pullback.check import api

    assert check is pullback.check
    with pytest.raises(pullback.OptionError, match="no rule"):
        check(abs, select="PB99")
    with pytest.raises(pullback.OptionError, match="no rule"):
        api.check(abs, select="PB99")


def test_import_does_not_load_torch_or_rich():
    code = "import pullback, sys; print('torch' in sys.modules, 'rich' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "False False\n"
    assert Report is pullback.Report
