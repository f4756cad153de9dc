"""Losses by chunks of rows: the formula's value and derivatives in less memory."""

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import pullback
from pullback.errors import FormulaError, OptionError
from pullback.plan import ChunkPlan

ROWS, HIDDEN, CLASSES = 11, 5, 11
"""CLASSES equals ROWS, so that sizes cannot tell a weight from a batch."""


def inputs(dtype=torch.float64, rows=ROWS):
    x, w, y = torch.randn(rows, HIDDEN), torch.randn(CLASSES, HIDDEN), torch.randn(rows, CLASSES)
    k = torch.randint(CLASSES, (rows,))
    return [x.to(dtype).requires_grad_(), w.to(dtype).requires_grad_(), k, y.to(dtype)]


def cross_entropy(x, w, k, y):
    return F.cross_entropy(x @ w.t(), k)


def penalised(x, w, k, y):
    return F.cross_entropy(x @ w.t(), k) + (w**2).sum()


def smoothed(x, w, k, y):
    return F.cross_entropy(x @ w.t(), k, label_smoothing=0.1, ignore_index=2)


def weighted(x, w, k, y):
    return F.cross_entropy(x @ w.t(), k, weight=y[0].exp(), reduction="mean", ignore_index=3)


def summed(x, w, k, y):
    return F.cross_entropy(x @ w.t(), k, reduction="sum")


def smooth_and_weighted(x, w, k, y):
    return F.cross_entropy(x @ w.t(), k, weight=y.square().mean(0), label_smoothing=0.3)


def of_probabilities(x, w, k, y):
    return F.cross_entropy(x @ w.t(), y.softmax(1), label_smoothing=0.1)


def squares(x, w, k, y):
    return F.mse_loss(x @ w.t(), y)


def logistic(x, w, k, y):
    return F.binary_cross_entropy_with_logits(x @ w.t(), y.sigmoid())


def root(x, w, k, y):
    return F.mse_loss(x @ w.t(), y).sqrt()


def quotient(x, w, k, y):
    logits = x @ w.t()
    return logits.square().sum() / (logits.exp().sum() + w.square().sum())


def regularised(x, w, k, y):
    v = F.normalize(w, dim=1)
    return F.cross_entropy(x @ v.t() * 3, k) + 0.1 * v.cumsum(0).square().sum() + 0.2 * w.sum()


def with_z_loss(x, w, k, y):
    logits = x @ w.t()
    return F.cross_entropy(logits, k) + 1e-2 * logits.logsumexp(1).square().mean()


def by_indices(x, w, k, y):
    logp = (x @ w.t()).log_softmax(1)
    return -logp[torch.arange(len(x)), k].mean()


def masked(x, w, k, y):
    losses = F.cross_entropy(x @ w.t(), k, reduction="none")
    return torch.where(k > 4, losses, 0.0).sum() / (k > 4).sum()


def twice_shared(x, w, k, y):
    both = w + w.flip(1)
    return F.cross_entropy(x @ both.t() + x[:, :1] * both[:, 0], k)


def gram(x, w, k, y):
    return (x.t() @ torch.tanh(x @ w.t())).norm()


def focal(x, w, k, y):
    logp = (x @ w.t()).log_softmax(1).gather(1, k[:, None])[:, 0]
    return -((1 - logp.exp()) ** 2 * logp).mean()


LOSSES = [
    cross_entropy,
    penalised,
    smoothed,
    weighted,
    summed,
    smooth_and_weighted,
    of_probabilities,
    squares,
    logistic,
    root,
]
LOSSES += [quotient, regularised, with_z_loss, by_indices, masked, twice_shared, gram, focal]


def gradients(function, given, wanted=None, g=None):
    leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in given]
    wanted = [x for x in leaves if x.requires_grad] if wanted is None else [leaves[i] for i in wanted]
    out = function(*leaves)
    return out.detach(), torch.autograd.grad(out, wanted, g, allow_unused=True)


def op_of(loss, size=4, **options):
    return pullback.function(chunk=size, **options)(loss)


