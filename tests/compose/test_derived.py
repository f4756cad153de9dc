"""Derived ops of every family against finite differences, mpmath and PyTorch's derivative of the formula."""

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad, grad, gradcheck, gradgradcheck
from torch.func import hessian, jacfwd, jacrev, jvp

import pullback

D, Z = torch.float64, torch.complex128


def leaf(*shape, dtype=D, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def spd(a):
    return a @ a.mT + a.shape[-1] * torch.eye(a.shape[-1], dtype=a.dtype)


def scaled_in_place(x, y):
    out = x.clone()
    out.mul_(y)
    out[0] = x[1] * y[0]
    out[:, 1:].add_(x[:, :-1])
    return out.sin_()


def masked_in_place(x):
    return x.clone().masked_fill_(x > 0, 0.0) * x.exp()


def attention(q, k, v):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v


INDEX = (0, 2, 2, 1)

FORMULAS = {
    "matmul": (lambda a, b: torch.tanh(a @ b), [(3, 4), (4, 2)]),
    "batched matmul": (lambda a, b: torch.einsum("bij,jk->bik", a, b), [(2, 3, 4), (4, 2)]),
    "attention": (attention, [(3, 4), (5, 4), (5, 2)]),
    "linear": (lambda x, w, b: F.linear(x, w, b).relu(), [(3, 4), (2, 4), (2,)]),
    "sum of squares": (lambda x: (x**2).sum(-1), [(3, 4)]),
    "product": (lambda x: x.prod(0), [(3, 4)]),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), [(3, 4)]),
    "variance": (lambda x: x.var(0) + x.mean(), [(3, 4)]),
    "cumulative": (lambda x: torch.cumsum(x, 0) * torch.cumprod(x, 1), [(3, 4)]),
    "largest": (lambda x: x.max(-1).values * x.amin(-1), [(3, 4)]),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=-1), [(3, 4)]),
    "index": (lambda x: x[list(INDEX)] * x[0], [(3, 4)]),
    "gather": (lambda x: torch.gather(x, 0, torch.tensor([[0, 2, 1, 1]])) * 2, [(3, 4)]),
    "index_add": (lambda x, y: x.index_add(0, torch.tensor(INDEX), y) ** 2, [(3, 4), (4, 4)]),
    "scatter": (lambda x, y: x.scatter(0, torch.tensor([[0, 2, 1, 1]]), y) * x, [(3, 4), (1, 4)]),
    "where": (lambda x, y: torch.where(x > y, x * y, x + y), [(3, 4), (3, 4)]),
    "pad and slice": (lambda x: F.pad(x, (1, 2))[..., ::2].exp(), [(3, 4)]),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=1).sin(), [(2, 3, 5), (2, 3, 3)]),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, stride=2), [(1, 2, 5, 5), (2, 2, 3, 3), (2,)]),
    "transposed convolution": (lambda x, w: F.conv_transpose1d(x, w, stride=2), [(1, 2, 4), (2, 2, 3)]),
    "pooling": (lambda x: F.avg_pool2d(x, 2) * F.max_pool2d(x, 2), [(1, 2, 4, 4)]),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), [(3, 4), (4,), (4,)]),
    "batch norm": (lambda x, w: F.batch_norm(x, None, None, w, training=True), [(5, 3), (3,)]),
    "group norm": (lambda x: F.group_norm(x, 2).exp(), [(2, 4, 3)]),
    "rms norm": (lambda x, w: F.rms_norm(x, (4,), w), [(3, 4), (4,)]),
    "softmax": (lambda x: torch.softmax(x, -1) * torch.log_softmax(x, 0), [(3, 4)]),
    "cross entropy": (lambda x: F.cross_entropy(x, torch.tensor([0, 3, 1]), label_smoothing=0.1), [(3, 4)]),
    "sort": (lambda x: torch.sort(x, -1).values * torch.arange(4, dtype=x.dtype), [(3, 4)]),
    "top": (lambda x: torch.topk(x, 2).values.prod(-1), [(3, 4)]),
    "median": (lambda x: x.median(-1).values ** 2, [(3, 5)]),
    "inverse": (lambda a: torch.linalg.inv(spd(a)), [(3, 3)]),
    "solve": (lambda a, b: torch.linalg.solve(spd(a), b), [(3, 3), (3, 2)]),
    "cholesky": (lambda a: torch.linalg.cholesky(spd(a)), [(3, 3)]),
    "log determinant": (lambda a: torch.linalg.slogdet(spd(a)).logabsdet, [(3, 3)]),
    "eigenvalues": (lambda a: torch.linalg.eigvalsh(spd(a)), [(3, 3)]),
    "singular values": (lambda a: torch.linalg.svdvals(a), [(3, 4)]),
    "matrix exponential": (lambda a: torch.linalg.matrix_exp(a), [(3, 3)]),
    "in place": (scaled_in_place, [(3, 4), (3, 4)]),
    "masked in place": (masked_in_place, [(3, 4)]),
}
COMPLEX = {
    "product with a conjugate": (lambda z, w: z * w.conj(), [(3,), (3,)]),
    "modulus": (lambda z: z.abs() + z.angle(), [(3,)]),
    "parts": (lambda z: z.real * z.imag, [(3,)]),
    "exponential": (lambda z, w: torch.exp(z) / (w + 3), [(3,), (3,)]),
    "Fourier": (lambda z: torch.fft.fft(z).abs(), [(4,)]),
    "matrix": (lambda z, w: (z @ w.mH).exp(), [(2, 3), (2, 3)]),
}
CASES = [(name, f, shapes, D) for name, (f, shapes) in FORMULAS.items()] + [
    (name, f, shapes, Z) for name, (f, shapes) in COMPLEX.items()
]


