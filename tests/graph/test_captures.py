"""Captures of a formula: those that are watched for changes, and those that are obstacles to a graph."""

import builtins
import functools
import math
import operator
import random
import types
from operator import attrgetter

import numpy as np
import pytest
import torch
from torch import Tensor, _conj
from torch.nn import Parameter

import pullback
from pullback.graph.captures import captures_of

SCALE = 2.0


def helper(x):
    return x * SCALE


@pullback.function
def inner(x):
    return helper(x) + 1


def formula_in(module, source):
    exec(compile(source, module.__name__, "exec"), vars(module))
    return module.f


@pytest.fixture
def module():
    made = types.ModuleType("users_module")
    vars(made).update(torch=torch, math=math, np=np, random=random, functools=functools)
    return made


def test_formula_of_torch_ops_has_no_obstacle():
    reads = captures_of(lambda x: torch.sin(x) * math.pi + torch.nn.functional.relu(x).sum())
    assert not reads.obstacle
    assert reads.unchanged()


@pytest.mark.parametrize("after", [3.0, 2.0 + 1e-16j, -2.0, True, None, "a"])
def test_changed_global_is_noticed(module, after):
    f = formula_in(module, "a = 2.0\ndef f(x): return x * a")
    reads = captures_of(f)
    assert not reads.obstacle
    module.a = after
    assert not reads.unchanged()


def test_closure_variable_is_watched():
    scale = 2.0

    def formula(x):
        return x * scale

    reads = captures_of(formula)
    assert reads.unchanged()
    scale = 3.0
    assert not reads.unchanged()


def test_globals_of_nested_helpers_are_watched(module):
    f = formula_in(module, "a = 1\ndef h(x): return x + a\ndef g(x): return h(x)\ndef f(x): return g(x)")
    reads = captures_of(f)
    assert not reads.obstacle
    module.a = 2
    assert not reads.unchanged()


def test_redefined_helper_is_noticed(module):
    f = formula_in(module, "def h(x): return x\ndef f(x): return h(x)")
    reads = captures_of(f)
    exec("def h(x): return 2 * x", vars(module))
    assert not reads.unchanged()


def test_replaced_code_of_the_formula_is_noticed(module):  # as a notebook's autoreload does
    f = formula_in(module, "def f(x): return x")
    reads = captures_of(f)
    f.__code__ = (lambda x: 2 * x).__code__
    assert not reads.unchanged()


def test_builtin_shadowed_later_is_noticed(module):
    f = formula_in(module, "def f(x): return max(x, x)")
    reads = captures_of(f)
    assert not reads.obstacle
    module.max = lambda a, b: 2 * a
    assert not reads.unchanged()


def test_constant_of_another_module_is_watched(module):
    module.settings = types.ModuleType("users_settings")
    module.settings.scale = 2.0
    reads = captures_of(formula_in(module, "def f(x): return x * settings.scale"))
    assert not reads.obstacle
    module.settings.scale = 3.0
    assert not reads.unchanged()


def test_default_dtype_is_watched():
    reads = captures_of(lambda x: x / 2)
    torch.set_default_dtype(torch.float64)
    try:
        assert not reads.unchanged()
    finally:
        torch.set_default_dtype(torch.float32)


def test_captures_of_a_called_op_are_followed(monkeypatch):
    reads = captures_of(lambda x: inner(x))
    assert not reads.obstacle
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert not reads.unchanged()


def test_captures_of_a_relaxation_are_followed(module):
    soft = formula_in(module, "a = 1.0\ndef f(x): return x * a")
    module.hard = pullback.function(derivative_of=soft)(lambda x: x.round())
    reads = captures_of(formula_in(module, "def f(x): return hard(x)"))
    assert not reads.obstacle
    module.a = 2.0
    assert not reads.unchanged()


def test_rule_registered_later_is_noticed(module):
    module.op = pullback.function(lambda x: x * 2)
    reads = captures_of(formula_in(module, "def f(x): return op(x)"))
    assert not reads.obstacle
    module.op.vjp(lambda g, out, x: (g,))
    assert not reads.unchanged()
    assert "whose derivative is a rule" in captures_of(module.f).obstacle