@pytest.mark.parametrize("size", [1, 4, ROWS, 100, "auto"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)
@pytest.mark.few(12)
def test_value_and_gradient_match_the_formula(loss, size):
    given = inputs()
    g = torch.tensor(1.7, dtype=torch.float64)
    ours, theirs = gradients(op_of(loss, size), given, g=g), gradients(loss, given, g=g)
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("loss", [smoothed, focal, logistic, quotient], ids=lambda f: f.__name__)
@pytest.mark.few(2)
def test_native_kernels_match_the_formula(loss):
    given = inputs()
    torch.testing.assert_close(gradients(op_of(loss), given), gradients(loss, given), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("loss", [cross_entropy, quotient], ids=lambda f: f.__name__)
def test_gradient_matches_finite_differences(loss):
    x, w, k, y = inputs()
    op = op_of(loss)
    assert torch.autograd.gradcheck(lambda x, w: op(x, w, k, y), (x, w))


@pytest.mark.parametrize("loss", [cross_entropy, quotient, regularised, root], ids=lambda f: f.__name__)
def test_second_derivatives_match_finite_differences(loss):
    x, w, k, y = inputs()
    op = op_of(loss)
    assert torch.autograd.gradgradcheck(lambda x, w: op(x, w, k, y), (x, w))


@pytest.mark.parametrize("wanted", [(0,), (1,), (3,), (0, 3), (1, 3)])
def test_gradients_only_for_inputs_that_require_grad(wanted):
    given = [x.detach().requires_grad_(i in wanted) for i, x in enumerate(inputs())]
    torch.testing.assert_close(gradients(op_of(squares), given), gradients(squares, given))


def scaled(x, w):
    return x.square().sum() * w.square().sum()


def stopped(x, w):
    return (x.detach() @ w.t()).square().mean() + 0 * x.detach().sum()


@pytest.mark.parametrize("loss", [scaled, stopped], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)])
def test_sums_without_gradient_match_the_formula(loss, dtype, wanted):
    given = [x.detach().requires_grad_(i in wanted) for i, x in enumerate(inputs(dtype)[:2])]
    if loss is stopped and wanted == (0,):
        assert not op_of(loss)(*given).requires_grad
    else:
        close = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 0.05, "atol": 1e-3}
        torch.testing.assert_close(gradients(op_of(loss), given), gradients(loss, given), **close)


def test_value_without_grad_matches_the_formula():
    given = inputs()
    op, expected = op_of(smoothed), smoothed(*given).detach()
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            out = op(*given)
        assert not out.requires_grad
        torch.testing.assert_close(out, expected)
    torch.testing.assert_close(op(*(x.detach() for x in given)), expected)
    with torch.inference_mode():
        torch.testing.assert_close(op_of(smoothed)(*(x.clone() for x in given)), expected)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5])
def test_any_number_of_rows_matches_the_formula(rows):
    given = inputs(rows=rows)
    torch.testing.assert_close(
        gradients(op_of(cross_entropy), given), gradients(cross_entropy, given), equal_nan=True, rtol=1e-11, atol=1e-12
    )


def test_all_ignored_rows_match_the_formula():
    x, w, _, y = inputs()
    for loss, ignored in ((cross_entropy, -100), (smoothed, 2), (masked, 0)):
        k = torch.full((ROWS,), ignored)
        ours, theirs = gradients(op_of(loss), [x, w, k, y]), gradients(loss, [x, w, k, y])
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_non_finite_outer_derivative_matches_the_formula():
    def rooted(x, mask):
        return torch.where(mask, x.exp(), 0.0).sum().sqrt()

    given = [torch.randn(ROWS, 3, requires_grad=True), torch.zeros(ROWS, 3, dtype=torch.bool)]
    torch.testing.assert_close(gradients(op_of(rooted), given), gradients(rooted, given), equal_nan=True)


def test_flattened_blocks_of_rows_match_the_formula():
    def flattened(x, w, k):
        return F.cross_entropy((x @ w.t()).flatten(0, 1), k.flatten(), ignore_index=1)

    x, w = torch.randn(7, 3, 4).double().requires_grad_(), torch.randn(6, 4).double().requires_grad_()
    given = [x, w, torch.randint(6, (7, 3))]
    torch.testing.assert_close(gradients(op_of(flattened, 2), given), gradients(flattened, given))


