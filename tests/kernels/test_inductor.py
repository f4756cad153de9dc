"""Lowering by PyTorch's Inductor."""

import random
import warnings

import pytest
import torch
from torch._dynamo.utils import counters

import pullback
from pullback import _torch
from pullback.kernels import backend as backends
from pullback.kernels import inductor


def norm(x, w):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


FORMULAS = {
    "norm": norm,
    "turned": lambda x, w: (x * w).T.exp() + torch.tensor(2.0),
    "two": lambda x, w: (x.sigmoid() - w).square().mean() * (x @ torch.diag(w)),
    "sorted": lambda x, w: x.argmax(-1, keepdim=True) * x.cos() * w,
}
LAYOUTS = {
    "contiguous": lambda n, m: torch.randn(n, m, dtype=torch.float64),
    "transposed": lambda n, m: torch.randn(m, n, dtype=torch.float64).t(),
    "broadcast": lambda n, m: torch.randn(m, dtype=torch.float64).expand(n, m),
}


def derivatives(function, x, w):
    y = function(x, w)
    gradients = torch.autograd.grad(y.sin().sum(), (x, w), create_graph=True)
    return y, *gradients, *torch.autograd.grad(sum(g.square().sum() for g in gradients), (x, w))


def first_derivatives(function, x, w):
    y = function(x, w)
    return y, *torch.autograd.grad(y, (x, w), y.detach().sin())


def agree(op, x, w, compared=derivatives):
    """Compare a call and its derivatives with those of the formula."""
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    for ours, native in zip(compared(op, x, w), compared(op._formula, x, w), strict=True):
        torch.testing.assert_close(ours, native)
        assert ours.stride() == native.stride()