class Config:
    scale = 2.0


@pytest.mark.parametrize(
    ("around", "body", "obstacle"),
    [
        ("a = [1.0]", "x * a[0]", "an object of type list, `a`"),
        ("a = {'s': 1.0}", "x * a['s']", "an object of type dict, `a`"),
        ("import collections; a = collections.deque([1.0])", "x * a[0]", "an object of type deque, `a`"),
        ("a = np.ones(3)", "x * a[0]", "an object of type ndarray, `a`"),
        ("a = functools.partial(torch.sin)", "a(x)", "an object of type partial, `a`"),
        ("a = functools.lru_cache(lambda x: x)", "a(x)", "type _lru_cache_wrapper, `a`"),
        ("a = torch.nn.Softplus(beta=2)", "a(x)", "an object of type Softplus, `a`"),
        ("a = torch.ones(3)", "x * a", "closes over the tensor `a`"),
        ("class A: s = 1.0", "x * A.s", "uses the class `A`"),
        ("", "x * random.random()", "`random.random`"),
        ("", "x * np.random.rand()", "draws random numbers from `np.random`"),
        ("from numpy import random as r", "x * r.rand()", "draws random numbers from `r`"),
        ("from random import random as r", "x * r()", "type builtin_function_or_method, `r`"),
        ("import time", "x * time.time()", "`time.time`"),
        ("", "x * globals()['a']", "`globals` does what a graph cannot"),
        ("", "print('called') or x", "`print` does what a graph cannot"),
        ("", "x * later", "`later` is not defined"),
        ("import json", "(json, x)[1]", "uses the module `json` as a value"),
    ],
)
def test_unwatchable_capture_is_an_obstacle(module, around, body, obstacle):
    reads = captures_of(formula_in(module, f"{around}\ndef f(x): return {body}"))
    assert obstacle in reads.obstacle


@pytest.mark.parametrize(
    ("source", "obstacle"),
    [
        ("def f(x, a=[1.0]): return x * a[0]", "an object of type list, as a default"),
        ("def f(x, *, a=torch.ones(1)): return x * a", "a tensor as a default"),
        ("def h(x, a=[1.0]): return x * a[0]\ndef f(x): return h(x)", "an object of type list, as a default"),
        ("def f(x):\n    import json\n    return x", "imports `json` when called"),
        ("n = 0\ndef f(x):\n    global n\n    n += 1\n    return x", "assigns to `n`"),
    ],
)
def test_mutable_default_import_or_global_write_is_an_obstacle(module, source, obstacle):
    assert obstacle in captures_of(formula_in(module, source)).obstacle


def test_immutable_defaults_are_no_obstacle(module):
    assert not captures_of(
        formula_in(module, "def f(x, a=1.0, m='mean', d=torch.float32, g=torch.sin): return g(x)")
    ).obstacle


@pytest.mark.parametrize("formula", [functools.partial(torch.sin), Config(), Config().__init__, torch.nn.ReLU()])
def test_callable_object_as_formula_is_an_obstacle(formula):
    assert "object of type" in captures_of(formula).obstacle


@pytest.mark.parametrize(
    "value", [torch.sin, torch.Tensor.add, torch.Tensor.__rsub__, torch.ops.aten.sin.default, torch.nn.functional.relu]
)
def test_torch_functions_are_no_obstacle(value):
    assert not captures_of(lambda x: value(x)).obstacle


def test_op_with_an_obstacle_rereads_its_capture_at_every_call():
    state = {"scale": 2.0}
    op = pullback.function(lambda x: x * state["scale"])
    x = torch.ones(2, requires_grad=True)
    for scale in (2.0, 3.0):
        state["scale"] = scale
        (g,) = torch.autograd.grad(op(x).sum(), x)
        assert g.tolist() == [scale, scale]


def with_attribute(x, factor=2.0):
    return x * factor * with_attribute.k


with_attribute.k = 1.0


