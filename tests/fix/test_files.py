"""Source files: atomic replacement, the overlay in which a fix is audited, and diffs."""

import os
import stat
from pathlib import Path

import click
import pytest

from pullback.fix.files import EditableFile, coloured_diff, is_installed, overlay, unified_diff
from pullback.fix.patch import CannotFixError


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ops.py"
    path.write_bytes(b"old\r\n")
    return path


def test_write_replaces_the_file_and_keeps_its_mode(path):
    path.chmod(0o750)
    EditableFile(path).write(b"new\r\n")
    assert path.read_bytes() == b"new\r\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert [p.name for p in path.parent.iterdir()] == ["ops.py"]


def test_write_follows_a_symlink(path, tmp_path):
    link = tmp_path / "link.py"
    link.symlink_to(path)
    EditableFile(link).write(b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"


def test_concurrent_change_is_not_overwritten(path):
    file = EditableFile(path)
    path.write_bytes(b"theirs")
    with pytest.raises(CannotFixError, match="changed in the meantime"):
        file.write(b"new")
    assert path.read_bytes() == b"theirs"
    assert [p.name for p in path.parent.iterdir()] == ["ops.py"]


def test_unreadable_or_read_only_file_is_refused(path):
    path.chmod(0o444)
    with pytest.raises(CannotFixError, match="is read-only"):
        EditableFile(path)
    path.unlink()
    with pytest.raises(CannotFixError, match="cannot be read: No such file"):
        EditableFile(path)


def test_failed_write_leaves_the_original_and_no_temporary_file(path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    file = EditableFile(path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CannotFixError, match="No space left"):
        file.write(b"new")
    assert path.read_bytes() == b"old\r\n"
    assert [p.name for p in path.parent.iterdir()] == ["ops.py"]


def test_installed_files_are_recognised():
    assert is_installed(Path(pytest.__file__))
    assert is_installed(Path(os.__file__))
    assert not is_installed(Path(__file__))


def test_overlay_links_the_package_and_writes_nothing_beside_the_file(tmp_path):
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    for name in ("package/__init__.py", "package/inner/__init__.py", "package/inner/ops.py", "package/data.txt"):
        (tmp_path / name).write_text("old")
    path = package / "inner" / "ops.py"
    before = sorted(tmp_path.rglob("*"))
    with overlay({path: b"new"}) as copies:
        copy = copies[path]
        assert copy.read_bytes() == b"new"
        assert (copy.parents[1] / "data.txt").read_text() == "old"
        assert (copy.parents[1] / "data.txt").is_symlink()
    assert not copy.exists()
    assert sorted(tmp_path.rglob("*")) == before
    assert path.read_text() == "old"


def test_diff_is_in_unified_format():
    assert unified_diff("ops.py", b"a\nb", b"a\nc") == (
        "--- a/ops.py\n+++ b/ops.py\n@@ -1,2 +1,2 @@\n a\n"
        "-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n"
    )
    assert unified_diff("ops.py", b"a\r\n", b"b\r\n").endswith("-a\r\n+b\r\n")
    assert unified_diff("ops.py", b"same", b"same") == ""


def test_diff_uses_the_encoding_of_the_file():
    old = "# coding: latin-1\n# é\n".encode("latin-1")
    assert "+# è" in unified_diff("ops.py", old, old.replace(b"\xe9", b"\xe8"))


def test_coloured_diff_has_the_same_text():
    diff = unified_diff("ops.py", b"a\nb\n", b"a\nc\n")
    assert click.unstyle(coloured_diff(diff)) == diff
    head, body = (
        [click.style(f"{sign} {side}/ops.py\n", bold=True) for sign, side in (("---", "a"), ("+++", "b"))],
        [
            click.style("@@ -1,2 +1,2 @@\n", fg="cyan"),
            " a\n",
            click.style("-b\n", fg="red"),
            click.style("+c\n", fg="green"),
        ],
    )
    assert coloured_diff(diff) == "".join([*head, *body])
