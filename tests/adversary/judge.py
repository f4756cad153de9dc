"""Judge of two runs of a program: which differences are rounding, and which are wrong.

The reference is a run in float64. The error due to rounding is measured, not guessed: by the error of PyTorch's own run
in the dtype of the program, and by runs in float64 in which every result that the dtype cannot represent is rounded at
random to one of its two neighbours (Monte Carlo arithmetic). In a float64 program, results that float32 cannot
represent are moved by up to an ulp, since the others may be exact. Such runs also show where a comparison, an extreme
or a sort could go either way. A result is wrong if its error exceeds `MULTIPLE` times the largest of theirs plus a few
ulp.

16-bit numbers are computed in 32 bits. A 16-bit result that is exact in PyTorch's run and in all others therefore has
to be exact: no ulp are allowed.
"""

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only, tree_structure, tree_unflatten

MULTIPLE = 8
ULPS = 4
RUNS = (0, 1, 3, 8, 24, 128)
"""Numbers of runs with random rounding: a result that seems wrong is compared with more of them."""
_SUMS = re.compile("sum|mean|mm|mv|dot|norm|var|std|prod|conv|index_add|index_put|scatter|embedding_dense|bincount")
"""Ops that sum, in an unspecified order."""
_IN_LANES = 64
"""Terms that lanes and blocks add with little rounding: PyTorch's norm of 1023 equal numbers loses 30 ulp."""
_STEPS = re.compile(
    "(softmax|layer_norm|gelu|silu|mish|softplus|elu|hardswish|log_sigmoid|logit|loss|cross_entropy|tanh|sigmoid).*backward"
    "|gelu|mish|softmax|log_sigmoid|logsumexp|logaddexp|layer_norm|var|std|sinc|lerp"
)
"""Ops of several rounded steps whose terms may cancel: a run with random rounding executes the steps one by one."""
_PRODUCTS = re.compile("^(mul|div|pow|reciprocal|square|addcmul|addcdiv)")
"""Complex products: terms of the parts may cancel, so the error of a part is relative to the number's magnitude."""
_TWO_TERMS = re.compile("^(add|sub|rsub)[.]")
"""Sums of two terms that may lose the smaller one: 1 + e⁻⁹⁰ looks exact in float64, and its logarithm is 0."""
_ARITHMETIC = re.compile("^(add|sub|rsub|mul|div|sum)")
_EITHER_ZERO = re.compile("(?<!soft)max|min|sort|topk|kthvalue|median|clamp|relu|shrink")
"""Ops to which 0 and -0 are equal, so that either may be returned."""
_TWO_SIDED = re.compile("^(hardtanh|softshrink|hardshrink|elu|hardswish)_backward")
"""Backwards whose slope at NaN differs between PyTorch's vector code and its scalar remainder."""
_OF_INFINITIES = re.compile("gradient.*not finite")
"""Differences at infinite factors: ∞ − ∞ = NaN in PyTorch's formula where a stable form returns ∞ is no error."""
_LEAST_NORMAL = torch.finfo(torch.float32).smallest_normal
_FLUSHED = 128 * _LEAST_NORMAL
"""Bound on what a stable form may lose: PyTorch's sigmoid is 0 below −88.7, and a form may multiply it by x."""
_HIGHER = re.compile("order [23]")
"""Higher derivatives, where PyTorch returns NaN wherever its order of products multiplies 0 by ∞."""
_SATURATING = re.compile("tanh|sigmoid|erf|softmax|atan|exp|log|mish|gelu|silu|elu|softplus|cos")
"""Functions whose inexact float64 results may look exact or equal: tanh(20) and tanh(21), cos(1e-9) and 1."""


