"""`dispatch.world`: the world of a call, and its only users."""

import re
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import pullback
from pullback import dispatch
from pullback.dispatch import World

X = torch.tensor([0.5, -1.0])
SOURCES = Path(pullback.__file__).parent


class Logged(torch.Tensor):
    pass


def seen_by(run):
    """Return the worlds that a function sees while something runs it."""
    seen = []

    def function(x):
        seen.append(dispatch.world((x,)))
        return x * 2

    run(function)
    return set(seen)


def in_a_dual_level(function):
    with forward_ad.dual_level():
        function(forward_ad.make_dual(X, X))


def in_a_mode(function):
    with FlopCounterMode(display=False):
        function(X)


def in_autocast(function):
    with torch.autocast("cpu", torch.bfloat16):
        function(X)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("run", "world"),
    [
        (lambda f: f(X), World.EAGER),
        (lambda f: f(torch.nn.Parameter(X)), World.EAGER),
        (lambda f: f(X.as_subclass(Logged)), World.SUBCLASS),
        (lambda f: torch.func.grad(lambda x: f(x).sum())(X), World.TRANSFORM),
        (lambda f: torch.func.vmap(f)(X), World.TRANSFORM),
        (in_a_dual_level, World.DUAL),
        (in_a_mode, World.MODE),
        (in_autocast, World.MODE),
        (lambda f: make_fx(f)(X), World.MODE),
        (lambda f: torch.jit.trace(f, (X,), check_trace=False), World.SCRIPT),
        (torch.fx.symbolic_trace, World.SYMBOLIC),
    ],
    ids=["eager", "parameter", "subclass", "grad", "vmap", "dual", "flops", "autocast", "make_fx", "jit", "fx"],
)
def test_world_of_a_call(run, world):
    assert seen_by(run) == {world}


def test_world_is_a_constant_for_dynamo():
    def function(x):
        return x * 2 if dispatch.world((x,)) is World.DYNAMO else x * 3

    compiled = torch.compile(function, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), X * 2)
    assert torch.equal(function(X), X * 3)


class Routes:
    """A handler that says which of its methods ran."""

    table = None

    def __getattr__(self, name):
        return lambda args, kwargs: name


@pytest.mark.parametrize("world", World)
def test_every_handler_implements_the_route_of_each_world(world, monkeypatch):
    from pullback.derived import Derived
    from pullback.relaxed import Relaxed
    from pullback.ruled.functions import Ruled

    assert all(callable(getattr(handler, world.route)) for handler in (Derived, Relaxed, Ruled))
    monkeypatch.setattr(dispatch, "world", lambda args=(): world)
    if world is not World.SYMBOLIC:  # it looks for the proxy
        assert dispatch.call(None, Routes(), (X,), {}) == world.route


def test_cpp_table_is_asked_first_and_may_decline():
    class Table:
        def call(self, args):
            return NotImplemented if args[0] is None else "in C++"

    handler = Routes()
    handler.table = Table()
    assert dispatch.call(None, handler, (X,), {}) == "in C++"
    assert dispatch.call(None, handler, (None,), {}) == "eager"
    assert dispatch.call(None, handler, (X,), {"scale": 2}) == "eager"


def test_dispatch_mode_sees_the_native_ops():
    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    names = []
    op = pullback.function(lambda x: torch.sin(x) * x, stable=False)
    with Names():
        op(X)
    assert names == ["sin", "mul"]


def test_only_dispatch_queries_the_world():
    asks = re.compile(r"\b(is_plain_eager|is_compiling|is_dynamo_compiling)\(\)")
    making = [path for path in SOURCES.rglob("*.py") if path.relative_to(SOURCES).parts[0] not in {"check", "_torch"}]
    asking = {path.relative_to(SOURCES).as_posix() for path in making if asks.search(path.read_text())}
    assert asking == {"dispatch.py"}