@pytest.fixture(params=CASES, ids=lambda case: case[0].replace(" ", "-"))
def case(request):
    _, formula, shapes, dtype = request.param
    return formula, [leaf(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]


def test_derivatives_match_finite_differences(case):
    formula, inputs = case
    assert gradcheck(pullback.function(formula), inputs, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(pullback.function(formula), inputs, fast_mode=True)


def test_derivatives_match_autograd_of_the_formula(case):
    formula, inputs = case
    results = []
    for f in (pullback.function(formula), formula):
        out = f(*inputs)
        g = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1)).requires_grad_()
        once = grad(out, inputs, g, retain_graph=True)
        first = [d for d in grad(out, inputs, g, create_graph=True) if d.requires_grad]
        twice = grad([d.abs().sum() for d in first], [*inputs, g], allow_unused=True)
        results.append([out, *once, *(d for d in twice if d is not None)])
    for ours, native in zip(*results, strict=True):
        assert torch.allclose(ours, native, rtol=1e-12, atol=1e-12 * float(native.detach().abs().max()))


POINTWISE = {
    "gate": (
        lambda x: torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x)),
        lambda t: 1 / (1 + mpmath.exp(-t)) / mpmath.sqrt(1 + mpmath.exp(t)),
    ),
    "sine of a square": (lambda x: torch.sin(x * x), lambda t: mpmath.sin(t * t)),
    "tanh": (lambda x: torch.tanh(x) * x, lambda t: mpmath.tanh(t) * t),
    "softplus": (lambda x: torch.log1p(torch.exp(x)), lambda t: mpmath.log1p(mpmath.exp(t))),
    "power": (lambda x: (x * x + 2) ** 1.5, lambda t: (t * t + 2) ** mpmath.mpf(1.5)),
    "erf": (lambda x: torch.erf(x) / (2 + torch.cos(x)), lambda t: mpmath.erf(t) / (2 + mpmath.cos(t))),
}
POINTS = (-1.3, -0.2, 0.7, 2.1)


def nested_reverse(f, x, order):
    x = x.clone().requires_grad_()
    out = f(x)
    for _ in range(order):
        (out,) = grad(out.sum(), x, create_graph=True)
    return out.detach()


def nested_forward(f, x, order):
    if order == 0:
        return f(x)
    return jvp(lambda t: nested_forward(f, t, order - 1), (x,), (torch.ones_like(x),))[1]


def mixed(f, x, order):
    """Return the derivative by alternating reverse and forward mode, with forward mode outermost."""

    def scalar(t):
        return f(t)

    for i in range(order):
        scalar = (jacrev if i % 2 == 0 else jacfwd)(scalar)
    return torch.stack([scalar(t) for t in x])


