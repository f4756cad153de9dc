"""Sample points of `accuracy.py`, from a sampler of its own, so that no search has seen them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pullback.stable.formats import Floats

CENTRES = (0.0, 1.0, -1.0, 88.72, -88.72, 87.34, -87.34, 103.97, -103.97, 16.64, -16.64, 9.01, -9.01)
"""Points where formulas change: exp over- and underflows, 1 + eˣ and tanh x round to 1."""

Intervals = Mapping[str, tuple[float, float]]


def fresh(names: Sequence[str], domain: Intervals, count: int, seed: int) -> dict[str, Floats]:
    """Return float32 points of a domain: of each variable 40 % random bit patterns, 30 % uniform within ±120, 20 %
    within ±10, 10 % clustered where formulas change. Of several variables, four in ten are near or opposite to the
    variable before them, or of another magnitude.
    """
    rng = np.random.default_rng([seed, *"".join(names).encode()])
    bounds = [domain.get(name, (-np.inf, np.inf)) for name in names]
    kept = np.empty((0, len(names)))
    while len(kept) < count:
        rows = np.stack([rng.permutation(_line(rng, count, *b)) for b in bounds], axis=1)
        for i in range(1, len(names)):
            rows[:, i] = _met(rng, rows[:, i - 1], rows[:, i])
        with np.errstate(over="ignore"):
            rows = rows.astype(np.float32).astype(np.float64)
        inside = [np.isfinite(x) & (x >= low) & (x <= high) for x, (low, high) in zip(rows.T, bounds, strict=True)]
        kept = np.concatenate([kept, rows[np.logical_and.reduce(inside)]])
    return {name: np.ascontiguousarray(x) for name, x in zip(names, kept[:count].T, strict=True)}


def _line(rng: np.random.Generator, count: int, low: float, high: float) -> Floats:
    patterns = np.empty(0)
    while len(patterns) < 0.4 * count:
        drawn = rng.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
        more = drawn[np.isfinite(drawn)].astype(np.float64)
        patterns = np.concatenate([patterns, more[(more >= low) & (more <= high)]])
    parts = [patterns[: int(0.4 * count)]]
    for half, share in ((120.0, 0.3), (10.0, 0.2)):
        parts.append(rng.uniform(max(low, -half), min(high, half), int(share * count)))
    ends = [x for x in (low, high) if np.isfinite(x)]
    centres = rng.choice([x for x in (*CENTRES, *ends) if low <= x <= high] or ends, count)
    near = centres + rng.choice([-1, 1], count) * 2.0 ** rng.uniform(-24, 1, count)
    near = near[(near >= low) & (near <= high)]
    return np.resize(np.concatenate([*parts, near[: int(0.1 * count)]]), count)


def _met(rng: np.random.Generator, before: Floats, own: Floats) -> Floats:
    """Return a variable of which some values are made from those of the variable before it."""
    kind = rng.integers(0, 10, len(own))
    small = 2.0 ** -rng.uniform(0, 26, len(own))
    return np.select(
        [kind == 0, kind == 1, kind == 2, kind == 3], [before, -before, before * (1 + small), before * small], own
    )
