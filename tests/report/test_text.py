import pytest

from pullback.report.text import in_ranges, ranges


@pytest.mark.parametrize(
    ("ids", "short"),
    [
        ([], ""),
        (["PB101"], "PB101"),
        (["PB102", "PB101"], "PB101, PB102"),
        ([f"PB1{n:02}" for n in range(19, 0, -1)], "PB101–PB119"),
        (["PB303", "PB301", "PB302", "PB704", "PB302", "PB401"], "PB301–PB303, PB401, PB704"),
    ],
)
def test_consecutive_ids_become_a_range(ids, short):
    assert ranges(ids) == short


def test_ids_in_a_text_become_ranges():
    text = "the budget of 10 s was spent before PB301, PB302, PB303, PB409 could run; PB101 did"
    assert in_ranges(text) == "the budget of 10 s was spent before PB301–PB303, PB409 could run; PB101 did"