@pytest.fixture
def made(monkeypatch):
    """Compilations so far: for each, whether it is specialised to small tensors."""
    compile_graph, of_all = _torch.compile_by_inductor, []

    def counting(module, examples, is_small=False, **options):
        of_all.append(is_small)
        return compile_graph(module, examples, is_small, **options)

    for asked in (_torch, _torch.inductor):  # by us, and by `compile_for_sizes` in its own module
        monkeypatch.setattr(asked, "compile_by_inductor", counting)
    return of_all


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.slow
def test_every_order_matches_the_formula():
    op = pullback.function(backend="inductor")(norm)
    x, w = torch.randn(6, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    for ours, native in zip(derivatives(op, x, w), derivatives(norm, x, w), strict=True):
        torch.testing.assert_close(ours, native)
    with torch.no_grad():
        torch.testing.assert_close(op(x, w), norm(x, w))


@pytest.mark.slow
def test_deterministic_setting_recompiles(made):
    op = pullback.function(backend="inductor")(lambda x: x.cumsum(0).exp())
    x = torch.randn(4)
    op(x)
    op(x)
    assert len(made) == 1
    torch.use_deterministic_algorithms(True)
    try:
        op(x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(made) == 2


def test_graph_that_inductor_fails_on_runs_in_pytorchs_kernels(monkeypatch):
    def fails(*_):
        raise ValueError("no lowering\nand much more")

    monkeypatch.setattr(_torch, "compile_by_inductor", fails)
    monkeypatch.setattr(backends, "_warned", set())
    op = pullback.function(backend="inductor")(lambda x: x.exp() * 2)
    x = torch.randn(3, requires_grad=True)
    with pytest.warns(UserWarning, match=r"Inductor cannot compile a graph \(ValueError: no lowering\)\.$"):
        y = op(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (g,) = torch.autograd.grad(op(x.detach().clone().requires_grad_()).sum(), x, allow_unused=True)
    assert g is None
    assert torch.equal(y, x.exp() * 2)


def sizes():
    draw = random.Random(0)
    several = [(3, 5), (7, 11), (2, 3), (16, 48), (128, 64), (2000, 33), (33, 2000)]
    return several + [(draw.randrange(2, 300), draw.randrange(301, 600)) for _ in range(8)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("formula", "layout"), [(name, "contiguous") for name in FORMULAS] + [("norm", "transposed"), ("norm", "broadcast")]
)
def test_two_compilations_serve_all_sizes(made, threads, formula, layout):
    threads(1)
    op = pullback.function(backend="inductor")(FORMULAS[formula])
    for n, m in sizes():
        agree(op, LAYOUTS[layout](n, m), torch.randn(m, dtype=torch.float64), first_derivatives)
    assert len(made) == 4


@pytest.mark.slow
def test_second_derivatives_share_kernels_across_sizes(made, threads):
    threads(1)
    op = pullback.function(backend="inductor")(norm)
    for n, m in sizes():
        agree(op, LAYOUTS["contiguous"](n, m), torch.randn(m, dtype=torch.float64))
    assert len(made) == 10  # three sets of gradient kernels: the plan for all sizes has its own


@pytest.mark.slow
@pytest.mark.parametrize("size", [(1, 5), (5, 1), (0, 4), (6, 6)])
def test_sizes_0_1_and_equal_sizes_have_their_own_graphs(size):
    op = pullback.function(backend="inductor")(norm)
    for n, m in ((3, 5), (4, 7), size):
        agree(op, torch.randn(n, m), torch.randn(m), first_derivatives)


@pytest.mark.slow
def test_each_dimension_becomes_dynamic_when_it_varies(made, threads):
    threads(1)
    op = pullback.function(backend="inductor")(lambda x, w: x.cumsum(0) * w.exp())
    x, w = torch.randn(5, 64), torch.randn(64)
    counted = []
    for n, m in [(5, 64), (6, 64), (9, 64), (200, 64), (9, 65), (8, 66), (300, 2)]:
        x, w = torch.randn(n, m), torch.randn(m)
        torch.testing.assert_close(op(x, w), op._formula(x, w))
        counted.append(len(made))
    assert counted == [1, 2, 2, 2, 3, 3, 3]


@pytest.mark.slow
def test_violated_inductor_guard_recompiles(made, threads):
    """Inductor sums more than 4096 numbers by another scheme."""
    threads(1)
    for _ in range(2):  # the second time from the disk cache
        made.clear()
        op = pullback.function(backend="inductor")(lambda x: x.exp().sum(-1))
        counted = []
        for m in (5, 6, 4096, 4097, 9000, 7, 4098):
            x = torch.randn(3, m)
            torch.testing.assert_close(op(x), x.double().exp().sum(-1).float())
            counted.append(len(made))
        assert counted == [1, 2, 2, 3, 3, 3, 3]


@pytest.mark.slow
def test_small_and_large_tensors_have_separate_kernels(made, threads):
    """Inductor decides on threading by the size of the example."""
    threads(2)
    op = pullback.function(backend="inductor")(lambda x: x.exp() * 2)
    for n in (5, 6, 100_000, 7, 200_000, 100):
        x = torch.randn(n)
        torch.testing.assert_close(op(x), x.exp() * 2)
    assert made == [False, True, False]


@pytest.mark.slow
def test_number_of_compilations_per_graph_is_bounded(made, monkeypatch):
    monkeypatch.setattr(inductor, "MOST_KERNELS", 1)
    monkeypatch.setattr(backends, "_warned", set())
    op = pullback.function(backend="inductor")(lambda x: x.sin().sum(-1))
    op(torch.randn(3, 5)), op(torch.randn(3, 6))
    for m in (5000, 7, 6000):
        x = torch.randn(3, m)
        with pytest.warns(UserWarning, match="more than 1 times") if m == 5000 else warnings.catch_warnings():
            torch.testing.assert_close(op(x), x.sin().sum(-1), atol=1e-4, rtol=1e-4)
    assert len(made) == 2


@pytest.mark.slow
def test_graph_that_fails_with_dynamic_sizes_runs_in_pytorchs_kernels(monkeypatch):
    def fails(*_):
        raise ValueError("no lowering")

    monkeypatch.setattr(_torch, "compile_for_sizes", fails)
    monkeypatch.setattr(backends, "_warned", set())
    op = pullback.function(backend="inductor")(norm)
    agree(op, torch.randn(3, 5), torch.randn(5), first_derivatives)
    with pytest.warns(UserWarning, match=r"Inductor cannot compile a graph \(ValueError: no lowering\)\.$"):
        agree(op, torch.randn(6, 7), torch.randn(7), first_derivatives)
    agree(op, torch.randn(8, 9), torch.randn(9), first_derivatives)


def compiled_for_sizes(op, *args, is_small=True):
    """Compile a call of an op for tensors of n × 8; 6 × 8 is the example."""
    x = torch.ones(6, 8)
    traced, _ = _torch.trace_for_sizes(lambda x: [x * 2], [x], {6})
    (symbol,) = _torch.free_symbols(_torch.size_symbols(_torch.traced_value(next(iter(traced.graph.nodes))))[:1])
    graph = torch.fx.Graph()
    _, place = graph.placeholder("n"), graph.placeholder("x")
    graph.output([graph.call_function(op, (place, *args))])
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    return _torch.compile_for_sizes(module, {symbol: 6}, [], [((symbol, 8), (8, 1), x.dtype)], is_small)


@pytest.mark.slow
def test_inductor_compiles_a_graph_with_dynamic_sizes():
    """Relies on `torch._inductor.standalone_compile` with symbols, and on `ShapeEnv`: see `pullback/_torch`."""
    run, admits = compiled_for_sizes(torch.ops.aten.exp.default)
    x = torch.randn(9, 8)
    torch.testing.assert_close(run(9, x)[0], x.exp())
    assert all(admits([n]) for n in (2, 9, 10**6))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "admitted", "others"),
    [
        ((torch.ops.aten.sum.dim_IntList, [0]), [2, 4096], [4097, 9000]),
        ((torch.ops.aten.reshape.default, [3, -1]), [6, 9, 6000], [2, 7, 6001]),
        ((torch.ops.aten.add.Tensor, torch.ones(6, 1)), [6], [2, 5, 7]),
    ],
    ids=["more than so many", "divided", "one"],
)
def test_inductor_guards_are_restored_from_the_disk_cache(call, admitted, others):
    """PyTorch stores guards only on symbols that are inputs."""
    for _ in range(2):
        counters.clear()
        _, admits = compiled_for_sizes(*call)
        assert all(admits([n]) for n in admitted)
        assert not any(admits([n]) for n in others)
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1


@pytest.mark.slow
def test_disk_cache_separates_small_and_large_tensors(monkeypatch, tmp_path):
    """Relies on Inductor's options being part of PyTorch's cache keys."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    counters.clear()
    for is_small in (True, False, True):
        compiled_for_sizes(torch.ops.aten.exp.default, is_small=is_small)
    found = counters["aot_autograd"]
    assert (found["autograd_cache_miss"], found["autograd_cache_hit"]) == (2, 1)


@pytest.mark.slow
def test_inductor_compiles_a_single_graph():
    """Relies on `torch._inductor.standalone_compile`: see `pullback/_torch`."""
    graph = _torch.trace_ops(lambda x: [x.t(), x + 1], torch.ones(2, 3))
    run = _torch.compile_by_inductor(graph, [_torch.traced_value(n) for n in graph.graph.find_nodes(op="placeholder")])
    x = torch.randn(2, 3)
    view, result = run(x)
    assert view.data_ptr() == x.data_ptr()
    assert view.stride() == (1, 3)
    assert torch.equal(result, x + 1)


def test_bfloat16_amax_gradient_matches_pytorch():
    def largest(x):
        return (x * x + x).amax(-1).sum()

    x = torch.randn(33, 10).bfloat16().requires_grad_()
    (mine,) = torch.autograd.grad(pullback.function(backend="inductor")(largest)(x), x)
    (native,) = torch.autograd.grad(largest(x), x)
    assert torch.equal(mine, native)
