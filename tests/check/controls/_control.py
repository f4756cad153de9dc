"""Controls, and random values for their inputs."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Control:
    """A right custom function, and inputs on which an auditor must find no error.

    `inputs()` returns new positional arguments for `target.apply`. `exact` is False where the backward is not
    the derivative of the forward on purpose: straight-through estimators, surrogates, gradient modifiers.
    """

    name: str
    target: type[torch.autograd.Function]
    inputs: Callable[[], tuple]
    exact: bool = True
    note: str = ""


def normal(*shape: int, seed: int = 0, grad: bool = True, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal values (complex ones for a complex dtype)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_(grad)


def uniform(*shape: int, low: float = 0.0, high: float = 1.0, seed: int = 0, grad: bool = True) -> Tensor:
    """Values uniform between `low` and `high`."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(shape, generator=generator, dtype=torch.float64)
    return (low + (high - low) * values).requires_grad_(grad)


def integers(*shape: int, high: int, seed: int = 0) -> Tensor:
    """Indices below `high`; with fewer values than places, some repeat."""
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def flags(*shape: int, seed: int = 0) -> Tensor:
    """A boolean mask, about half of it set."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5


def complex_normal(*shape: int, seed: int = 0) -> Tensor:
    """Complex standard normal values."""
    return normal(*shape, seed=seed, dtype=torch.complex128)


def well_conditioned(*shape: int, seed: int = 0) -> Tensor:
    """Square matrices near a multiple of the identity."""
    n = shape[-1]
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (0.4 * values + 2 * torch.eye(n, dtype=torch.float64)).requires_grad_()


def positive_definite(*shape: int, seed: int = 0) -> Tensor:
    """Symmetric matrices with well separated positive eigenvalues."""
    n = shape[-1]
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(shape, generator=generator, dtype=torch.float64)).Q
    values = torch.arange(1, n + 1, dtype=torch.float64)
    return ((basis * values) @ basis.mT).requires_grad_()
