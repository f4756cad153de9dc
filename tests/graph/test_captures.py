"""What a formula reads: what is watched, and what stands in the way of a graph."""

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


def test_a_formula_of_torch_alone_has_no_obstacle():
    reads = captures_of(lambda x: torch.sin(x) * math.pi + torch.nn.functional.relu(x).sum())
    assert not reads.obstacle
    assert reads.unchanged()


@pytest.mark.parametrize("after", [3.0, 2.0 + 1e-16j, -2.0, True, None, "a"])
def test_another_value_of_a_global_is_noticed(module, after):
    f = formula_in(module, "a = 2.0\ndef f(x): return x * a")
    reads = captures_of(f)
    assert not reads.obstacle
    module.a = after
    assert not reads.unchanged()


def test_a_closed_over_variable_is_watched():
    scale = 2.0

    def formula(x):
        return x * scale

    reads = captures_of(formula)
    assert reads.unchanged()
    scale = 3.0
    assert not reads.unchanged()


def test_values_read_by_helpers_of_helpers_are_watched(module):
    f = formula_in(module, "a = 1\ndef h(x): return x + a\ndef g(x): return h(x)\ndef f(x): return g(x)")
    reads = captures_of(f)
    assert not reads.obstacle
    module.a = 2
    assert not reads.unchanged()


def test_a_helper_defined_again_is_noticed(module):
    f = formula_in(module, "def h(x): return x\ndef f(x): return h(x)")
    reads = captures_of(f)
    exec("def h(x): return 2 * x", vars(module))
    assert not reads.unchanged()


def test_new_code_in_the_same_function_is_noticed(module):  # as a notebook's autoreload gives it
    f = formula_in(module, "def f(x): return x")
    reads = captures_of(f)
    f.__code__ = (lambda x: 2 * x).__code__
    assert not reads.unchanged()


def test_a_builtin_that_is_shadowed_later_is_noticed(module):
    f = formula_in(module, "def f(x): return max(x, x)")
    reads = captures_of(f)
    assert not reads.obstacle
    module.max = lambda a, b: 2 * a
    assert not reads.unchanged()


def test_a_constant_of_another_module_is_watched(module):
    module.settings = types.ModuleType("users_settings")
    module.settings.scale = 2.0
    reads = captures_of(formula_in(module, "def f(x): return x * settings.scale"))
    assert not reads.obstacle
    module.settings.scale = 3.0
    assert not reads.unchanged()


def test_the_default_dtype_is_watched():
    reads = captures_of(lambda x: x / 2)
    torch.set_default_dtype(torch.float64)
    try:
        assert not reads.unchanged()
    finally:
        torch.set_default_dtype(torch.float32)


def test_ops_are_followed_to_their_formulas(monkeypatch):
    reads = captures_of(lambda x: inner(x))
    assert not reads.obstacle
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert not reads.unchanged()


def test_a_relaxation_is_followed(module):
    soft = formula_in(module, "a = 1.0\ndef f(x): return x * a")
    module.hard = pullback.function(derivative_of=soft)(lambda x: x.round())
    reads = captures_of(formula_in(module, "def f(x): return hard(x)"))
    assert not reads.obstacle
    module.a = 2.0
    assert not reads.unchanged()


def test_a_rule_given_later_is_noticed(module):
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
def test_what_cannot_be_watched_is_an_obstacle(module, around, body, obstacle):
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
def test_what_a_function_does_by_itself_may_be_an_obstacle(module, source, obstacle):
    assert obstacle in captures_of(formula_in(module, source)).obstacle


def test_defaults_that_cannot_change_are_none(module):
    assert not captures_of(
        formula_in(module, "def f(x, a=1.0, m='mean', d=torch.float32, g=torch.sin): return g(x)")
    ).obstacle


@pytest.mark.parametrize("formula", [functools.partial(torch.sin), Config(), Config().__init__, torch.nn.ReLU()])
def test_a_formula_that_is_an_object_has_an_obstacle(formula):
    assert "object of type" in captures_of(formula).obstacle


@pytest.mark.parametrize(
    "value", [torch.sin, torch.Tensor.add, torch.Tensor.__rsub__, torch.ops.aten.sin.default, torch.nn.functional.relu]
)
def test_functions_of_torch_are_fixed(value):
    assert not captures_of(lambda x: value(x)).obstacle


def test_an_op_with_an_obstacle_is_right_at_every_call():
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
def test_attributes_of_functions_and_settings_cannot_be_watched(formula):
    assert captures_of(formula).obstacle


def test_new_defaults_of_a_helper_are_seen():
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
def test_what_tensors_of_a_kind_may_differ_in_is_no_part_of_a_graph(formula):
    assert captures_of(formula).obstacle


def test_attributes_of_a_kind_are(monkeypatch):
    def formula(x, names):
        y = x.mT.sum(-1).clamp(min=torch.finfo(x.dtype).eps)
        values = y.sort().values if isinstance(x, torch.Tensor) else torch.linalg.eigh(x).eigenvalues
        return values.reshape(x.shape[0], x.size(1)) * x.real / (x.ndim + len(names.keys()))

    assert not captures_of(formula).obstacle


def test_setting_an_attribute_and_catching_exceptions_are_obstacles():
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


def test_matching_a_class_is_an_obstacle():
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
def test_a_function_or_method_that_is_replaced_is_noticed(monkeypatch, owner, name, formula):
    reads = captures_of(formula)
    assert not reads.obstacle
    assert reads.unchanged()
    monkeypatch.setattr(owner, name, triple)
    assert not reads.unchanged()
    assert captures_of(formula).unchanged()


