"""reformer-pytorch: what is known of its custom functions.

There is one, `_ReversibleFunction` of `reformer_pytorch.reversible`; it is called as the package does, by
`ReversibleSequence` and by `Reformer`. Its argument is x alone: the weights are read from the blocks, and their
gradients are written by backwards nested in the backward.

Truth: the package has an irreversible twin of its blocks (`reverse_thres`), which is plain autograd; with the same seed
values and gradients after `.backward()` are equal to 1e-15. Float64 central differences agree as well.
"""

import torch
from torch import nn

from labels import Bug, Call, Package

PACKAGE = Package(
    "reformer-pytorch",
    "1.4.4",
    "reversible networks",
    needs=(
        "einops==0.8.2",
        "local-attention==1.11.2",
        "axial-positional-embedding==0.3.12",
        "product-key-memory==0.3.0",
        "colt5-attention==0.11.2",
        "hyper-connections==0.4.11",
    ),
)


class FeedForward(nn.Module):
    """What a block of the package holds, at its smallest."""

    def __init__(self, width, dropout):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 8), nn.GELU(), nn.Dropout(dropout), nn.Linear(8, width)
        )

    def forward(self, x):
        return self.net(x)


def network(dropout=0.0, threshold=0, dtype=torch.float32):
    from reformer_pytorch.reversible import ReversibleSequence

    torch.manual_seed(0)
    blocks = nn.ModuleList([nn.ModuleList([FeedForward(4, dropout), FeedForward(4, dropout)]) for _ in range(2)])
    return ReversibleSequence(blocks, reverse_thres=threshold).to(dtype)


def batch(dtype=torch.float32):
    torch.manual_seed(1)
    return torch.randn(2, 5, 8, dtype=dtype)


def reformer(threshold=0, dtype=torch.float32, **options):
    from reformer_pytorch import Reformer

    torch.manual_seed(0)
    return Reformer(
        dim=16, depth=2, heads=2, bucket_size=4, n_hashes=2, ff_chunks=1, reverse_thres=threshold, **options
    ).to(dtype)


def differ(found, expected):
    return bool((found - expected).norm() > 1e-3 * expected.norm())


# --- the calls


def sequence():
    # Twin and central differences, for x and for the weights.
    return network(), (batch().requires_grad_(),)


def sequence_with_dropout():
    # Twin and central differences with a fixed seed: the masks are drawn again from the state kept.
    return network(dropout=0.3), (batch().requires_grad_(),)


def lsh_attention():
    # Twin with the same seed: the hash buckets are fetched from a cache, the rotations drawn again.
    torch.manual_seed(1)
    return reformer(), (torch.randn(2, 16, 16).requires_grad_(),)


def attention_with_keys():
    # As ReformerEncDec calls its decoder: what the encoder returns comes in as `keys`. Twin.
    model = reformer(use_full_attn=True)

    def decoder(x, keys):
        return model(x, keys=keys)

    torch.manual_seed(1)
    return decoder, (torch.randn(2, 16, 16).requires_grad_(), torch.randn(2, 8, 16).requires_grad_())


# --- the proofs


def no_training_without_gradient_of_x():
    x = batch()
    return not network()(x).requires_grad and network(threshold=100)(x).requires_grad


def no_training_of_reformer():
    torch.manual_seed(1)
    x = torch.randn(1, 16, 16)
    return not reformer()(x).requires_grad and reformer(threshold=100)(x).requires_grad


def gradient_of_weights_is_none():
    model = network()
    weights = list(model.parameters())
    found = torch.autograd.grad(model(batch().requires_grad_()).square().sum(), weights, allow_unused=True)
    twin = network(threshold=100)
    expected = torch.autograd.grad(twin(batch()).square().sum(), list(twin.parameters()), allow_unused=True)
    return all(g is None for g in found) and all(g is not None for g in expected)


def grad_writes_to_weights():
    model = network()
    x = batch().requires_grad_()
    torch.autograd.grad(model(x).square().sum(), x)
    return any(p.grad is not None for p in model.parameters())


def change_of_output_is_unnoticed():
    x = batch(torch.float64).requires_grad_()
    weight = torch.randn(2, 5, 8, dtype=torch.float64)
    expected = torch.autograd.grad(network(dtype=torch.float64)(x), x, weight)[0]
    y = network(dtype=torch.float64)(x)
    y.mul_(2)  # the derivative of what comes before it does not change
    found = torch.autograd.grad(y, x, weight)[0] / 2
    return differ(found, expected)


def second_derivative(threshold):
    z = batch(torch.float64).requires_grad_()
    y = network(threshold=threshold, dtype=torch.float64)(z**2)
    (g,) = torch.autograd.grad(torch.tanh(y).sum(), z, create_graph=True)
    return torch.autograd.grad(g.square().sum(), z)[0]


def second_derivative_is_wrong():
    return differ(second_derivative(0), second_derivative(100))


def another_call_between(threshold, make, x):
    model = make(threshold)
    x = x.clone().requires_grad_()
    torch.manual_seed(3)
    y = model(x)
    model(0.5 * x.detach().requires_grad_())
    return torch.autograd.grad(y.square().sum(), x)[0]


