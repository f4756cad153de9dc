"""Reproductions run and rebuild the call exactly."""

import math
from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pullback.check.case import make_case
from pullback.check.cases.layouts import other_dtypes, other_layouts, sliced
from pullback.check.cases.repro import bind, call_text, is_long, literal, script, variables
from pullback.check.cases.shrink import shrink
from pullback.check.cases.sizes import other_sizes
from pullback.check.cases.values import other_values, shared
from pullback.check.find.discover import discover, subject_of
from pullback.report.evidence import ALTERED

from ..making import function, normal


def everything(*args, **kwargs):
    """Return the tensors of a call, and the rest of it as text."""
    return args, kwargs


def run(case, fn=everything, tail=(), mask=None):
    """Execute the reproduction of a call of `fn`; return its names."""
    names = {"fn": fn}
    text = script(subject_of(fn), case, tail, mask)
    exec(compile("\n".join(line for line in text.splitlines() if "runpy" not in line), "repro", "exec"), names)
    return names


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b.detach())
    return a == b


CALLS = {
    "one tensor": (normal(3, 5),),
    "scalar": (normal(), 2.5, True, None, "mean", -1),
    "dtypes": (normal(2).float(), normal(2).half(), normal(2).bfloat16(), normal(2, dtype=torch.complex64)),
    "integers and flags": (torch.arange(4), torch.tensor([True, False]), torch.tensor(3, dtype=torch.uint8)),
    "empty": (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)),
    "nested": ([normal(2), (normal(1), 5)], {"eps": 1e-6, "w": normal(2)}),
    "objects": (torch.float32, torch.device("cpu"), torch.Size((2, 3)), torch.tanh, 3j),
    "not finite": (float("inf"), -float("inf"), complex(1, float("inf")), torch.tensor([complex(1, -float("inf"))])),
    "a subclass of float": (np.float64(0.1),),
    "names that clash": (normal(2), normal(3)),
}


@pytest.mark.parametrize("name", CALLS)
def test_reproduction_rebuilds_the_call(name):
    parameters = ["out", "fn", "torch", "inputs", "g"] if name == "names that clash" else ["x", "y"]
    case = make_case(CALLS[name], {"flag": True, "bias": normal(1)}, parameters)
    args, kwargs = run(case)["out"]
    wanted = case.arguments()
    assert torch.utils._pytree.tree_structure((args, kwargs)) == torch.utils._pytree.tree_structure(wanted[:2])
    pairs = zip(torch.utils._pytree.tree_leaves((args, kwargs)), case.values, strict=True)
    assert all(same(wanted, got) for got, wanted in pairs)


@pytest.mark.parametrize(
    "make", [other_values, other_layouts, other_dtypes, other_sizes, shared], ids=lambda make: make.__name__
)
def test_reproduction_rebuilds_every_variant_with_its_layout(make):
    for case in make(make_case((normal(2, 3), normal(2, 3, seed=1)), {}, ["x", "y"])):
        (x, y), _ = run(case)["out"]
        for got, wanted in zip((x, y), case.tensors, strict=True):
            assert torch.equal(got.detach(), wanted)
            assert got.numel() == 0 or got.is_contiguous() == wanted.is_contiguous()
        assert (x is y) is (case.values[0] is case.values[1])


def test_reproduction_gives_the_output_and_gradient_of_the_function():
    sine = function(torch.sin, lambda g, x: g * x.cos())
    case = make_case((normal(2, 3),), {}, ["x"])
    names = run(case, sine.apply, ["out.sum().backward()", "gradient = inputs[0].grad"])
    assert torch.equal(names["out"].detach(), case.tensors[0].sin())
    assert torch.equal(names["gradient"], case.tensors[0].cos())


def test_reproduction_sets_requires_grad():
    case = make_case((normal(2), normal(2), torch.arange(2)), {}, ["a", "b", "i"])
    assert [x.requires_grad for x in run(case)["inputs"]] == [True, True]
    assert [x.requires_grad for x in run(case, mask=[False, True])["inputs"]] == [False, True]


def test_in_place_function_is_called_on_copies():
    case = replace(make_case((normal(2),), {}, ["x"]), non_leaf=True)
    assert call_text(case) == "x.clone()"
    assert not run(case)["out"][0][0].is_leaf


def test_variables_are_named_after_parameters():
    case = make_case((normal(1), [normal(1)], normal(1)), {"eps": normal(1)}, ["x", "weights"])
    assert variables(case) == {0: "x", 1: "weights_0", 2: "args_2", 3: "eps"}


def test_function_of_a_file_is_loaded(tmp_path, monkeypatch):
    (tmp_path / "ops.py").write_text("def double(x, by=2):\n    return by * x\n")
    monkeypatch.chdir(tmp_path)
    (subject,) = discover("ops.py:double")
    names = {}
    exec(script(subject, make_case((normal(2), 3), {}, ["x", "by"])), names)
    assert torch.equal(names["out"].detach(), 3 * names["x"].detach())