def test_strided_inputs_match_the_formula():
    x, w, k, y = inputs()
    given = [x.detach().t().contiguous().t().requires_grad_(), w.detach()[:, [0]].expand(-1, HIDDEN).requires_grad_()]
    given += [torch.stack([k, k], 1)[:, 0], y.t().contiguous().t()]
    op = op_of(smoothed)
    ours, theirs = (torch.autograd.grad(f(*given), given[:2]) for f in (op, smoothed))
    torch.testing.assert_close(ours, theirs)


# The autograd node


def test_retained_graph_repeats_gradients_after_the_first_are_overwritten():
    x, w, k, y = inputs()
    out = op_of(cross_entropy)(x, w, k, y)
    expected = torch.autograd.grad(cross_entropy(x, w, k, y), (x, w))
    for _ in range(3):
        found = torch.autograd.grad(out, (x, w), retain_graph=True)
        torch.testing.assert_close(found, expected)
        for g in found:
            g.zero_()
    torch.autograd.grad(out, (x, w))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out, (x, w))


def test_gradients_accumulate_over_backward_calls():
    x, w, k, y = inputs()
    for loss in (op_of(cross_entropy), cross_entropy):
        x.grad = w.grad = None
        (loss(x, w, k, y) + 2 * loss(x, w, k, y)).backward()
        loss(x, w, k, y).backward()
        if loss is not cross_entropy:
            ours = x.grad, w.grad
    torch.testing.assert_close(ours, (x.grad, w.grad))


def test_input_modified_before_backward_raises():
    x, w, k, y = inputs()
    out = op_of(cross_entropy)(x, w, k, y)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_inputs_are_unchanged_and_gradients_own_their_memory():
    given = inputs()
    before = [x.detach().clone() for x in given]
    _, found = gradients(op_of(twice_shared), given)
    op_of(twice_shared)(*given).backward()
    for x, y in zip(given, before, strict=True):
        assert torch.equal(x, y)
    memory = {t.untyped_storage().data_ptr() for t in (*given, *(x.grad for x in given if x.grad is not None))}
    assert len(memory) == len(given) + 2
    assert len(found) == 2


@pytest.mark.parametrize("loss", [cross_entropy, summed], ids=lambda f: f.__name__)
def test_autograd_node_is_freed_with_its_output(loss):
    x, w, k, y = inputs()
    out = op_of(loss)(x, w, k, y)
    node = weakref.ref(out.grad_fn)
    gc.disable()
    try:
        del out
        assert node() is None
    finally:
        gc.enable()


def test_batched_cotangents_match_the_formula():
    x, w, k, y = inputs()
    g = torch.randn(3, dtype=torch.float64)
    ours, theirs = (
        torch.autograd.grad(f(x, w, k, y), (x, w), g, is_grads_batched=True) for f in (op_of(squares), squares)
    )
    torch.testing.assert_close(ours, theirs)


# Outside plain eager mode the formula runs


def test_func_transforms_run_the_formula():
    x, w, k, y = inputs()
    op = op_of(cross_entropy)
    for transform in (torch.func.grad, torch.func.jacrev, torch.func.jacfwd, torch.func.hessian):
        torch.testing.assert_close(transform(op)(x, w, k, y), transform(cross_entropy)(x, w, k, y))
    batch = torch.stack([x, x + 1]).detach()
    ours, theirs = (torch.func.vmap(f, (0, None, None, None))(batch, w, k, y) for f in (op, cross_entropy))
    torch.testing.assert_close(ours, theirs)


def test_autocast_and_compile_run_the_formula():
    given = inputs(torch.float32)
    op = op_of(cross_entropy)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(gradients(op, given), gradients(cross_entropy, given))
    compiled = torch.compile(lambda *xs: op(*xs), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients(compiled, given), gradients(cross_entropy, given))


def test_checkpoint_recomputes_the_chunks():
    x, w, k, y = inputs()
    op = op_of(cross_entropy)
    out = checkpoint(lambda x: op(x.tanh(), w, k, y), x, use_reentrant=False)
    found = torch.autograd.grad(out, (x, w))
    torch.testing.assert_close(found, torch.autograd.grad(cross_entropy(x.tanh(), w, k, y), (x, w)))


