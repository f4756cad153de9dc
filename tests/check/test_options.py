import pytest

from pullback.check.options import make_options
from pullback.check.pages import unknown_rule
from pullback.check.subject import Options
from pullback.errors import OptionError


def test_defaults():
    assert make_options() == Options()


@pytest.mark.parametrize("select", ["PB1,pb101", ["PB1", "pb101"], ("PB1, PB101,",)])
def test_select_accepts_strings_and_sequences(select):
    assert make_options(select=select).select == ("PB1", "PB101")


def test_rule_may_be_selected_by_name():
    assert make_options(select="wrong-vjp,PB4", ignore="Masked-NaN").select == ("PB101", "PB4")
    assert make_options(ignore="Masked-NaN").ignore == ("PB304",)


BAD = [
    ({"select": "PB999"}, "select: no rule 'PB999'"),
    ({"ignore": ["XY"]}, "ignore: no rule 'XY'; `pullback rules` lists them"),
    ({"select": [""]}, "select names no rule; without it, all rules run"),
    ({"select": [101]}, "select takes ids of rules"),
    ({"seed": 1.5}, "seed must be an integer"),
    ({"seed": -1}, "seed must be an integer"),
    ({"seed": True}, "seed must be an integer"),
    ({"budget": 0}, "budget must be a positive number"),
    ({"budget": float("inf")}, "budget must be a positive number"),
    ({"budget": float("nan")}, "budget must be a positive number"),
    ({"budget": "10"}, "budget must be a positive number"),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_invalid_options_are_refused(given, message):
    with pytest.raises(OptionError, match=message):
        make_options(**given)


def test_family_is_no_rule():
    assert unknown_rule("PB9").startswith("'PB9' is not a rule; the families of rules are PB0, PB1, PB2, ")


def test_unknown_rule_suggests_a_similar_name():
    assert unknown_rule("wrong_vjp").endswith("did you mean wrong-vjp?")
