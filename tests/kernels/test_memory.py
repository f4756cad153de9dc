"""Kernels overwrite tensors that nothing else reads, and no others."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import make_fx

import pullback
from pullback import _torch
from pullback.kernels import memory as reuse
from pullback.kernels.eager import lower
from pullback.kernels.native import lowered

ROWS, COLUMNS = 300, 256


@pytest.fixture(autouse=True)
def _small_too(monkeypatch):
    monkeypatch.setattr(reuse, "_LARGE", 0)


def graph_of(function, *given):
    return make_fx(lambda *xs: list(function(*xs)), tracing_mode="fake")(*given)


def written_over(module):
    return [node for node in module.graph.nodes if getattr(node.target, "__name__", "") == "over"]


def matrices(*sizes):
    return [torch.randn(*size) for size in sizes]


def gate(x, w):
    z = x @ w
    return z * torch.sigmoid(z)


def softmax_of(z):
    e = torch.exp(z - z.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def softmax(x, w):
    return softmax_of((x @ w).view(-1, 2, w.shape[1]))


@pytest.mark.parametrize("function", [gate, softmax], ids=lambda f: f.__name__)
def test_product_read_by_one_kernel_is_overwritten(native, function):
    given = matrices((ROWS, 8), (8, COLUMNS))
    module = lowered([graph_of(lambda *xs: [function(*xs)], *given)], [False])[0]
    assert len(written_over(module)) == 1
    assert torch.allclose(lower(module)(*given)[0], function(*given), atol=1e-6)


def with_sums_over_rows(z):
    y = z * torch.sigmoid(z)
    return y, y.sum(0), z.sum(0)


def rows_with_sums_over_them(z):
    e = torch.exp(z - z.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True), z.sum(0), (z * e).sum(0)


@pytest.mark.parametrize("function", [with_sums_over_rows, rows_with_sums_over_them], ids=lambda f: f.__name__)
def test_overwritten_tensor_is_also_summed_over_rows(native, function):
    given = matrices((ROWS, 8), (8, COLUMNS))
    module = lowered([graph_of(lambda x, w: function(x @ w), *given)], [False])[0]
    assert len(written_over(module)) == 1
    assert not any(getattr(node.target, "_schema", None) and "sum" in str(node.target) for node in module.graph.nodes)
    for ours, theirs in zip(lower(module)(*given), function(given[0] @ given[1]), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def also_returned(x, w):
    z = x @ w
    return z, torch.exp(z) * 2


def viewed_and_returned(x, w):
    z = x @ w
    return z[:3], torch.exp(z) * 2


def returned_in_another_shape(x, w):
    z = x @ w
    return z, softmax_of(z.view(-1, 2, w.shape[1]))


def read_twice(x, w):
    z = x @ w
    return z.sum(0), torch.exp(z) * 2, z @ w.t()


def of_an_input(x, w):
    return torch.exp(x) * 2, x @ w


def of_a_row(x, w):
    z = x @ w
    return (torch.exp(z[0]) * 2).expand(5, -1), torch.exp(z[0]) * 3


ELSEWHERE = [also_returned, viewed_and_returned, returned_in_another_shape, read_twice, of_an_input, of_a_row]


@pytest.mark.parametrize("function", ELSEWHERE, ids=lambda f: f.__name__)
def test_tensor_read_elsewhere_is_not_overwritten(native, function):
    given = matrices((ROWS, 8), (8, COLUMNS))
    kept = [x.clone() for x in given]
    module = lowered([graph_of(function, *given)], [False])[0]
    assert not written_over(module)
    for ours, theirs in zip(lower(module)(*given), function(*given), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
    assert all(map(torch.equal, given, kept))


def test_input_of_a_later_pass_is_not_overwritten(native):
    """The first pass over a row stores exp z, and the second reads z again."""

    def function(x, w):
        z = x @ w
        e = torch.exp(z)
        return e, z / e.sum(-1, keepdim=True)

    given = [x / 4 for x in matrices((ROWS, 8), (8, COLUMNS))]
    module = lowered([graph_of(function, *given)], [False])[0]
    for ours, theirs in zip(lower(module)(*given), function(*given), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_input_of_a_later_loop_of_the_tile_is_not_overwritten(native):
    """Chains are split into loops: the store of the first must not overwrite an input of a later one."""

    def function(x, w):
        z = x @ w
        return torch.exp(z), torch.log1p(torch.exp(torch.sin(torch.exp(z)))) * z

    given = [x / 4 for x in matrices((ROWS, 8), (8, COLUMNS))]
    module = lowered([graph_of(function, *given)], [False])[0]
    for ours, theirs in zip(lower(module)(*given), function(*given), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def linear_loss(x, w, k):
    return F.cross_entropy(x @ w.t(), k)


@pytest.fixture
def call(native):
    """An op that saves a large intermediate; its inputs and their gradients."""
    op = pullback.function(stable=False, backend="native")(linear_loss)
    x, w = (t.requires_grad_() for t in matrices((ROWS, 8), (COLUMNS, 8)))
    k = torch.randint(COLUMNS, (ROWS,))
    return op, (x, w, k), torch.autograd.grad(linear_loss(x, w, k), [x, w])


def same(gradients, expected):
    return all(torch.allclose(a, b, atol=1e-7) for a, b in zip(gradients, expected, strict=True))


def computed_by(out):
    return next(t for t in out.grad_fn.saved_tensors if t.shape == (ROWS, COLUMNS))


@pytest.fixture
def spent(monkeypatch):
    """For each backward, whether it may overwrite its saved intermediates."""
    found, ask = [], _torch.owned_by_node_alone
    monkeypatch.setattr(_torch, "owned_by_node_alone", lambda kept: found.append(ask(kept)) or found[-1])
    return found


def test_backward_overwrites_its_private_saved_tensor(call, spent):
    op, (x, w, k), expected = call
    assert same(torch.autograd.grad(op(x, w, k), [x, w]), expected)
    assert spent == [True]


def hook_registered_later(out):
    held = []
    for kept in out.grad_fn._raw_saved_tensors:
        kept.register_hooks(lambda t: held.append(t) or t, lambda t: t)
    return next(t for t in held if t.shape == (ROWS, COLUMNS))


def prehook_of_the_node(out):
    held = torch.empty(ROWS, COLUMNS)

    def hook(_):
        held.set_(computed_by(out))

    out.grad_fn.register_prehook(hook)
    return held


@pytest.mark.parametrize(
    "hold",
    [
        computed_by,
        lambda out: computed_by(out).detach(),
        lambda out: computed_by(out)[:, 1],
        lambda out: computed_by(out).numpy(),
        lambda out: torch.empty(0).set_(computed_by(out).untyped_storage()),
        hook_registered_later,
        prehook_of_the_node,
    ],
)
def test_saved_tensor_referenced_elsewhere_is_not_overwritten(call, spent, hold):
    op, (x, w, k), expected = call
    out = op(x, w, k)
    before = computed_by(out).clone()
    held = hold(out)
    assert same(torch.autograd.grad(out, [x, w]), expected)
    assert spent == [False]
    whole = torch.as_tensor(held)
    assert torch.equal(whole.flatten(), (before[:, 1] if whole.shape == (ROWS,) else before).flatten())


def test_retained_graph_is_not_overwritten(call):
    op, (x, w, k), expected = call
    out = op(x, w, k)
    computed, before = computed_by(out), computed_by(out).clone()
    for keep in (True, True, False):
        assert torch.equal(computed, before)
        assert same(torch.autograd.grad(out, [x, w], retain_graph=keep), expected)


def test_tensor_given_to_saved_tensor_hooks_is_not_overwritten(call):
    op, (x, w, k), expected = call
    packed = []

    def pack(t):
        packed.append((t, t.detach().clone()))
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        out = op(x, w, k)
    assert same(torch.autograd.grad(out, [x, w]), expected)
    assert all(torch.equal(now, before) for now, before in packed)


def test_saved_output_is_not_overwritten(native):
    op = pullback.function(stable=False, backend="native")(lambda x, w: F.log_softmax(x @ w, -1))
    x, w = (t.requires_grad_() for t in matrices((ROWS, 8), (8, COLUMNS)))
    y = op(x, w)
    before = y.detach().clone()
    y.sum().backward()
    assert torch.equal(y, before)


def test_base_of_an_output_view_is_not_overwritten(native):
    def function(x, w):
        z = x @ w
        return z[:2], z.square() * torch.sigmoid(z)

    x, w = (t.requires_grad_() for t in matrices((ROWS, 8), (8, COLUMNS)))
    view, y = pullback.function(stable=False, backend="native")(function)(x, w)
    before = view.detach().clone()
    ours = torch.autograd.grad(y.sum(), [x, w])
    assert torch.equal(view, before)
    theirs = torch.autograd.grad(function(x, w)[1].sum(), [x, w])
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(ours, theirs, strict=True))


def test_consecutive_steps_agree(call):
    """The allocator may reuse the memory of one step in the next."""
    op, (x, w, k), expected = call
    for _ in range(4):
        assert same(torch.autograd.grad(op(x, w, k), [x, w]), expected)
