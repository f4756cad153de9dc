"""Output shapes as functions of input sizes, and examples repeated to a length that leaves a tail."""

import pytest
import torch

from pullback.check.cases import growth
from pullback.check.cases.growth import growths
from pullback.check.find.discover import subject_of

from ..making import case_of, normal
from ..making import function as made


def grown(value, *inputs):
    target = made(value, lambda g, x: g)
    return {growth.size: growth for growth in growths(subject_of(target), case_of(target, *inputs))}


def test_output_shape_follows_each_size():
    found = grown(lambda x: torch.cat([x, x[:1]]).sum(1, keepdim=True), normal(3, 5))
    assert found[3].shapes(7) == [(8, 1)]
    assert found[5].shapes(7) == [(4, 1)]
    assert (found[3].dims(0), found[5].dims(0)) == ([], [])


def test_size_that_gives_negative_shapes_has_no_prediction():
    found = grown(lambda x: x[2:] - x[:-2], normal(5))
    assert found[5].shapes(2) == [(0,)]
    assert found[5].shapes(1) is None


def test_nonlinear_and_rejected_sizes_are_left_out():
    assert grown(lambda x: x[::2], normal(5)) == {}
    assert grown(lambda x: x.view(-1, 2), normal(6)) == {}


def test_batch_size_is_a_leading_size_that_occurs_once():
    def batches(*shape):
        return [size for size, growth in grown(lambda x: x * 2, normal(*shape)).items() if growth.is_batch]

    assert batches(3, 5) == [3]
    assert batches(4, 4) == []


@pytest.mark.parametrize("size", range(2, 12))
def test_tail_of_every_longer_block_holds_the_whole_period(size):
    n = growth.tail_size(size, [torch.zeros(size)])
    assert n > 1000
    for block in (2**k for k in range(1, 11)):
        tail = n % block
        assert tail >= size or block <= size or (block < 2 * size and tail)
    assert any(n % block for block in (4, 8, 16))


def test_large_or_slow_example_is_repeated_less_often():
    assert growth.tail_size(5, [torch.zeros(5, 2000)]) == 63
    assert growth.tail_size(5, [torch.zeros(5, 5)]) == 255
    assert growth.tail_size(5, [torch.zeros(5)], fast=False) == 63
    assert growth.tail_size(70, [torch.zeros(4, 70)], fast=False) == 255
    assert growth.tail_size(1024, [torch.zeros(1024)]) == 4096 - 1024


def broken(*places):
    t = torch.arange(1.0, 6.0).repeat(20)
    t[list(places)] = torch.nan
    return growth.broken_tail(t, [0], 5, 0.0)


def test_broken_tail_is_found():
    assert broken() is None
    assert broken(97, 98, 99) == ((97,), (92,))
    assert broken(97) is None
    assert broken(30, 31, 32, 33, 34) is None


def test_broken_tail_is_found_along_its_own_dimension():
    t = torch.arange(1.0, 6.0).repeat(2, 20)
    t[1, 96:] = 0
    assert growth.broken_tail(t, [1], 5, 0.0) == ((1, 96), (1, 91))
    assert growth.broken_tail(t.T, [0], 5, 0.0) == ((96, 1), (91, 1))
