import itertools
import random

import pytest
import torch

from pullback.graph.strides import elementwise_strides, is_dense, row_major
from tests.graph.layouts import layouts

OPS = {1: [torch.exp, torch.neg], 2: [torch.add, torch.maximum], 3: [torch.addcmul, torch.lerp]}


@pytest.mark.parametrize("count", OPS)
def test_results_are_laid_out_as_the_kernels_do_it(count):
    rng = random.Random(count)
    known = 0
    shapes = [s for n in range(5) for s in itertools.product((1, 2, 3), repeat=n)] + [(0,), (2, 0, 3), (5, 1, 7)]
    for shape in shapes:
        for xs in itertools.islice(zip(*[layouts(shape, rng)] * count, strict=False), 60):
            for op in OPS[count]:
                out = op(*xs)
                found = elementwise_strides(xs, out.shape)
                assert found in (None, out.stride()), (op, [(x.shape, x.stride()) for x in xs])
                known += found is not None
    assert known > 90 * len(shapes)


def test_numbers_do_not_matter_or_nothing_is_said():
    rng = random.Random(0)
    for shape in itertools.product((1, 2, 3), repeat=3):
        for x in itertools.islice(layouts(shape, rng), 60):
            out = x * 2.0
            assert elementwise_strides([x], out.shape) in (None, out.stride()), (x.shape, x.stride())


def test_row_major_is_what_new_tensors_are():
    for shape in [(), (0,), (3, 0, 2), (4, 1, 2)]:
        assert row_major(shape) == torch.empty(shape).stride()


def test_dense_tensors_fill_their_memory():
    x = torch.zeros(2, 3, 4)
    assert all(map(is_dense, (x, x.permute(2, 0, 1), x[:, :1, :][0])))
    assert not is_dense(x[..., :2])
    assert not is_dense(torch.zeros(1, 3).expand(2, 3))
