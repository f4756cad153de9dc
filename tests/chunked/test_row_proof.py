"""Proof that a loss is a function of sums over rows: proven losses equal their chunks, others name the op."""

import inspect

import pytest
import torch
import torch.nn.functional as F

from pullback.chunked.row_rules import split_by_rows
from pullback.graph.trace import graph_of

ROWS = 6
"""Equal to the number of rows and columns of `w`, so that a size proves nothing."""


def tensors(seed=0):
    random = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    return {
        "x": normal(ROWS, 6),
        "y": normal(ROWS, 6),
        "w": normal(6, 6),
        "v": normal(6),
        "k": torch.randint(6, (ROWS,), generator=random),
        "z": normal(ROWS, 3, 6),
        "kk": torch.randint(6, (ROWS, 3), generator=random),
        "mask": torch.rand(ROWS, generator=random) > 0.4,
        "kernel": normal(2, 3, 3),
        "p": torch.rand(ROWS, 6, generator=random, dtype=torch.float64),
    }


def divided(formula):
    given = tensors()
    args = [given[name] for name in inspect.signature(formula).parameters]
    graph = graph_of(lambda *xs: [formula(*xs)], args, [i for i, a in enumerate(args) if a.is_floating_point()])
    return (graph if isinstance(graph, str) else split_by_rows(graph)), args


def by_chunks(split, args, size):
    made = split.before(*args)
    shared, rows = made[: split.n_shared], [*(args[i] for i in split.inputs), *made[split.n_shared :]]
    sums = None
    for start in range(0, split.rows, size):
        parts = [x[start : start + size] for x in rows]
        found = split.per_chunk(len(parts[0]), *parts, *shared)
        sums = found if sums is None else [a + b for a, b in zip(sums, found, strict=True)]
    return split.after(*sums, *shared)[0]


