"""Step sizes for differences, and the hull of gradients around a kink."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pullback.check.derivative.compare_input import in_hull, nearby_gradients
from pullback.check.derivative.oracle import working_epsilon
from pullback.check.derivative.sampler import Sampler, cotangent_like, random_like, step_scale
from pullback.check.find.discover import subject_of

from ..making import case_of, function, normal

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex128]


def sampler_of(target, *args):
    case = case_of(target, *args)
    out = target.apply(*args)
    return Sampler(subject_of(target), case, [0], [torch.ones_like(out)])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5), st.sampled_from([torch.float64, torch.float32]))
def test_step_is_never_lost_in_rounding(values, dtype):
    x = torch.tensor(values, dtype=dtype)
    step = step_scale(x)
    assert (step > 0).all()
    assert (x + 0.06 * step != x).all()
    assert (x - 0.06 * step / 2**11 != x).all()


def test_step_scale_follows_tiny_and_huge_values():
    assert step_scale(normal(3)).tolist() == [1, 1, 1]
    assert step_scale(torch.zeros(2)).tolist() == [1, 1]
    assert step_scale(torch.tensor([1e-12, 0.0], dtype=torch.float64)).tolist() == [1e-12, 1e-12]
    assert step_scale(torch.tensor([1e9, 1.0], dtype=torch.float64)).tolist() == [1e3, 1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_directions_are_exact_and_nonzero(dtype):
    generator = torch.Generator().manual_seed(0)
    v = random_like(torch.zeros(50, dtype=dtype), generator)
    assert v.dtype == dtype
    parts = torch.view_as_real(v) if v.is_complex() else v
    assert torch.equal(16 * parts.double(), (16 * parts.double()).round())
    assert ((parts.abs() > 0.4) & (parts.abs() < 1)).all()
    assert not torch.equal(v, random_like(v, generator))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cotangents_use_more_bits_than_float16(dtype):
    g = cotangent_like(torch.zeros(50, dtype=dtype), torch.Generator().manual_seed(0))
    parts = torch.view_as_real(g) if g.is_complex() else g
    assert g.dtype == dtype
    assert ((parts.abs() > 0.4) & (parts.abs() < 1)).all()
    narrow = dtype in (torch.bfloat16, torch.float16)
    assert narrow or working_epsilon(parts.double().flatten()) == torch.finfo(torch.float32).eps


def test_derivative_along_a_direction():
    sampler = sampler_of(function(torch.sin, lambda g, x: g), normal(3))
    direction = torch.tensor([1.0, 0.0, -2.0], dtype=torch.float64)
    estimate = sampler.derivative(0, direction, disagrees=lambda estimate: False)
    assert torch.allclose(estimate.low, direction * normal(3).cos(), atol=1e-9)
    refined = sampler.refine(0, direction, estimate)
    assert refined.bar.max() < estimate.bar.max()
    low, high, bar = sampler.project(refined)
    assert low == high == pytest.approx(float((direction * normal(3).cos()).sum()), abs=1e-12)
    assert bar < 1e-12


def test_complex_step_is_skipped_if_complex_inputs_are_refused():
    sampler = sampler_of(function(torch.relu, lambda g, x: g), normal(3))
    estimate = sampler.derivative(0, torch.ones(3, dtype=torch.float64), disagrees=lambda estimate: False)
    assert sampler.refine(0, torch.ones(3, dtype=torch.float64), estimate) is estimate
    assert sampler.analytic is False


def hull(target, x):
    low, high = nearby_gradients(sampler_of(target, x), 0, torch.Generator().manual_seed(0))
    return low.tolist(), high.tolist()


def test_hull_of_nearby_gradients():
    relu = function(torch.relu, lambda g, x: g * (x > 0))
    assert hull(relu, torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)) == ([0, 1, 0], [1, 1, 0])


def test_hull_is_shared_among_tied_elements():
    weights = torch.tensor([1.0, -3.0, 2.0], dtype=torch.float64)

    def gradient(g, x):
        return torch.zeros_like(x).scatter(0, x.sort().indices, g * weights)

    weighted = function(lambda x: x.sort().values * weights, gradient)
    assert hull(weighted, torch.ones(3, dtype=torch.float64)) == ([-3, -3, -3], [2, 2, 2])


def test_hull_reaches_its_ends():
    """At the zero matrix every matrix with these singular values is a generalised gradient."""
    weights = torch.tensor([0.7, -0.8, 0.4], dtype=torch.float64)

    def gradient(g, a):
        u, _, vh = torch.linalg.svd(a, full_matrices=False)
        return (u * (g * weights)) @ vh

    spectrum = function(lambda a: torch.linalg.svdvals(a) * weights, gradient)
    low, high = hull(spectrum, torch.zeros(4, 3, dtype=torch.float64))
    assert min(low) < -0.79
    assert max(high) > 0.79


def test_in_hull():
    low, high = torch.tensor(0.0), torch.tensor(1.0)
    inside = [in_hull(torch.tensor(v), low, high, (0.0, 1.0)) for v in (0.0, 0.5, 1.0, 1.5, -0.5, torch.nan)]
    assert inside == [True, True, True, False, False, False]
    assert in_hull(torch.tensor(1.5), low, high, (0.3, 0.4))
