"""The numeric oracle: a directional derivative with an error bar, without any derivative formula.

For a sampled curve y(t) = F(x + t v), this module estimates y'(0) for every output element at once, by
central differences with Richardson extrapolation, and says how far off the estimate can be:

    bar = truncation + noise * weight / step

* truncation: the larger of the two last corrections in the extrapolation table. The correction that is
  usually taken alone vanishes by chance where the table crosses the answer.
* noise: the error of F's own arithmetic, measured over a window as wide as the middle steps
  (J. J. Moré and S. M. Wild, Estimating computational noise, SIAM J. Sci. Comput. 33, 2011: the
  k-th difference of a smooth function fades as the k-th power of the spacing, that of noise does not).
  It is never taken below an ulp of the precision that the outputs reveal: a forward that computes in float32
  inside limits the accuracy, whatever the dtype of its outputs.

Kinks are found by one-sided differences: where the left and the right derivative differ by more than ten
bars, both are kept, and every value between them is a derivative.

A ripple shorter than the steps can look like a smooth curve of another slope, with a small error bar. Steps 4096
times smaller resolve it, and resolve a slow curve as well, only with more of its rounding noise. So an estimate that
disagrees with the returned gradient is repeated with those, and the one with the smaller error bar counts
(`confirmed`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Curve = Callable[[float], Tensor]
"""t -> every output at x + t v, as one flat float64 vector (complex numbers as pairs of reals)."""

# A quotient with truncation h^p and noise n/h is best near h = n^(1/(p+1)). For n = 2⁻⁵² that is 0.038 after four
# extrapolations (p = 10) and 7e-4 after one (p = 4). A curve that varies ω times faster needs steps ω times smaller,
# one with more noise larger steps. Twelve levels, from 0.06 to 3e-5, hold the best steps of all columns, and of the
# first column up to ω = 25.
LEVELS = 12
# No powers of two: sums with those fit narrow dtypes, and would look like the work of a narrow one.
_LARGEST_STEP = 0.0613
_FEW_LEVELS, _FEW_RATIO = 5, 8.0
"""Levels of a short ladder, and the ratio of their steps: it spans 8⁴ = 2¹², the long one 2¹¹."""
# One window on each side, in the middle of the ladder: from 3e-4 to 4e-3. The normalised sixth difference of sin(ω t)
# is at most (4.87e-4 ω)⁶ / (720 · 0.036), with 0.036 = ‖w‖ of `divided_difference`. That is below the rounding of
# float64 up to ω = 8. A faster curve counts as noise itself, and gets a bar that is too wide.
_NOISE_SPACINGS = (4.87e-4, -3.01e-4)
# Unevenly spaced: rounding errors at evenly spaced points can form a pattern that looks smooth.
_NOISE_POINTS = (1.0, 1.83, 3.21, 3.94, 5.17, 6.38, 6.92, 8.0)
_CENTRAL = (2, 4, 6, 8)
_ONE_SIDED = (1, 2, 3, 4)
# A bar is an estimate from few samples and no bound, so it is too narrow at times. `test_oracle.py` compares 22 curves,
# noisy and narrow ones among them, with derivatives in 40 digits, at 300 points each: at least 99 % of the errors are
# within one bar, and all within ten.
SIGNIFICANT = 10.0
"""Number of error bars beyond which a difference is significant."""
# Whole numbers up to 2⁸ are exact in bfloat16, up to 2¹¹ in float16, up to 2²⁴ in float32, whatever computed them.
_SMALL_WHOLE = 4096
# At 0, sqrt(x) is NaN on the left, which has no noise, and on the right its singularity passes for noise.
_UNEVEN = 1e3
_JUMPS = 2
"""Changes of value along 13 points that a staircase may show at a step; a smooth curve shows 12."""
_KINK_FLOOR = 1e-7
"""Relative distance below which the one-sided derivatives are equal: a comparison in float64 tolerates as much."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The derivative of every output element along one direction.

    Attributes:
        low, high: the interval of derivatives; a single value except at a kink.
        bar: absolute uncertainty of `low` and `high`.
        kink: where the one-sided derivatives differ.
        valid: where a finite estimate exists.
        magnitude: size of the values themselves.
        flat: where the curve moved not at all over the smaller half of the steps, or by jumps alone.
    """

    low: Tensor
    high: Tensor
    bar: Tensor
    kink: Tensor
    valid: Tensor
    magnitude: Tensor
    flat: Tensor


def differentiate(curve: Curve) -> Estimate:
    """Return the derivative at 0 of every element of `curve`, with error bars.

    Costs 41 evaluations. Elements that are not finite at 0 or near it are not `valid`.
    """
    ladder = _Ladder.of(curve, LEVELS, ratio=2.0)
    noise, even = _noise(curve, ladder)
    return ladder.estimate(noise, even)


def differentiate_briefly(curve: Curve) -> Estimate:
    """The derivative at 0 from 11 evaluations: enough to confirm a value, not to refute one.

    No noise is measured beyond the precision, so the bar may be too small.
    """
    ladder = _Ladder.of(curve, _FEW_LEVELS, _FEW_RATIO)
    return ladder.estimate(ladder.rounding(), torch.ones_like(ladder.centre, dtype=torch.bool))


@dataclass(frozen=True, slots=True)
class _Ladder:
    """Samples of a curve at 0 and at geometrically decreasing steps to either side."""

    steps: list[float]
    ratio: float
    centre: Tensor
    right: Tensor
    left: Tensor

    @classmethod
    def of(cls, curve: Curve, levels: int, ratio: float) -> _Ladder:
        """Sample a curve."""
        steps = [_LARGEST_STEP / ratio**level for level in range(levels)]
        centre = curve(0.0)
        right = torch.stack([curve(h) for h in steps])
        left = torch.stack([curve(-h) for h in steps])
        return cls(steps, ratio, centre, right, left)

    @property
    def samples(self) -> Tensor:
        """All samples."""
        return torch.cat([self.right, self.left, self.centre.unsqueeze(0)])

    def rounding(self, *others: Tensor) -> Tensor:
        """Rounding error of each element: the working precision times its largest sample."""
        samples = torch.cat([self.samples, *others])
        finite = torch.where(torch.isfinite(samples), samples, 0.0)
        return working_epsilon(samples) * finite.abs().amax(0)

    def estimate(self, noise: Tensor, even: Tensor) -> Estimate:
        """Return the derivative, for values that are `noise` off, where both sides are about as noisy (`even`)."""
        centre, right, left = self.centre, self.right, self.left
        h = torch.tensor(self.steps, dtype=torch.float64).unsqueeze(1)
        moved = torch.maximum((right[0] - centre).abs(), (left[0] - centre).abs()).nan_to_num(nan=0.0, posinf=0.0)
        slope = moved / _LARGEST_STEP

        # The k-th column has len(h) − k entries, and an error bar compares two of them.
        def richardson(differences: Tensor, powers: tuple[int, ...], noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return _richardson(differences, [self.ratio**p for p in powers[: len(h) - 2]], noise, slope)

        # (y(h) − y(−h)) / 2h = y' + y''' h²/6 + y⁽⁵⁾ h⁴/120 + …: only even powers of h. Two values that are each off by
        # n make it off by n/h.
        central, central_bar, settled = richardson((right - left) / (2 * h), _CENTRAL, noise / h)
        # (y(h) − y(0)) / h = y' + y'' h/2 + y''' h²/6 + …: every power of h, and noise of 2n/h. At a kink only these
        # two converge, each to its one-sided derivative; the central quotient converges to their mean.
        from_right, right_bar, right_settled = richardson((right - centre) / h, _ONE_SIDED, 2 * noise / h)
        from_left, left_bar, left_settled = richardson((centre - left) / h, _ONE_SIDED, 2 * noise / h)

        # Where y is smooth both sides estimate one number, and may differ by the sum of their bars.
        jump = (from_right - from_left).abs()
        floor = _KINK_FLOOR * (from_right.abs() + from_left.abs())
        kink = (jump > SIGNIFICANT * (right_bar + left_bar)) & (jump > floor)
        low = torch.where(kink, torch.minimum(from_left, from_right), central)
        high = torch.where(kink, torch.maximum(from_left, from_right), central)
        bar = torch.where(kink, torch.maximum(right_bar, left_bar), central_bar)
        # A cusp such as sqrt(|x|) at 0, or a spike narrower than the steps, looks smooth to central differences
        # while the one-sided slopes diverge.
        cusp = ~right_settled & ~left_settled & (jump > SIGNIFICANT * central_bar) & ~kink
        finite = torch.isfinite(centre) & torch.isfinite(low) & torch.isfinite(high) & torch.isfinite(bar)
        valid = finite & even & ~cusp & (settled | kink)
        # The smaller half of the steps, from −h to h. A step at 0 changes the value once, or twice if the value at 0
        # is of neither side, as sign(0).
        half = len(h) // 2
        along = torch.cat([left[half:], centre.unsqueeze(0), right[half:].flip(0)])
        flat = (along.diff(dim=0) != 0).sum(0) <= _JUMPS
        return Estimate(low, high, bar, kink, valid, centre.abs(), flat)


def refine_by_complex_step(estimate: Estimate, tangent: Tensor | None) -> Estimate:
    """Replace values by the complex-step derivative `tangent` where it agrees within the bars.

    Im F(x + i h v) / h has no truncation or cancellation to speak of, but is the derivative only of an
    analytic F, and complex arithmetic proves nothing about that: so it is believed only where it
    agrees with the real differences everywhere, and these are sharp.
    """
    # F(x + i h v) = F + i h F'v − h²/2 F''vv − …, so Im F / h = F'v + O(h²), without a difference of close numbers
    # (W. Squire and G. Trapp, Using complex variables to estimate derivatives of real functions, SIAM Rev. 40, 1998).
    # At h = 1e-20 the h² is lost beside F'v. What is left is the rounding of F itself, for which 64 eps are allowed.
    if tangent is None or tangent.shape != estimate.low.shape:
        return estimate
    usable = estimate.valid & ~estimate.kink
    sharp = estimate.bar <= 1e-3 * estimate.low.abs().max()
    agrees = (tangent - estimate.low).abs() <= estimate.bar
    if not bool((agrees & sharp | ~usable).all()):
        return estimate
    bar = torch.minimum(estimate.bar, 64 * torch.finfo(torch.float64).eps * tangent.abs())
    return replace(
        estimate,
        low=torch.where(usable, tangent, estimate.low),
        high=torch.where(usable, tangent, estimate.high),
        bar=torch.where(usable, bar, estimate.bar),
    )


def working_epsilon(values: Tensor) -> float:
    """Return the machine epsilon of the least precise dtype that holds all of `values` exactly.

    `values` is float64. Outputs that all fit bfloat16 or float32 betray a forward that works in it; small whole
    numbers fit everything and betray nothing.
    """
    telling = values[torch.isfinite(values) & ((values != values.round()) | (values.abs() > _SMALL_WHOLE))]
    if telling.numel():
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            if torch.equal(telling.to(dtype).to(torch.float64), telling):
                return torch.finfo(dtype).eps
    return torch.finfo(torch.float64).eps


def _richardson(
    differences: Tensor, factors: Sequence[float], noise: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Extrapolate difference quotients to step 0 and return the entry of the table with the least bar.

    With D(h) = y' + c h^p + …, the combination (r^p D(h/r) − D(h)) / (r^p − 1) has no h^p term. Its noise is at most
    (r^p n(h/r) + n(h)) / (r^p − 1). If n(h) = n/h, that is n(h/r) times (r^p + 1/r) / (r^p − 1). For r = 2, four
    columns multiply the noise of the finest quotient by 1.70 where only even powers occur, and by 5.01 where all do.

    Args:
        differences: (levels, n), each level with 1/r of the step of the one before.
        factors: r^p for the exponents p of the step in the error expansion, ascending.
        noise: (levels, n), the effect of the forward's noise on each quotient.
        slope: (n,), the steepness over the largest step, against which an error is large or small.

    Returns:
        Value, bar, and whether the value settled: at a jump or a vertical slope the quotients diverge, and the best
        entry of the table is merely the least bad.
    """
    best = differences[-1].clone()
    best_bar = torch.full_like(best, torch.inf)
    best_truncation = torch.full_like(best, torch.inf)
    previous, previous_noise = differences, noise.expand_as(differences)
    for factor in factors:
        column = (factor * previous[1:] - previous[:-1]) / (factor - 1)
        column_noise = (factor * previous_noise[1:] + previous_noise[:-1]) / (factor - 1)
        # Two measures of the remaining truncation: the last correction, and the change between levels. Either may
        # vanish by chance where the table crosses the answer, but hardly both.
        # They are errors of the previous column and of the coarser level; the entry has less if the table converges.
        correction = (column - previous[1:])[1:].abs()
        scatter = (column[1:] - column[:-1]).abs()
        truncations = torch.maximum(correction, scatter)
        bars = _unless_contradicted(column[1:], (truncations + column_noise[1:]).nan_to_num(nan=torch.inf))
        bar, level = bars.min(0)
        level = level.unsqueeze(0)
        better = bar < best_bar
        best = torch.where(better, column[1:].gather(0, level).squeeze(0), best)
        best_truncation = torch.where(better, truncations.gather(0, level).squeeze(0), best_truncation)
        best_bar = torch.where(better, bar, best_bar)
        previous, previous_noise = column, column_noise
    # Where y grows as |t|^a, the quotients grow as h^(a − 1). With r = 2 two neighbours of a column then differ by
    # 1 − 2^(a − 1) of the finer: a half at a jump (a = 0), 0.29 at a square root. A tenth refuses all a < 0.85.
    of_noise = best_bar - best_truncation
    settled = (best_truncation <= 0.1 * torch.maximum(best.abs(), slope)) | (best_truncation <= 10 * of_noise)
    return best, best_bar, settled


