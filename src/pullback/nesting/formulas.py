"""Operators in elementary operations, each of whose rules is right in every nesting of derivatives.

The rules that PyTorch has for the operators themselves treat what the forward saved as constants, divide by an element
that may be zero, or lose a branch: `docs/pytorch.md` shows each of them. A function here has the signature of its
operator and returns the same value, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pullback import _torch
from pullback.errors import DerivativeError

# ---- normalisations -------------------------------------------------------------------------------------------------


def _normalised(x: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    centred: Tensor = x - x.mean(dims, keepdim=True)
    return centred / (centred.square().mean(dims, keepdim=True) + eps).sqrt()


def _in_float32(x: Tensor) -> Tensor:
    """The numbers that PyTorch's kernels compute with: at least float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """`torch.nn.functional.layer_norm`."""
    y = _normalised(_in_float32(x), tuple(range(-len(normalized_shape), 0)), eps)
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).to(x.dtype)


def native_layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`torch.native_layer_norm`."""
    _, mean, inverse = torch.native_layer_norm(x.detach(), normalized_shape, None, None, eps)
    return layer_norm(x, normalized_shape, weight, bias, eps), mean, inverse


def _along_channels(x: Tensor, t: Tensor) -> Tensor:
    return t.view(1, -1, *(1 for _ in range(x.ndim - 2)))


def _scaled(x: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = y if weight is None else y * _along_channels(x, weight)
    return (y if bias is None else y + _along_channels(x, bias)).to(x.dtype)


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    """`torch.batch_norm`. The operator itself updates the running statistics."""
    if x.ndim < 2:
        return torch.batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled)
    if not training:
        assert running_mean is not None
        assert running_var is not None
        centred = x - _along_channels(x, running_mean)
        return _scaled(x, centred / (_along_channels(x, running_var) + eps).sqrt(), weight, bias)
    if running_mean is not None:
        torch.batch_norm(x.detach(), None, None, running_mean, running_var, True, momentum, eps, cudnn_enabled)
    return _scaled(x, _normalised(_in_float32(x), (0, *range(2, x.ndim)), eps), weight, bias)


def native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`torch.native_batch_norm`. The operator itself updates the running statistics."""
    _, mean, inverse = torch.native_batch_norm(
        x.detach(), None, None, running_mean, running_var, training, momentum, eps
    )
    kept = (None, None) if training else (running_mean, running_var)
    return batch_norm(x, weight, bias, *kept, training, momentum, eps), mean, inverse


def functional_batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`torch.nn.functional.batch_norm`."""
    if training:
        F.batch_norm(x.detach(), running_mean, running_var, None, None, True, momentum, eps)  # it refuses one value
        running_mean = running_var = None
    return batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)


def functional_instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`torch.nn.functional.instance_norm`."""
    if not use_input_stats:
        return batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)
    F.instance_norm(x.detach(), running_mean, running_var, None, None, True, momentum, eps)
    return _scaled(x, _normalised(_in_float32(x), tuple(range(2, x.ndim)), eps), weight, bias)


# ---- products and scans ---------------------------------------------------------------------------------------------