@pytest.mark.parametrize(
    "formula",
    [
        lambda x: with_attribute(x),
        lambda x: x * getattr(with_attribute, "k"),  # noqa: B009 - as users write it
        lambda x: x * (2.0 if torch.backends.cudnn.benchmark else 1.0),
        lambda x: x * (2.0 if torch.are_deterministic_algorithms_enabled() else 1.0),
        lambda x: x * (2.0 if torch.get_float32_matmul_precision() == "high" else 1.0),
        lambda x: x + torch.initial_seed(),
    ],
)
def test_function_attributes_and_torch_settings_are_obstacles(formula):
    assert captures_of(formula).obstacle


def test_changed_defaults_of_a_helper_are_noticed():
    def scaled(x, factor=2.0):
        return x * factor

    op = pullback.function(lambda x: scaled(x))
    x = torch.ones(3, requires_grad=True)
    assert op(x).tolist() == [2, 2, 2]
    scaled.__defaults__ = (5.0,)
    assert op(x).tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    "formula",
    [
        lambda x: x * (5.0 if isinstance(x, torch.nn.Parameter) else 1.0),
        lambda x: x * (5.0 if isinstance(x, Parameter) else 1.0),
        lambda x: x if type(x) is torch.Tensor else -x,
        lambda x: x * 2 if x._is_view() else x,
        lambda x: x * 2 if torch.Tensor._is_view(x) else x,
        lambda x: x * 2 if Tensor._is_view(x) else x,
        lambda x: x * 2 if x._backward_hooks else x,
        lambda x: x * 2 if x.mine else x,
        lambda x: x * 2 if hasattr(x, "mine") else x,
        lambda x: sum(y * 2 if y.mine else y for y in (x,)),
        lambda x: x * object.__getattribute__(x, "mine"),
        lambda x: x * operator.attrgetter("mine")(x),
        lambda x: x * attrgetter("mine")(x),
        lambda x: _conj(x),
        lambda x: x * 2 if x.is_leaf else x,
        lambda x: x * 2 if x.is_shared() else x,
        lambda x: x * 2 if x.grad is None else x,
        lambda x: x * 2 if torch._C._functorch.is_batchedtensor(x) else x,
    ],
)
def test_tensor_property_outside_the_cache_key_is_an_obstacle(formula):
    assert captures_of(formula).obstacle


def test_tensor_property_in_the_cache_key_is_no_obstacle(monkeypatch):
    def formula(x, names):
        y = x.mT.sum(-1).clamp(min=torch.finfo(x.dtype).eps)
        values = y.sort().values if isinstance(x, torch.Tensor) else torch.linalg.eigh(x).eigenvalues
        return values.reshape(x.shape[0], x.size(1)) * x.real / (x.ndim + len(names.keys()))

    assert not captures_of(formula).obstacle


def test_attribute_assignment_and_exception_handling_are_obstacles():
    def sets(x):
        x.seen = True
        return x * 2

    def catches(x):
        try:
            return x * x.index
        except AttributeError:
            return x

    def with_statement(x):
        with torch.no_grad():
            return x * 2

    assert "sets the attribute `.seen`" in captures_of(sets).obstacle
    assert "catches exceptions" in captures_of(catches).obstacle
    assert not captures_of(with_statement).obstacle


def test_class_pattern_is_an_obstacle():
    def matched(x):
        match x:
            case object(is_leaf=True):
                return x * 2
        return x

    assert "matches a value against a class" in captures_of(matched).obstacle


def triple(*tensors):
    return 3 * tensors[0]


@pytest.mark.parametrize(
    ("owner", "name", "formula"),
    [
        (torch, "sigmoid", lambda x: torch.sigmoid(x)),
        (torch.nn.functional, "softplus", lambda x: torch.nn.functional.softplus(x)),
        (torch.Tensor, "sigmoid", lambda x: x.sigmoid()),
        (torch.Tensor, "sigmoid", lambda x: torch.Tensor.sigmoid(x)),
        (torch.Tensor, "norm", lambda x: x.norm()),
        (torch.Tensor, "__mul__", lambda x: x * x),
        (torch.Tensor, "__rsub__", lambda x: 1 - x),
        (torch.Tensor, "__neg__", lambda x: -x),
        (torch.Tensor, "__abs__", lambda x: abs(x)),
        (math, "exp", lambda x: x * math.exp(1.0)),
        (builtins, "sum", lambda x: sum(x)),
    ],
)
def test_monkeypatched_function_or_method_is_noticed(monkeypatch, owner, name, formula):
    reads = captures_of(formula)
    assert not reads.obstacle
    assert reads.unchanged()
    monkeypatch.setattr(owner, name, triple)
    assert not reads.unchanged()
    assert captures_of(formula).unchanged()