def _unless_contradicted(values: Tensor, bars: Tensor) -> Tensor:
    """Set to infinity the bars of levels that finer ones contradict: agreement at coarse steps may be accidental.

    A level counts if its interval of three bars and those of all finer levels have a common point.
    """
    # They have one if the largest of their lower ends is at most the least of their upper ends.
    low = (values - 3 * bars).nan_to_num(nan=-torch.inf).flip(0).cummax(0).values.flip(0)
    high = (values + 3 * bars).nan_to_num(nan=torch.inf).flip(0).cummin(0).values.flip(0)
    return torch.where(low <= high, bars, torch.inf)


def _noise(curve: Curve, ladder: _Ladder) -> tuple[Tensor, Tensor]:
    """Return the noise of each element, and whether both sides are about as noisy.

    It is the larger of two windows' and the precision's. One window on each side, neither holding 0, where a
    kink would count as noise. Where one side is quiet and the other is chaos, 0 is the edge of a domain.
    """
    # Two differences of a window are few: they are correlated by −0.76, and for normal noise of deviation σ even twice
    # the louder window is below σ in 9 cases of 100, below σ/10 in 2 of 100 000. Ten bars cover the former.
    windows = [torch.stack([curve(spacing * k) for k in _NOISE_POINTS]) for spacing in _NOISE_SPACINGS]
    quieter, louder = (_difference_noise(window).nan_to_num(nan=0.0) for window in windows)
    quieter, louder = torch.minimum(quieter, louder), torch.maximum(quieter, louder)
    floor = ladder.rounding(*windows)
    return torch.maximum(2 * louder, floor), louder <= _UNEVEN * torch.maximum(quieter, floor)


