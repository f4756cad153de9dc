"""Subterms at whose zeros an op is singular."""

import numpy as np
import pytest
import torch

from pullback.stable.sampling import sample_target
from pullback.stable.singularities import critical_points, samples_around, singular_subterms
from pullback.stable.term import parse


def found(text):
    return {str(term) for term in singular_subterms([parse(text)])}


def test_singular_subterms_are_arguments_of_div_log_and_sqrt():
    assert found("x / (x + 4)") == {"x + 4"}
    assert found("log(x - 2) * sqrt(x + 3)") == {"x - 2", "x + 3"}
    assert found("log1p(sin(x))") == {"1 + sin(x)"}


def test_factors_of_a_product_are_listed_separately():
    assert found("1 / ((x - 3) * (x - 3) * exp(x))") == {"x - 3", "exp(x)"}
    assert found("1 / abs(x - 3)") == {"x - 3"}


def test_constants_and_variables_are_not_singular_subterms():
    assert found("x / 3 + 2 / x + exp(x)") == set()


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("(x*x - 3)/6", [-(3**0.5), 3**0.5]),
        ("1/(x - 0.3)", [0.3]),
        ("exp(x) - 2", [np.log(2)]),
        ("(x - 0.7)*(x - 0.7)", [0.7]),
        ("1/((x + 5.1)*(x + 5.1))", [-5.1]),
        ("(1 - cos(x))/(x*x)", [2 * np.pi, -2 * np.pi, 4 * np.pi]),
        ("(sqrt(x) - SQRT3)/(x - 3)", [3.0]),
        ("log(x - 2.5)", [2.5]),
        ("x*x + 1", []),
        ("sigmoid(x)", []),
    ],
)
def test_critical_points_include_roots_and_poles(text, places):
    target = parse(text)
    known = sample_target(target, ["x"], torch.float32, 0, {})
    found = np.array(critical_points(target, "x", known, torch.float32))
    for place in places:
        assert (np.abs(found - place) <= 4 * np.spacing(np.float32(abs(place)))).any()
    assert len(places) or not len(found)


def test_samples_around_a_point_are_at_every_distance():
    near = samples_around(parse("x - 1"), ["x"], [1.0], torch.float32, 0, {"x": (0.5, 1.0)})
    assert near.points["x"].max() == 1.0
    distance = np.log2(1.0 - near.points["x"][:-1])
    assert distance.min() == -24
    assert distance.max() > -5
    assert np.diff(distance).min() > -2