def test_a_method_of_the_users_is_followed(module, monkeypatch):
    swish = formula_in(module, "a = 2.0\ndef f(x): return x * a")
    monkeypatch.setattr(torch.Tensor, "swish", swish, raising=False)
    reads = captures_of(lambda x: x.swish())
    assert not reads.obstacle
    module.a = 3.0
    assert not reads.unchanged()


@pytest.mark.parametrize("wraps", [True, False])
def test_what_replaces_a_function_is_followed_like_any_of_the_users(module, monkeypatch, wraps):
    mine = formula_in(module, "a = 2.0\ndef f(x): return x * a")
    softplus = torch.nn.functional.relu
    monkeypatch.setattr(torch.nn.functional, "relu", functools.wraps(softplus)(mine) if wraps else mine)
    reads = captures_of(lambda x: torch.nn.functional.relu(x))
    module.a = 3.0
    assert reads.obstacle or not reads.unchanged()


def test_a_module_made_in_a_formula_may_have_hooks():
    assert "to which hooks may be added" in captures_of(lambda x: torch.nn.Softplus()(x)).obstacle


def test_a_replaced_function_shows_in_the_value_and_the_gradient(monkeypatch):
    op = pullback.function(lambda x: torch.sigmoid(x))
    x = torch.zeros(2, requires_grad=True)
    assert op(x).tolist() == [0.5, 0.5]
    monkeypatch.setattr(torch, "sigmoid", triple)
    (g,) = torch.autograd.grad(op(x).sum(), x)
    assert g.tolist() == [3, 3]


def test_an_attribute_of_one_tensor_shows():
    op = pullback.function(lambda x: x * 2 if hasattr(x, "doubled") else x * 1)
    x = torch.ones(1, requires_grad=True)
    assert op(x).item() == 1
    x.doubled = True
    assert op(x).item() == 2


def test_a_method_set_on_one_tensor_shows():
    op = pullback.function(lambda x: x.exp())
    x, strange = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    assert op(x).item() == 1
    strange.exp = lambda: strange * 3
    assert op(strange).item() == 0


@pytest.mark.parametrize(
    ("before", "after"), [(0.0, -0.0), (1, 1.0), (1, True), (0, -0.0), ((0.0,), (-0.0,))], ids=repr
)
@pytest.mark.parametrize("where", ["keyword", "default", "cell", "global"])
def test_a_value_that_is_equal_and_not_the_same_is_noticed(module, where, before, after):
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


def test_a_number_that_was_computed_anew_is_the_same(module):
    f = formula_in(module, "def f(x, *, k=0.0): return x * k * a")
    for a in (0.1 * 3, 0.1 * 3, float("nan"), float("nan")):
        module.a, f.__kwdefaults__["k"] = a, a
        reads = captures_of(f)
        module.a, f.__kwdefaults__["k"] = (float.fromhex(a.hex()) for _ in range(2))
        assert module.a is not a
        assert reads.unchanged()


def test_a_keyword_default_of_another_sign_shows_in_the_gradient():
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
def test_a_method_of_what_may_change_and_a_callable_with_a_state_are_obstacles(value, where):
    formula = (lambda x: value(x)) if where == "cell" else (lambda x, f=value: f(x))
    assert "of type" in captures_of(formula).obstacle


def test_a_method_of_a_dictionary_that_was_empty_reads_it_at_every_call():
    config = {}
    get = config.get
    op = pullback.function(lambda x: x * get("scale", 2.0))
    x = torch.ones(2, requires_grad=True)
    for scale in (2.0, 3.0, 5.0):
        assert torch.autograd.grad(op(x).sum(), x)[0].tolist() == [scale, scale]
        config["scale"] = {2.0: 3.0}.get(scale, 5.0)


def test_a_method_of_a_tensor_reads_it_at_every_call():
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
def test_a_setting_of_pytorch_is_an_obstacle_by_whatever_name(module, around, body):
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
def test_what_is_imported_when_called_is_an_obstacle(module, line):
    assert "when called" in captures_of(formula_in(module, f"def f(x):\n    {line}\n    return x * n()")).obstacle


def test_the_number_of_threads_is_read_at_every_call():
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
def test_an_attribute_of_tensors_that_is_the_users_is_an_obstacle(monkeypatch, made):
    monkeypatch.setattr(torch.Tensor, "mT", made)
    assert "`.mT`" in captures_of(lambda x: x.mT).obstacle


@pytest.mark.parametrize("value", [torch.is_tensor, torch.is_floating_point, Tensor.is_floating_point, len])
def test_what_only_sounds_like_a_setting_is_none(value):
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
def test_a_file_is_read_at_every_call(formula):
    assert "reads a file, with" in captures_of(formula).obstacle


def test_hooks_for_saved_tensors_are_called():
    def in_eight_bits(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (t * 8).round().to(torch.int8), lambda q: q / 8):
            return x.sin() * x

    op = pullback.function(in_eight_bits)
    assert "sets hooks for saved tensors, with" in captures_of(in_eight_bits).obstacle
    x = torch.tensor([0.3, 1.01, -1.62], requires_grad=True)
    for create_graph in (False, True):
        got, want = (torch.autograd.grad(f(x).sum(), x, create_graph=create_graph)[0] for f in (op, in_eight_bits))
        assert torch.equal(got, want)


def test_what_a_file_holds_now_counts(tmp_path):
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
def test_settings_of_numpy_and_parts_that_are_compiled_are_obstacles(formula, what):
    assert what in captures_of(formula).obstacle