def _difference_noise(samples: Tensor) -> Tensor:
    """Return the standard deviation of the noise in samples at `_NOISE_POINTS`, (points, n) -> (n,)."""
    # Over so short a window h the sixth difference of a smooth curve, of order h⁶ y⁽⁶⁾, is far below the noise.
    # Eight points have two of them, whose mean square is σ².
    sixth = [divided_difference(samples[k : k + 7], _NOISE_POINTS[k : k + 7]) for k in (0, 1)]
    return torch.stack(sixth).square().mean(0).sqrt()


def divided_difference(samples: Tensor, points: Sequence[float]) -> Tensor:
    """Return the divided difference Σᵢ yᵢ wᵢ with wᵢ = 1 / Πⱼ (xᵢ − xⱼ), over ‖w‖: noise of deviation 1 keeps it."""
    # With k + 1 points the sum is y⁽ᵏ⁾(ξ) / k! for some ξ among them: 0 for a polynomial of degree k − 1. Independent
    # errors of variance σ² give it the variance σ² ‖w‖². At even spacing its square over ‖w‖² is γₖ (Δᵏ y)² with
    # γₖ = (k!)² / (2k)!, the estimate of Moré and Wild. The unit of the points cancels.
    x = torch.tensor(points, dtype=torch.float64)
    weights = 1 / (x.unsqueeze(1) - x + torch.eye(len(points), dtype=torch.float64)).prod(1)
    scaled: Tensor = (weights / weights.norm()) @ samples
    return scaled


