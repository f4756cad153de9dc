import io

from rich.console import Console

from pullback.check.pages import page_of
from pullback.cli.rules import print_catalogue, print_page

WRONG = page_of("wrong-vjp (PB101): the gradient is not the derivative.\n\n## What it finds\n`[red]` things.")
SHORT = page_of("odd (PB199): odd.")


def rendered(render, what, **console):
    out = io.StringIO()
    render(what, Console(file=out, width=80, **console))
    return out.getvalue()


def test_catalogue_has_one_line_for_each_rule():
    expected = "PB101  wrong-vjp  the gradient is not the derivative\nPB199  odd        odd\n"
    assert rendered(print_catalogue, (WRONG, SHORT)) == expected
    assert "wrong-vjp" in rendered(print_catalogue, (WRONG, SHORT), force_terminal=True)


def test_page_is_formatted_only_on_a_terminal():
    assert rendered(print_page, WRONG) == f"{WRONG.text}\n"
    assert "##" not in rendered(print_page, WRONG, force_terminal=True)
