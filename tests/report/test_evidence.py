import pytest

from pullback.report.evidence import excerpt
from pullback.report.model import Location

TEXT = "def f(x):\n    return x \x1b[31m\n\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "ops.py"
    path.write_text(TEXT)
    return str(path)


def test_the_line_and_those_after_it(file):
    lines = excerpt(Location(file, 1))
    assert [(line.number, line.marked) for line in lines] == [(1, True), (2, False), (3, False)]
    assert lines[1].text == "    return x \\x1b[31m"


def test_the_last_line_has_none_after_it(file):
    assert [line.number for line in excerpt(Location(file, 3))] == [3]


@pytest.mark.parametrize("line", [None, 4, 4000])
def test_no_such_line(file, line):
    assert excerpt(Location(file, line)) == []


def test_no_such_file(tmp_path):
    for file in (None, "<string>", str(tmp_path), str(tmp_path / "no.py")):
        assert excerpt(Location(file, 1)) == []


def test_what_is_no_text_is_not_shown(tmp_path):
    path = tmp_path / "ops.py"
    path.write_bytes(b"\xff\xfe\x00")
    assert excerpt(Location(str(path), 1)) == []


def test_large_files_are_not_read(tmp_path):
    path = tmp_path / "ops.py"
    path.write_text("x = 1\n" * 200_000)
    assert excerpt(Location(str(path), 1)) == []