# 16 bits


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("loss", [cross_entropy, smoothed, squares], ids=lambda f: f.__name__)
def test_sums_of_16_bit_values_accumulate_in_float32(loss, dtype):
    x, w, k, y = inputs(dtype, rows=1000)
    truth = gradients(loss, [*(t.detach().double().requires_grad_() for t in (x, w)), k, y.double()])
    ours, theirs = gradients(op_of(loss, 7), [x, w, k, y]), gradients(loss, [x, w, k, y])
    for i, true in enumerate((truth[0], *truth[1])):
        mine, other = (((of[0], *of[1])[i].double() - true).norm() / true.norm() for of in (ours, theirs))
        assert (ours[0], *ours[1])[i].dtype == dtype
        assert mine < 1.5 * other + torch.finfo(dtype).eps


def test_small_float16_gradients_do_not_underflow_before_scaling():
    x, w, k, y = inputs(torch.float16, rows=4000)
    tiny = [x.detach() * 1e-3, w.detach() * 1e-3]
    given = [*(t.requires_grad_() for t in tiny), k, y]
    g = torch.tensor(1024.0, dtype=torch.float16)
    _, ours = gradients(op_of(with_z_loss, 16), given, g=g)
    wide = [*(t.detach().double().requires_grad_() for t in tiny), k, y]
    _, truth = gradients(with_z_loss, wide, g=g.double())
    for mine, true in zip(ours, truth, strict=True):
        assert (mine.double() - true).norm() < 2e-2 * true.norm()


# Memory


