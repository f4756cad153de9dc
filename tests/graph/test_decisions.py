"""Values that a backward compares have the bits of the forward, whatever kernel recomputes them."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import pullback
from pullback._torch import trace_ops
from pullback.graph.decisions import decides, is_exact, is_reproducible, is_rounded
from pullback.graph.partition import joint_of

aten = torch.ops.aten


def node_of(formula, *tensors):
    graph = trace_ops(lambda *xs: [formula(*xs)], *tensors).graph
    return graph.output_node().all_input_nodes[0]


def pointwise():
    """All ops that PyTorch tags as pointwise, by name."""
    for name in dir(aten):
        packet = getattr(aten, name)
        overloads = packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else []
        tagged = [getattr(packet, o) for o in overloads if torch.Tag.pointwise in getattr(packet, o).tags]
        if tagged and not name.endswith("_") and not name.startswith("bitwise_"):
            yield name, packet


POINTS = torch.arange(-32, 33, dtype=torch.float64) / 4
STEP = 2.0**-40


def jumps(function):
    """Whether values on both sides of a point, or at it, differ: between finite numbers, or numbers and NaN."""
    at, above, below = function(POINTS), function(POINTS + STEP), function(POINTS - STEP)
    if not at.is_floating_point():
        return True
    size = at.abs().clamp_min(1)
    finite = at.isfinite() & above.isfinite() & below.isfinite() & (size < 1e6)
    far = ((above - at).abs() > 1e-4 * size) | ((below - at).abs() > 1e-4 * size)
    return bool((finite & far).any())


ENDS = {"atan2", "pow", "float_power", "special_bessel_y0", "digamma", "special_zeta", "polygamma", "logit"}
"""Discontinuous only at poles, where an angle wraps around, and outside the usual arguments."""


@pytest.mark.parametrize(("name", "op"), [pytest.param(n, p, id=n) for n, p in pointwise()])
def test_discontinuous_ops_are_known_to_decide(name, op):
    for build in (op, lambda x: op(x, 0.75), lambda x: op(x, x.new_full((), 0.75)), lambda x: op(x.new_ones(()), x, 0)):
        try:
            jumping = jumps(build)
            node = node_of(build, POINTS)
        except Exception:  # it takes something else
            continue
        (x,) = node.graph.find_nodes(op="placeholder")
        if jumping and name not in ENDS and x in node.all_input_nodes:
            assert decides(node, x)


def test_reproducible_and_exact_ops():
    x, narrow, z = torch.rand(3), torch.rand(3).bfloat16(), torch.rand(3, dtype=torch.complex64)
    for formula in (torch.add, torch.mul, torch.div, torch.maximum):
        assert is_reproducible(node_of(lambda x, f=formula: f(x, x), x))
    assert not is_exact(node_of(lambda x: torch.add(x, x, alpha=3), x))  # a kernel may fuse it
    assert not is_reproducible(node_of(lambda x: torch.exp(x), x))
    assert not is_reproducible(node_of(lambda z: z * z, z))
    assert not is_reproducible(node_of(lambda x: x * x, narrow))  # unless it is rounded
    assert is_reproducible(node_of(lambda x: -x, narrow))


def joint(formula, x):
    def flat(x):
        return [formula(x)]

    x = x.detach().requires_grad_()
    (out,) = flat(x)
    return joint_of(flat, flat, [x], [out.detach().requires_grad_()], [0], recompute=True, bits=True)


class Other(fx.Interpreter):
    """Interpreter whose results are one ulp off wherever they are not reproducible between kernels."""

    def run_node(self, n):
        result = super().run_node(n)
        differs = torch.Tag.pointwise in getattr(n.target, "tags", ()) and not is_reproducible(n)
        return result * (1 + torch.finfo(result.dtype).eps) if differs and result.is_floating_point() else result


T = torch.tanh
DECIDING = {
    "amax": lambda x: F.gelu(x).amax(-1),
    "amax of a polynomial": lambda x: (x * x + x).amax(-1),
    "amin over several": lambda x: F.silu(x).amin((0, 1)),
    "max": lambda x: torch.erf(x).max(),
    "less the largest": lambda x: T(x) - T(x).amax(-1, keepdim=True),
    "largest size": lambda x: T(x) / T(x).abs().amax(-1, keepdim=True),
    "infinite norm": lambda x: T(x).norm(math.inf, dim=-1),
    "norm of 1": lambda x: (T(x) - T(x[:, :1])).norm(1, dim=-1),
    "equal": lambda x: torch.where(T(x) == T(x).amax(), x, 2 * x),
    "clipped": lambda x: T(x).clamp(-0.5, 0.5),
    "relu": lambda x: F.relu(T(x) - T(x[:, :1])),
    "leaky": lambda x: F.leaky_relu(T(x) - T(x[:, :1])),
    "ties": lambda x: torch.maximum(T(x), T(x.flip(0)).flip(0)),
    "ties of sorted": lambda x: torch.minimum(T(x), T(x).sort(-1)[0]),
    "rounded": lambda x: torch.round(T(x) * 3) * x,
    "fraction": lambda x: torch.remainder(torch.exp(x), 1) * x,
    "sorted": lambda x: T(x).sort(-1)[0] * torch.arange(x.shape[-1], dtype=x.dtype),
    "zeros": lambda x: (T(x) - T(x[:, :1])).prod(-1),
    "scattered": lambda x: torch.zeros(x.shape[1]).scatter_reduce(0, torch.tensor([0, 0, 1, 1, 2]), T(x)[0], "amax"),
    "largest distance": lambda x: torch.cdist(T(x), x.sin(), p=math.inf),
    "prelu": lambda x: F.prelu(T(x) - T(x[:, :1]), x.new_tensor(0.3)),
}


@pytest.mark.parametrize("name", DECIDING)
def test_other_kernels_take_the_same_decisions(name):
    formula, x = DECIDING[name], torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    made = joint(formula, x)
    out, *computed = made.forward(x)
    later = iter(computed)
    kept = [x if i is not None else next(later) for i in made.saved]
    leaf = x.clone().requires_grad_()
    right = formula(leaf)
    g = torch.randn(right.shape, generator=torch.Generator().manual_seed(1))
    right.backward(g)
    (mine,) = Other(made.backward).run(*kept, g)
    assert torch.equal(out, right.detach())
    assert torch.allclose(mine, leaf.grad, rtol=1e-4, atol=1e-5)
    assert torch.equal(mine == 0, leaf.grad == 0)


def test_operands_of_a_decision_are_rounded_with_and_without_gradient():
    def formula(x):
        return [(x * x + x).amax(-1) + (x * 3).sin().sum(-1)]

    x = torch.rand(4, 5).bfloat16().requires_grad_()
    outputs = [out.detach().requires_grad_() for out in formula(x)]
    for wanted in ([], [0]):
        forward = joint_of(formula, formula, [x], outputs, wanted, recompute=True).forward
        rounded = [node.name for node in forward.graph.nodes if is_rounded(node)]
        assert rounded == ["mul", "add"]


@pytest.mark.parametrize("formula", [lambda x: torch.hypot(x * x, x), lambda x: torch.special.i0e(x * x)])
def test_operands_of_a_kink_are_rounded(formula):
    x = torch.rand(4).bfloat16().requires_grad_()
    forward = joint(formula, x).forward
    assert [node.name for node in forward.graph.nodes if is_rounded(node)] == ["mul"]


@pytest.mark.parametrize("make", [torch.ones, torch.zeros])
def test_constant_is_recomputed_not_saved(make):
    assert not joint(lambda x: x * make(5), torch.rand(5)).saved


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_widening_cast_sees_the_16_bit_rounding(backend):
    def formula(x):
        h = x.bfloat16()
        return (h * h).float() - h.float() * h.float(), (x * 4).half().exp().float()

    x = torch.tensor([1.001, 3.0, 3.14159], requires_grad=True)
    with pullback.backend(backend):
        for ours, native in zip(pullback.function(formula)(x), formula(x), strict=True):
            assert torch.equal(ours, native)
