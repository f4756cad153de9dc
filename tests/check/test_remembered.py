"""What a function remembers between calls, and having it forget."""

import functools
from typing import ClassVar

import torch

from pullback.check.find.discover import subject_of
from pullback.check.remembered import Memory

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


def test_each_place_is_seen_and_put_back():
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


def test_a_closure_is_seen():
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


def test_what_reads_alone_changes_nothing():
    memory = Memory(subject_of(Remembers))
    assert (TABLE.get("b"), COUNT) == (None, 0)
    assert not memory.has_changed()
