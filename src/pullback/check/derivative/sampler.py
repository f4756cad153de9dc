"""The forward of one case along a line through one of its inputs, and the step that suits its values.

For a relaxed op, whose declared derivative is not that of its forward, the relaxation is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.derivative.oracle import Estimate, confirmed, differentiate_briefly, refine_by_complex_step
from pullback.check.subject import Subject
from pullback.check.trial import Raised, as_real, forward

# Steps from 4e-6 to 2e-9. At the last one the rounding of float64 is about 2⁻⁵² / 2⁻²⁹ = 1e-7 of a quotient near 1, far
# below the tenth to which quotients must agree.
_TINY, _TINY_STEPS, _IN_A_ROW, _ABOUT = 2.0**-18, 12, 3, 0.1
_BLUR_POINTS = 4
_BLUR_SEED = 11


class Sampler:
    """Samples the forward of one case along directions in its inputs, projected on the cotangents.

    Attributes:
        taken: samples so far.
        few_samples: whether few samples are enough for an agreement.
    """

    def __init__(
        self,
        subject: Subject,
        case: Case,
        positions: Sequence[int],
        cotangents: Sequence[Tensor],
        few_samples: bool = False,
    ) -> None:
        self.subject = subject
        self.call = subject.relaxation or subject.called
        self.case = case
        self.positions = positions
        self.cotangents = cotangents
        self.weights = torch.cat([as_real(g) for g in cotangents])
        self.analytic: bool | None = None
        self.taken = 0
        self.few_samples = few_samples

    def sample(self, input_index: int, change: Tensor, imaginary: bool = False) -> Tensor:
        """Return every output, as one real vector, with `change` added to one input.

        With `imaginary`, everything is made complex, and the imaginary parts of the outputs are returned.
        """
        return self._sample({input_index: change}, imaginary)

    def _sample(self, changes: Mapping[int, Tensor], imaginary: bool = False) -> Tensor:
        self.taken += 1
        changed = {
            position: change
            for input_index, change in changes.items()
            for position in positions_of(self.case, input_index)
        }
        dtype = next(iter(changes.values())).dtype
        moved = [
            t + changed[position] if position in changed else (t.to(dtype) if imaginary else t)
            for t, position in zip(self.case.tensors, self.case.wrt, strict=True)
        ]
        run = forward(self.subject, self.case, moved=moved, call=self.call)
        if len(run.outputs) <= max(self.positions):
            raise Raised("forward", RuntimeError("it has fewer outputs than before"))
        outs = [run.outputs[p] for p in self.positions]
        sampled = torch.cat([out.imag.flatten() if imaginary else as_real(out) for out in outs])
        if sampled.shape != self.weights.shape:
            raise Raised("forward", RuntimeError("its outputs have another shape than before"))
        return sampled

    def derivative(
        self,
        input_index: int,
        direction: Tensor,
        disagrees: Callable[[Estimate], bool],
        agrees: Callable[[Estimate], bool] | None = None,
    ) -> Estimate:
        """Estimate J v for `direction`, with finer steps too if the first estimate `disagrees`."""
        return confirmed(
            lambda t: self.sample(input_index, (t * direction).to(direction.dtype)),
            disagrees,
            moved=[direction],
            agrees=agrees if self.few_samples else None,
        )

    def brief_derivative(self, directions: Mapping[int, Tensor]) -> Estimate:
        """Estimate J v, from few samples, for a direction in several inputs, by their indices."""
        return differentiate_briefly(lambda t: self._sample({k: (t * v).to(v.dtype) for k, v in directions.items()}))

    def bears_out(self, input_index: int, direction: Tensor, got: float, estimated: float) -> bool:
        """Whether three successive difference quotients over tiny steps agree with `got` and not with the estimate.

        So does a curve with a ripple shorter than the steps of `derivative`, as of sin(x²) at a million.
        """
        close = far = 0
        for level in range(_TINY_STEPS):
            quotient = self.quotient(input_index, direction, _TINY * 2.0**-level)
            close = close + 1 if abs(quotient - got) < _ABOUT * abs(got) else 0
            far = far + 1 if abs(quotient - estimated) < _ABOUT * abs(estimated) else 0
            if _IN_A_ROW in (close, far):
                return close > far
        return False

    def quotient(self, input_index: int, direction: Tensor, h: float) -> float:
        """Return the central difference quotient of the weighted outputs, with step `h` along a direction."""
        there, back = (self.sample(input_index, (t * direction).to(direction.dtype)) for t in (h, -h))
        return float((self.weights * (there - back)).sum()) / (2 * h)

    def blurred(self, input_index: int, direction: Tensor, estimate: Estimate, epsilon: float) -> Estimate:
        """Widen the bars by the effect of a relative change `epsilon` of the inputs on the derivative.

        Arithmetic in that precision is right for some input this close: nothing is known of sin(2000 x) in bfloat16.
        """
        # A backward in a narrow dtype is at best exact for inputs that are one rounding away. The spread over four such
        # inputs, each off by 7/16 to 15/16 of epsilon, is an estimate of what that makes of the derivative.
        generator = torch.Generator().manual_seed(_BLUR_SEED)
        spread = torch.zeros_like(estimate.low)
        valid = estimate.valid
        for _ in range(_BLUR_POINTS):
            nudged = {id(t): t + epsilon * t * random_like(t.abs(), generator) for t in self.case.tensors}
            moved = {p: nudged[id(self.case.values[p])] for p in self.case.wrt}  # one passed twice stays one
            there = Sampler(self.subject, self.case.with_values(moved), self.positions, self.cotangents)
            if self.few_samples:
                near = there.brief_derivative({input_index: direction})
            else:
                near = there.derivative(input_index, direction, disagrees=lambda _: True)
            self.taken += there.taken
            spread = torch.maximum(spread, torch.maximum((near.low - estimate.low).abs(), near.bar))
            valid = valid & near.valid
        return replace(estimate, bar=estimate.bar + spread, valid=valid)

    def refine(self, input_index: int, direction: Tensor, estimate: Estimate) -> Estimate:
        """Sharpen an estimate by the complex step, where the forward takes complex inputs."""
        if direction.is_complex() or self.analytic is False:
            return estimate
        step = 1e-20
        try:
            tangent = self.sample(input_index, direction.to(torch.complex128) * (1j * step), imaginary=True) / step
        except (Raised, RuntimeError, TypeError):  # real outputs have no imaginary part
            self.analytic = False
            return estimate
        return refine_by_complex_step(estimate, tangent)

    def project(self, estimate: Estimate) -> tuple[float, float, float]:
        """Return the interval of <g, J v> and its bar; NaN where some element has no derivative."""
        # <g, J v> = Σ gᵢ (J v)ᵢ, so at kinks the ends of its interval, and the bars, add up with |gᵢ|. That is a bound:
        # outputs that share a kink do not reach their ends independently.
        relevant = self.weights != 0
        if not bool((estimate.valid | ~relevant).all()):
            return (torch.nan,) * 3
        low, high = self.weights * estimate.low, self.weights * estimate.high
        return (
            float(torch.minimum(low, high)[relevant].sum()),
            float(torch.maximum(low, high)[relevant].sum()),
            float((self.weights.abs() * estimate.bar)[relevant].sum()),
        )


def random_like(t: Tensor, generator: torch.Generator) -> Tensor:
    """Return a tensor of random signs and magnitudes between 7/16 and 15/16, exact in every dtype."""
    # Of a gradient with error e, a comparison along v shows <e, v>. Fix all entries of v but that at the largest |eᵢ|.
    # Its ten equally likely values are at least |eᵢ|/8 apart in <e, v>, so |<e, v>| is below |eᵢ|/16 for at most one of
    # them. So one direction shows less than a sixteenth of the largest error with a probability of at most 1/10,
    # which e = (1, −1) attains; k directions, of at most 10⁻ᵏ. An error in one element alone always shows, by 7/16 or
    # more. The cotangent is random for the same reason: with an error E of the Jacobian, a comparison shows <g, E v>.
    # R. Freivalds checks products of matrices so (Probabilistic machines can use less running time, IFIP 1977).

    def draw() -> Tensor:
        magnitude = (
            2 * torch.randint(3, 8, t.shape, generator=generator) + 1
        ) / 16  # never 1, which would conceal a lost factor
        return magnitude * (torch.randint(0, 2, t.shape, generator=generator) * 2 - 1)

    if t.is_complex():
        return torch.complex(draw().to(torch.float64), draw().to(torch.float64)).to(t.dtype)
    return draw().to(t.dtype)


def direction_like(x: Tensor, generator: torch.Generator) -> Tensor:
    """A random direction for `x`: symmetric for a symmetric matrix, of sum 0 for rows of probabilities.

    Many functions of symmetric matrices read one triangle only, and are defined on these alone; a transport plan
    requires masses of equal sum.
    """
    direction = random_like(x, generator)
    if are_probabilities(x):
        return balanced_part(direction, x) * x.amin()  # none becomes negative
    return symmetric_part(direction, x)


def balanced_part(direction: Tensor, x: Tensor) -> Tensor:
    """The part of a direction that keeps the sums of the rows of `x`."""
    # Orthogonal to (1, …, 1): a constant that the gradient adds to all elements of a row, such as a multiplier of the
    # constraint Σ x = 1, does not change <gx, v>.
    return direction - direction.mean(-1, keepdim=True)


def are_probabilities(x: Tensor) -> bool:
    """Whether it is a vector of positive numbers that sum to 1, or rows of these."""
    if not x.ndim or x.shape[-1] < 2 or not x.is_floating_point() or not bool((x > 0).all()):
        return False
    sums = x.sum(-1)
    return torch.allclose(sums, torch.ones_like(sums))


def symmetric_part(direction: Tensor, x: Tensor) -> Tensor:
    """The part of a direction that keeps a symmetric `x` symmetric; all of it for other tensors."""
    # The projection is orthogonal, so <gx, V> = <(gx + gxᴴ) / 2, V> for symmetric V. A function that reads one triangle
    # and one that reads both differ in gx, but not in its symmetric part, and pass alike.
    return (direction + direction.mH) / 2 if is_symmetric(x) else direction


def is_symmetric(x: Tensor) -> bool:
    """Whether it is a symmetric (Hermitian) matrix, or a batch of them."""
    return x.ndim >= 2 and x.shape[-1] == x.shape[-2] and x.shape[-1] > 1 and torch.equal(x, x.mH)


def cotangent_like(t: Tensor, generator: torch.Generator) -> Tensor:
    """A random cotangent, with 23 or 24 significant bits where the dtype has them.

    A backward that hands its cotangent on, or small multiples of it, would else seem to work in 16 bits.
    """
    # k/16 · (2²⁰ − m) / 2²⁰ with odd k from 7 to 15 and odd m below 2¹²: the numerator k (2²⁰ − m) is odd, above 2²²
    # and below 2²⁴, so the product is exact in float32, and in no dtype of 16 bits.
    coarse = random_like(t, generator)
    if torch.finfo(t.dtype).eps > torch.finfo(torch.float32).eps:
        return coarse
    odd = 2 * torch.randint(0, 2**11, t.shape, generator=generator) + 1
    return coarse * (1 - odd.to(t.real.dtype) * 2.0**-20)


def step_scale(x: Tensor) -> Tensor:
    """Step length of each element: 1, less for a tensor of tiny values, and never lost to rounding."""
    # 2¹⁶ ulps of an element leave 16 bits of a difference; in float64 a large element moves by a millionth of itself.
    # In a tensor with an element of 1 or more, the length is 1 for elements up to 10⁶ in float64, up to 2⁷ in float32,
    # and up to 1 in 16 bits. The oracle multiplies it by its own steps, of at most 0.06, so where all are subnormal the
    # length is the smallest normal number: the product with a subnormal one could be 0.
    size = x.detach().abs()
    largest = float(size.max())
    format = torch.finfo(x.dtype)
    resolved = min(max(1e-6, 2**16 * format.eps), 1.0)
    return size.mul(resolved).clamp(min=max(min(largest, 1.0), format.tiny) if largest > 0 else 1.0).to(x.dtype)


def positions_of(case: Case, input_index: int) -> list[int]:
    """Positions that hold the very same tensor as an input."""
    value = case.values[case.wrt[input_index]]
    return [p for p in case.wrt if case.values[p] is value]
