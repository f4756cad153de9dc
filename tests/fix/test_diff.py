"""Diffs: what other programs take, and colours for people."""

import click

from pullback.fix.diff import coloured, unified


def test_a_diff_is_one_that_programs_take():
    assert unified("ops.py", b"a\nb", b"a\nc") == (
        "--- a/ops.py\n+++ b/ops.py\n@@ -1,2 +1,2 @@\n a\n"
        "-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n"
    )
    assert unified("ops.py", b"a\r\n", b"b\r\n").endswith("-a\r\n+b\r\n")
    assert unified("ops.py", b"same", b"same") == ""


def test_the_encoding_is_that_of_the_file():
    old = "# coding: latin-1\n# é\n".encode("latin-1")
    assert "+# è" in unified("ops.py", old, old.replace(b"\xe9", b"\xe8"))


def test_colours_change_no_letter():
    diff = unified("ops.py", b"a\nb\n", b"a\nc\n")
    assert click.unstyle(coloured(diff)) == diff
    head, body = (
        [click.style(f"{sign} {side}/ops.py\n", bold=True) for sign, side in (("---", "a"), ("+++", "b"))],
        [
            click.style("@@ -1,2 +1,2 @@\n", fg="cyan"),
            " a\n",
            click.style("-b\n", fg="red"),
            click.style("+c\n", fg="green"),
        ],
    )
    assert coloured(diff) == "".join([*head, *body])