def test_captures_of_a_method_added_to_tensor_are_followed(module, monkeypatch):
    swish = formula_in(module, "a = 2.0\ndef f(x): return x * a")
    monkeypatch.setattr(torch.Tensor, "swish", swish, raising=False)
    reads = captures_of(lambda x: x.swish())
    assert not reads.obstacle
    module.a = 3.0
    assert not reads.unchanged()


@pytest.mark.parametrize("wraps", [True, False])
def test_captures_of_a_monkeypatched_function_are_followed(module, monkeypatch, wraps):
    mine = formula_in(module, "a = 2.0\ndef f(x): return x * a")
    softplus = torch.nn.functional.relu
    monkeypatch.setattr(torch.nn.functional, "relu", functools.wraps(softplus)(mine) if wraps else mine)
    reads = captures_of(lambda x: torch.nn.functional.relu(x))
    module.a = 3.0
    assert reads.obstacle or not reads.unchanged()


def test_module_made_in_a_formula_is_an_obstacle():
    assert "to which hooks may be added" in captures_of(lambda x: torch.nn.Softplus()(x)).obstacle


def test_monkeypatched_function_changes_value_and_gradient(monkeypatch):
    op = pullback.function(lambda x: torch.sigmoid(x))
    x = torch.zeros(2, requires_grad=True)
    assert op(x).tolist() == [0.5, 0.5]
    monkeypatch.setattr(torch, "sigmoid", triple)
    (g,) = torch.autograd.grad(op(x).sum(), x)
    assert g.tolist() == [3, 3]


def test_attribute_of_one_tensor_is_read():
    op = pullback.function(lambda x: x * 2 if hasattr(x, "doubled") else x * 1)
    x = torch.ones(1, requires_grad=True)
    assert op(x).item() == 1
    x.doubled = True
    assert op(x).item() == 2


def test_method_set_on_one_tensor_is_called():
    op = pullback.function(lambda x: x.exp())
    x, strange = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    assert op(x).item() == 1
    strange.exp = lambda: strange * 3
    assert op(strange).item() == 0


@pytest.mark.parametrize(
    ("before", "after"), [(0.0, -0.0), (1, 1.0), (1, True), (0, -0.0), ((0.0,), (-0.0,))], ids=repr
)
@pytest.mark.parametrize("where", ["keyword", "default", "cell", "global"])
def test_change_to_an_equal_value_of_other_type_or_sign_is_noticed(module, where, before, after):
    module.a = value = before
    formulas = {
        "keyword": "def f(x, *, k=a): return x * k",
        "default": "def f(x, k=a): return x * k",
        "global": "def f(x): return x * a",
    }
    f = (lambda x: x * value) if where == "cell" else formula_in(module, formulas[where])
    reads = captures_of(f)
    assert not reads.obstacle
    assert reads.unchanged()
    value = module.a = after
    if where == "keyword":
        f.__kwdefaults__["k"] = after
    elif where == "default":
        f.__defaults__ = (after,)
    assert not reads.unchanged()


def test_equal_float_objects_are_the_same_capture(module):
    f = formula_in(module, "def f(x, *, k=0.0): return x * k * a")
    for a in (0.1 * 3, 0.1 * 3, float("nan"), float("nan")):
        module.a, f.__kwdefaults__["k"] = a, a
        reads = captures_of(f)
        module.a, f.__kwdefaults__["k"] = (float.fromhex(a.hex()) for _ in range(2))
        assert module.a is not a
        assert reads.unchanged()