# The finest step is 0.0613 · 2⁻¹¹ · 2⁻¹² = 7.3e-9 in float64, which is 3.3e7 eps, and 0.0613 · 2⁻¹¹ · 2⁻⁶ = 4.7e-7 in
# float32, which is 4 eps. Half precision rounds x + h to x at the finest step of the first ladder, 3e-5, already.
_FINER = {torch.float64: 2.0**-12, torch.complex128: 2.0**-12, torch.float32: 2.0**-6, torch.complex64: 2.0**-6}
"""Factor of the finer ladder by dtype of the moved tensors; half precision resolves no smaller steps."""
_BRIEF = 2.0**-6
"""Factor of the second of two short ladders, and so the ratio of their rounding errors, n / h."""
_SHARP = 1e-4
"""Bound on ten bars of a short ladder, relative to the derivative."""
_GROSS = 10.0
"""Multiple of the bar, which knows no noise, by which a gradient must be off for two blunt ladders to refute it."""


def confirmed(
    curve: Curve,
    disagrees: Callable[[Estimate], bool],
    moved: Sequence[Tensor],
    agrees: Callable[[Estimate], bool] | None = None,
) -> Estimate:
    """Return the derivative of `curve` at 0, from two ladders of steps if the first one disagrees.

    Args:
        curve: the function to differentiate.
        disagrees: whether an estimate contradicts the gradient in question.
        moved: the tensors that the curve moves; the narrowest dtype limits the step.
        agrees: whether an estimate supports that gradient, to make do with few samples of a slow curve where it is
            smooth. By default there are many.
    """
    resolved = all(t.dtype in (torch.float64, torch.complex128) for t in moved)
    if agrees is not None and resolved and (found := _briefly(curve, agrees, disagrees)) is not None:
        return found
    found = differentiate(curve)
    if not disagrees(found):
        return found
    factors = [_FINER.get(t.dtype) for t in moved]
    if any(factor is None for factor in factors):
        return found
    return _sharper(found, _along(curve, max(factor for factor in factors if factor is not None)))