def test_object_without_literal_is_an_ellipsis():
    assert call_text(make_case((torch.tanh, object()), {}, ["f", "o"])) == "torch.tanh, ..."


def test_large_tensors_are_not_written_out():
    assert literal(torch.zeros(1000)) == "torch.randn((1000,), dtype=torch.float32)"
    assert len(literal(normal(10, 20))) > 1000


@pytest.mark.parametrize(
    "t",
    [normal(30, 20).t(), normal(20).expand(30, 20), normal(20, 30, 2)[..., 0]],
    ids=["transposed", "expanded", "with a step"],
)
def test_long_tensor_keeps_its_strides(t):
    back = eval(literal(t), {"torch": torch})
    assert (back.shape, back.dtype, back.stride()) == (t.shape, t.dtype, t.stride())
    assert is_long(t) != torch.equal(back, t)  # a tensor expanded from few elements is written out


FLOATS = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(st.lists(FLOATS, max_size=4), st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.complex64]))
def test_tensor_literal_is_exact(numbers, dtype):
    t = torch.tensor(numbers, dtype=dtype)
    back = eval(literal(t), {"torch": torch})
    assert back.dtype == dtype
    assert torch.equal(back.isnan(), t.isnan())
    assert torch.equal(back[~t.isnan()], t[~t.isnan()])
    if not t.is_complex():
        assert [math.copysign(1, v) for v in back[~t.isnan()]] == [math.copysign(1, v) for v in t[~t.isnan()]]


@given(st.lists(st.integers(0, 3), max_size=3).map(tuple), st.data())
def test_literal_of_any_strided_tensor(shape, data):
    strides = tuple(data.draw(st.integers(0, 4)) for _ in shape)
    t = torch.arange(40.0).as_strided(shape, strides)
    assert torch.equal(eval(literal(t), {"torch": torch}), t)


def test_what_lies_between_the_elements_is_rebuilt():
    t = sliced(normal(3, 5))
    rebuilt = eval(literal(t), {"torch": torch})
    (ours, theirs) = (torch.tensor([], dtype=t.dtype).set_(x.untyped_storage()) for x in (t, rebuilt))
    assert torch.equal(ours, theirs)


def test_shrunk_case_has_a_working_reproduction():
    case = make_case((normal(4, 3), torch.tensor([0, 3])), {}, ["x", "i"])
    small = shrink(case, lambda c: c.tensors[0].numel() > 1, lambda: True)
    (x, index), _ = run(small)["out"]
    assert x.numel() == 2
    assert index.max() < x.shape[0]


class Mode(Enum):
    FAST = 1


class Pair(NamedTuple):
    first: torch.Tensor
    second: float


@dataclass
class Settings:
    mode: Mode
    eps: float


def test_named_tuples_enums_and_dataclasses_are_imported():
    case = make_case((Pair(normal(1), 0.5), Mode.FAST, Settings(Mode.FAST, 1e-3), [OrderedDict(a=1)]), {}, ["p"])
    names = {"fn": everything}
    exec(script(subject_of(everything), case), names)
    (pair, *others), _ = names["out"]
    assert type(pair) is Pair
    assert others == [Mode.FAST, Settings(Mode.FAST, 1e-3), [OrderedDict(a=1)]]


def test_ellipsis_argument_is_a_literal():
    code = script(subject_of(everything), make_case((..., normal(2)), {}, ["index", "x"]))
    names = {"fn": everything}
    exec(code, names)
    assert names["out"][0][0] is ...
    assert "no literal" not in code


def test_comments_name_objects_without_literal_and_omitted_values():
    code = script(subject_of(everything), make_case((object(), torch.zeros(300)), {}, ["thing", "x"]))
    assert "# ... stands for thing, of type object, which has no literal" in code
    assert "  # other values than the audit's, which are too many to print" in code


@pytest.mark.parametrize("kind", [list, tuple])
def test_binding_of_tensors_with_omitted_values_has_a_comment(kind):
    short, long = normal(2), normal(300)
    names = {"torch": torch}
    exec(bind("g", kind([short, short])), names)
    assert type(names["g"]) is kind
    assert all(torch.equal(g, short) for g in names["g"])
    assert ALTERED not in bind("g", kind([short, short]))
    assert bind("g", kind([short, long])).endswith(ALTERED)
    assert bind("g", long, ".requires_grad_()").endswith(f".requires_grad_()  {ALTERED}")


def test_reproduction_of_a_random_function_seeds_before_each_call():
    case = make_case((normal(2),), {}, ["x"])
    code = script(subject_of(everything), case, ["def call(x):", "    return fn(x)", "first = call(out)"], seed=7)
    assert code.count("torch.manual_seed(7)\n") == 2
    assert "torch.manual_seed(7)\nout = fn(x)" in code


def test_tensor_without_memory_is_rebuilt_without():
    assert literal(torch.empty(3, 2, device="meta")) == "torch.empty((3, 2), dtype=torch.float32, device='meta')"