def dropout_of_another_call():
    def make(threshold):
        return network(dropout=0.3, threshold=threshold, dtype=torch.float64)

    x = batch(torch.float64)
    return differ(another_call_between(0, make, x), another_call_between(100, make, x))


def buckets_of_another_call():
    def make(threshold):
        return reformer(threshold=threshold, dtype=torch.float64)

    torch.manual_seed(1)
    x = torch.randn(2, 16, 16, dtype=torch.float64)
    return differ(another_call_between(0, make, x), another_call_between(100, make, x))


def raises_in_eval(make, x):
    make(100).eval()(x.requires_grad_()).sum().backward()  # the twin does not
    y = make(0).eval()(x)
    try:
        y.sum().backward()
    except TypeError:
        return True
    return False


def sequence_raises_in_eval():
    return raises_in_eval(lambda threshold: network(threshold=threshold), batch())


def reformer_raises_in_eval():
    return raises_in_eval(lambda threshold: reformer(threshold=threshold), torch.randn(1, 16, 16))


def keys_get_none():
    decoder, (x, keys) = attention_with_keys()
    found = torch.autograd.grad(decoder(x, keys).square().sum(), (x, keys), allow_unused=True)
    twin = reformer(threshold=100, use_full_attn=True)
    expected = torch.autograd.grad(twin(x, keys=keys).square().sum(), (x, keys))
    return not differ(found[0], expected[0]) and found[1] is None and bool(expected[1].norm() > 0)


def keys_are_not_trained_without_gradient_of_x():
    decoder, (x, keys) = attention_with_keys()
    twin = reformer(threshold=100, use_full_attn=True)
    return not decoder(x.detach(), keys).requires_grad and twin(x.detach(), keys=keys).requires_grad


WEIGHTS = Bug(
    "the weights are no arguments: torch.autograd.grad gives them None",
    ("PB118", "PB107", "PB604"),
    gradient_of_weights_is_none,
)
UNTRAINED = Bug(
    "where x needs no gradient, the output needs none either, and the weights are not trained",
    ("PB118", "PB113", "PB604"),
    no_training_without_gradient_of_x,
)
WRITTEN = Bug(
    "the backward runs a nested backward that adds to the .grad of the weights, even where only x was asked for",
    ("PB210", "PB118"),
    grad_writes_to_weights,
)
OUTPUT = Bug(
    "the output is kept on ctx, detached: an in-place change of it silently changes the gradient",
    ("PB201", "PB209"),
    change_of_output_is_unnoticed,
)
SECOND = Bug(
    "the gradient comes without a graph under create_graph: what the block adds to a second derivative is lost",
    ("PB401", "PB404", "PB403", "PB604"),
    second_derivative_is_wrong,
)
EVAL = Bug(
    "in eval mode the backward raises: the state of the generator, not recorded, is None",
    ("PB119", "PB120"),
    sequence_raises_in_eval,
)
# OUTPUT is left out where the call does not return that output itself. Not counted as a bug: weights changed between
# forward and backward are taken as they are then, as by torch.utils.checkpoint.

CALLS = (
    Call(
        sequence,
        bugs=(
            WEIGHTS,
            UNTRAINED,
            WRITTEN,
            OUTPUT,
            SECOND,
            EVAL,
        ),
    ),
    Call(
        sequence_with_dropout,
        bugs=(
            WEIGHTS,
            UNTRAINED,
            WRITTEN,
            OUTPUT,
            SECOND,
            Bug(
                "the state of the generator is kept on the block: a second call before the backward of the first one "
                "gives that one its own dropout masks",
                ("PB120", "PB602", "PB507"),
                dropout_of_another_call,
            ),
            EVAL,
        ),
    ),
    Call(
        lsh_attention,
        bugs=(
            WEIGHTS,
            Bug(
                "where x needs no gradient (as in the README), the output needs none either",
                ("PB118", "PB113", "PB604"),
                no_training_of_reformer,
            ),
            WRITTEN,
            SECOND,
            Bug(
                "buckets and generator state are kept on the module: a second call before the backward of the first "
                "one makes that one's gradient wrong",
                ("PB120", "PB507", "PB602"),
                buckets_of_another_call,
            ),
            Bug(
                "in eval mode the backward raises: the state of the generator, not recorded, is None",
                ("PB119", "PB120"),
                reformer_raises_in_eval,
            ),
        ),
        doubtful={
            "PB601": "the hash rotations are random by design; the same seed gives the same values",
            "PB101": "where a change of x moves a vector to another hash bucket, the value jumps",
        },
    ),
    Call(
        attention_with_keys,
        bugs=(
            WEIGHTS,
            Bug(
                "keys are no argument of the function: torch.autograd.grad gives them None",
                ("PB107", "PB118", "PB604"),
                keys_get_none,
            ),
            Bug(
                "where x needs no gradient, keys get none either",
                ("PB113", "PB118", "PB604"),
                keys_are_not_trained_without_gradient_of_x,
            ),
            WRITTEN,
            SECOND,
            EVAL,
        ),
        judged={"PB102": (True, "forward mode loses the keys as reverse mode does: they are no argument")},
    ),
)
