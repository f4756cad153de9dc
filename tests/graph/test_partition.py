"""The joint graph of a formula and its partition into forward and backward."""

import pytest
import torch
import torch.nn.functional as F

import pullback
from pullback.graph.facts import facts_of
from pullback.graph.partition import joint_of
from pullback.plan import KernelPlan

D = torch.float64


def leaf(*shape, dtype=D):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(len(shape))).requires_grad_()


def joint(formula, *tensors):
    def flat(*xs):
        result = formula(*xs)
        return list(result) if isinstance(result, tuple) else [result]

    outputs = facts_of(flat, tensors, "formula").outputs
    return joint_of(flat, flat, tensors, outputs, [i for i, t in enumerate(tensors) if t.requires_grad])


def bytes_saved_by_autograd(formula, *tensors):
    kept = {}

    def pack(t):
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        formula(*tensors)
    return sum(kept.values())


def bytes_across_the_cut(made, *tensors):
    computed = made.forward(*(t.detach() for t in tensors))[made.n_outputs :]
    waiting = iter(computed)
    kept = [tensors[i] if i is not None else next(waiting) for i in made.saved]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}.values())


def gate(x):
    return torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x))


def attention(q, k):
    return torch.softmax(q @ k.mT, -1) @ k


def normalised(x, w):
    return F.layer_norm(x, (8,)) * w


@pytest.mark.parametrize(
    ("formula", "shapes"),
    [
        (torch.exp, [(64, 8)]),
        (gate, [(64, 8)]),
        (lambda x, w: torch.relu(x @ w), [(64, 8), (8, 8)]),
        (attention, [(16, 8), (16, 8)]),
        (normalised, [(64, 8), (8,)]),
        (lambda x, b: (x + b).sum(0), [(64, 8), (8,)]),
    ],
)
def test_partition_saves_no_more_than_autograd(formula, shapes):
    tensors = [leaf(*shape) for shape in shapes]
    assert bytes_across_the_cut(joint(formula, *tensors), *tensors) <= bytes_saved_by_autograd(formula, *tensors)


def test_backward_does_not_repeat_forward_ops():
    made = joint(gate, leaf(3))
    ops = [node.target for node in made.backward.graph.nodes]
    assert torch.ops.aten.exp.default not in ops
    assert torch.ops.aten.sigmoid.default not in ops


@pytest.mark.parametrize(
    "make_g",
    [
        lambda: torch.ones((), dtype=D).expand(4, 3),
        lambda: torch.arange(12, dtype=D).view(3, 4).t(),
        lambda: torch.arange(24, dtype=D).view(4, 6)[:, ::2],
        lambda: torch.randn(4, 3, dtype=torch.complex128).conj().imag.contiguous(),
        lambda: torch.randn(4, 3, dtype=torch.complex128).conj().imag,
        lambda: torch.eye(4, 3, dtype=D).to_sparse(),
    ],
)
@pytest.mark.parametrize("layout", ["row-major", "transposed", "expanded"])
def test_cotangent_of_any_layout(make_g, layout):
    def formula(x):
        y = x.exp().view(-1).sin().view(x.shape)
        return {"row-major": y, "transposed": y.t().exp().t(), "expanded": y.sum().expand(4, 3) * 1}[layout]

    x, g = leaf(4, 3), make_g()
    ours, native = pullback.function(formula)(x), formula(x)
    dense = g.to_dense() if g.is_sparse else g
    assert torch.equal(torch.autograd.grad(ours, x, g)[0], torch.autograd.grad(native, x, dense)[0])


def test_unused_input_has_no_gradient():
    op = pullback.function(lambda x, y: x * 2)
    x, y = leaf(3), leaf(3)
    assert joint(lambda x, y: x * 2, x, y).unused == (False, True)
    gx, gy = torch.autograd.grad(op(x, y).sum(), [x, y], allow_unused=True)
    assert gx.tolist() == [2, 2, 2]
    assert gy is None


def test_integer_outputs_have_no_derivative():
    op = pullback.function(lambda x: torch.sort(x * 1))
    x = leaf(5)
    values, indices = op(x)
    assert values.requires_grad
    assert not indices.requires_grad
    (g,) = torch.autograd.grad(values[0], x)
    assert g.argmax() == x.argmin()


def test_outputs_independent_of_inputs_do_not_require_grad():
    op = pullback.function(lambda x: (x * 2, x.detach() * 3, torch.ones(2)))
    assert [out.requires_grad for out in op(leaf(3))] == [True, False, False]
    assert joint(lambda x: (x * 2, x.detach() * 3, torch.ones(2)), leaf(3)).connected == (0,)


