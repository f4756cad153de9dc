"""Facts about one call of a formula, found with fake tensors."""

import itertools
import random
import warnings

import numpy
import pytest
import torch
import torch.utils.checkpoint
from torch.utils import _pytree

import pullback
from pullback import _torch
from pullback.errors import FormulaError
from pullback.graph.facts import facts_of
from pullback.plan import KernelPlan
from tests.compose.opinfo import entries

X = torch.linspace(-2, 2, 12).view(3, 4)


def facts(formula, *tensors):
    return facts_of(lambda *xs: [formula(*xs)], tensors or (leaf(),), "formula")


def leaf(*shape):
    return torch.ones(shape, dtype=torch.float64, requires_grad=True)


def test_outputs_are_fake_tensors_with_requires_grad():
    (out,) = facts(lambda x, y: x * y, leaf(2, 3), torch.ones(3, dtype=torch.float64)).outputs
    assert (out.shape, out.dtype, out.requires_grad) == ((2, 3), torch.float64, True)
    (out,) = facts(lambda x: x.detach() * 2).outputs
    assert not out.requires_grad


def item(x):
    return x * x.sum().item()


def branch(x):
    if x.sum() > 0:
        return x
    return -x


def through_numpy(x):
    return x * torch.from_numpy(x.detach().numpy())


def as_list(x):
    return x * x.tolist()[0]


def as_number(x):
    return x * float(x[0])


def as_index(x):
    return x * [1, 2][x[0].long()]


@pytest.mark.parametrize(
    ("formula", "what", "line"),
    [
        (item, ".item()", "return x * x.sum().item()"),
        (branch, "a tensor as a condition", "if x.sum() > 0:"),
        (through_numpy, ".numpy()", "return x * torch.from_numpy"),
        (as_list, "", "return x * x.tolist()[0]"),
        (as_number, "float(tensor)", "return x * float(x[0])"),
        (as_index, "a tensor as an index", "return x * [1, 2]"),
    ],
)
def test_value_dependent_formula_raises_with_its_line(formula, what, line):
    with pytest.raises(FormulaError) as refused:
        facts(formula, leaf(3))
    message = str(refused.value)
    assert what in message
    assert f"{__file__}:" in message
    assert line in message


@pytest.mark.parametrize(
    "formula",
    [
        lambda x: torch.distributions.Normal(x, 1.0, validate_args=True).log_prob(x * 2),
        lambda x: x * 2 if x.shape in x.shape[:0] or torch.equal(x, x) else x,
        lambda x: x[x > 0].sum(),
        lambda x: torch.repeat_interleave(x, torch.ones(3, dtype=torch.long)),
    ],
)
def test_value_reads_inside_pytorch_are_an_obstacle(formula):
    assert facts(formula, leaf(3)).obstacle
    x = leaf(3)
    ours, native = pullback.function(formula)(x), formula(x)
    assert torch.equal(ours, native)
    assert torch.equal(*(torch.autograd.grad(out.sum(), x)[0] for out in (ours, native)))


@pytest.mark.parametrize("write", [torch.Tensor.zero_, lambda x: x[0].fill_(1.0), lambda x: x.view(-1).add_(1)])
def test_write_to_an_input_raises(write):
    def formula(x, y):
        write(y)
        return x * y

    with pytest.raises(FormulaError, match=r"writes to its input \(tensor 2 of 2, of shape \(3,\)\)"):
        facts(formula, leaf(3), torch.ones(3, dtype=torch.float64))


def test_write_to_a_copy_of_an_expanded_input_is_allowed():
    x = torch.randn(67, 1).expand(67, 16).requires_grad_()
    assert "in place" in facts(lambda x: x.reshape(2, -1).mul_(2), x).obstacle
    with pytest.raises(FormulaError, match="writes to its input"):
        facts(lambda x: x.view(67, 16).mul_(2), x)


def test_write_to_an_input_that_requires_grad_raises():
    with pytest.raises(FormulaError, match=r"writes to its input \(tensor, of shape \(3,\)\)"):
        facts(lambda x: x.mul_(2), leaf(3))


