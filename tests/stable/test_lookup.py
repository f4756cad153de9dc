"""Calls that use stable forms, and calls that run the formula as written."""

import copy
import math
import pickle
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import pullback
from pullback.errors import FormulaError, OptionError
from pullback.stable.certificate import cache_path, path_beside, save
from pullback.stable.meaning import meaning_of
from tests.compose.test_compile import compiled
from tests.forms import (
    GATE,
    LOG_SIGMOID,
    ROOT,
    certified,
    gate,
    gate_as_written,
    log_sigmoid,
    log_sigmoid_as_written,
    stable_op,
)
from tests.test_relaxed import same_bits

X = torch.tensor([-100.0, 0.5, 30.0])
STABLE = torch.sigmoid(-X)
FOUND = certified(log_sigmoid_as_written, LOG_SIGMOID)
WIDE = torch.tensor([-800.0, 0.5, 30.0], dtype=torch.float64)
"""In float64 no rules are applied: without a certificate the gradient at −800 is NaN."""
FOUND_WIDE = certified(log_sigmoid_as_written, LOG_SIGMOID, torch.float64)


IDENTITY = {(): "otherwise: x", ("x",): "otherwise: 1", ("x", "x"): "otherwise: 0"}


def twice_negated(x):
    return -torch.neg(x)


def gradient(op, x=X):
    x = x.detach().clone().requires_grad_()
    return torch.autograd.grad(op(x).sum(), x)[0]


def kept(found=FOUND):
    save(cache_path(found.key), [found])


def test_cached_certificate_is_used():
    kept()
    op = pullback.function(log_sigmoid_as_written)
    assert torch.equal(gradient(op), STABLE)
    torch.testing.assert_close(op(X), torch.nn.functional.logsigmoid(X), rtol=1e-6, atol=0)
    assert [c.name for c in op.certificates] == ["log_sigmoid_as_written"]


def test_formula_without_certificate_runs_as_written():
    op = pullback.function(log_sigmoid_as_written)
    assert gradient(op, WIDE)[0].isnan()
    assert not op.certificates


def module_at(path: Path, source: str):
    path.write_text("import torch, pullback\n" + source)
    scope = {"__name__": "ops", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    return scope


def test_certificate_beside_the_module_precedes_the_cache(tmp_path):
    scope = module_at(tmp_path / "ops.py", "@pullback.function\ndef f(x): return torch.log(torch.sigmoid(x))\n")
    save(path_beside(str(tmp_path / "ops.py")), [certified(gate_as_written, GATE), replace(FOUND, name="beside")])
    kept(replace(FOUND, name="cached"))
    assert torch.equal(gradient(scope["f"]), STABLE)
    assert [c.name for c in scope["f"].certificates] == ["beside"]
    again = module_at(tmp_path / "other.py", "@pullback.function\ndef f(x): return torch.log(torch.sigmoid(x))\n")
    assert torch.equal(gradient(again["f"]), STABLE)
    assert [c.name for c in again["f"].certificates] == ["cached"]


def test_invalid_file_beside_the_module_does_not_disable_the_cache(tmp_path):
    scope = module_at(tmp_path / "ops.py", "@pullback.function\ndef f(x): return torch.log(torch.sigmoid(x))\n")
    path_beside(str(tmp_path / "ops.py")).write_text("not a certificate")
    kept()
    with pytest.warns(UserWarning, match="stable forms are not used"):
        assert torch.equal(gradient(scope["f"]), STABLE)


def test_certificate_applies_to_its_dtype_only():
    op = log_sigmoid()
    assert same_bits(op(WIDE), log_sigmoid_as_written(WIDE))
    assert same_bits(gradient(op, WIDE), gradient(log_sigmoid_as_written, WIDE))


def test_every_certified_dtype_is_stable():
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    op = log_sigmoid(*dtypes)
    for dtype in dtypes:
        x = torch.tensor([-8.0, 0.5, 9.0], dtype=dtype)
        right = torch.sigmoid(-x.double()).to(dtype)
        assert gradient(op, x).dtype == dtype
        torch.testing.assert_close(gradient(op, x), right)
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(op))(x), right)


