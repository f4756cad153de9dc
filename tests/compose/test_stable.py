"""An op with stable forms in every context: derivatives are stable, or the context raises.

The naive derivative is visibly wrong: at −100 the gradient of log(sigmoid(x)) as written is NaN, at 30 it is 0; only at
0.5 is it right. A context keeps the stable forms, or computes the formula as written (in every element), or raises.
"""

import copy
import io
import itertools
import math

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch._decomp import core_aten_decompositions
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import pullback
from pullback import _torch
from tests.compose._contexts import HAS_COMPILER, OF_TORCH
from tests.compose.test_compile import compiled
from tests.compose.test_export import Module, traced_gradient
from tests.compose.test_modes import Passing, PassingFunctions
from tests.compose.test_tracers import JIT_IS_DEPRECATED
from tests.forms import gate, gate_as_written, log_sigmoid, log_sigmoid_as_written

pytestmark = [pytest.mark.filterwarnings(f"ignore:{message}") for message in (*OF_TORCH, *JIT_IS_DEPRECATED)]

X = torch.tensor([-100.0, 0.5, 30.0])
WIDE = X.double()
VALUE = torch.nn.functional.logsigmoid(WIDE).float()
FIRST, SECOND = torch.sigmoid(-WIDE).float(), -(torch.sigmoid(WIDE) * torch.sigmoid(-WIDE)).float()


def leaf():
    return X.clone().requires_grad_()


def gradient(function):
    x = leaf()
    return torch.autograd.grad(function(x).sum(), x)[0]


def total(op):
    return lambda x: op(x).sum()


def dual(function, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


def module_gradient(module):
    return gradient(module)


def backward(op):
    x = leaf()
    op(x).sum().backward()
    return x.grad


def retained_twice(op):
    x = leaf()
    y = op(x).sum()
    first = torch.autograd.grad(y, x, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(y, x)[0])
    return first


def recorded(op):
    x = leaf()
    return torch.autograd.grad(op(x).sum(), x, create_graph=True)[0].detach()


def batched(op):
    x = leaf()
    return torch.autograd.grad(op(x), x, torch.eye(3), is_grads_batched=True)[0].diagonal()


def inside_no_grad(op):
    with torch.no_grad():
        assert not op(leaf()).requires_grad
    return gradient(op)


def checkpointed(op):
    return gradient(lambda x: checkpoint(op, x, use_reentrant=False))


def checkpointed_reentrant(op):
    x = leaf()
    checkpoint(op, x, use_reentrant=True).sum().backward()
    return x.grad


def with_saved_hooks(op):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy().copy(), torch.from_numpy):
        return gradient(op)


def saved_on_the_cpu(op):
    with torch.autograd.graph.save_on_cpu():
        return gradient(op)


def under_autocast(op):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return gradient(op)


def with_anomalies(op):
    with torch.autograd.set_detect_anomaly(True):
        return gradient(op)


def in_a_dispatch_mode(op):
    with Passing():
        return gradient(op)


def backward_in_a_dispatch_mode(op):
    x = leaf()
    y = op(x).sum()
    with Passing():
        return torch.autograd.grad(y, x)[0]


def in_a_function_mode(op):
    with PassingFunctions():
        return gradient(op)


def of_fake_tensors(op):
    with FakeTensorMode() as mode:
        x = mode.from_tensor(X).requires_grad_()
        (g,) = torch.autograd.grad(op(x).sum(), x)
    assert (g.shape, g.dtype) == (X.shape, X.dtype)
    return gradient(op)


def of_meta_tensors(op):
    x = X.to("meta").requires_grad_()
    (g,) = torch.autograd.grad(op(x).sum(), x)
    assert (g.shape, g.dtype, g.device.type) == (X.shape, X.dtype, "meta")
    return gradient(op)


def by_default_on_meta(op):
    with torch.device("meta"):
        return gradient(op)


def after_inference(op):
    with torch.inference_mode():
        torch.testing.assert_close(op(X.clone()), VALUE)
    return gradient(op)


def of_a_dispatch_subclass(op):
    x = TwoTensor(X.clone(), X.clone()).requires_grad_()
    return torch.autograd.grad(op(x).sum(), x)[0].a