@pytest.mark.parametrize(
    ("formula", "obstacle"),
    [
        (lambda x: x * torch.rand_like(x), "draws random numbers"),
        (lambda x: torch.nn.functional.dropout(x, 0.5), "draws random numbers"),
        (lambda x: x.clone().mul_(2), "works in place"),
        (lambda x: x.view(-1), "is a view of an input"),
        (lambda x: x, "is a view of an input"),
        (lambda x: x.to_sparse(), "returns a sparse tensor"),
        (lambda x: torch.linalg.lstsq(x, x).solution, "cannot be run without values"),
        (lambda x: str(x) and x * 2, "shows a tensor"),
        (lambda x: x * 2 if x.is_leaf else x * 3, "asks for `is_leaf`"),
        (lambda x: x * (x.grad_fn is None), "asks for `grad_fn`"),
        (lambda x: x * x.storage_offset(), "asks for `storage_offset`"),
        (lambda x: torch.as_strided(x, (2,), (1,), 1).sin(), "addresses the memory of an input"),
    ],
)
def test_unrepeatable_op_is_an_obstacle(formula, obstacle):
    assert obstacle in facts(formula, leaf(3, 3)).obstacle


def test_outputs_sharing_memory_are_an_obstacle():
    def halves(x):
        y = x * 2
        return [y[:1], y[1:]]

    assert "view" in facts_of(halves, [leaf(3)], "halves").obstacle


@pytest.mark.parametrize("requires_grad", [True, False])
def test_captured_tensor_is_an_obstacle(requires_grad):
    w = torch.ones(3, dtype=torch.float64, requires_grad=requires_grad)
    assert facts(lambda x: x * w, leaf(3)).obstacle == "it closes over a tensor"


def test_constant_from_numbers_is_no_obstacle():
    assert not facts(lambda x: x * torch.tensor([1.0, 2.0, 3.0]), leaf(3)).obstacle


def test_error_in_the_formula_reaches_the_caller():
    def wrong(x):
        return x @ torch.ones(5, 5, dtype=x.dtype)

    assert "cannot be run without values" in facts(wrong, leaf(3, 3)).obstacle
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        pullback.function(wrong)(leaf(3, 3))


def checkpointed(x):
    return torch.utils.checkpoint.checkpoint(lambda t: t.sin().exp(), x, use_reentrant=False)


def without_grad(x):
    with torch.no_grad():
        s = x.sin()
    return s * x.exp()


def hooked(x):
    y = x.exp()
    y.register_hook(lambda g: g.clamp(-0.5, 0.5))
    return y * 3


@pytest.mark.parametrize(
    "formula",
    [
        without_grad,
        hooked,
        checkpointed,
        lambda x: x * x.detach(),
        lambda x: x * x.data,
        lambda x: torch.autograd.grad((x**4).sum(), x, create_graph=True)[0],
        lambda x: torch.func.grad(lambda t: (t**4).sum())(x),
        lambda x: torch.func.jvp(lambda t: t**3, (x,), (x,))[1],
        lambda x: torch.vmap(lambda t: t.sin() * t)(x),
        lambda x: sum(x[i] * i for i in range(len(x))),
        lambda x: x * torch.arange(len(x), dtype=x.dtype) + x.numel(),
        lambda x: torch.as_strided(x.exp(), (2, 3), (1, 1)).sin(),
    ],
)
def test_graphs_keep_autograd_calls_of_the_formula(formula):
    op, x = pullback.function(formula), torch.linspace(0.3, 1.5, 4, dtype=torch.float64).requires_grad_()
    results = []
    for f in (op, formula):
        out = f(x)
        first = torch.autograd.grad(out.sum(), x, retain_graph=True)[0]
        recorded = torch.autograd.grad(out.sum(), x, create_graph=True)[0]
        second = torch.autograd.grad(recorded.sum(), x)[0] if recorded.requires_grad else torch.zeros(())
        results.append([out, first, recorded, second])
    for ours, native in zip(*results, strict=True):
        assert torch.allclose(ours, native, rtol=1e-13, atol=1e-15)
    assert all(isinstance(plan, KernelPlan) for plan in op._plans.plans.values())


def test_hook_on_an_input_is_an_obstacle():
    def hooks(x):
        x.register_hook(lambda g: g * 2)
        return x * 3

    assert "a hook on an input" in facts(hooks, leaf(3)).obstacle


