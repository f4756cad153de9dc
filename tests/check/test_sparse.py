"""Sparse inputs are differentiated with respect to their values."""

import pytest
import torch
from torch.autograd import Function

import pullback

DENSE = torch.tensor([[1.5, 0.0, -2.0], [0.0, 0.25, 0.0], [3.0, 0.0, 0.0], [0.0, -1.0, 0.5]], dtype=torch.float64)
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


class Product(Function):
    @staticmethod
    def forward(ctx, a, x):
        ctx.save_for_backward(a, x)
        return a @ x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        places = a.detach().to_sparse_coo().coalesce().indices()
        values = (g[places[0]] * x[places[1]]).sum(-1)
        gradient = torch.sparse_coo_tensor(places, values, a.shape)
        return gradient.to_sparse(layout=a.layout), a.to_dense().t() @ g


class Doubled(Product):
    @staticmethod
    def backward(ctx, g):
        a, x = Product.backward(ctx, g)
        return 2 * a, x


def told(report):
    return {f.rule for f in report.findings if f.severity == "error"}


def made(layout):
    return DENSE.to_sparse(layout=layout).requires_grad_(), torch.randn(3, 2, dtype=torch.float64)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_right_sparse_product_is_not_accused(layout):
    report = pullback.check(Product, *made(layout), select=("PB0", "PB1"), budget=60)
    assert [subject.status for subject in report.subjects] in (["ok"], ["unsupported"])
    assert told(report) == set()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_wrong_sparse_product_is_an_error(layout, capsys):
    report = pullback.check(Doubled, *made(layout), select=("PB0", "PB101"), budget=60)
    (finding,) = [f for f in report.findings if f.rule == "PB101"]
    assert finding.severity == "error"
    assert "a.values()" in finding.message
    exec(finding.reproduce, {"__name__": "reproduction"})
    assert f"gradient {finding.evidence.got:.6f}"[:-1] in capsys.readouterr().out


def test_callable_with_two_sparse_arguments_is_ok():
    def product(a, b, scale):
        return scale["by"] * torch.sparse.mm(a, b)

    a, _ = made(torch.sparse_coo)
    report = pullback.check(
        product, a, a.detach().t().coalesce().requires_grad_(), {"by": 3.0}, select=("PB0", "PB101")
    )
    assert [subject.status for subject in report.subjects] == ["ok"]
