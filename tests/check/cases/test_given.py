import pytest
import torch

from pullback.check.cases.given import examples


@pytest.mark.parametrize(
    ("returned", "calls"),
    [
        ("(1.0, 2.0)", [((1.0, 2.0), {})]),
        ("[1.0]", [((1.0,), {})]),
        ("1.0", [((1.0,), {})]),
        ("[((1.0,), {'dim': 0}), ((2.0,), {})]", [((1.0,), {"dim": 0}), ((2.0,), {})]),
        ("None", None),
    ],
)
def test_a_function_without_parameters_gives_the_arguments_of_a_call(tmp_path, returned, calls):
    file = tmp_path / "example.py"
    file.write_text(f"def get_inputs():\n    return {returned}\n", encoding="utf-8")
    assert examples(f"{file}:get_inputs")(torch.sin, "sin") == calls