class Rounding(TorchDispatchMode):
    """Mode that rounds every result to a random neighbour in a dtype; equal results of one op to the same one."""

    def __init__(
        self,
        dtype: torch.dtype,
        seed: int,
        is_within: bool = False,
        overflows: bool = True,
        wavers: bool = False,
        stored: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.wavers = wavers  # perturb the operands of sums and products, as other kernels might round them
        self.stored = stored  # use operands unrounded or rounded to this dtype, as a kernel may have stored them
        self.dtype, self.seed, self.overflows = dtype, seed, overflows
        self.is_within = is_within  # inside an op of several steps, which other kernels sum in another order

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seed += 1
        kwargs = kwargs or {}
        args = tree_map_only(Tensor, _with_memory, args)
        if self.wavers and _ARITHMETIC.search(func.__name__):
            args = tree_map_only(Tensor, self._wavering, args)
        if self.stored is not None and _ARITHMETIC.search(func.__name__):
            args = tree_map_only(Tensor, self._perhaps_stored, args)
        given = _magnitudes((args, kwargs)) if self.dtype == torch.float64 else None
        result = func(*args, **kwargs)
        if func._schema.is_mutable:
            for x in (x for x in args[:1] if isinstance(x, Tensor)):
                x.copy_(self._rounded(x, x, given))
            return result
        if any(returned.alias_info is not None for returned in func._schema.returns):
            return result
        others = result
        is_empty = any(
            isinstance(x, Tensor) and not x.numel() for x in tree_leaves(args)
        )  # a mean divides by the count
        if _STEPS.search(func.__name__) and func in decomposition_table and not is_empty:
            steps = torch.promote_types(torch.float32, self.dtype)
            with Rounding(steps, 31 * self.seed, is_within=True, overflows=self.overflows):
                leaves = tree_leaves(decomposition_table[func](*args, **kwargs))
            others = tree_unflatten(leaves, tree_structure(result))
            result = others if self.is_within else tree_map(self._without_cancelled, result, others)
        elif _SUMS.search(func.__name__):
            others = func(*tree_map_only(Tensor, self._disturbed, args), **kwargs)
            if self.is_within or "mean" in func.__name__:  # an intermediate sum or a mean: exact only by chance
                result = others
        if _PRODUCTS.search(func.__name__):
            result = others = tree_map_only(Tensor, self._in_the_plane, others)
        if _TWO_TERMS.search(func.__name__):
            result = others = tree_map_only(Tensor, functools.partial(self._with_what_is_lost, terms=args), others)
        if _SATURATING.search(func.__name__):
            off = functools.partial(self._off_by_an_ulp, given=tree_leaves(args))
            result, others = tree_map_only(Tensor, off, (result, others))
        if _TWO_SIDED.search(func.__name__):
            result, others = (self._of_nan(slope, *args) for slope in (result, others))
        if _EITHER_ZERO.search(func.__name__):
            result, others = tree_map_only(Tensor, self._with_a_zero, (result, others))
        return tree_map(functools.partial(self._rounded, given=given), result, others)

    def _without_cancelled(self, x: Any, other: Any) -> Any:
        """Return a result of several steps; where its terms cancel, so that it looks exact, return `other`."""
        if not isinstance(x, Tensor) or x.dtype != torch.float64 or _has_no_memory(x):
            return x
        return torch.where((x - other).abs() > 8 * torch.finfo(torch.float32).eps * x.abs(), other, x)

    def _of_nan(self, slope: Tensor, g: Tensor, *args: Any) -> Tensor:
        """Return a slope; at NaN inputs that of either side or NaN, one for all elements or drawn for each."""
        x = next(x for x in args if isinstance(x, Tensor))
        share, which = self._share(g), self.seed * 0x9E3779B1 >> 17 & 3
        chosen = torch.full_like(share, which) if which < 3 else ((share + 0.5) * 3).floor()
        of_nan = torch.where(chosen == 0, torch.nan, torch.where(chosen == 1, 0.0, g))
        return torch.where(x.isnan(), of_nan, slope)

    def _with_a_zero(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float64 or _has_no_memory(x):
            return x
        return torch.where(x == 0, torch.copysign(x, self._share(x)), x)

    def _off_by_an_ulp(self, x: Tensor, given: list[Any]) -> Tensor:
        """Return results off by an ulp of float64: equal results of unequal inputs may round differently."""
        if x.dtype != torch.float64 or _has_no_memory(x):
            return x
        alike = (y for y in given if isinstance(y, Tensor) and (y.shape, y.dtype) == (x.shape, x.dtype))
        return self._near(x, x.dtype, self._share(next((y for y in alike if not _has_no_memory(y)), x)))

    def _in_the_plane(self, x: Tensor) -> Tensor:
        """Return complex numbers near the given ones; a part is exact only if the other is."""
        if x.dtype != torch.complex128 or _has_no_memory(x):
            return x
        parts = torch.view_as_real(x.resolve_conj())
        exact = (parts.to(self.dtype).double() == parts).all(-1)
        reach = torch.where(exact, 0, x.abs() * torch.finfo(self.dtype).eps)
        return torch.complex(*(part + self._share(part) * reach for part in (x.real, x.imag)))

    def _with_what_is_lost(self, x: Tensor, terms: tuple[Any, ...]) -> Tensor:
        """Return sums off by an ulp of float64 where a term is too small to show in them."""
        if x.dtype != torch.float64 or _has_no_memory(x):
            return x
        a, b = (torch.as_tensor(term, dtype=torch.float64) for term in terms[:2])
        lost = torch.minimum(a.abs(), b.abs()) / x.abs()
        return torch.where((lost > 0) & (lost < torch.finfo(x.dtype).eps), self._near(x, x.dtype), x)

    def _disturbed(self, x: Tensor) -> Tensor:
        """Return a term of a sum with a rounding error of 32 bits, or of its own precision.

        Equal terms get the error of a sequential sum, in which every step rounds to the same side.
        """
        if x.dtype != torch.float64:
            return x
        near = self._near(x, torch.promote_types(torch.float32, self.dtype))
        is_one_number = x.numel() > _IN_LANES and bool((x == x.flatten()[0]).all())
        return x + (near - x) * (x.numel() / _IN_LANES) if is_one_number else near

    def _wavering(self, x: Tensor) -> Tensor:
        return self._near(x, self.dtype) if x.dtype == torch.float64 and not _has_no_memory(x) else x

    def _perhaps_stored(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float64 or _has_no_memory(x):
            return x
        stored = x.to(self.stored).double()
        return torch.where((self._share(x) < 0) & stored.isfinite(), stored, x)

    def _rounded(self, x: Any, other: Any, given: Tensor | None) -> Any:
        """Round a result; where it is inexact, round `other` in its place.

        A kernel of several steps rounds to 16 bits at its end, so some results are rounded to 32 bits only. Bits do not
        show which float64 numbers are exact, except for `given` and short ones.
        """
        if not isinstance(x, Tensor) or not x.numel() or _has_no_memory(x):
            return x
        if x.dtype == torch.complex128:
            return torch.complex(self._rounded(x.real, other.real, given), self._rounded(x.imag, other.imag, given))
        if x.dtype != torch.float64:
            return x
        if given is not None:
            exact = (x.float().double() == x) | torch.isin(x.abs(), given)
        else:
            exact = (x.to(self.dtype).double() - x).abs() <= 2 * torch.finfo(x.dtype).eps * x.abs()
        is_long = self.dtype.itemsize == 2 and self.seed * 0x9E3779B1 >> 16 & 1
        to = torch.float32 if is_long else self.dtype
        near = torch.where(exact, x, self._round_to(to, self._near(other, to)))
        return torch.where(x.isnan(), torch.copysign(x, self._share(x)), near)  # the sign of a NaN is arbitrary

    def _round_to(self, dtype: torch.dtype, x: Tensor) -> Tensor:
        if self.overflows:
            return x.to(dtype).double()
        fraction, exponent = torch.frexp(x)
        return torch.where(x.isfinite(), torch.ldexp(fraction.to(dtype).double(), exponent), x)

    def _near(self, x: Tensor, dtype: torch.dtype, share: Tensor | None = None) -> Tensor:
        """Return numbers up to half an ulp of a dtype away; one ulp for float64, which cannot represent half."""
        share = self._share(x) if share is None else share
        share = share.sign() if dtype == torch.float64 else share
        info = torch.finfo(dtype)
        ulp = (x.abs() * info.eps).clamp(min=info.smallest_normal * info.eps if self.overflows else 0.0)
        return torch.where(x.isfinite() & (x != 0), x + share * ulp, x)

    def _share(self, x: Tensor) -> Tensor:
        """Return numbers from -1/2 to 1/2 that are a hash of `x` and the seed."""
        bits = x.contiguous().view(torch.int64) + (self.seed * 0x14057B7EF767814F & 0x7FFFFFFFFFFFFFFF)
        for _ in range(2):
            bits = (bits ^ (bits >> 29)) * 0x5851F42D4C957F2D
        return ((bits >> 33) & 0xFFFF).view(x.shape).double() / 0x10000 - 0.5


def sampled_run(precision: torch.dtype, i: int) -> Rounding:
    """Return the mode of run number `i`; in every third one the dtype has an unlimited range.

    Where a step overflows in all others, that run measures the rounding. Every fourth run is for higher derivatives
    alone: in 16 bits it measures the remainder of cancelling terms that are each rounded to 16 or 32 bits. One run of a
    16-bit program computes every step in 32 bits: a square may overflow there that is NaN in 16 bits before. In further
    runs the operands of sums and products are rounded to 16 bits at random: a fused loop stores some results, and
    continues with the unrounded ones. Where such terms cancel, as in x - x.mean(), half an ulp of them is left.
    """
    if precision.itemsize == 2 and i == _IN_32_BITS:
        return Rounding(torch.float32, 1000 * i)
    if precision.itemsize == 2 and _stores(i):
        return Rounding(torch.float32, 1000 * i, stored=precision)
    return Rounding(precision, 1000 * i, overflows=_has_overflow(i), wavers=_wavers(i) and precision.itemsize == 2)


_IN_32_BITS = 4


def _wavers(i: int) -> bool:
    return i % 4 == 1


def _stores(i: int) -> bool:
    return i % 4 == 3


def _has_overflow(i: int) -> bool:
    return i % 3 != 2


@dataclass(frozen=True)
class Wrong:
    """A wrong result."""

    label: str
    what: str

    def __str__(self) -> str:
        return f"{self.label}: {self.what}"


def wrong_values(
    label: str,
    ours: Tensor,
    native: Tensor,
    true: Tensor,
    sampled: Callable[[int], Iterable[Tensor]],
    of_infinite: Tensor | None = None,
    may_overflow: bool = False,
) -> Wrong | None:
    """Compare a result with the reference.

    Args:
        label: name of the result.
        ours: the result of the op.
        native: that of PyTorch in the same dtype.
        true: that of PyTorch in float64.
        sampled: function that returns a number of results of runs with random rounding.
        of_infinite: mask of infinite inputs of a value, or of an infinite input of a derivative, where a stable form
            may return a limit.
        may_overflow: whether a stable form is of numbers at which the formula overflows, in float64 too, and where it
            does in a derivative, that may be finite and far off: exp(441)² is infinite, exp(441) is not.
    """
    if ours.dtype.is_floating_point or ours.dtype.is_complex:
        info = torch.finfo(ours.dtype)
        eps, tiny = info.eps, info.smallest_normal
    else:
        eps, tiny = 0.0, 0.0
    overflows = ours.dtype == torch.float16  # 300² overflows, and there the derivative at infinity is right, too
    ours, native, true = (_real(x) for x in (ours, native, true))
    reach = true.to(native.dtype).to(torch.float64) if native.is_floating_point() else true.double()
    ours, native, true = ours.double(), native.double(), true.double()
    bar = _error(native, true)
    left = torch.zeros_like(bar)
    untouched = (native == true) if eps > torch.finfo(torch.float32).eps else torch.zeros_like(true, dtype=torch.bool)
    kinds = _same_kind(ours, true) | _same_kind(ours, native) | _same_kind(ours, reach) | _is_over(native, ours, true)
    if _OF_INFINITIES.search(label):
        kinds |= ~ours.isfinite() & true.isnan()
    if of_infinite is not None and of_infinite.shape == true.shape:
        kinds |= of_infinite & native.isnan() & true.isnan()
    overflown = ~native.isfinite() if may_overflow else torch.zeros_like(true, dtype=torch.bool)
    kinds |= overflown & ~true.isfinite()
    if _HIGHER.search(label):
        kinds |= true.isnan() | ~ours.isfinite() & ~true.isfinite()
    unmeasured = ~native.isfinite() if overflows else torch.zeros_like(true, dtype=torch.bool)
    divided = torch.zeros_like(
        unmeasured
    )  # quotients by a sum that cancels to 0 in PyTorch and in a run with unlimited range
    # PyTorch's vectorised sigmoid and exp flush to 0 there, and ties of their results go either way
    subnormal = (ours.abs() < tiny) & (true.abs() < tiny) & (tiny == _LEAST_NORMAL)
    wrong = None
    for runs in RUNS:
        for i, run in enumerate(sampled(runs)):
            if _wavers(i) and not _HIGHER.search(label):
                continue
            run = _real(run).double()
            if not (_stores(i) and eps > torch.finfo(torch.float32).eps):
                bar = torch.maximum(bar, _error(run, true))
            kinds |= _same_kind(ours, run) | _is_over(run, ours, true)
            untouched &= run == true
            if _stores(i) and eps > torch.finfo(torch.float32).eps:
                left = torch.maximum(left, _error(run, true))
                continue
            if i == _IN_32_BITS and eps > torch.finfo(torch.float32).eps:
                continue  # this run has a larger range than the others
            if _has_overflow(i):
                unmeasured &= ~run.isfinite()
            else:
                divided |= ~native.isfinite() & ~run.isfinite()
        ulps = ULPS * eps * true.abs().nan_to_num(0, 0, 0).clamp(min=tiny)
        least = eps * tiny * (true == 0)  # the remainder of cancelling terms
        ulps = torch.where(untouched, least, ulps)
        ulps = torch.where(~native.isfinite(), ulps.clamp(min=_FLUSHED), ulps)
        slack = torch.maximum(MULTIPLE * bar, 2 * left) + ulps
        far = ((ours - true).abs() > slack) & ~(unmeasured & (runs == RUNS[-1])) & ~divided & ~subnormal
        far &= ~overflown
        wrong = torch.where(ours.isfinite() & true.isfinite(), far, ~kinds)
        if not wrong.any():
            return None
    excess = torch.where(ours.isfinite() & true.isfinite(), (ours - true).abs() / slack, torch.inf)
    worst = int(torch.where(wrong, excess, 0).argmax())
    at = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), true.shape)) if true.dim() else ()
    o, n, t, s = (float(x.flatten()[worst]) for x in (ours, native, true, slack))
    count = f"{int(wrong.sum())} of {wrong.numel()} are wrong"
    return Wrong(label, f"{o:.9g} at {at}, where PyTorch has {n:.9g}, float64 {t:.9g} (within {s:.2g}); {count}")


