"""State that a function keeps between calls: detection and restoration."""

import functools
from typing import ClassVar

import torch
from torch.autograd import Function

import pullback
from pullback.check.find.discover import subject_of
from pullback.check.purity.memory import Memory

TABLE: dict[str, int] = {}
COUNT = 0


@functools.cache
def doubled(n):
    return 2 * n


class Remembers(torch.autograd.Function):
    buffer = torch.zeros(2)
    names: ClassVar = []

    @staticmethod
    def forward(ctx, how):
        how()
        return TABLE, COUNT, doubled, Remembers.buffer, Remembers.names, Remembers.latest

    @staticmethod
    def backward(ctx, g):
        return g


def state():
    return dict(TABLE), COUNT, doubled.cache_info().currsize, Remembers.buffer.tolist(), list(Remembers.names)


def test_each_kind_of_state_is_detected_and_restored():
    def in_table():
        TABLE["a"] = 1

    def in_global():
        globals()["COUNT"] += 1

    def in_tensor():
        Remembers.buffer.add_(1)

    def in_list():
        Remembers.names.append("x")

    def in_new_attribute():
        Remembers.latest = 1

    before = state()
    for change in (in_table, in_global, in_tensor, in_list, in_new_attribute, functools.partial(doubled, 3)):
        memory = Memory(subject_of(Remembers))
        change()
        assert memory.has_changed(), change
        after = state()
        with memory.forgotten():
            assert state() == before, change
            assert not hasattr(Remembers, "latest")
            in_list()
        assert state()[3:] == after[3:]
        memory._put_back(memory._state)


def test_state_in_a_closure_is_detected_and_restored():
    seen = {}

    class Local(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen[x.shape] = True
            return x

        @staticmethod
        def backward(ctx, g):
            return g

    memory = Memory(subject_of(Local))
    assert not memory.has_changed()
    seen[1] = True
    assert memory.has_changed()
    with memory.forgotten():
        assert seen == {}
    assert seen == {1: True}


def test_reading_state_is_no_change():
    memory = Memory(subject_of(Remembers))
    assert (TABLE.get("b"), COUNT) == (None, 0)
    assert not memory.has_changed()


class Proxy:
    """An object that raises for any attribute before its session starts, as in web frameworks."""

    @property
    def __class__(self):
        raise RuntimeError("there is no session")

    def __getattr__(self, name):
        raise RuntimeError("there is no session")


SESSION = Proxy()


def test_proxy_that_raises_is_no_state():
    kept = Proxy()

    class Sine(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin() if x.ndim else (SESSION, kept)

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0].cos()

    def called(x, session=kept):
        return Sine.apply(x) if x.ndim else (SESSION, session)

    for target in (Sine, called):
        report = pullback.check(target, torch.ones(3, dtype=torch.float64), select="PB1,PB4")
        assert not [f for f in report.findings if f.severity == "error" or "Pullback failed" in f.message]
