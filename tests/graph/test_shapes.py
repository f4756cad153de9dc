"""What is said of results without values is what PyTorch's kernels return."""

import itertools
import random
import warnings

import pytest
import torch

from pullback import _torch
from pullback.graph import shapes
from pullback.graph.rules import RULES
from tests.graph.layouts import layouts

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
SHAPES = [(2, 3), (3, 1, 2), (2, 2, 2), (2, 3, 2, 2), (3, 3), (4,), (), (0, 2)]
TIMES = 16


def overloads():
    """Yield the ops of which something is said."""
    for name in dir(aten):
        packet = getattr(aten, name, None)
        for overload in getattr(packet, "overloads", list)():
            op = getattr(packet, overload)
            kinds = {str(a.type) for a in op._schema.arguments}
            known = shapes.is_known(op) and torch._C._dispatch_has_kernel(op.name())
            if not known or not (kinds & {"Tensor", "List[Tensor]"} or op in RULES):
                continue
            if name.startswith("nll_loss"):  # see below
                continue
            if not (_torch.is_mutable(op) or _torch.is_composite(op)):
                yield op


def test_the_loss_of_classes():
    x, target, weight = torch.ones(4, 3), torch.tensor([0, 2, 1, 0]), torch.tensor([1.0])
    for reduction in (0, 1, 2):
        assert _agrees(aten.nll_loss_forward.default, [x, target, None, reduction, -100], {})
        g = torch.ones(4) if reduction == 0 else torch.ones(())
        assert _agrees(aten.nll_loss_backward.default, [g, x, target, None, reduction, -100, weight[0]], {})
    assert not _agrees(aten.nll_loss_forward.default, [x, target[:2], None, 1, -100], {})
    assert not _agrees(aten.nll_loss_forward.default, [x[0], target[0], None, 1, -100], {})


BY_AUTOGRAD = {
    getattr(aten, name).default
    for name in ("select_backward", "slice_backward", "gelu_backward", "log_sigmoid_backward")
}
"""Ops that only derivatives call, with arguments that go together: what does not may raise."""
OPS = {op.name().removeprefix("aten::"): op for op in overloads()}


def values(argument, tensors, dtype, rng):
    """Return a value for an argument of an op."""
    kind, name = str(argument.type), argument.name
    if kind in ("Tensor", "Optional[Tensor]"):
        x = next(tensors)
        x = torch.zeros_like(x) if name in ("index", "target") else x
        return x.to(
            {"condition": torch.bool, "mask": torch.bool, "index": torch.int64, "target": torch.int64}.get(name, dtype)
        )
    if kind == "List[Tensor]":
        return [x.to(dtype) for x in itertools.islice(tensors, rng.randrange(1, 4))]
    known = {
        "dim": rng.choice([0, -1]) if kind == "int" else rng.choice([[0], [-1], [], [0, 1], None]),
        "keepdim": rng.random() < 0.5,
        "reduction": rng.choice([0, 1, 2]),
        "ignore_index": -100,
        "ord": rng.choice([1, 2, 3]),
        "shifts": [1],
        "size": [2, 3],
        "stride": [1, 5],
        "input_sizes": [4, 5],
        "dims": [0],
        "rounding_mode": rng.choice(["floor", "trunc", None]),
        "approximate": rng.choice(["none", "tanh"]),
        "half_to_float": False,
        "is_result": False,
        "dtype": rng.choice([None, dtype, torch.float64]),
        "input_dtype": dtype,
        "correction": rng.choice([0, 1, None]),
        "memory_format": rng.choice([None, torch.contiguous_format, torch.preserve_format]),
    }
    if name in known:
        return known[name]
    if argument.has_default_value() and rng.random() < 0.5:
        return argument.default_value
    return {"number": rng.choice([2, 0.5]), "float": 0.5, "int": 1, "bool": False}.get(
        kind.replace("Optional[", "").strip("]")
    )


@pytest.mark.parametrize("name", OPS)
@pytest.mark.few(79)
def test_results_are_what_is_said(name):
    op, rng = OPS[name], random.Random(name)
    said = 0
    for dtype, shape in itertools.product(DTYPES, SHAPES):
        tensors = layouts(shape, rng)
        for _ in range(TIMES):
            given = [(a, values(a, tensors, dtype, rng)) for a in op._schema.arguments]
            given = [(a, v) for a, v in given if a.name not in ("layout", "device", "pin_memory", "non_blocking")]
            args = [v for a, v in given if not a.kwarg_only]
            kwargs = {a.name: v for a, v in given if a.kwarg_only and v is not None}
            said += _agrees(op, args, kwargs)
    assert said > 2


def _agrees(op, args, kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = shapes.results_of(op, args, kwargs)
        except Exception:  # whatever a rule raises of arguments that it does not know: it says nothing then
            return False
        try:
            real = op(*args, **kwargs)
        except RuntimeError:
            assert op in BY_AUTOGRAD  # else it raises nothing where something is said
            return False
    many = isinstance(found, list)
    for (shape, strides, dtype), one in zip(found if many else [found], real if many else [real], strict=True):
        assert (tuple(shape), tuple(strides), dtype) == (tuple(one.shape), one.stride(), one.dtype), (
            [(tuple(a.shape), a.stride(), a.dtype) if isinstance(a, torch.Tensor) else a for a in args],
            kwargs,
        )
    return True