def test_sign_change_of_a_zero_default_changes_the_gradient():
    def formula(x, *, at_zero=0.0):
        return torch.copysign(x, torch.full_like(x, at_zero))

    op = pullback.function(formula)
    x = torch.ones(2, requires_grad=True)
    for at_zero in (0.0, -0.0, 0.0):
        formula.__kwdefaults__["at_zero"] = at_zero
        ours, theirs = op(x), formula(x)
        assert torch.equal(ours, theirs)
        assert torch.equal(*(torch.autograd.grad(out.sum(), x)[0] for out in (ours, theirs)))


ONES = torch.ones(1)


@pytest.mark.parametrize(
    "value",
    [
        {}.get,
        {"a": 1}.get,
        [].count,
        set().__contains__,
        bytearray().find,
        ONES.add,
        torch.zeros(()).add,
        torch.ones(2).mul,
        functools.partial(torch.add, 1),
        operator.itemgetter(0),
        np.ones(2),
        np.float64(2.0),
        np.random.rand,
        random.Random(0).random,
        Config().__init__,
    ],
)
@pytest.mark.parametrize("where", ["cell", "default"])
def test_bound_method_of_a_mutable_object_is_an_obstacle(value, where):
    formula = (lambda x: value(x)) if where == "cell" else (lambda x, f=value: f(x))
    assert "of type" in captures_of(formula).obstacle


def test_captured_dict_get_reads_the_dict_at_every_call():
    config = {}
    get = config.get
    op = pullback.function(lambda x: x * get("scale", 2.0))
    x = torch.ones(2, requires_grad=True)
    for scale in (2.0, 3.0, 5.0):
        assert torch.autograd.grad(op(x).sum(), x)[0].tolist() == [scale, scale]
        config["scale"] = {2.0: 3.0}.get(scale, 5.0)


def test_captured_tensor_method_reads_the_tensor_at_every_call():
    shift = torch.ones(2)
    add = shift.add
    op = pullback.function(lambda x: add(x) * x)
    x = torch.ones(2, requires_grad=True)
    for value in (1.0, 3.0):
        shift.fill_(value)
        assert torch.autograd.grad(op(x).sum(), x)[0].tolist() == [value + 2] * 2


@pytest.mark.parametrize(
    ("around", "body"),
    [
        ("from torch import get_num_threads", "x * get_num_threads()"),
        ("g = torch.get_num_threads", "x * g()"),
        ("from torch import is_grad_enabled as on", "x * 2 if on() else x"),
        ("from torch import get_default_dtype as d, initial_seed as s", "x * s()"),
        ("from torch.random import initial_seed as s", "x * s()"),
        ("from torch import backends", "x * backends.mkldnn.is_available()"),
        ("from torch.backends import mkldnn", "x * mkldnn.is_available()"),
        ("from torch.backends.mkldnn import is_available as a", "x * a()"),
        ("from torch.cuda import is_available as a", "x * a()"),
        ("from torch.cuda import device_count as a", "x * a()"),
        ("from torch import are_deterministic_algorithms_enabled as a", "x * a()"),
        ("from torch import seed", "x * seed()"),
        ("settings = (torch.get_num_threads,)", "x * settings[0]()"),
        ("import torch as t", "x * t.get_num_threads()"),
        ("", "x * getattr(torch, 'get_num_threads')()"),
        ("", "(lambda t: x * t.get_num_threads())(torch)"),
        ("", "(lambda t: t.sigmoid(x))(torch)"),
        ("users = types.SimpleNamespace(threads=torch.get_num_threads)", "x * users.threads()"),
        ("users = types.ModuleType('users'); users.threads = torch.get_num_threads", "x * users.threads()"),
        ("def h(n=torch.get_num_threads): return n()", "x * h()"),
        ("def h(*, n=torch.get_num_threads): return n()", "x * h()"),
        ("from torch import Tensor; leafy = Tensor.is_shared", "x * leafy(x)"),
        ("from torch import Tensor; offset = Tensor.storage_offset", "x * offset(x)"),
    ],
)
def test_torch_setting_is_an_obstacle_under_any_name(module, around, body):
    module.types = types
    assert captures_of(formula_in(module, f"{around}\ndef f(x): return {body}")).obstacle