def _scanned(x: Tensor, dim: int, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the running combination along a dimension, in log₂ n steps (Hillis and Steele, CACM 1986)."""
    if x.ndim == 0:
        return x.clone()
    size, step = x.shape[dim], 1
    while step < size:
        head, tail, before = x.narrow(dim, 0, step), x.narrow(dim, step, size - step), x.narrow(dim, 0, size - step)
        x = torch.cat([head, combine(before, tail)], dim)
        step *= 2
    return x.clone() if step == 1 else x


def cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """`torch.cumprod`."""
    return _scanned(x if dtype is None else x.to(dtype), dim, torch.mul)


def prod(x: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    """`torch.prod`, by halves."""
    x = x if dtype is None else x.to(dtype)
    if dim is None:
        return prod(x.reshape(-1), 0)
    if x.ndim == 0:
        return x.clone()
    while (size := x.shape[dim]) > 1:
        half = size // 2
        pairs = x.narrow(dim, 0, half) * x.narrow(dim, half, half)
        x = torch.cat([pairs, x.narrow(dim, size - 1, 1)], dim) if size % 2 else pairs
    x = torch.ones_like(x.sum(dim, keepdim=True)) if size == 0 else x
    return x if keepdim else x.squeeze(dim)


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """`torch.linalg.vander`."""
    x = torch.atleast_1d(x)
    count = x.shape[-1] if N is None else N
    return torch.stack([x**k if k else torch.ones_like(x) for k in range(count)], -1)


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    """`torch.logaddexp`: b − log σ(b − a) for b ≥ a, of which no part overflows; beside an infinity the larger."""
    if a.is_complex():
        return torch.logaddexp(a, b)
    finite = (a - b).isfinite()
    left, right = torch.where(finite, a, 0), torch.where(finite, b, 0)
    larger, smaller = torch.where(left > right, left, right), torch.where(left > right, right, left)
    return torch.where(finite, larger - F.logsigmoid(larger - smaller), torch.maximum(a, b))


def logaddexp2(a: Tensor, b: Tensor) -> Tensor:
    """`torch.logaddexp2`."""
    return logaddexp(a * math.log(2), b * math.log(2)) / math.log(2)


def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """`torch.logcumsumexp`."""
    return torch.logcumsumexp(x, dim) if x.is_complex() else _scanned(x, dim, logaddexp)


# ---- powers and special functions ------------------------------------------------------------------------------------


def pow(a: Any, b: Any) -> Tensor:
    """`torch.pow`: by the logarithm where the exponent is 0, 1 or 2, whose rule drops the exponent's derivative."""
    if not isinstance(b, Tensor) or not (b.is_floating_point() or b.is_complex()):
        return torch.pow(a, b)
    base = a if isinstance(a, Tensor) else torch.as_tensor(a, dtype=b.dtype, device=b.device)
    real = not (base.is_complex() or b.is_complex())
    small = ((b == 0) | (b == 1) | (b == 2)) & ((base > 0) if real else (base != 0))
    inside, outside = torch.where(small, base, 1), torch.where(small, 1, base)
    return torch.where(small, (b * inside.log()).exp(), torch.pow(outside, b))


def rpow(b: Tensor, a: Any) -> Tensor:
    """`torch.Tensor.__rpow__`."""
    return pow(a, b)


def float_power(a: Any, b: Any) -> Tensor:
    """`torch.float_power`."""
    is_complex = any(x.is_complex() if isinstance(x, Tensor) else isinstance(x, complex) for x in (a, b))
    dtype = torch.complex128 if is_complex else torch.float64
    return pow(*(x.to(dtype) if isinstance(x, Tensor) else x for x in (a, b)))


def ldexp(x: Tensor, other: Tensor) -> Tensor:
    """`torch.ldexp`, whose rule computes 2**other in integers."""
    if other.is_floating_point() or other.is_complex():
        return torch.ldexp(x, other)
    return torch.ldexp(x, other.to(x.dtype if x.is_floating_point() else torch.get_default_dtype()))


_NEAR = 0.25


def _near_zero(x: Tensor, series: Callable[[Tensor], Tensor], function: Callable[[Tensor], Tensor]) -> Tensor:
    near = x.abs() < _NEAR
    return torch.where(near, series(torch.where(near, x, 0)), function(torch.where(near, 1, x)))


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    found = torch.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        found = found * x + c
    return found


_SINC = [(-1) ** k * math.pi ** (2 * k) / math.factorial(2 * k + 1) for k in range(11)]
"""DLMF 4.19.1. The next term is 6e-22 at `_NEAR`."""
_I1 = [1 / (2 ** (2 * k + 1) * math.factorial(k) * math.factorial(k + 1)) for k in range(8)]
"""DLMF 10.25.2. The next term is 2e-23 at `_NEAR`."""


def sinc(x: Tensor) -> Tensor:
    """`torch.sinc`: its power series near 0."""
    return _near_zero(x, lambda t: _polynomial(t * t, _SINC), torch.sinc)


def i1(x: Tensor) -> Tensor:
    """`torch.special.i1`: its power series near 0."""
    return _near_zero(x, lambda t: t * _polynomial(t * t, _I1), torch.special.i1)


def polar(modulus: Tensor, angle: Tensor) -> Tensor:
    """`torch.polar`."""
    return torch.complex(modulus * angle.cos(), modulus * angle.sin())


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """`torch.logit`: of a clamped number, whose derivative outside is 0 at every order."""
    if eps is None or eps > 0.5:  # for such an `eps`, versions of PyTorch differ
        return torch.logit(x, eps)
    return torch.logit(x.clamp(eps, 1 - eps))


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`torch.nn.functional.poisson_nll_loss`: Stirling's terms of targets above 1 alone."""
    loss: Tensor = F.poisson_nll_loss(input, target, log_input, False, None, eps, None, "none")
    if full:
        large = target > 1
        t = torch.where(large, target, 2)
        loss = loss + torch.where(large, t * t.log() - t + 0.5 * (2 * math.pi * t).log(), 0)
    if reduce is not None or size_average is not None:
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *args: Any,
    options: Any = None,
    **kwargs: Any,
) -> Tensor:
    """`torch.nn.functional.linear_cross_entropy`, not in chunks."""
    found: Tensor = F.linear_cross_entropy(input, linear_weight, target, *args, **kwargs)
    return found