def test_inputs_on_several_devices_raise():
    op = pullback.function(lambda x, y: x + y)
    with pytest.raises(pullback.FormulaError, match="several devices: input 0 on cpu, input 1 on meta"):
        op(torch.ones(3, requires_grad=True), torch.ones(3, device="meta"))
    scalar = torch.ones((), device="cpu")
    assert op(torch.ones(3, requires_grad=True), scalar).tolist() == [2, 2, 2]


@pytest.mark.parametrize("shard", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 8))])
def test_facts_match_a_real_call(shard):
    known = 0
    for name, entry in list(entries().items())[shard::8]:
        for function, tensors in samples(entry):
            if any(t.layout is not torch.strided for t in tensors):
                continue
            live = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
            with warnings.catch_warnings(), _torch.without_fake_tensor_log():
                warnings.simplefilter("ignore")
                found = facts_of(lambda *xs, f=function: _pytree.tree_leaves(f(*xs)), live, "f")
                if not found.obstacle and (real := _outputs(function, live)) is not None:
                    known += 1
                    assert [*map(_seen, found.outputs)] == [*map(_seen, real)], name
    assert known > 50


def _outputs(function, tensors):
    try:
        return _pytree.tree_leaves(function(*tensors))
    except RuntimeError:  # a kernel takes some layouts alone, of which fake tensors know nothing
        return None


def _seen(out):
    return (out.shape, out.dtype, out.device, out.requires_grad) if isinstance(out, torch.Tensor) else out


def samples(entry):
    """Yield functions of tensors alone, and tensors for them, of an entry of the operator database."""
    if torch.float32 not in entry.supported_backward_dtypes("cpu"):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(itertools.islice(entry.sample_inputs("cpu", torch.float32, requires_grad=True), 2))
    for sample in found:
        leaves, spec = _pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def function(*xs, leaves=leaves, spec=spec, at=at):
            filled = list(leaves)
            for i, x in zip(at, xs, strict=True):
                filled[i] = x
            x, args, kwargs = _pytree.tree_unflatten(filled, spec)
            return entry.op(x, *args, **kwargs)

        plain = [leaves[i].detach() for i in at]
        yield function, plain
        if any(t.dim() > 1 for t in plain) and all(t.layout is torch.strided for t in plain):
            yield function, [t.mT.contiguous().mT if t.dim() > 1 else t for t in plain]


def test_fake_inputs_have_the_metadata_of_the_real_ones():
    seen = []

    def look(x):
        seen.append((x.shape, x.stride(), x.dtype, x.device, x.layout, x.is_cpu, x.is_meta, x.is_cuda, x.get_device()))
        seen.append((x.numel(), x.nbytes, x.itemsize, x.is_contiguous(), x.is_floating_point(), x.storage_offset()))
        seen.append((x.requires_grad, x.is_leaf, x.is_sparse, x.is_quantized, x.is_nested, x.is_inference(), x.ndim))
        return x.sin()

    for x in (X, X.t(), X[1:, ::2], X.expand(2, 3, 4)):
        seen.clear()
        look(x)
        real = list(seen)
        seen.clear()
        facts(look, x)
        assert seen == real


def test_facts_do_not_run_writes_to_captured_tensors():
    counter = torch.zeros(())

    def counts(x):
        counter.add_(1)
        return x * counter

    assert "writes to a tensor" in facts(counts).obstacle
    assert counter == 0
    y = pullback.function(counts)(torch.ones(2))
    assert y.tolist() == [1.0, 1.0]


def test_batch_norm_counts_each_batch_once():
    def statistics(make):
        norm = torch.nn.BatchNorm1d(2, momentum=None)  # a cumulative mean, of as many batches as are counted
        f = make(lambda x: norm(x).sin())
        for i in range(3):
            f(torch.full((4, 2), float(i + 1)))
        return norm.num_batches_tracked.item(), norm.running_mean.tolist()

    assert statistics(pullback.function) == statistics(lambda f: f)


@pytest.mark.parametrize("draw", [random.random, numpy.random.rand])
def test_first_call_draws_from_python_and_numpy_once(draw):
    def numbers(f):
        random.seed(0)
        numpy.random.seed(0)
        return [f(torch.ones(1)).item() for _ in range(2)]

    def formula(x):
        return x * draw()

    assert numbers(pullback.function(formula)) == numbers(formula)
