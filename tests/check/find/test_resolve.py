"""Resolution of targets to objects, and its error messages."""

import sys

import pytest

from pullback.check.find.discover import discover
from pullback.check.find.resolve import load_function, load_object, resolve
from pullback.errors import TargetError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with targets; modules imported from it are removed afterwards."""
    files = {
        "inputs.py": "def two(subject):\n    yield (1,), {}\n    yield (2,), {}\nn = 3\n",
        "broken.py": "1 / 0\n",
        "half.py": "def first(): return 1\nopen('no_such_data')\ndef second(): return 2\n",
        "needy.py": "import no_such_package_anywhere\ndef first(): return 1\n",
        "pack/__init__.py": "",
        "pack/part.py": "class Group:\n    @staticmethod\n    def inner(x): return x\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    known, path = set(sys.modules), list(sys.path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]
    sys.path[:] = path


def test_function_is_loaded(folder):
    assert list(load_function("inputs.py:two")(None)) == [((1,), {}), ((2,), {})]


def test_object_of_any_type_is_loaded(folder):
    assert load_object("inputs.py:n") == 3


@pytest.mark.parametrize("spec", ["pack:part.Group.inner", "pack.part:Group.inner", "pack/part.py:Group.inner"])
def test_dotted_name_resolves_through_submodules(folder, spec):
    resolved = resolve(spec)
    assert resolved.obj is load_object("pack.part:Group.inner")
    assert (resolved.owner.name, resolved.expression) == ("pack.part", "Group.inner")


def test_name_defined_before_the_module_failed_is_loaded(folder):
    assert load_function("half.py:first")() == 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gone.py:two", "no such file: gone.py"),
        ("input.py:two", r"no such file: input\.py; did you mean inputs\.py\?"),
        ("nowhere.at_all:two", "no module named 'nowhere.at_all'"),
        ("inputs.py", r"name a function of inputs\.py, as in inputs\.py:NAME; there is two"),
        ("inputs.py:two_", r"no 'two_' in inputs\.py; did you mean two\?"),
        ("inputs.py:two.three", r"no 'two\.three' in inputs\.py"),
        ("inputs.py:n", r"inputs\.py:n is of type int: give a function"),
        ("broken.py:two", r"broken\.py could not be imported: ZeroDivisionError: .*; run it with python to see where"),
        ("half.py:second", r"half\.py could not be imported: FileNotFoundError: .*; run it with python to see where"),
        (
            "needy.py:second",
            r"no 'second' in needy\.py \(no_such_package_anywhere could not be imported\); there is first",
        ),
    ],
)
def test_invalid_targets_are_refused(folder, spec, message):
    with pytest.raises(TargetError, match=message):
        load_function(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("inputs.py:two_", r"no 'two_' in inputs\.py; did you mean two\?"),
        (
            "needy.py:second",
            r"no 'second' in needy\.py \(no_such_package_anywhere could not be imported\); there is first",
        ),
        ("half.py:second", r"no 'second' in half\.py \(could not be imported: FileNotFoundError: .*\); there is first"),
    ],
)
def test_discover_gives_the_same_messages(folder, spec, message):
    with pytest.raises(TargetError, match=message):
        discover(spec)
