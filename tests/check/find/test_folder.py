"""Folders as targets."""

import subprocess

import pytest

from pullback.check.find.folder import expanded
from pullback.errors import TargetError

from .test_stand_ins import FUNCTION


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("ops", "tests/test_ops", "pkg/__init__", "pkg/deep", "tools/plain", ".hidden/ops", "env/lib/ops"):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if name.endswith(("__init__", "plain")) else FUNCTION)
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "tools" / "made.py").write_text("import pullback\n\n@pullback.function\ndef f(x):\n    return x * x\n")
    return tmp_path


def test_folder_expands_to_packages_and_files_with_functions(project):
    assert expanded(["."]) == ["ops.py", "pkg", "tools/made.py"]
    assert expanded([str(project)]) == [str(project / name) for name in ("ops.py", "pkg", "tools/made.py")]
    assert expanded(["tools", "ops.py:Square", "pkg"]) == ["tools/made.py", "ops.py:Square", "pkg"]


def test_excluded_paths_are_left_out(project):
    assert expanded(["."], ["tools/*", "ops.py"]) == ["pkg"]
    (project / "pkg" / "other.py").write_text(FUNCTION)
    assert expanded(["."], ["pkg/deep.py"]) == ["ops.py", "pkg/other.py", "tools/made.py"]


def test_files_ignored_by_git_are_left_out(project):
    subprocess.run(["git", "init", "-q"], check=True)
    (project / ".gitignore").write_text("ops.py\nenv\n")
    assert expanded(["."]) == ["tools/made.py", "pkg"] or expanded(["."]) == ["pkg", "tools/made.py"]


def test_folder_without_functions_is_refused(project):
    with pytest.raises(TargetError, match="no custom function in the 1 Python file of tools"):
        expanded(["tools"], ["made.py"])


def test_folder_of_tests_is_expanded_if_named(project, monkeypatch):
    assert expanded(["tests"]) == expanded(["tests/"]) == ["tests/test_ops.py"]
    for name in ("__init__", "__main__", "setup", "conftest", "unit/__init__", "unit/test_more"):
        path = project / "tests" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("" if name.endswith("__init__") else FUNCTION)
    every = ["conftest.py", "test_ops.py", "unit/test_more.py"]
    assert expanded(["tests"]) == expanded(["./tests"]) == [f"tests/{name}" for name in every]
    monkeypatch.chdir(project / "tests")
    assert expanded(["."]) == every


def test_skipped_test_files_are_mentioned_if_nothing_else_is_found(project):
    with pytest.raises(
        TargetError,
        match=r"leaves out all \d .*; 1 test file was skipped \(tests/test_ops\.py\): name it",
    ):
        expanded(["."], ["ops.py", "pkg/*", "tools/*"])
    (project / "tools" / "test_more.py").write_text(FUNCTION)
    with pytest.raises(TargetError, match=r"; 2 test files were skipped \(such as tests/test_ops\.py\): name them, or"):
        expanded(["."], ["ops.py", "pkg/*", "tools/*"])


def test_file_that_is_not_python_is_noted(project):
    (project / "bad.py").write_text("class Function(:\n")
    told = []
    assert "ops.py" in expanded(["."], note=told.append)
    ((text,),) = [told]
    assert text.startswith("skipped: bad.py:1 is not valid Python")
