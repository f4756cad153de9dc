import pytest
import torch

from pullback.check.cases.given import examples
from pullback.errors import OptionError


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


@pytest.mark.parametrize("said", ["Torch not compiled with CUDA enabled", "Found no NVIDIA driver on your system."])
def test_inputs_for_a_gpu_that_is_not_there(tmp_path, said):
    file = tmp_path / "example.py"
    file.write_text(f"def inputs(function):\n    raise RuntimeError({said!r})\n", encoding="utf-8")
    with pytest.raises(OptionError, match=r"as inputs\(sin\)\. Leave out device=: the audit moves the tensors\.$"):
        examples(f"{file}:inputs")(torch.sin, "sin")