def test_gradient_of_each_output_alone():
    def formula(x, y):
        return x * y, (x + y).exp()

    x, y = leaf(3), leaf(3)
    for i in range(2):
        ours, native = pullback.function(formula)(x, y)[i], formula(x, y)[i]
        assert torch.equal(ours, native)
        for a, b in zip(
            torch.autograd.grad(ours.sum(), [x, y]), torch.autograd.grad(native.sum(), [x, y]), strict=True
        ):
            assert torch.equal(a, b)


def test_complex_inputs_match_autograd():
    def formula(z, x):
        return (z.conj() * x).exp(), (z * z.conj()).real, torch.view_as_real(z * x)

    z, x = leaf(3, dtype=torch.complex128), leaf(3)
    ours, native = pullback.function(formula)(z, x), formula(z, x)
    gs = [torch.randn(out.shape, dtype=out.dtype) for out in native]
    assert all(map(torch.equal, ours, native))
    assert all(map(torch.equal, *(torch.autograd.grad(outs, [z, x], gs) for outs in (ours, native))))


def test_lazily_conjugated_result_may_be_saved():
    def formula(z, w):
        return (z.conj() @ w).exp()

    z, w = leaf(3, 3, dtype=torch.complex128), leaf(3, 3, dtype=torch.complex128)
    ours, native = (torch.autograd.grad(f(z, w).abs().sum(), [z, w]) for f in (pullback.function(formula), formula))
    assert all(map(torch.equal, ours, native))


class FillsInPlace(torch.autograd.Function):
    """Its backward makes two equal tensors and writes to one."""

    @staticmethod
    def forward(ctx, x, y):
        return x - y

    @staticmethod
    def backward(ctx, g):
        gx, gy = torch.zeros_like(g), torch.zeros_like(g)
        return gx.add_(g), gy.sub_(g)


def fills_in_place(x, y):
    return FillsInPlace.apply(x.exp(), y.exp())


def test_equal_nodes_with_writes_are_not_merged():
    x, y = leaf(3), leaf(3)
    made = joint(fills_in_place, x, y)
    values, *kept = made.forward(x.detach(), y.detach())
    waiting = iter(kept)
    saved = [(x, y)[i].detach() if i is not None else next(waiting) for i in made.saved]
    for _ in range(2):  # the second time shows whether a saved value was written to
        gx, gy = made.backward(*saved, torch.ones_like(values))
        assert torch.equal(gx, x.exp())
        assert torch.equal(gy, -y.exp())


@pytest.mark.parametrize("op", [torch.linalg.inv, torch.linalg.cholesky, torch.linalg.det, torch.linalg.eigvalsh])
def test_value_checks_of_linalg_run_at_every_call(op):
    wrapped = pullback.function(lambda a: op(a))
    wrapped(torch.eye(3, dtype=D, requires_grad=True))
    assert all(isinstance(plan, KernelPlan) for plan in wrapped._plans.plans.values())
    bad = torch.full((3, 3), -torch.inf if op is torch.linalg.eigvalsh else -1.0, dtype=D, requires_grad=True)
    outcomes = []
    for f in (op, wrapped):
        try:
            outcomes.append(f(bad).tolist())
        except RuntimeError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_write_to_a_saved_output_raises_as_in_autograd():
    op = pullback.function(lambda x: x.exp())
    x = leaf(3)
    y = op(x)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize(
    "formula",
    [
        lambda x: (x * 2).t(),
        lambda x: (x.exp() + 1)[:2],
        lambda x: (x * x).diagonal(),
        torch.exp,
        torch.Tensor.exp,
    ],
)
def test_writes_to_a_result_behave_as_with_the_formula(formula):
    def written(f, x):
        y = f(x)
        y += 1
        return torch.autograd.grad(y.sum(), x)[0]

    x = leaf(3, 3)
    op = pullback.function(formula)
    try:
        native = written(formula, x)
    except RuntimeError:
        with pytest.raises(RuntimeError, match="inplace"):
            written(op, x)
    else:
        assert torch.equal(written(op, x), native)
        assert all(isinstance(plan, KernelPlan) for plan in op._plans.plans.values())


def test_write_to_a_view_of_a_saved_value_raises():
    op = pullback.function(lambda x: x.exp().view(-1))
    y = op(leaf(3))
    with pytest.raises(RuntimeError, match="view"):
        y.mul_(2)


def test_zero_second_derivative_is_on_the_right_device():
    def formula(a):
        return (-a.amax((0,)).abs()).amax(-1, keepdim=True)

    x = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(
        pullback.function(formula, backend="native")(x), x, torch.ones(()), create_graph=True
    )
    (second,) = torch.autograd.grad(first.sum(), x)
    assert (first.item(), second.item(), second.device.type) == (-1.0, 0.0, "cpu")