# ---- linear algebra --------------------------------------------------------------------------------------------------


def solve(a: Tensor, b: Tensor, *, left: bool = True) -> Tensor:
    """`torch.linalg.solve`, by the same factors as a function of the matrix."""
    is_vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    factors = torch.linalg.lu_factor(a)
    x: Tensor = torch.linalg.lu_solve(*factors, b.unsqueeze(-1) if is_vector else b, left=left or is_vector)
    return x.squeeze(-1) if is_vector else x


def tensorsolve(a: Tensor, b: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """`torch.linalg.tensorsolve`."""
    if dims is not None:
        kept = [i for i in range(a.ndim) if i not in [d % a.ndim for d in dims]]
        a = a.permute(*kept, *(d % a.ndim for d in dims))
    shape = a.shape[b.ndim :]
    return solve(a.reshape(b.numel(), -1), b.reshape(-1)).reshape(shape)


def _factored(a: Tensor) -> tuple[Tensor, Tensor]:
    """Return the diagonal of U, and the sign of the permutation."""
    lu, pivots = torch.linalg.lu_factor(a)
    moved = pivots != torch.arange(1, a.shape[-1] + 1, dtype=pivots.dtype, device=a.device)
    return lu.diagonal(dim1=-2, dim2=-1), 1 - 2 * (moved.sum(-1) % 2).to(a.dtype)


def det(a: Tensor) -> Tensor:
    """`torch.linalg.det`, by the factors as a function of the matrix."""
    diagonal, sign = _factored(a)
    return sign * prod(diagonal, -1)


def slogdet(a: Tensor) -> Any:
    """`torch.linalg.slogdet`, by the factors as a function of the matrix."""
    diagonal, sign = _factored(a)
    return torch.return_types.linalg_slogdet(  # type: ignore[attr-defined]
        (sign * prod(diagonal.sgn(), -1), diagonal.abs().log().sum(-1))
    )


def old_slogdet(a: Tensor) -> Any:
    """`torch.slogdet`."""
    return torch.return_types.slogdet(slogdet(a))


def logdet(a: Tensor) -> Tensor:
    """`torch.logdet`."""
    sign, log = slogdet(a)
    found: Tensor = log + sign.log()
    return found


def householder_product(a: Tensor, tau: Tensor) -> Tensor:
    """`torch.linalg.householder_product`: the reflectors, applied to the identity from the last to the first."""
    rows, columns = a.shape[-2:]
    eye = torch.eye(rows, columns, dtype=a.dtype, device=a.device)
    product = eye.expand(*a.shape[:-2], rows, columns)
    below = a.tril(-1) + eye
    for i in reversed(range(tau.shape[-1])):
        w = below[..., i : i + 1]
        product = product - tau[..., i, None, None] * w @ (w.mH @ product)
    return product


def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    """`torch.cholesky_inverse`."""
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device).expand_as(factor)
    inverse: Tensor = torch.linalg.solve_triangular(factor.mH if upper else factor, eye, upper=False)
    return inverse.mH @ inverse


def cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    """`torch.cholesky_solve`."""
    lower = factor.mH if upper else factor
    half: Tensor = torch.linalg.solve_triangular(lower, b, upper=False)
    found: Tensor = torch.linalg.solve_triangular(lower.mH, half, upper=True)
    return found


def triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    """`torch.triangular_solve`."""
    flipped = a.mT if transpose else a
    x = torch.linalg.solve_triangular(flipped, b, upper=upper != transpose, unitriangular=unitriangular)
    return torch.return_types.triangular_solve((x, a.clone()))


# ---- scatter --------------------------------------------------------------------------------------------------------


def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """`torch.scatter_reduce`: with elements that are not included, those are first set to the identity.

    Raises:
        DerivativeError: for products in forward mode, for which PyTorch gives the tangent 0.
    """
    if reduce == "prod" and _torch.in_dual_level():
        raise DerivativeError("scatter_reduce with products has no forward mode: take this derivative by reverse mode.")
    if reduce in ("amax", "amin") and not include_self:
        x = x.scatter(dim, index, -math.inf if reduce == "amax" else math.inf)
        return torch.scatter_reduce(x, dim, index, src, reduce)
    return torch.scatter_reduce(x, dim, index, src, reduce, include_self=include_self)


def as_strided_scatter(
    x: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """`torch.as_strided_scatter`: written into a copy, whose rule knows which elements are overwritten."""
    place = torch.arange(x.numel(), device=x.device).view(x.shape).as_strided(size, stride, storage_offset)
    found: Tensor = x.reshape(-1).index_copy(0, place.reshape(-1), src.expand(size).reshape(-1)).view(x.shape)
    return found
