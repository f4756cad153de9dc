"""Regimes: the cheapest partition and its thresholds."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pullback.stable.search import regimes
from pullback.stable.search.regimes import (
    Goal,
    Regime,
    cheapest,
    few_regimes,
    grouped_regimes,
    price,
    roundest,
    threshold,
    worst_nearby,
)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("change", [0.1, 0.7, 3.0])
def test_cheapest_matches_brute_force(seed, change):
    prices = np.random.default_rng(seed).exponential(size=(3, 6))
    every = product(range(3), repeat=6)
    costs = [sum(prices[c, j] for j, c in enumerate(p)) + change * sum(a != b for a, b in pairwise(p)) for p in every]
    runs, total = cheapest(prices, change)
    assert total == pytest.approx(min(costs))
    assert [r.start for r in runs] + [6] == [0] + [r.stop for r in runs]
    assert sum(prices[r.choice, r.start : r.stop].sum() for r in runs) + change * (len(runs) - 1) == pytest.approx(
        total
    )


@pytest.mark.parametrize("seed", range(10))
def test_grouped_regimes_do_not_split_groups(seed):
    random = np.random.default_rng(seed)
    starts = np.unique(np.append(0, random.integers(0, 2000, 700)))
    prices = random.exponential(size=(4, 2000))
    prices[0, :900] -= 0.9
    prices[1, 900:1500] -= 0.9
    order = random.permutation(2000)
    shuffled = np.empty_like(prices)
    shuffled[:, order] = prices
    runs, total = grouped_regimes(shuffled, order, starts, 4)
    assert {r.start for r in runs} <= set(starts)
    assert sum(prices[r.choice, r.start : r.stop].sum() for r in runs) + regimes.CHANGE * (
        len(runs) - 1
    ) == pytest.approx(total)
    exact, least = cheapest(np.add.reduceat(prices, starts, axis=1))
    assert len(exact) == len(runs)
    assert total <= least + 0.02 * abs(least)


def test_one_regime_where_one_choice_is_best():
    assert cheapest(np.array([[0.0] * 5, [1.0] * 5]))[0] == [Regime(0, 0, 5)]
    assert cheapest(np.array([[3.0]]))[0] == [Regime(0, 0, 1)]


def test_noisy_prices_give_few_regimes():
    prices = np.random.default_rng(0).choice([0.0, 1000.0], (2, 400))
    assert len(cheapest(prices)[0]) > 50
    assert len(few_regimes(prices)[0]) <= 12


def test_shorter_code_wins_among_sufficient_errors():
    errors = np.array([[0.5] * 4, [1.5] * 4])
    prices = price(errors, np.array([40.0, 5.0]), Goal(1.8, 3.5))
    assert (prices[1] < prices[0]).all()
    assert price(errors, np.array([40.0, 5.0]), Goal(0.6, 1.0)).argmin(0).tolist() == [0] * 4


def test_worst_nearby_caps_the_errors_of_neighbours():
    errors = np.array([[0.0] * 9 + [3.0], [0.0] * 9 + [1e9]])
    assert worst_nearby(errors, 2).tolist() == [[0.0] * 7 + [3.0] * 3, [0.0] * 7 + [10.0, 10.0, 1e9]]


def _step(at):
    """Return the errors of an implementation that fails above a point and of one that fails up to it."""
    return lambda x: (np.where(x <= at, 0.5, 1e9), np.where(x > at, 0.5, 1e9))


@pytest.mark.parametrize("at", [1.0, 1.5, 1.2345678, 1.9999999, -3e-39, 0.0, 1e-30])
def test_threshold_is_found_to_the_last_bit(at):
    at = float(np.float32(at))
    assert threshold(-2.0, 2.0, _step(at)) == at


def test_threshold_is_round_where_both_are_good():
    assert threshold(0.9, 1.2, lambda x: (0 * x, 0 * x)) == 1.0
    assert threshold(1.0, 16.0, lambda x: (np.where(x < 9.7, 1, 99), np.where(x > 8.9, 1, 99))) == 9.0


def test_threshold_between_adjacent_numbers():
    low, high = 1.0, 1.0 + 2.0**-22
    assert threshold(low, high, lambda x: (0 * x, 0 * x)) == low
    assert threshold(low, high, lambda x: (x - x + 7, 0 * x)) == low


@given(st.floats(-(2.0**127), 2.0**127, width=32), st.integers(1, 1000))
def test_roundest_number_is_in_its_interval(low, steps):
    high = low
    for _ in range(steps % 7 + 1):
        high = float(np.nextafter(np.float32(high), np.float32(np.inf)))
    low = float(np.float32(low))
    found = roundest(low, high)
    assert low <= found < high
    assert found == np.float32(found)


def test_small_gain_does_not_pay_for_a_change():
    errors = np.array([[1.0] * 10, [1.0] * 9 + [5.0]])
    prices = price(errors, np.array([50.0, 1.0]), Goal(1.8, 3.5))
    assert cheapest(prices, regimes.CHANGE)[0] == [Regime(0, 0, 10)]