def wrong_metadata(label: str, ours: dict[str, Any], native: dict[str, Any]) -> Wrong | None:
    """Compare shapes, strides, dtypes and the like."""
    differing = [f"{key} is {ours.get(key)}, PyTorch's {native[key]}" for key in native if ours.get(key) != native[key]]
    return Wrong(label, "; ".join(differing)) if differing else None


def _with_memory(x: Tensor) -> Tensor:
    return torch.zeros(x.shape, dtype=x.dtype) if x._is_zerotensor() else x


def _has_no_memory(x: Tensor) -> bool:
    return x.is_meta or x._is_zerotensor()  # PyTorch computes with the second on the device of the first


def _magnitudes(given: Any) -> Tensor:
    """Return the magnitudes of all operands of an op."""
    leaves = tree_leaves(given)
    xs = [_real(x).double().flatten() for x in leaves if isinstance(x, Tensor) and not _has_no_memory(x)]
    numbers = [float(x) for x in leaves if isinstance(x, int | float)]
    return torch.cat([*xs, torch.tensor(numbers, dtype=torch.float64)]).abs()


def _real(x: Tensor) -> Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def _error(run: Tensor, true: Tensor) -> Tensor:
    """Return the errors of a run; 0 where the true or the computed value is not finite."""
    error = (run - true).abs()
    return torch.where(error.isfinite(), error, 0.0)


def _is_over(run: Tensor, ours: Tensor, true: Tensor) -> Tensor:
    """Return where rounding alone leads to infinity or NaN: either may result, but the sign of an infinity is fixed."""
    over = ~run.isfinite() & ~ours.isfinite() & true.isfinite()
    return over & (run.isnan() | ours.isnan() | (ours.sign() == true.sign()))


def _same_kind(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x.isfinite(), y.isfinite(), (x == y) | (x.isnan() & y.isnan()))