def test_stable_false_equals_the_formula_bitwise():
    kept()
    op = pullback.function(stable=False)(log_sigmoid_as_written)
    assert same_bits(op(X), log_sigmoid_as_written(X))
    assert same_bits(gradient(op), gradient(log_sigmoid_as_written))
    with pytest.raises(OptionError, match="stable=False"):
        op.stabilise()


AS_WRITTEN = {
    "a keyword": lambda op, x: op(x=x),
    "another device": lambda op, x: op(x.to("meta")),
    "a subclass": lambda op, x: op(TwoTensor(x, x)).a,
    "a sparse tensor": lambda op, x: op(x.to_sparse().requires_grad_()).to_dense(),
    "autocast of 16 bits": lambda op, x: op(x.bfloat16()),
}


@pytest.mark.parametrize("what", AS_WRITTEN)
def test_unsupported_arguments_run_the_formula_as_written(what):
    op, x = log_sigmoid(torch.float32, torch.bfloat16), torch.tensor([-2.0, 0.5, 30.0])
    if what == "a sparse tensor":
        op = stable_op(twice_negated, IDENTITY)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=what.startswith("autocast")):
        ours, written = AS_WRITTEN[what](op, x), AS_WRITTEN[what](op._formula, x)
    assert (ours.dtype, ours.device, ours.shape) == (written.dtype, written.device, written.shape)
    if not ours.is_meta:
        assert same_bits(ours.detach(), written.detach())


def test_jagged_tensors_run_the_formula_as_written():
    x = torch.nested.nested_tensor([X[:1], X[1:]], layout=torch.jagged)
    assert same_bits(log_sigmoid()(x).values(), log_sigmoid_as_written(X))


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_mixed_dtypes_run_the_formula_as_written(dtypes):
    op = gate(torch.float32, torch.float64)
    x, y = (torch.ones(2, dtype=dtype) for dtype in dtypes)
    assert same_bits(op(x, y), gate_as_written(x, y))


def test_non_default_parameters_run_the_formula_as_written():
    def scaled(x, factor=1.0):
        return torch.log(torch.sigmoid(factor * x))

    op = stable_op(scaled, LOG_SIGMOID)
    assert torch.equal(gradient(op), STABLE)
    x = torch.tensor([0.5, -1.0])
    for args in ((2.0,), (torch.tensor(2.0),)):
        torch.testing.assert_close(gradient(lambda x, a=args: op(x, *a), x), 2 * torch.sigmoid(-2 * x))
    torch.testing.assert_close(gradient(lambda x: op(x, factor=2.0), x), 2 * torch.sigmoid(-2 * x))


SCALE = 1.0


def scaled_by_a_global(x):
    return torch.log(torch.sigmoid(x * SCALE))


def test_changed_global_drops_the_forms(monkeypatch):
    op, x = stable_op(scaled_by_a_global, LOG_SIGMOID), torch.tensor([0.5, -1.0])
    assert torch.equal(gradient(op), STABLE)
    leaf = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(op(leaf).sum(), leaf, create_graph=True)
    again = op(leaf)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    torch.testing.assert_close(gradient(op, x), 2 * torch.sigmoid(-2 * x))
    torch.testing.assert_close(torch.func.grad(lambda x: op(x).sum())(x), 2 * torch.sigmoid(-2 * x))
    with torch.no_grad():
        torch.testing.assert_close(op(x), scaled_by_a_global(x))
    torch.testing.assert_close(torch.autograd.grad(g.sum(), leaf)[0], -torch.sigmoid(x) * torch.sigmoid(-x))
    with pytest.raises(pullback.DerivativeError, match="has changed between the call"):
        torch.autograd.grad(again.sum(), leaf, create_graph=True)
    assert not op.certificates