@pytest.mark.parametrize(
    "line",
    [
        "from torch import get_num_threads as n",
        "import torch; n = torch.get_num_threads",
        "import torch.nn.functional as F; n = lambda: F.relu(x)",
        "from torch import nn; n = lambda: nn.functional.relu(x)",
        "import math; n = lambda: math.pi",
    ],
)
def test_import_inside_the_formula_is_an_obstacle(module, line):
    assert "when called" in captures_of(formula_in(module, f"def f(x):\n    {line}\n    return x * n()")).obstacle


def test_number_of_threads_is_read_at_every_call():
    threads = torch.get_num_threads
    op = pullback.function(lambda x: x * threads())
    x, before = torch.ones(2, requires_grad=True), threads()
    try:
        for n in (1, 2, 1):
            torch.set_num_threads(n)
            assert torch.autograd.grad(op(x).sum(), x)[0].tolist() == [n, n]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("made", [property(lambda x: x * SCALE), functools.partial(torch.mul, 3), staticmethod(triple)])
def test_replaced_tensor_attribute_is_an_obstacle(monkeypatch, made):
    monkeypatch.setattr(torch.Tensor, "mT", made)
    assert "`.mT`" in captures_of(lambda x: x.mT).obstacle


@pytest.mark.parametrize("value", [torch.is_tensor, torch.is_floating_point, Tensor.is_floating_point, len])
def test_function_named_like_a_setting_is_no_obstacle(value):
    assert not captures_of(lambda x: value(x)).obstacle


FILES = {
    "np.loadtxt": lambda x: x * float(np.loadtxt("scale")),
    "np.genfromtxt": lambda x: x * float(np.genfromtxt("scale")),
    "np.load": lambda x: x * float(np.load("scale")),
    "np.fromfile": lambda x: x * float(np.fromfile("scale")[0]),
    "np.memmap": lambda x: x * float(np.memmap("scale")[0]),
    "torch.load": lambda x: x * torch.load("scale")["s"],
    "torch.from_file": lambda x: x * torch.from_file("scale", size=1).item(),
    "torch.jit.load": lambda x: torch.jit.load("scale")(x),
    "by another name": lambda x, read=np.loadtxt: x * float(read("scale")),
}


@pytest.mark.parametrize("formula", FILES.values(), ids=FILES)
def test_reading_a_file_is_an_obstacle(formula):
    assert "reads a file, with" in captures_of(formula).obstacle


def test_saved_tensor_hooks_in_a_formula_are_called():
    def in_eight_bits(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (t * 8).round().to(torch.int8), lambda q: q / 8):
            return x.sin() * x

    op = pullback.function(in_eight_bits)
    assert "sets hooks for saved tensors, with" in captures_of(in_eight_bits).obstacle
    x = torch.tensor([0.3, 1.01, -1.62], requires_grad=True)
    for create_graph in (False, True):
        got, want = (torch.autograd.grad(f(x).sum(), x, create_graph=create_graph)[0] for f in (op, in_eight_bits))
        assert torch.equal(got, want)


def test_file_is_read_at_every_call(tmp_path):
    path = str(tmp_path / "scale")
    op = pullback.function(lambda x: x * float(np.loadtxt(path)))
    x = torch.ones(2, requires_grad=True)
    for scale in (2.0, 5.0):
        np.savetxt(path, [scale])
        assert torch.autograd.grad(op(x).sum(), x)[0].tolist() == [scale, scale]


@pytest.mark.parametrize(
    ("formula", "what"),
    [
        (lambda x: x * (2 if np.geterr()["divide"] == "warn" else 3), "a setting"),
        (lambda x: x * float(np.datetime64("now", "ms") - np.datetime64(0, "ms")), "a setting"),
        (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), "is compiled"),
    ],
)
def test_numpy_settings_and_torch_cond_are_obstacles(formula, what):
    assert what in captures_of(formula).obstacle