def compiled_dynamic(op):
    function = compiled(lambda x: op(x), dynamic=True)
    for n in (5, 2):
        x = torch.full((n,), 30.0, requires_grad=True)
        torch.testing.assert_close(torch.autograd.grad(function(x).sum(), x)[0], FIRST[2].expand(n))
    return gradient(function)


def compiled_autograd(op):
    x = leaf()
    loss = op(x).sum()
    torch._dynamo.reset()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        loss.backward()
    return x.grad


def exported(strict):
    return lambda op: gradient(torch.export.export(Module(op), (X,), strict=strict).module())


def exported_and_decomposed(op):
    return gradient(torch.export.export(Module(op), (X,)).run_decompositions().module())


def exported_saved_and_loaded(op):
    file = io.BytesIO()
    torch.export.save(torch.export.export(Module(op), (X,)), file)
    file.seek(0)
    return gradient(torch.export.load(file).module())


def exported_jvp(op):
    module = Module(lambda x: jvp(op, (x,), (torch.ones_like(x),))[1])
    return torch.export.export(module, (X,)).module()(X)


def exported_dynamic(op):
    shapes = {"x": {0: torch.export.Dim("n", min=2)}}
    return gradient(torch.export.export(Module(op), (X,), dynamic_shapes=shapes).module())


def decomposed(function):
    return make_fx(function, decomposition_table=core_aten_decompositions())(X)


def jit_traced(op):
    return gradient(torch.jit.trace(Module(op), (X,), check_trace=False))


def jit_optimised(op):
    return gradient(torch.jit.optimize_for_inference(torch.jit.trace(Module(op).eval(), (X,), check_trace=False)))


