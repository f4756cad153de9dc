"""References for the catalogue's ops: mpmath, and derivatives taken order by order."""

import mpmath
import torch

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def orders(f, x, n=2):
    """Return f(x) and its elementwise derivatives to order n, each detached. 0 where a derivative is constant."""
    x = x.detach().clone().requires_grad_()
    out = f(x)
    found = [out]
    for _ in range(n):
        g = torch.zeros_like(x)
        if found[-1].requires_grad:
            (got,) = torch.autograd.grad(found[-1].sum(), x, create_graph=True, allow_unused=True)
            g = g if got is None else got
        found.append(g)
    return [t.detach() for t in found]


def exact(f, xs, order=0):
    """Return the derivative of an mpmath function at float64 points, correctly rounded but for the last digits."""
    with mpmath.workdps(400):  # 1 + e^-700 is not 1
        points = [mpmath.mpf(x) for x in xs]
        values = [f(x) if order == 0 else mpmath.diff(f, x, order) for x in points]
        return torch.tensor([float(v) for v in values], dtype=torch.float64)


def assert_close(got, expected, rtol, atol=0.0):
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol, equal_nan=True)


def bits(t):
    return t.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[t.dtype.itemsize])


def extremes(dtype):
    """Return zeros of both signs, the smallest, ordinary, half-way, large and infinite numbers, and NaN."""
    info = torch.finfo(dtype)
    xs = [0.0, info.tiny, 0.25, 0.5, 1.0, 1.5, 2.5, 300.0, 3000.0, info.max, torch.inf]
    return torch.tensor([*xs, *(-x for x in xs), torch.nan], dtype=dtype)
