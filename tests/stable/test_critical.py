"""Roots and poles that samples show."""

import numpy as np
import pytest
import torch

from pullback.stable.critical import beside, critical
from pullback.stable.samples import sampled
from pullback.stable.term import parse


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
def test_roots_and_poles_are_found(text, places):
    target = parse(text)
    known = sampled(target, ["x"], torch.float32, 0, {})
    found = np.array(critical(target, "x", known, torch.float32))
    for place in places:
        assert (np.abs(found - place) <= 4 * np.spacing(np.float32(abs(place)))).any()
    assert len(places) or not len(found)


def test_samples_beside_a_place_are_at_every_distance():
    near = beside(parse("x - 1"), ["x"], [1.0], torch.float32, 0, {"x": (0.5, 1.0)})
    assert near.points["x"].max() == 1.0
    distance = np.log2(1.0 - near.points["x"][:-1])
    assert distance.min() == -24
    assert distance.max() > -5
    assert np.diff(distance).min() > -2