def _briefly(
    curve: Curve, agrees: Callable[[Estimate], bool], disagrees: Callable[[Estimate], bool]
) -> Estimate | None:
    """Return the derivative from one short ladder, or two that disagree with the gradient; `None` where they are blunt.

    The difference of the two, of steps whose rounding errors differ by much, stands for the noise. Where it is small
    beside the disagreement, they need not be sharp.
    """
    # With noise n, the first ladder is off by about n/h and the second by 64 n/h. So their difference exceeds the error
    # of the first one.
    found = differentiate_briefly(curve)
    if is_sharp(found) and agrees(found):
        return found
    if not _is_smooth(found):
        return None
    fine = _along(curve, _BRIEF, differentiate_briefly)
    if fine.low.shape != found.low.shape:
        return None
    bar = torch.maximum(torch.maximum(found.bar, fine.bar), (fine.low - found.low).abs())
    both = replace(found, bar=bar, kink=found.kink | fine.kink, valid=found.valid & fine.valid)
    is_gross = _is_smooth(both) and disagrees(replace(both, bar=_GROSS * bar))
    return both if is_gross or is_sharp(both) else None


def _is_smooth(found: Estimate) -> bool:
    return bool(found.valid.all()) and not bool(found.kink.any())


def is_sharp(found: Estimate) -> bool:
    """Whether a derivative exists everywhere, and is known to 1e-4 of it."""
    return _is_smooth(found) and bool(SIGNIFICANT * found.bar.sum() <= _SHARP * found.low.abs().sum())


def _along(curve: Curve, factor: float, derivative: Callable[[Curve], Estimate] = differentiate) -> Estimate:
    """Return the estimate from steps `factor` times as long."""
    found = derivative(lambda t: curve(factor * t))
    return replace(found, low=found.low / factor, high=found.high / factor, bar=found.bar / factor)


def _sharper(coarse: Estimate, fine: Estimate) -> Estimate:
    """The estimate with the smaller bar for each element; invalid where the other contradicts it."""
    if coarse.low.shape != fine.low.shape:
        return coarse
    # Of two estimates of one number, the one with the smaller bar counts. A coarse one that is ten times both bars off
    # a fine one is not an estimate of that number: the steps have missed a ripple.
    better = fine.valid & (~coarse.valid | (fine.bar <= coarse.bar))
    gap = torch.maximum(fine.low - coarse.high, coarse.low - fine.high)
    contradicted = fine.valid & ~better & (gap > SIGNIFICANT * (fine.bar + coarse.bar))

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(better, a, b)

    return Estimate(
        pick(fine.low, coarse.low),
        pick(fine.high, coarse.high),
        pick(fine.bar, coarse.bar),
        pick(fine.kink, coarse.kink),
        better | (coarse.valid & ~contradicted),
        coarse.magnitude,
        pick(fine.flat, coarse.flat),
    )
