"""Calls leak no memory, no class, and no tensor in a reference cycle.

`benchmarks/op_leaks.py` makes a hundred thousand calls of each kind.
"""

import collections
import gc
import itertools
import weakref

import pytest
import torch
from torch.autograd import grad

import pullback

CALLS = 100


@pullback.function
def derived(x, y):
    return torch.sin(x) * y.exp()


@pullback.function
def inline(x, y):
    return torch.sin(x).mul_(y)


@pullback.function
def branches(pair, scale=2.0):
    return {"sum": pair[0] + pair[1] * scale, "product": pair[0] * pair[1]}


def in_a_container(x, y):
    return branches([x, y], scale=3.0)["product"]


@pullback.function(derivative_of=lambda x, y: torch.tanh(x) * y)
def relaxed(x, y):
    return torch.sign(x) * y


@pullback.function
def ruled(x, y):
    return x * y


@ruled.vjp
def _(g, out, x, y):
    return g * y, g * x + 0 * out


@pullback.function(residuals=True)
def with_residuals(x, y):
    s = torch.sin(x)
    return s * y, s


@with_residuals.vjp
def _(g, out, s, x, y):
    return g * torch.cos(x) * y, g * s


@pullback.function
def pushed(x, y):
    return x * y


@pushed.jvp
def _(tangents, out, x, y):
    tx, ty = tangents
    return (0 if tx is None else tx * y) + (0 if ty is None else x * ty)


OPS = [derived, inline, in_a_container, relaxed, ruled, with_residuals, pushed]
TWICE = [derived, inline, in_a_container, relaxed, ruled]


@pytest.fixture(params=OPS, ids=lambda op: op.__name__)
def op(request):
    return request.param


@pytest.fixture(autouse=True, scope="module")
def _without_the_collector():
    gc.collect()
    gc.freeze()  # exclude the objects that exist already
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def pair():
    return torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)


def forward(op):
    op(*pair())


def backward(op):
    x, y = pair()
    op(x, y).sum().backward()


def again(op):
    x, y = pair()
    out = op(x, y).sum()
    grad(out, [x, y], retain_graph=True)
    grad(out, [x, y])


def twice(op):
    x, y = pair()
    (gx,) = grad(op(x, y).sum(), x, create_graph=True)
    grad(gx.sum(), y)


def functional(op):
    x, y = (t.detach() for t in pair())
    torch.func.grad(lambda a: op(a, y).sum())(x)


WAYS = [(op, way) for op in OPS for way in (forward, backward, again, functional)] + [(op, twice) for op in TWICE]


@pytest.mark.parametrize(("op", "way"), WAYS, ids=lambda part: part.__name__)
@pytest.mark.few(8)
def test_tensors_classes_and_objects_do_not_grow_over_calls(op, way):
    counts = []
    for _ in range(4):  # the first round fills caches; a leak grows in each of the others
        for _ in range(CALLS):
            way(op)
        if counts and way is not functional:  # there PyTorch itself makes classes, which go with their cycles
            assert census()[:2] == counts[0][:2]
        gc.collect()  # torch.func and torch.utils._pytree leave closures that name themselves
        counts.append(census())
    assert {count[:2] for count in counts} == {counts[0][:2]}
    objects = [count[2] for count in counts]
    growth = [later - earlier for earlier, later in itertools.pairwise(objects)]
    assert min(growth) < CALLS / 2  # less than one object a call


def census():
    """Count live tensors, classes and objects."""
    kinds = collections.Counter(map(type, gc.get_objects()))
    tensors, classes = (sum(n for kind, n in kinds.items() if issubclass(kind, c)) for c in (torch.Tensor, type))
    return tensors, classes, kinds.total()


def test_inputs_and_result_are_in_no_cycle(op):
    op(*pair())  # the first call traces the formula
    x, y = pair()
    out = op(x, y)
    seen = [weakref.ref(t) for t in (x, y, out)]
    del x, y, out
    assert [ref() for ref in seen] == [None] * len(seen)


def test_first_call_keeps_no_tensor():
    fresh = pullback.function(lambda x, y: torch.sin(x) * y)
    x, y = pair()
    out = fresh(x, y)
    seen = [weakref.ref(t) for t in (x, y, out)]
    del x, y, out
    gc.collect()  # the trace itself, PyTorch's, leaves cycles: once for each kind of call
    assert [ref() for ref in seen] == [None] * 3


def test_gradients_are_in_no_cycle(op):
    op(*pair())
    x, y = pair()
    out = op(x, y)
    first = grad(out.sum(), [x, y])
    seen = [weakref.ref(t) for t in (x, y, out, *first)]
    del x, y, out, first
    assert [ref() for ref in seen] == [None] * 5


@pytest.mark.parametrize("op", TWICE, ids=lambda op: op.__name__)
def test_gradients_with_create_graph_are_in_no_cycle(op):
    twice(op)
    x, y = pair()
    out = op(x, y)
    (gx,) = grad(out.sum(), x, create_graph=True)
    seen = [weakref.ref(t) for t in (x, y, out, gx)]
    del x, y, out, gx
    assert [ref() for ref in seen] == [None] * len(seen)


def test_failing_call_keeps_no_tensor():
    @pullback.function
    def fails(x, y):
        return x @ y.view(2, 5)

    seen = []
    for _ in range(3):
        x, y = pair()
        seen += [weakref.ref(x), weakref.ref(y)]
        with pytest.raises(RuntimeError):
            fails(x, y)
        del x, y
    gc.collect()  # an exception and its frames are a cycle
    assert [ref() for ref in seen] == [None] * 6


def test_op_is_freed():
    op = pullback.function(lambda x: x.exp() * 2)
    x = torch.randn(3, requires_grad=True)
    op(x).sum().backward()
    seen = weakref.ref(op)
    del op
    gc.collect()
    assert seen() is None