@pytest.mark.slow
def test_changed_global_drops_the_forms_under_compile(monkeypatch):
    op, x = stable_op(scaled_by_a_global, LOG_SIGMOID), torch.tensor([0.5, -1.0])
    function = compiled(lambda x: op(x))
    assert torch.equal(gradient(function), STABLE)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    torch.testing.assert_close(gradient(function, x), 2 * torch.sigmoid(-2 * x))
    monkeypatch.setitem(globals(), "SCALE", 1.0)
    torch.testing.assert_close(gradient(function, x), torch.sigmoid(-x))


def test_later_certificate_is_used_by_compiled_code():
    op = pullback.function(log_sigmoid_as_written)
    function = compiled(lambda x: op(x))
    assert gradient(function, WIDE)[0].isnan()
    op._stable.use(FOUND_WIDE)
    assert torch.equal(gradient(function, WIDE), torch.sigmoid(-WIDE))


def test_changed_closure_variable_changes_the_forms():
    scale = 1.0
    op = pullback.function(lambda x: torch.log(torch.sigmoid(x * scale)))
    kept()
    assert torch.equal(gradient(op), STABLE)
    scale = 2.0
    x = torch.tensor([0.5, -1.0])
    torch.testing.assert_close(gradient(op, x), 2 * torch.sigmoid(-2 * x))
    scale = 1.0
    assert torch.equal(gradient(op), STABLE)


def test_unwatchable_formula_has_no_stable_forms():
    factors = [1.0]
    op = pullback.function(lambda x: torch.log(torch.sigmoid(x * factors[0])))
    with pytest.raises(FormulaError, match="may mean something else at the next call"):
        op._stable.use(FOUND)
    kept()
    assert gradient(op)[0].isnan()


@pytest.mark.parametrize("compile_it", [False, True])
def test_certificate_of_an_inner_op_renews_the_outer_op(compile_it):
    inner = pullback.function(log_sigmoid_as_written)
    outer = pullback.function(lambda x: inner(x) * 2)
    function = compiled(lambda x: outer(x)) if compile_it else outer
    assert gradient(function, WIDE)[0].isnan()
    inner._stable.use(FOUND_WIDE)
    assert torch.equal(gradient(function, WIDE), 2 * torch.sigmoid(-WIDE))
    assert torch.equal(torch.func.vmap(torch.func.grad(outer))(WIDE), 2 * torch.sigmoid(-WIDE))
    x = WIDE.clone().requires_grad_()
    (g,) = torch.autograd.grad(outer(x).sum(), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(g.sum(), x)[0], -2 * torch.sigmoid(WIDE) * torch.sigmoid(-WIDE))


def test_nested_ops_have_the_term_of_the_written_formula():
    inner = log_sigmoid()
    outer = pullback.function(lambda x: inner(x) * 2)
    assert str(meaning_of(outer._formula, torch.float32).term) == "log(sigmoid(x)) * 2"
    assert [n.name for n in outer.graph(X).graph.nodes if n.op == "call_function"] == ["sigmoid", "log", "mul"]
    forms = {by: text.replace("otherwise: ", "otherwise: 2 * (") + ")" for by, text in LOG_SIGMOID.items()}
    kept(certified(outer._formula, forms))
    assert torch.equal(gradient(outer), 2 * STABLE)
    assert outer.certificates


def test_relaxed_and_ruled_ops_have_no_stable_forms():
    relaxed = pullback.function(derivative_of=lambda x: x)(lambda x: x.round())
    ruled = pullback.function(log_sigmoid_as_written)
    ruled.vjp(lambda g, out, x: g * 7)
    assert ruled._stable is None
    assert torch.equal(gradient(ruled), torch.full_like(X, 7))
    for op in (relaxed, ruled):
        with pytest.raises(OptionError, match="has no stable forms"):
            op.stabilise()


