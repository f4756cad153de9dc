"""ring-attention-pytorch: what is known of its custom function.

`RingFlashAttentionFunction` is covered on one machine, where it is flash attention. It takes float32 alone. Truth:
attention in PyTorch's operations, and central differences. Masks, shared heads, frozen arguments, double backward,
strided inputs and cotangents, two backwards, checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.fresh import first_is_wrong
from labels.unseen import second_differs

PACKAGE = Package("ring-attention-pytorch", "0.5.20", "attention", ("einops", "beartype", "jaxtyping", "wadler-lindig"))

SUMS = "the sums of a row are float32, and the forward takes nothing else"
DOUBTFUL = {
    **dict.fromkeys(("PB303", "PB105", "PB119"), SUMS),
    "PB413": "under autocast the forward raises where it masks, which is loud",
    **dict.fromkeys(("PB201", "PB209"), "the mask is kept on ctx: it gets no gradient, and is not changed"),
}


def _function(queries=6, keys=6, heads=2, shared=2):
    bare("ring_attention_pytorch")
    from ring_attention_pytorch.ring_flash_attention import RingFlashAttentionFunction

    torch.manual_seed(0)
    sizes = ((1, queries, heads, 4), (1, keys, shared, 4), (1, keys, shared, 4))
    return RingFlashAttentionFunction, tuple(torch.randn(size) for size in sizes)


def _arguments(mask=None, causal=False, bucket=3, lookback=None, clamp=None):
    return mask, causal, bucket, False, False, lookback, 1, clamp is not None, clamp or 50.0


# First order right: differences.
def plain():
    function, tensors = _function()
    return function, (*tensors, *_arguments())


# First order right: differences.
def causal_with_shared_keys():
    function, tensors = _function(heads=4)
    return function, (*tensors, *_arguments(causal=True))


# First order right: differences.
def masked():
    function, tensors = _function()
    mask = torch.tensor([[True, True, False, True, True, False]])
    return function, (*tensors, *_arguments(mask, bucket=2))


# First order right: differences.
def clamped():
    function, tensors = _function()
    return function, (*tensors, *_arguments(causal=True, bucket=4, clamp=2.0))


# Wrong.
def fewer_queries():
    function, tensors = _function(queries=2)
    return function, (*tensors, *_arguments(causal=True, bucket=1024))


def _attention(q, k, v, mask, causal, *others):
    """Plain attention; a value for clamping comes last."""
    clamp, value = others[-2:]
    groups = q.shape[2] // k.shape[2]
    k, v = (x.repeat(1, 1, groups, 1) for x in (k, v))
    weights = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    if clamp:
        weights = torch.tanh(weights / value) * value
    if mask is not None:
        weights = weights.masked_fill(~mask[:, None, None], -torch.inf)
    if causal:
        later = torch.ones(weights.shape[-2:], dtype=torch.bool).triu(1 + k.shape[1] - q.shape[1])
        weights = weights.masked_fill(later, -torch.inf)
    return torch.einsum("bhij,bjhd->bihd", weights.softmax(-1), v)


def _lost(make):
    return Bug(
        "the backward runs under no_grad: the second derivative is silently wrong",
        ("PB401", "PB402", "PB604", "PB404"),
        partial(second_differs, make, _attention),
    )


CALLS = (
    *(Call(make, bugs=(_lost(make),), doubtful=DOUBTFUL) for make in (plain, causal_with_shared_keys, masked, clamped)),
    Call(
        fewer_queries,
        bugs=(
            Bug(
                "where there are fewer queries than keys, the backward masks others than the forward: wrong, silently",
                ("PB101",),
                partial(first_is_wrong, fewer_queries, 0, 0.05, torch.float32, 1e-2),
            ),
        ),
        doubtful={
            **DOUBTFUL,
            **dict.fromkeys(("PB401", "PB402", "PB604", "PB404"), "the first order is wrong already"),
        },
    ),
)
