"""What is written of ops with stable forms."""

import torch

import pullback


def test_what_is_written_of_a_formula_with_a_hole_fills_it():
    text = pullback.write(pullback.function(sinc), torch.tensor([0.0, 2.0], dtype=torch.float64))
    space = {}
    exec(text, space)
    x = torch.tensor([0.0, 2.0], dtype=torch.float64, requires_grad=True)
    value = space["Sinc"].apply(x)
    (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), x)
    assert (value[0].item(), slope[0].item()) == (1, 0)
    assert abs(curvature[0] + 1 / 3) < 1e-15


def sinc(x):
    return torch.sin(x) / x