def test_methods_have_no_stable_forms():
    class Layer(torch.nn.Module):
        @pullback.function
        def forward(self, x):
            return torch.log(torch.sigmoid(x))

    kept()
    assert gradient(Layer())[0].isnan()


def test_concurrent_first_calls_find_the_certificate():
    kept()
    inner = pullback.function(log_sigmoid_as_written)
    outer = pullback.function(lambda x: inner(x) * 2)
    start, found = threading.Barrier(8), []

    def call(op, factor):
        start.wait()
        found.append(torch.equal(gradient(op), factor * STABLE))

    threads = [threading.Thread(target=call, args=args) for args in [(inner, 1), (outer, 2)] * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [True] * 8


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.activation = at_the_top

    def forward(self, x):
        return self.activation(x)


at_the_top = pullback.function(lambda x: torch.log(torch.sigmoid(x)))
at_the_top.__qualname__ = "at_the_top"


def test_copied_and_pickled_modules_stay_stable():
    kept()
    for module in (copy.deepcopy(Module()), pickle.loads(pickle.dumps(Module()))):
        assert torch.equal(gradient(module), STABLE)


def test_explain_names_the_stable_forms():
    page = log_sigmoid().explain(X)
    assert "Uses stable forms for float32" in page
    assert "d²/dx²: by hand" in page
    assert "stable" not in log_sigmoid().explain(X.double())


def test_saved_tensors_are_those_of_the_forms():
    assert sum(s.bytes for s in log_sigmoid().saved(X) if not s.alive) <= X.nbytes


@pytest.mark.parametrize("order", [1, 2])
def test_infinite_derivative_does_not_spread(order):
    op = stable_op(lambda x: torch.sqrt(x), ROOT)
    x = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
    (g,) = torch.autograd.grad(op(x).sum(), x, create_graph=order == 2)
    assert g.tolist() == [float("inf"), 0.5, 0.25]
    if order == 2:
        assert torch.autograd.grad(g.sum(), x)[0].tolist() == [float("-inf"), -0.25, -0.03125]


CONSTANT = {(): "otherwise: 3", ("x",): "otherwise: 0", ("x", "x"): "otherwise: 0"}


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)], ids=str)
def test_constant_formula_has_zero_derivative(shape):
    op = stable_op(lambda x: x - x + 3, CONSTANT)
    x = torch.ones(shape)
    assert torch.equal(op(x), 3 * x)
    assert torch.equal(gradient(op, x), 0 * x)
    assert torch.equal(torch.func.grad(lambda x: op(x).sum())(x), 0 * x)


def test_result_does_not_alias_the_input():
    op, x = stable_op(twice_negated, IDENTITY), torch.ones(3)
    op(x).add_(1)
    assert x.tolist() == [1, 1, 1]
    leaf = x.clone().requires_grad_()
    y = op(leaf)
    y.add_(1)
    assert torch.autograd.grad(y.sum(), leaf)[0].tolist() == [1, 1, 1]


LAYOUTS = {
    "transposed": lambda: torch.randn(4, 3).t(),
    "sliced": lambda: torch.randn(6, 8)[::2, ::2],
    "expanded": lambda: torch.randn(3, 1).expand(3, 4),
    "channels last": lambda: torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "no elements": lambda: torch.randn(0, 4),
    "a scalar": lambda: torch.randn(()),
    "negated": lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
    "an inference tensor": lambda: _inference_tensor(),
}