FIRSTS = {
    "autograd.grad": gradient,
    "backward": backward,
    "retain_graph": retained_twice,
    "create_graph": recorded,
    "is_grads_batched": batched,
    "no_grad before": inside_no_grad,
    "a dual tensor": lambda op: dual(op, X),
    "func.grad": lambda op: grad(total(op))(X),
    "func.vjp": lambda op: vjp(op, X)[1](torch.ones(3))[0],
    "func.jvp": lambda op: jvp(op, (X,), (torch.ones(3),))[1],
    "func.jacrev": lambda op: jacrev(op)(X).diagonal(),
    "func.jacfwd": lambda op: jacfwd(op)(X).diagonal(),
    "func.linearize": lambda op: linearize(op, X)[1](torch.ones(3)),
    "func.functionalize": lambda op: torch.func.functionalize(grad(total(op)))(X),
    "vmap of grad": lambda op: vmap(grad(op))(X),
    "vmap of vmap of grad": lambda op: vmap(vmap(grad(op)))(X.view(3, 1)).view(3),
    "grad of vmap": lambda op: grad(lambda x: vmap(op)(x).sum())(X),
    "autograd.grad of vmap": lambda op: gradient(vmap(op)),
    "a captured outer tensor": lambda op: gradient(lambda x: vmap(lambda s: op(x) * s)(torch.ones(1))),
    "functional_call": lambda op: gradient(lambda x: functional_call(Module(op), {}, (x,))),
    "checkpoint": checkpointed,
    "checkpoint, reentrant": checkpointed_reentrant,
    "saved-tensor hooks": with_saved_hooks,
    "save_on_cpu": saved_on_the_cpu,
    "autocast": under_autocast,
    "anomaly detection": with_anomalies,
    "a dispatch mode": in_a_dispatch_mode,
    "a dispatch mode, in the backward": backward_in_a_dispatch_mode,
    "a function mode": in_a_function_mode,
    "fake tensors": of_fake_tensors,
    "meta tensors": of_meta_tensors,
    "the default device meta": by_default_on_meta,
    "inference mode": after_inference,
    "compile": lambda op: gradient(compiled(lambda x: op(x))),
    "compile, dynamic": compiled_dynamic,
    "compile of the op": lambda op: gradient(compiled(op)),
    "compile of func.grad": lambda op: compiled(lambda x: grad(total(op))(x))(X),
    "compile of vmap of grad": lambda op: compiled(lambda x: vmap(grad(op))(x))(X),
    "compile of jvp": lambda op: compiled(lambda x: jvp(op, (x,), (torch.ones_like(x),))[1])(X),
    "compiled autograd": compiled_autograd,
    "export": exported(strict=False),
    "export, strict": exported(strict=True),
    "export, dynamic": exported_dynamic,
    "run_decompositions": exported_and_decomposed,
    "export, saved and loaded": exported_saved_and_loaded,
    "export of func.jvp": exported_jvp,
    "make_fx": lambda op: gradient(make_fx(lambda x: op(x))(X)),
    "make_fx, symbolic": lambda op: gradient(make_fx(lambda x: op(x), tracing_mode="symbolic")(X)),
    "make_fx, core decompositions": lambda op: gradient(decomposed(lambda x: op(x))),
    "make_fx of autograd.grad": lambda op: make_fx(traced_gradient(op))(X)(X),
    "make_fx of autograd.grad, core decompositions": lambda op: decomposed(traced_gradient(op))(X),
    "make_fx of func.grad": lambda op: make_fx(grad(total(op)))(X)(X),
    "symbolic_trace": lambda op: gradient(torch.fx.symbolic_trace(Module(op))),
    "a module's copy": lambda op: gradient(copy.deepcopy(Module(op))),
}
AS_WRITTEN = {
    "a __torch_dispatch__ subclass": of_a_dispatch_subclass,
    "jit.trace": jit_traced,
    "jit.optimize_for_inference": jit_optimised,
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("context", FIRSTS)
@pytest.mark.few(5)
def test_gradient_is_stable_in_context(context):
    torch.testing.assert_close(FIRSTS[context](log_sigmoid()), FIRST, rtol=1e-6, atol=0)


@pytest.mark.parametrize("context", AS_WRITTEN)
def test_context_falls_back_to_the_formula_as_written(context):
    g = AS_WRITTEN[context](log_sigmoid())
    torch.testing.assert_close(g, AS_WRITTEN[context](log_sigmoid_as_written), equal_nan=True)
    assert g[0].isnan()


@pytest.mark.slow
@pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_gradient_is_stable_under_inductor():
    """Inductor lowers expm1 and others in its own way, but keeps sigmoid."""
    op = log_sigmoid()
    torch.testing.assert_close(gradient(compiled(lambda x: op(x), backend="inductor")), FIRST, rtol=1e-5, atol=0)


VALUES = {
    "eager": lambda op: op(X),
    "with grad": lambda op: op(leaf()).detach(),
    "vmap": lambda op: vmap(op)(X),
    "vjp": lambda op: vjp(op, X)[0],
    "jvp": lambda op: jvp(op, (X,), (X,))[0],
    "make_fx": lambda op: make_fx(lambda x: op(x))(X)(X),
    "export": lambda op: torch.export.export(Module(op), (X,)).module()(X),
    "compile": lambda op: compiled(lambda x: op(x))(X),
    "compile of two levels": lambda op: compiled(lambda x: vjp(lambda y: vjp(op, y)[0], x)[0])(X),
}


@pytest.mark.parametrize("context", VALUES)
def test_value_is_stable_in_context(context):
    assert torch.equal(VALUES[context](log_sigmoid()), log_sigmoid()(X))
    torch.testing.assert_close(log_sigmoid()(X), VALUE, rtol=1e-6, atol=0)


def recorded_twice(op):
    x = leaf()
    (g,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
    return torch.autograd.grad(g.sum(), x)[0]


def recorded_batched(op):
    x = leaf()
    (g,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
    return torch.autograd.grad(g, x, torch.eye(3), is_grads_batched=True)[0].diagonal()


def of_module(make):
    def run(op):
        x, module = leaf(), make(op)
        (g,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
        return torch.autograd.grad(g.sum(), x)[0]

    return run


SECONDS = {
    "create_graph": recorded_twice,
    "create_graph, then is_grads_batched": recorded_batched,
    "grad of grad": lambda op: vmap(grad(grad(op)))(X),
    "hessian": lambda op: hessian(total(op))(X).diagonal(),
    "jacrev of jacrev": lambda op: jacrev(jacrev(total(op)))(X).diagonal(),
    "jacfwd of jacfwd": lambda op: jacfwd(jacfwd(total(op)))(X).diagonal(),
    "jacrev of jacfwd": lambda op: jacrev(jacfwd(total(op)))(X).diagonal(),
    "dual of grad": lambda op: dual(grad(total(op)), X),
    "autograd.grad of func.grad": lambda op: gradient(grad(total(op))),
    "compile of hessian": lambda op: compiled(lambda x: hessian(total(op))(x))(X).diagonal(),
    "make_fx of grad of grad": lambda op: make_fx(vmap(grad(grad(op))))(X)(X),
    "export": of_module(lambda op: torch.export.export(Module(op), (X,)).module()),
    "make_fx": of_module(lambda op: make_fx(lambda x: op(x))(X)),
    "symbolic_trace": of_module(lambda op: torch.fx.symbolic_trace(Module(op))),
    "checkpoint": of_module(lambda op: lambda x: checkpoint(op, x, use_reentrant=False)),
}


@pytest.mark.parametrize("context", SECONDS)
@pytest.mark.few(8)
def test_second_derivative_is_stable_in_context(context):
    torch.testing.assert_close(SECONDS[context](log_sigmoid()), SECOND, rtol=1e-6, atol=1e-40)


def exact(order):
    """Return a derivative of log(sigmoid(x)) by mpmath."""
    with mpmath.workdps(60):
        return torch.tensor([float(mpmath.diff(lambda x: -mpmath.log1p(mpmath.exp(-x)), x, order)) for x in X.tolist()])


def recorded_times(order):
    def run(op):
        x = leaf()
        out = op(x)
        for _ in range(order):
            (out,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return out.detach()

    return run


def dual_of_recorded(op):
    with forward_ad.dual_level():
        x = forward_ad.make_dual(leaf(), torch.ones(3))
        (g,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x, create_graph=True)
        return forward_ad.unpack_dual(h).tangent.detach()


def pushed(function, x):
    return jvp(function, (x,), (torch.ones_like(x),))[1]


def in_a_mode(op):
    with Passing():
        return recorded_times(3)(op)


def module_of(op):
    return torch.export.export(Module(op), (X,)).module()


THIRDS = {
    "create_graph": recorded_times(3),
    "grad of grad of grad": lambda op: vmap(grad(grad(grad(op))))(X),
    "jacfwd of hessian": lambda op: vmap(jacfwd(jacrev(jacfwd(op))))(X),
    "forward three times": lambda op: pushed(lambda x: pushed(lambda x: pushed(op, x), x), X),
    "autograd.grad of grad of grad": lambda op: gradient(vmap(grad(grad(op)))),
    "create_graph of grad": lambda op: recorded_times(2)(vmap(grad(op))),
    "dual of grad of grad": lambda op: dual(vmap(grad(grad(op))), X),
    "dual of create_graph": dual_of_recorded,
    "a dispatch mode": in_a_mode,
    "compile of three": lambda op: compiled(lambda x: vmap(grad(grad(grad(op))))(x))(X),
    "gradient of compile of two": lambda op: gradient(compiled(lambda x: vmap(grad(grad(op)))(x))),
    "make_fx": lambda op: recorded_times(3)(make_fx(lambda x: op(x))(X)),
    "make_fx, symbolic": lambda op: recorded_times(3)(make_fx(lambda x: op(x), tracing_mode="symbolic")(X)),
    "three of what make_fx made": lambda op: vmap(grad(grad(grad(make_fx(lambda x: op(x))(X[0])))))(X),
    "export": lambda op: recorded_times(3)(module_of(op)),
    "export, strict": lambda op: recorded_times(3)(torch.export.export(Module(op), (X,), strict=True).module()),
    "checkpoint": lambda op: recorded_times(3)(lambda x: checkpoint(op, x, use_reentrant=False)),
}


def _needs_bits_in_batches(context):
    if context in ("three of what make_fx made", "forward over make_fx") and not _torch.VMAP_HAS_VIEW_DTYPE:
        pytest.skip("PyTorch cannot batch `view(dtype)`, which is in the graph: it says so")


@pytest.mark.parametrize("context", THIRDS)
@pytest.mark.few(5)
def test_third_derivative_matches_mpmath(context):
    """Also at points where the formula as written gives NaN."""
    _needs_bits_in_batches(context)
    torch.testing.assert_close(THIRDS[context](log_sigmoid()), exact(3), rtol=1e-5, atol=1e-40)


FOURTHS = {
    "create_graph": recorded_times(4),
    "grad four times": lambda op: vmap(grad(grad(grad(grad(op)))))(X),
    "hessian of hessian": lambda op: vmap(hessian(hessian(op)))(X),
    "create_graph of grad of grad": lambda op: recorded_times(2)(vmap(grad(grad(op)))),
    "make_fx": lambda op: recorded_times(4)(make_fx(lambda x: op(x))(X)),
    "export": lambda op: recorded_times(4)(module_of(op)),
}


@pytest.mark.parametrize("context", FOURTHS)
def test_fourth_derivative_matches_mpmath(context):
    torch.testing.assert_close(FOURTHS[context](log_sigmoid()), exact(4), rtol=1e-5, atol=1e-40)


FIFTHS = {
    "create_graph": recorded_times(5),
    "grad five times": lambda op: vmap(grad(grad(grad(grad(grad(op))))))(X),
    "create_graph of grad of grad of grad": lambda op: recorded_times(2)(vmap(grad(grad(grad(op))))),
    "make_fx of three, then two": lambda op: recorded_times(2)(make_fx(vmap(grad(grad(grad(op)))))(X)),
}


@pytest.mark.parametrize("context", FIFTHS)
def test_fifth_derivative_is_that_of_the_formula_as_written(context):
    found, right = FIFTHS[context](log_sigmoid()), exact(5)
    torch.testing.assert_close(found[1], right[1], rtol=1e-4, atol=0)
    torch.testing.assert_close(found, FIFTHS[context](log_sigmoid_as_written), equal_nan=True)


ONE_TOO_MANY = {
    "make_fx": lambda op: recorded_times(5)(make_fx(lambda x: op(x))(X)),
    "export": lambda op: recorded_times(5)(module_of(op)),
    "forward over make_fx": lambda op: vmap(jacfwd(hessian(hessian(make_fx(lambda x: op(x))(X[0])))))(X),
    "create_graph of grad": lambda op: recorded_times(3)(vmap(grad(op))),
    "compile": lambda op: recorded_times(3)(torch.compile(op, backend="eager")),
}


@pytest.mark.parametrize("context", ONE_TOO_MANY)
def test_derivative_beyond_the_order_of_a_traced_jet_raises(context):
    _needs_bits_in_batches(context)
    with pytest.raises(RuntimeError, match=r"polygamma\(n, x\) does not support negative n"):
        ONE_TOO_MANY[context](log_sigmoid())


AT_INFINITY = {
    "recorded": (recorded_times(1), recorded_times(2)),
    "func": (lambda op: vmap(grad(op))(X), lambda op: vmap(grad(grad(op)))(X)),
    "jvp": (lambda op: jvp(op, (X,), (torch.ones(3),))[1], lambda op: vmap(jacfwd(jacfwd(op)))(X)),
    "make_fx": tuple(lambda op, n=n: recorded_times(n)(make_fx(lambda x: op(x))(X)) for n in (1, 2)),
    "compile": (lambda op: gradient(compiled(op)), lambda op: compiled(vmap(grad(grad(op))))(X)),
}


@pytest.mark.parametrize("context", AT_INFINITY)
def test_derivatives_at_infinity_are_limits_in_every_context(context, monkeypatch):
    monkeypatch.setitem(globals(), "X", torch.tensor([float("inf"), float("-inf"), 0.0]))
    first, second = AT_INFINITY[context]
    assert first(log_sigmoid()).tolist() == [0, 1, 0.5]
    assert second(log_sigmoid()).tolist() == [0, 0, -0.25]


def weights_and_inputs():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 1, generator=generator), torch.randn(1, 3, generator=generator)


OF_TWO = {
    "both": lambda op, x, y: grad(lambda x, y: op(x, y).sum(), (0, 1))(x, y),
    "hessian": lambda op, x, y: sum(hessian(lambda x, y: op(x, y).sum(), (0, 1))(x, y), ()),
    "jacfwd of jacrev": lambda op, x, y: (jacfwd(jacrev(lambda x, y: op(x, y).sum(), 0), 1)(x, y),),
    "vmap over one": lambda op, x, y: (vmap(grad(lambda x, y: op(x, y).sum()), (0, None))(x, y),),
    "vmap over the other": lambda op, x, y: (vmap(lambda y: grad(lambda x: op(x, y).sum())(x), 1)(y),),
    "compile": lambda op, x, y: compiled(lambda x, y: grad(lambda x, y: op(x, y).sum(), (0, 1))(x, y))(x, y),
    "per-sample gradients": lambda op, x, y: (
        vmap(lambda s: grad(lambda x: op(x * s, y).sum())(x))(torch.tensor([0.5, 2.0])),
    ),
}


@pytest.mark.parametrize("context", OF_TWO)
def test_two_broadcast_inputs_match_the_formula(context):
    given = weights_and_inputs()
    for ours, right in zip(OF_TWO[context](gate(), *given), OF_TWO[context](gate_as_written, *given), strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-6)


def test_double_backward_of_two_inputs_matches_the_formula():
    results = []
    for f in (gate(), gate_as_written):
        x, y = (t.clone().requires_grad_() for t in weights_and_inputs())
        gx, gy = torch.autograd.grad(f(x, y).sum(), (x, y), create_graph=True)
        results.append((gx, gy, *torch.autograd.grad((gx * gx).sum() + (gy * gy).sum(), (x, y))))
    for ours, right in zip(*results, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-5)


def test_derivatives_are_finite_where_the_formula_overflows():
    op, x, y = gate(), torch.tensor([-200.0, 3.0]), torch.tensor(2.0)
    assert grad(lambda x: gate_as_written(x, y).sum())(x)[0].isnan()
    assert grad(lambda x: op(x, y).sum())(x)[0] == 0
    assert vmap(grad(grad(op)), (0, None))(x, y)[0] == 0


OVERFLOWING = {
    "exp(x) - 1": (lambda x: torch.exp(x) - 1, (100.0,)),
    "2 sinh": (lambda x: torch.exp(x) - torch.exp(-x), (100.0, -100.0)),
    "exp|x| - 1": (lambda x: torch.exp(x.abs()) - 1, (100.0, -100.0)),
    "sqrt(1 + x) - 1": (lambda x: torch.sqrt(1 + x) - 1, (-1.0,)),
}


@pytest.mark.parametrize("name", OVERFLOWING)
def test_infinite_derivatives_keep_their_signs(name):
    formula, points = OVERFLOWING[name]
    op = pullback.function(formula)
    for x in map(torch.tensor, points):
        for order in (grad, lambda f: grad(grad(f)), hessian):
            assert order(op)(x) == order(formula)(x)


def test_infinite_second_derivative_at_infinity_is_nan_not_0():
    op = pullback.function(lambda x: torch.exp(x) - 1)
    assert grad(op)(torch.tensor(math.inf)) == math.inf
    assert grad(grad(op))(torch.tensor(math.inf)).isnan()


OF_TWO_AT_INFINITY = {
    "difference of squares": (lambda a, b: a * a - b * b, lambda a, b: [2 * a, -2 * b, 2, 0, 0, -2]),
    "softplus times": (
        lambda a, b: torch.log1p(torch.exp(a)) * b,
        lambda a, b: (
            [b * torch.sigmoid(a), F.softplus(a), b * torch.sigmoid(a) * torch.sigmoid(-a)]
            + [torch.sigmoid(a)] * 2
            + [0]
        ),
    ),
}
"""Formulas of two inputs with first and second derivatives, by hand."""
POINTS_AT_INFINITY = [(a, b) for a in (math.inf, -math.inf, 1.0, 0.0) for b in (math.inf, -math.inf, -2.0, 0.0)]


def of_two_by_func(f, a, b):
    return [*grad(f, (0, 1))(a, b), *itertools.chain(*hessian(f, (0, 1))(a, b))]


def of_two_recorded(f, a, b):
    leaves = (a.requires_grad_(), b.requires_grad_())
    first = torch.autograd.grad(f(*leaves), leaves, create_graph=True)
    second = [torch.autograd.grad(g, leaves, retain_graph=True, materialize_grads=True) for g in first]
    return [*first, *itertools.chain(*second)]


@pytest.mark.parametrize("name", OF_TWO_AT_INFINITY)
@pytest.mark.parametrize("run", [of_two_by_func, of_two_recorded])
@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.few(4)
def test_second_derivative_at_infinity_is_right_or_nan(name, run, is_graph):
    """The first derivative is right wherever the textbook formula gives no 0 · ∞."""
    formula, derivatives = OF_TWO_AT_INFINITY[name]
    op = pullback.function(formula)
    f = make_fx(lambda a, b: op(a, b))(torch.tensor(1.0), torch.tensor(2.0)) if is_graph else op
    for point in POINTS_AT_INFINITY:
        a, b = map(torch.tensor, point)
        right = [float(x) for x in derivatives(a, b)]
        for i, (found, wanted) in enumerate(zip(run(f, a, b), right, strict=True)):
            is_lost = found.isnan() and (i > 1 or math.isnan(wanted))
            assert is_lost or found.item() == pytest.approx(wanted), (point, i)


@pytest.mark.parametrize("power", [1.5, 3.0])
def test_infinite_slope_has_second_derivative_0_if_linear(power):
    """At a = ∞, ∂²/∂b² of log(1 + eᵃ) bᵖ is p (p − 1) bᵖ⁻² ∞, and of log(1 + eᵃ) b it is 0."""
    op = pullback.function(lambda a, b: torch.log1p(torch.exp(a)) * b)
    a, b = torch.tensor(math.inf), torch.tensor(0.5)
    assert grad(op, 1)(a, b) == math.inf
    assert hessian(op, 1)(a, b) == 0
    assert hessian(lambda b: op(a, b**power))(b) == math.inf


def slope_of_compiled(op, x, g):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(torch.compile(lambda x: op(x), backend="eager")(x), x, g)[0]


@pytest.mark.parametrize(
    ("formula", "dtype", "x", "g"),
    [
        (lambda a: torch.exp(10 * a) - 1, torch.float16, 0.0, 2000.0),
        (lambda a: torch.exp(10 * a) - 1, torch.float32, 0.0, 1e37),
        (torch.logit, torch.float16, 0.004, 3.0),
    ],
)
def test_cotangent_is_not_multiplied_by_higher_derivatives_in_a_graph(formula, dtype, x, g):
    x, g = torch.tensor([x], dtype=dtype), torch.tensor([g], dtype=dtype)
    right = grad(lambda x: formula(x).sum())(x.double()) * g
    torch.testing.assert_close(slope_of_compiled(pullback.function(formula), x, g), right.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_forward_derivatives_of_a_scalar_keep_its_dtype(dtype):
    x = torch.tensor(0.5, dtype=dtype)
    for found in (jvp(log_sigmoid(), (x,), (torch.ones_like(x),))[1], hessian(log_sigmoid())(x)):
        assert found.dtype == dtype


def test_infinite_mixed_derivative_does_not_affect_the_others():
    for formula, a, b in (
        (lambda a, b: (torch.exp(a) - 1) / b, 1.0, 1e-3),
        (lambda a, b: (torch.exp(a) - 1) * b, 12.0, 0.5),
        (lambda a, b: b * b * torch.log1p(torch.exp(a)), 0.3, 6e4),
    ):
        op = pullback.function(formula)
        a, b = torch.tensor(a, dtype=torch.float16), torch.tensor(b, dtype=torch.float16)
        right = hessian(formula, (0, 1))(a.double(), b.double())
        for i, j in itertools.product((0, 1), (0, 1)):
            torch.testing.assert_close(hessian(op, (0, 1))(a, b)[i][j], right[i][j].half())


def test_third_derivative_is_right_where_the_first_two_overflow():
    formula = lambda b: torch.log1p(torch.exp(b)) - b * b * b * b  # noqa: E731
    assert grad(grad(grad(pullback.function(formula))))(torch.tensor(-200.0, dtype=torch.float16)) == 4800


@pytest.mark.parametrize("shape", [(2,), ()])
def test_nan_in_one_input_does_not_affect_the_other_gradient(shape):
    op = pullback.function(lambda a, b: a * a - b * b)
    b = torch.tensor([math.nan, 1.0])
    a = torch.full(shape, 3.0).requires_grad_()
    right = torch.autograd.grad((a * a - b * b).sum(), a)[0]
    f = make_fx(lambda a, b: op(a, b))(a.detach(), b)
    assert torch.equal(torch.autograd.grad(f(a, b).sum(), a)[0], right)
    a = torch.full(shape, 3.0)
    (found,) = torch.autograd.grad(op(a, b.requires_grad_()).sum(), b)
    assert found.isnan().tolist() == [True, False]


def test_vmap_of_grad_over_no_samples():
    assert vmap(grad(log_sigmoid()))(torch.empty(0)).shape == (0,)
