"""Elementwise ops and norms on every shape and layout, empty tensors included."""

import functools

import pytest
import torch

from pullback import catalog
from pullback.catalog import tutorial

OPS = {
    **{name: getattr(catalog, name) for name in dir(catalog) if "ste" in name.split("_") or name.startswith("spike_")},
    **{name: getattr(catalog, name) for name in ("log_sigmoid", "softplus", "log1mexp", "safe_sqrt", "safe_acos")},
    **{name: getattr(tutorial, name) for name in ("exp", "gated_rsqrt", "sin_squared", "relu", "double")},
    "clipped_round_ste": functools.partial(catalog.clipped_round_ste, low=0.2, high=0.7),
    "clipped_floor_ste": functools.partial(catalog.clipped_floor_ste, low=0.2, high=0.7),
    "reverse_grad": catalog.reverse_grad,
    "scale_grad": functools.partial(catalog.scale_grad, scale=3.0),
    "clip_grad": functools.partial(catalog.clip_grad, bound=0.5),
}
LAYOUTS = {
    "scalar": lambda x: x[0, 0],
    "transposed": lambda x: x.t(),
    "sliced": lambda x: x[:, ::2],
    "expanded": lambda x: x[:1].expand(3, 4),
    "empty": lambda x: x[:0],
    "empty inside": lambda x: x[:, :0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPS)
@pytest.mark.few(65)
def test_elementwise_op_is_independent_of_layout(name, layout):
    op = OPS[name]
    x = LAYOUTS[layout](torch.rand(3, 4, dtype=torch.float64) * 0.9 + 0.05)
    dense = x.clone(memory_format=torch.contiguous_format)
    results = []
    for given in (x.detach().requires_grad_(), dense.requires_grad_()):
        out = op(given)
        assert out.shape == x.shape
        results.append((out.detach(), *torch.autograd.grad(out, given, torch.full_like(out, 0.7))))
    for strided, contiguous in zip(*results, strict=True):
        torch.testing.assert_close(strided, contiguous, rtol=1e-15, atol=0)


def test_safe_norm_of_empty_tensor_is_0():
    x = torch.zeros(3, 0, requires_grad=True)
    assert catalog.safe_norm(x).item() == 0.0
    assert catalog.safe_norm(x, dim=1).tolist() == [0.0] * 3
    assert catalog.safe_norm(x, dim=0).shape == (0,)
    assert catalog.safe_normalize(x).shape == (3, 0)
    (g,) = torch.autograd.grad(catalog.safe_norm(x, dim=1).sum(), x)
    assert g.shape == (3, 0)


def test_safe_norm_of_scalar_is_its_magnitude():
    x = torch.tensor(-3.0, requires_grad=True)
    out = catalog.safe_norm(x)
    assert out.item() == 3.0
    assert torch.autograd.grad(out, x)[0].item() == -1.0