def _inference_tensor():
    with torch.inference_mode():
        return torch.randn(3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_have_the_strides_of_the_formula(layout):
    op, x = log_sigmoid(), LAYOUTS[layout]()
    written = log_sigmoid_as_written(x)
    leaf = torch.empty_like(x).copy_(x).requires_grad_()
    results = [op(x), torch.func.vjp(op, x)[0], op(leaf)] if not x.is_inference() else [op(x)]
    for result in results:
        assert result.stride() == written.stride()
        torch.testing.assert_close(result, written)
    if not x.is_inference():
        torch.testing.assert_close(gradient(op, x), torch.sigmoid(-x.detach()))
        torch.testing.assert_close(torch.func.grad(lambda x: op(x).sum())(x), torch.sigmoid(-x))


@pytest.mark.parametrize(
    "shapes", [((3, 1), (1, 4)), ((4,), (3, 4)), ((), (3,)), ((3, 4), ()), ((0, 3), (1, 3))], ids=str
)
def test_gradients_of_broadcast_inputs_have_their_shapes(shapes):
    op, given = gate(), [torch.randn(shape) for shape in shapes]
    written = gate_as_written(*given)
    assert op(*given).stride() == written.stride()
    leaves = [x.clone().requires_grad_() for x in given]
    for wanted in ([0, 1], [0], [1]):
        chosen = [leaf if i in wanted else x for i, (leaf, x) in enumerate(zip(leaves, given, strict=True))]
        ours = torch.autograd.grad(op(*chosen).sum(), [leaves[i] for i in wanted])
        right = torch.autograd.grad(gate_as_written(*chosen).sum(), [leaves[i] for i in wanted])
        inlined = torch.func.grad(lambda *t: op(*t).sum(), tuple(wanted))(*given)
        for a, b, c in zip(ours, right, inlined, strict=True):
            torch.testing.assert_close(a, b)
            torch.testing.assert_close(c, b)


def test_same_tensor_as_both_inputs():
    x = torch.randn(5)
    torch.testing.assert_close(gradient(lambda x: gate()(x, x), x), gradient(lambda x: gate_as_written(x, x), x))


def test_gradient_of_a_view_and_its_base():
    base = torch.randn(4, requires_grad=True)
    view = base[:2]
    ours, right = (
        torch.autograd.grad(f(view, base[2:]).sum() + base.sum(), base)[0] for f in (gate(), gate_as_written)
    )
    torch.testing.assert_close(ours, right)


@pytest.mark.slow
def test_stabilise_searches_and_caches_a_certificate(tmp_path):
    pytest.importorskip("flint")
    op = pullback.function(lambda x: 1 - torch.sigmoid(x))
    (found,) = op.stabilise(torch.bfloat16)
    assert op.certificates == [found]
    assert cache_path(found.key).exists()
    again = pullback.function(lambda x: 1 - torch.sigmoid(x))
    at = torch.tensor([-8.0, 0.5, 8.0, 20.0])
    slope = -torch.sigmoid(at.double()) * torch.sigmoid(-at.double())
    torch.testing.assert_close(gradient(again, at.bfloat16()).double(), slope, rtol=2**-8, atol=0.0)
    assert [str(c) for c in again.certificates] == [str(found)]


def test_stabilise_of_an_accurate_formula_raises(tmp_path):
    pytest.importorskip("flint")
    with pytest.raises(pullback.errors.FormulaError, match="as accurate as any form"):
        pullback.function(lambda x: 1 - x).stabilise(torch.bfloat16)


@pytest.mark.parametrize("formula", [lambda x: 1 - torch.sigmoid(x), lambda x: (1 - torch.sigmoid(x)).sum()])
def test_domain_of_an_unknown_variable_raises(formula):
    pytest.importorskip("flint")
    with pytest.raises(OptionError, match="no variable 'y' for the domain; it has x"):
        pullback.function(formula).stabilise(torch.bfloat16, domain={"y": (0.0, 1.0)})


def softplus_as_written(x):
    return torch.log(1 + torch.exp(x))


def test_quick_rules_apply_without_a_certificate():
    op, x = pullback.function(softplus_as_written), torch.tensor([-100.0, -30.0, 0.5, 100.0])
    right = torch.nn.functional.softplus(x.double()).float()
    torch.testing.assert_close(op(x), right, rtol=1e-6, atol=1e-44)
    for g in (gradient(op, x), torch.func.grad(lambda x: op(x).sum())(x), gradient(compiled(lambda x: op(x)), x)):
        torch.testing.assert_close(g, torch.sigmoid(x.double()).float(), rtol=1e-6, atol=1e-40)
    hessian = torch.func.hessian(lambda x: op(x).sum())(x).diagonal()
    torch.testing.assert_close(hessian, torch.sigmoid(x) * torch.sigmoid(-x), rtol=1e-6, atol=1e-40)
    assert gradient(softplus_as_written, x)[-1].isnan()
    assert op.certificates == []
    assert "log1p(exp(a)) => softplus(a)" in op.explain(x)


def test_value_that_the_rules_do_not_improve_keeps_its_bits():
    op, x = pullback.function(lambda x: torch.tanh(x)), torch.linspace(-12, 12, 97)
    for value in (op(x), torch.func.vjp(op, x)[0], op(x.clone().requires_grad_()).detach(), compiled(op)(x)):
        assert same_bits(value, torch.tanh(x))
    torch.testing.assert_close(gradient(op, x), torch.cosh(x.double()).pow(-2).float(), rtol=1e-6, atol=0)


def test_certificate_precedes_the_quick_rules():
    op = pullback.function(log_sigmoid_as_written)
    assert torch.equal(gradient(op), STABLE)
    assert not op.certificates
    op._stable.use(FOUND)
    assert op.certificates == [FOUND]
    kept()
    again = pullback.function(log_sigmoid_as_written)
    again(X)
    assert len(again.certificates) == 1


def test_quick_rules_skip_float64_and_stable_formulas():
    for x in (WIDE, X.to("meta")):
        assert pullback.function(softplus_as_written)._stable.forms((x,), {}) is None
    assert pullback.function(lambda x: torch.sin(x) + 1)._stable.forms((X,), {}) is None


def test_lookup_draws_no_random_numbers_and_hides_warnings(recwarn):
    def noisy(x):
        warnings.warn("noisy", stacklevel=2)
        return torch.log(1 + torch.exp(x + 0 * torch.rand(())))

    op, state = pullback.function(noisy), torch.get_rng_state()
    op._stable._found(torch.float32, [], [])
    assert torch.equal(torch.get_rng_state(), state)
    assert not recwarn.list


@pytest.mark.parametrize(
    "differentiated",
    [
        lambda f: f,
        torch.vmap,
        lambda f: torch.compile(f, backend="eager"),
        lambda f: lambda x: x.detach() * 0 + torch.func.vjp(f, x)[0],
    ],
    ids=["recorded", "vmap", "compiled", "vjp"],
)
def test_infinite_derivative_keeps_its_sign(differentiated):
    x = torch.tensor([100.0, 0.5], requires_grad=True)
    grown = differentiated(pullback.function(lambda x: torch.exp(x) - 1))
    (slope,) = torch.autograd.grad(grown(x), x, torch.tensor([-3.0, 1.0]))
    assert slope[0] == -torch.inf
    assert slope[1] == pytest.approx(math.exp(0.5))


@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_derivative_of_a_gradient_by_its_cotangent_at_infinity(backend):
    softplus = pullback.function(backend=backend)(lambda x: torch.log(1 + torch.exp(x)))
    x = torch.tensor([-torch.inf, 0.0, 1.0], requires_grad=True)
    w = torch.tensor(2.0, requires_grad=True)
    (g,) = torch.autograd.grad((softplus(x) * w).sum(), x, create_graph=True)
    (by_w,) = torch.autograd.grad(g.square().sum(), w)
    assert by_w == pytest.approx(2 * 2 * (0.25 + torch.sigmoid(torch.tensor(1.0)).item() ** 2))


def test_forward_derivatives_of_empty_tensors():
    softplus = pullback.function(lambda x: torch.log(1 + torch.exp(x)))
    assert torch.func.jacfwd(softplus)(torch.zeros(0)).shape == (0, 0)
    assert torch.func.hessian(lambda x: softplus(x).sum())(torch.zeros(0)).shape == (0, 0)