SUMS = [
    # losses
    lambda x, y: F.mse_loss(x, y),
    lambda x, y: F.mse_loss(x, y, reduction="sum"),
    lambda x, y: F.mse_loss(x, y, reduction="none").mean(),
    lambda x, y: F.smooth_l1_loss(x, y, beta=0.3),
    lambda x, y: F.huber_loss(x, y, delta=0.7),
    lambda x, y: F.soft_margin_loss(x, y.sign().detach()),
    lambda x, p, v: F.binary_cross_entropy_with_logits(x, p, weight=v.detach().exp(), pos_weight=v.detach().exp()),
    lambda x, p: F.binary_cross_entropy(x.sigmoid(), p),
    lambda x, p: F.kl_div(x.log_softmax(1), p, reduction="batchmean"),
    lambda x, w, k: F.cross_entropy(x @ w.t(), k),
    lambda x, w, k: F.cross_entropy(x @ w.t(), k, reduction="sum", ignore_index=3),
    lambda x, w, k: F.cross_entropy(x @ w.t(), k, ignore_index=3),
    lambda x, k, v: F.cross_entropy(x, k, weight=v.detach().exp(), ignore_index=2),
    lambda x, k, v: F.cross_entropy(x, k, weight=v.detach().exp(), label_smoothing=0.2),
    lambda x, k: F.cross_entropy(x, k, label_smoothing=0.2, ignore_index=1),
    lambda x, p: F.cross_entropy(x, p.softmax(1)),
    lambda x, w, k: F.cross_entropy(F.linear(x, w, w[0]), k),
    lambda z, w, kk: F.cross_entropy((z @ w.t()).flatten(0, 1), kk.flatten()),
    lambda z, w, kk: F.cross_entropy((z @ w.t()).transpose(1, 2), kk),
    lambda x, k: F.nll_loss(x.log_softmax(1), k),
    lambda x, k: x.gather(1, k[:, None]).mean(),
    lambda x, k: -x.log_softmax(1)[torch.arange(ROWS), k].mean(),
    lambda x, y: F.cross_entropy(x @ y.t(), torch.arange(ROWS)),  # each row of x against all of y
    # sums and what is done with them
    lambda x: (x * x).sum().sqrt(),
    lambda x: x.exp().sum(0).log().sum(),
    lambda x, y: (x * y).sum() / (y * y).sum(),
    lambda x, mask: (x.square().sum(1) * mask).sum() / mask.sum(),
    lambda x, mask: torch.where(mask, x.square().sum(1), 0.0).sum() / mask.sum().clamp(min=1),
    lambda x, w: (x @ w).square().mean() + 0.1 * w.square().sum(),
    lambda x: (x.t() @ x).square().sum(),
    lambda x, y: torch.dot(x.sum(1), y.sum(1)),
    lambda x, y: torch.einsum("ni,nj->ij", x, y).norm(),
    lambda x: x.sum() / x.shape[0],
    lambda x: ((x / x.shape[0]) ** 2).sum(),
    # ops that keep rows apart
    lambda x, w: F.normalize(x @ F.normalize(w, dim=1), dim=1).cumsum(1).sum(),
    lambda x, v: F.layer_norm(x, (6,), v).square().sum(),
    lambda x, v: (x @ v).square().sum(),
    lambda x, v: torch.mv(x, v).square().sum(),
    lambda x, y: torch.bmm(x[:, None], y[:, :, None]).squeeze().square().sum(),
    lambda z, w: torch.einsum("ntc,vc->nvt", z, w).square().sum(),
    lambda z: z.transpose(0, 1).transpose(1, 2).reshape(3, 6, ROWS).sum((0, 1)).square().sum(),
    lambda z: z.permute(2, 0, 1).flatten(1).square().sum(),
    lambda z: z.reshape(ROWS, 18).unflatten(1, (9, 2)).amax(2).sum(),
    lambda x: torch.cat([x, x * 2], 1).square().sum(),
    lambda x: torch.stack([x, x * 2]).square().sum(),
    lambda x: torch.cat([c * i for i, c in enumerate(x.split(2, 1))], 1).square().sum(),
    lambda x: sum(c.square() * i for i, c in enumerate(x.unbind(1))).sum(),
    lambda x: F.pad(x, (1, 2)).square().sum(),
    lambda x: x.sort(1).values[:, 0].sum() + x.topk(2, 1).values.sum() + x.flip(1)[:, 1].sum(),
    lambda x: (x - x.amax(1, keepdim=True).detach()).logsumexp(1).sum(),
    lambda x: (x - x.mean(1, keepdim=True)).square().sum() + x.var(1).sum() + x.std(1, keepdim=True).sum(),
    lambda x: (x.argmax(1) == 2).sum() + x.max(1).values.sum() + torch.linalg.vector_norm(x, dim=1).sum(),
    lambda x, w, k: (w[k] * x).sum() + F.embedding(k, w).square().sum() + w.index_select(0, k).sum(),
    lambda x, v, k: (v.gather(0, k) * x[:, 0]).sum() + x.index_select(1, torch.arange(3)).sum(),
    lambda x, k: (x * torch.zeros(ROWS, 6, dtype=x.dtype).scatter(1, k[:, None], 1.0)).sum(),
    lambda x, v: (x * v.expand(ROWS, 6)).sum(),
    lambda x: (x.unsqueeze(1).expand(ROWS, 2, 6) * torch.ones_like(x)[:, None]).sum(),
    lambda x: F.glu(x).sum() + F.softplus(x).sum() + F.logsigmoid(x).sum(),
    lambda x, y: torch.where(x > 0, x, y).double().clamp(-1, 1).masked_fill(y > 1, 0.5).sum(),
    lambda x: x[:].square().sum() + x[:ROWS].sum(),
    lambda x: (x * torch.linspace(0, 1, ROWS, dtype=x.dtype)[:, None]).sum(),
    lambda x, v: (x.t() @ v).square().sum(),
    lambda x, y: torch.bmm(x[None], y.t()[None]).square().sum(),
]


@pytest.mark.parametrize("formula", SUMS, ids=lambda f: inspect.getsource(f).strip()[:90])
@pytest.mark.parametrize("size", [1, 4, ROWS])
@pytest.mark.few(52)
def test_proven_losses_equal_their_sums_over_chunks(formula, size):
    split, args = divided(formula)
    assert not isinstance(split, str), split
    assert 0 in split.inputs
    torch.testing.assert_close(by_chunks(split, args, size), formula(*args), rtol=1e-12, atol=1e-12)