PROGRAM = """
import re, sys
import torch
import torch.nn.functional as F
import pullback

torch.set_num_threads(1)
pullback.set_backend("eager")


def loss(x, w, k):
    return F.cross_entropy(x @ w.t(), k)


def largest():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\\s*(\\d+) kB", status.read())[1])


def call(function, rows, classes):
    x, w = torch.randn(rows, 8, requires_grad=True), torch.randn(classes, 8, requires_grad=True)
    torch.autograd.grad(function(x, w, torch.randint(classes, (rows,))), (x, w))


function = pullback.function(chunk=32)(loss) if sys.argv[1] == "op" else loss
call(function, 64, 8)
before = largest()
call(function, 2048, 8192)
print(largest() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
@pytest.mark.slow
def test_logits_exist_for_one_chunk_at_a_time():
    logits = 2048 * 8192 * 4 // 1024
    grown = {}
    for kind in ("op", "formula"):
        done = subprocess.run([sys.executable, "-c", PROGRAM, kind], capture_output=True, text=True, check=True)
        grown[kind] = int(done.stdout)
    assert grown["formula"] > 2 * logits
    assert grown["op"] < logits / 4


# Errors and messages


def test_expanded_rows_reused_after_a_sum_raise():
    d = torch.randn(1, 1).expand(12, 1).requires_grad_()
    with pytest.raises(FormulaError, match="`mul` combines `pow` over all rows with single rows"):
        pullback.function(lambda x, d: ((d * x).mean(0) ** 3 * d).sum(), chunk=4)(torch.randn(12, 5), d)


def test_expanded_columns_may_be_expanded_to_rows():
    x, b = torch.randn(10, 5), torch.zeros(()).expand(5).detach().requires_grad_()

    def loss(x, b):
        return ((x - b.expand(x.shape[0], 5)) ** 2).mean()

    (got,) = torch.autograd.grad(pullback.function(loss, chunk=4)(x, b), b)
    torch.testing.assert_close(got, torch.autograd.grad(loss(x, b), b)[0])


def test_loss_mixing_rows_raises_and_names_the_op():
    def centred(x, w):
        return ((x - x.mean(0)) @ w.t()).square().mean()

    x, w, *_ = inputs()
    with pytest.raises(
        FormulaError, match="`sub` combines `mean` over all rows with single rows, so rows are not independent"
    ):
        op_of(centred)(x, w)


def _two(x):
    return x.sum(), x.mean()


def _of_rows(x):
    return x.sum(1)


def _closure(x):
    return (x * AROUND).sum()


def _random(x):
    return F.dropout(x, 0.5).sum()


def _copied(x):
    return (x + x).copy_(x).sum()


AROUND = torch.ones(HIDDEN, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_weight_gradient_has_the_strides_of_the_weight(dtype):
    x, w = torch.randn(37, 8).to(dtype), torch.randn(11, 8).to(dtype).requires_grad_()
    op = pullback.function(chunk=8)(lambda x, w: (x @ w.t()).tanh().square().mean())
    assert torch.autograd.grad(op(x, w), w)[0].stride() == w.stride()


def _asking(x):
    return x.sin().sum() if x.requires_grad else x.cos().sum()


@pytest.mark.parametrize(
    ("formula", "why"),
    [
        (_asking, "asks for `requires_grad`"),
        (_two, "one real number"),
        (_of_rows, "one real number"),
        (_closure, "closes over"),
        (_random, "random"),
        (_copied, "in place"),
    ],
)
@pytest.mark.parametrize("grad", [True, False])
def test_unsupported_loss_raises(formula, why, grad):
    with pytest.raises(FormulaError, match=why):
        op_of(formula)(torch.ones(ROWS, HIDDEN, dtype=torch.float64, requires_grad=grad))


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "some"])
def test_invalid_chunk_size_raises(size):
    with pytest.raises(OptionError, match="number of rows"):
        pullback.function(chunk=size)


def test_chunk_raises_for_ruled_and_relaxed_ops():
    with pytest.raises(OptionError, match="chunk"):
        pullback.function(chunk=4, residuals=True)
    with pytest.raises(OptionError, match="chunk"):
        pullback.function(chunk=4, derivative_of=squares)
    with pytest.raises(OptionError, match="chunk"):
        op_of(squares).vjp(lambda g, out, x, w, k, y: (g, g, None, None))


def test_repr_and_explain_name_the_chunks():
    op = op_of(cross_entropy)
    assert repr(op).endswith(": derived, chunk=4>")
    page = op.explain(*inputs())
    assert f"Runs by chunks of 4 of {ROWS} rows" in page
    assert "computed: float64 [11, 5]" in page  # the gradients


def test_compile_makes_the_plans_ahead_of_calls():
    op, given = pullback.function(chunk=4)(Head.formula), inputs()[:3]
    op.compile(*given)
    assert [plan.run.args[0].differentiation is None for plan in op._plans.plans.values()] == [False, True]
    op(*given).backward()
    assert len(op._plans.plans) == 2


def passes(loss):
    """Sums that a first pass computes, and whether the loss depends on one sum alone, which needs no such pass."""
    op, given = op_of(loss), inputs()
    op(*given)
    (plan,) = op._plans.plans.values()
    differentiation = plan.run.args[0].differentiation
    return differentiation.ahead, differentiation.alone


def test_first_pass_computes_only_the_sums_that_the_gradient_needs():
    assert passes(summed) == ((), False)
    assert passes(squares) == ((), False)
    assert passes(cross_entropy) == ((1,), False)  # how many targets are not ignored
    assert passes(root) == ((0,), True)
    assert passes(quotient) == ((0, 1), False)


def test_calls_beyond_max_plans_still_run_by_chunks(monkeypatch):
    monkeypatch.setattr("pullback.plans.MAX_PLANS", 2)
    op = op_of(squares)
    for rows in (5, 6, 7, 5):
        given = inputs(rows=rows)
        torch.testing.assert_close(gradients(op, given), gradients(squares, given))
        assert isinstance(next(reversed(op._plans.plans.values())), ChunkPlan)


class Head:
    @staticmethod
    def formula(x, w, k):
        return F.cross_entropy(x @ w.t(), k)

    @pullback.function(chunk=4)
    def loss(self, x, w, k):
        return F.cross_entropy(x @ w.t(), k)

    @staticmethod
    @pullback.function(chunk=4)
    def static(x, *, w, k):
        return F.cross_entropy(x @ w.t(), k)


def test_keyword_arguments():
    x, w, k, y = inputs()
    expected = torch.autograd.grad(cross_entropy(x, w, k, y), (x, w))
    torch.testing.assert_close(torch.autograd.grad(Head.static(x, w=w, k=k), (x, w)), expected)


def test_unhashable_or_aliased_arguments_raise():
    x, w, k, _ = inputs()
    with pytest.raises(FormulaError, match="object of type Head"):
        Head().loss(x, w, k)
    with pytest.raises(FormulaError, match=r"the same tensor\. Pass a copy of one"):
        op_of(lambda x, y: F.mse_loss(x, y))(x, x)