def forward_over_reverse(f, x, order):
    """Return the derivative by a dual tensor through `order - 1` backward passes."""
    if order == 0:
        return f(x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.clone().requires_grad_(), torch.ones_like(x))
        out = f(dual)
        for _ in range(order - 1):
            (out,) = grad(out.sum(), dual, create_graph=True)
        return forward_ad.unpack_dual(out).tangent.detach()


@pytest.mark.parametrize("mode", [nested_reverse, nested_forward, mixed, forward_over_reverse])
@pytest.mark.parametrize("name", POINTWISE)
def test_orders_up_to_four_match_mpmath(name, mode):
    formula, reference = POINTWISE[name]
    op, x = pullback.function(formula), torch.tensor(POINTS, dtype=D)
    with mpmath.workdps(40):
        for order in range(5):
            expected = torch.tensor([float(mpmath.diff(reference, mpmath.mpf(t), order)) for t in POINTS], dtype=D)
            assert torch.allclose(mode(op, x, order), expected, rtol=1e-11, atol=1e-12)


def test_hessian_of_several_variables_in_every_nesting():
    op = pullback.function(lambda x: (x[0] * x[1].exp() + torch.sin(x[2] * x[0])).sum())
    x = torch.tensor([0.4, -1.1, 0.8], dtype=D)
    a, b, c = (float(t) for t in x)
    e, s, co = (float(f(torch.tensor(t, dtype=D))) for f, t in ((torch.exp, b), (torch.sin, c * a), (torch.cos, c * a)))
    expected = torch.tensor(
        [[-c * c * s, e, co - a * c * s], [e, a * e, 0.0], [co - a * c * s, 0.0, -a * a * s]], dtype=D
    )
    for nesting in (hessian, lambda f: jacfwd(jacrev(f)), lambda f: jacrev(jacfwd(f)), lambda f: jacrev(jacrev(f))):
        assert torch.allclose(nesting(op)(x), expected, rtol=1e-14, atol=1e-14)


RANDOM = {
    "dropout": lambda x: F.dropout(x, 0.5) * x,
    "noise": lambda x: (x + torch.randn_like(x)).exp(),
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.5)) * x**2,
    "sample": lambda x: torch.distributions.Normal(x, x.exp()).rsample(),
    "leaky": lambda x: F.rrelu(x, training=True),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_op_reuses_its_draw_in_the_backward(name):
    op, x = pullback.function(RANDOM[name]), leaf(20)
    op(x)  # the first call traces, without drawing
    results = []
    for f in (op, RANDOM[name]):
        torch.manual_seed(3)
        out = f(x)
        (first,) = grad(out.sum(), x, create_graph=True)
        second = grad(first.sum(), x)[0] if first.requires_grad else None
        results.append([t for t in (out, first, second, torch.rand(1)) if t is not None])
    assert all(map(torch.equal, *results))


def test_first_call_of_a_random_op_draws_once():
    op, x = pullback.function(RANDOM["noise"]), leaf(5)
    torch.manual_seed(3)
    first = op(x)
    torch.manual_seed(3)
    assert torch.equal(first, op(x))


def test_captured_tensors_get_gradients():
    w, x = leaf(4, 3), leaf(2, 4, seed=1)
    op = pullback.function(lambda x: torch.tanh(x @ w))
    results = []
    for f in (op, lambda x: torch.tanh(x @ w)):
        first = grad(f(x).sum(), [x, w], create_graph=True)
        results.append([*first, *grad(sum(d.pow(2).sum() for d in first), [x, w])])
    assert all(map(torch.equal, *results))


def test_captured_tensors_may_change_between_calls():
    w, x = leaf(3), leaf(3, seed=1)
    op = pullback.function(lambda x: x * w)
    op(x)
    with torch.no_grad():
        w.add_(1)
    assert torch.equal(grad(op(x).sum(), x)[0], w)


def test_parameters_of_a_module_get_gradients():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(3, 2, dtype=D)

        @pullback.function
        def forward(self, x):
            return torch.relu(self.inner(x))

    layer, x = Layer(), leaf(4, 3)
    native = grad(torch.relu(layer.inner(x)).sum(), [x, *layer.parameters()])
    assert all(map(torch.equal, grad(layer(x).sum(), [x, *layer.parameters()]), native))