MIXED = [
    ("`mean` over all rows with single rows", lambda x: (x - x.mean(0)).square().sum()),
    ("sub", lambda x: (x - x.mean(0)).square().sum()),
    ("native_batch_norm", lambda x: F.batch_norm(x, None, None, training=True).square().sum()),
    ("mm", lambda x, k: F.cross_entropy(x @ x.t(), k)),
    ("mm", lambda x, y: (x @ y.t() @ x).square().sum()),
    ("_softmax", lambda x: x.softmax(0).square().sum()),
    ("_log_softmax", lambda x, k: F.cross_entropy(x.t(), k)),
    ("cumsum", lambda x: x.cumsum(0).square().sum()),
    ("amax", lambda x: x.amax(0).sum()),
    ("max", lambda x: x.max()),
    ("var", lambda x: x.var(0).sum()),
    ("logsumexp", lambda x: x.logsumexp(0).sum()),
    ("linalg_vector_norm", lambda x: x.norm()),
    ("prod", lambda x: x.prod()),
    ("sort", lambda x: (x.sort(0).values[:, 0] * x[:, 1]).sum()),
    ("topk", lambda x: x.topk(2, 0).values.sum()),
    ("flip", lambda x: (x.flip(0) * x).sum()),
    ("roll", lambda x: (x.roll(1, 0) * x).sum()),
    ("slice", lambda x: (x[1:] - x[:-1]).square().sum()),
    ("slice", lambda x: x[::2].sum()),
    ("select", lambda x: x[0].sum()),
    ("select", lambda x: x[-1].sum()),
    ("split", lambda x: sum(p.square().sum() for p in x.split(3))),
    ("unbind", lambda x: sum(p.square().sum() for p in x.unbind())),
    ("cat", lambda x: torch.cat([x, x]).sum()),
    ("constant_pad_nd", lambda x: F.pad(x, (0, 0, 1, 0)).sum()),
    ("add", lambda x: (x + x.t()).square().sum()),
    ("mul", lambda x, k: (x[:, 0] * x).sum()),  # rows against columns
    ("view", lambda x: x.view(3, 12).square().sum()),
    ("view", lambda x: x.unsqueeze(0).view(2, 18).sum()),
    ("gather", lambda x, k: x.gather(0, k[None]).sum()),
    ("index", lambda x, k: x[k].sum()),
    ("index", lambda x, k: x[:, k].sum()),
    ("index", lambda x, w, k: (w[k[:, None], k] * x).sum()),
    ("index", lambda x, w, k: (w[k, torch.arange(6).flip(0)] * x[:, 0]).sum()),
    ("take", lambda x, k: x.take(k).sum()),
    ("embedding", lambda x, k: F.embedding(k, x).sum()),
    ("view", lambda x: x.detach().view(torch.int64).sum() * x.sum()),
    ("nll_loss_forward", lambda x, k: F.cross_entropy(x, k.sort().values)),
    ("nll_loss_forward", lambda x, w, k: F.cross_entropy(x @ w.t(), k) + F.nll_loss(w.log_softmax(1), k)),
    ("index_select", lambda x: x.index_select(0, torch.arange(3)).sum()),
    ("index", lambda x, k: x[torch.arange(ROWS).flip(0), k].sum()),
    ("bmm", lambda x: torch.bmm(x[None], x.t()[None]).square().sum()),
    ("convolution", lambda z, kernel: F.conv1d(z.detach(), kernel.detach()).square().sum() + z.sum()),
    ("no_grad", lambda x, y: (1 - F.cosine_similarity(x, y)).mean()),  # PyTorch clamps its norms so
    ("mv", lambda x, v: (x.t() @ v).square().sum() + (x @ v).sum()),
    ("addmm", lambda x, w: torch.addmm(w, x, w).square().sum()),
    ("addmm", lambda x, w: torch.addmm(w, x.t(), x).square().sum()),
    ("layer_norm", lambda x: F.layer_norm(x, (ROWS, 6)).square().sum()),
    ("cdist", lambda x: torch.cdist(x, x).sum()),
    ("is the result", lambda x, kernel: kernel.sum()),
    ("add", lambda x: (x.sum(1) + x.sum()).square().sum()),
    ("embedding", lambda x, w, k: (F.embedding(k, w, scale_grad_by_freq=True) * x).sum()),
]


@pytest.mark.parametrize(("op", "formula"), MIXED, ids=[f"{op}-{i}" for i, (op, _) in enumerate(MIXED)])
def test_mixing_rows_is_refused_and_names_the_op(op, formula):
    why, _ = divided(formula)
    assert isinstance(why, str)
    assert op in why


def test_weight_with_as_many_rows_is_shared_by_all_chunks():
    split, _ = divided(lambda x, w, k: F.cross_entropy(x @ w.t(), k))
    assert split.inputs == (0, 2)


def test_input_that_may_have_rows_is_split():
    split, _ = divided(lambda x, y: x.sum() + y.sum())
    assert split.inputs == (0, 1)


def _without_grad(x):
    with torch.no_grad():
        largest = x.amax(1, keepdim=True)
    return (x * largest).sum()


def _with_rule(x):
    return _Rule.apply(x).sum()


class _Rule(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3


@pytest.mark.parametrize("formula", [_without_grad, _with_rule])
def test_hidden_derivatives_are_refused(formula):
    why, _ = divided(formula)
    assert "derivative" in why


def _in_place(x):
    y = x * 2
    y.masked_fill_(x > 0, 0.0).exp_()
    return y.sum()


def _through_a_view(x):
    y = x * 2
    y[:, 0].fill_(0.0)
    return y.sum()


def test_in_place_ops_on_intermediates_are_functionalised():
    split, args = divided(_in_place)
    assert torch.allclose(by_chunks(split, args, 4), _in_place(*args))
    assert "in place" in divided(_through_a_view)[0]
