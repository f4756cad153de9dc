"""memory-efficient-attention-pytorch: what is known of its custom functions.

Its two FlashAttention functions are covered, with the arguments that their modules pass; left out is the reversible
one, which is that of reformer-pytorch. Truth: softmax attention in float64 by autograd (3e-7 in float32), and central
differences of the function itself. In float64 the first refuses to run (of a conversion), so it is differenced in float32.
"""

from functools import partial

import torch
from torch.nn.functional import normalize

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong, raises, second_is_wrong

PACKAGE = Package("memory-efficient-attention-pytorch", "0.1.6", "attention", needs=("einops",))

WIDE = "float64 is refused: value cannot be converted to type float without overflow"
SAVED = "the output is saved: changing it in place raises, with PyTorch's message"
BATCH = "a vectorised backward raises: the backward works in place"
DOUBTFUL = {"PB209": SAVED, "PB408": BATCH, "PB001": WIDE}
EMPTY = "documented: a row whose keys are all masked is 0, and has no gradient"


def _heads(queries, keys):
    torch.manual_seed(0)
    return torch.randn(1, 2, queries, 4), torch.randn(1, 2, keys, 4), torch.randn(1, 2, keys, 4)


def _flash():
    from memory_efficient_attention_pytorch.flash_attention import FlashAttentionFunction

    return FlashAttentionFunction


# First order right: softmax attention (2e-7).
def flash():
    return _flash(), (*_heads(6, 6), None, False, 2, 3)


# First order right: softmax attention (1e-7).
def flash_causal():
    return _flash(), (*_heads(6, 6), None, True, 2, 3)


# First order right: softmax attention (1e-7).
def flash_masked():
    mask = torch.tensor([[True, True, True, True, False, False]])
    return _flash(), (*_heads(6, 6), mask, False, 2, 3)


# Wrong: differences (float32).
def flash_causal_with_more_keys():
    return _flash(), (*_heads(4, 6), None, True, 2, 3)


def _cosine(scale, causal):
    from memory_efficient_attention_pytorch.cosine_sim_flash_attention import FlashAttentionFunction

    q, k, v = _heads(6, 6)
    return FlashAttentionFunction, (normalize(q, dim=-1), normalize(k, dim=-1), v, None, scale, causal, 2, 3)


# First order right: softmax attention (5e-7), differences.
def cosine():
    return _cosine(8, False)


# Wrong: differences (2e-2), and softmax attention (0.2, value and gradients). The scale is the default of the module.
def cosine_of_default_scale():
    return _cosine(16, False)


def _autocast(kind):
    from importlib import import_module

    module = import_module(f"memory_efficient_attention_pytorch.{kind}").FlashAttention
    made = module(dim=8, heads=2, dim_head=4, q_bucket_size=2, k_bucket_size=3)
    x = torch.randn(1, 6, 8, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = made(x)
    return y.float().sum().backward()


def module_raises_in_autocast(kind):
    return raises(partial(_autocast, kind), "expected scalar type")


def graph_is_lost(make):
    """As `second_is_wrong`, in float32: without a graph the gradient is a constant."""
    function, arguments = make()
    q = arguments[0].clone().requires_grad_()
    y = function.apply(q, *arguments[1:])
    (gradient,) = torch.autograd.grad(torch.tanh(y).sum(), q, create_graph=True)
    return not gradient.requires_grad


def _bugs(make, kind, lost):
    return (
        Bug(
            "the gradient comes without a graph under create_graph: what it adds to a second derivative is lost",
            ("PB401", "PB404", "PB403", "PB604"),
            lost,
        ),
        Bug(
            "the backward raises where queries, keys and values are bfloat16, as those of the module are under autocast",
            ("PB413", "PB119"),
            partial(module_raises_in_autocast, kind),
        ),
    )


def _flash_bugs(make):
    return _bugs(make, "flash_attention", partial(graph_is_lost, make))


def _cosine_bugs(make):
    return _bugs(make, "cosine_sim_flash_attention", partial(second_is_wrong, make))


CALLS = (
    Call(flash, bugs=_flash_bugs(flash), doubtful=DOUBTFUL),
    Call(flash_causal, bugs=_flash_bugs(flash_causal), doubtful=DOUBTFUL),
    Call(flash_masked, bugs=_flash_bugs(flash_masked), doubtful={**DOUBTFUL, "PB302": EMPTY}),
    Call(
        flash_causal_with_more_keys,
        bugs=(
            Bug(
                "rows that see no key average all values, and their gradient is not that of an average",
                ("PB101", "PB301"),
                partial(first_is_wrong, flash_causal_with_more_keys, 2, tolerance=0.1, dtype=torch.float32, eps=1e-2),
            ),
            *_flash_bugs(flash_causal_with_more_keys),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(cosine, bugs=_cosine_bugs(cosine), doubtful=DOUBTFUL),
    Call(
        cosine_of_default_scale,
        bugs=(
            Bug(
                "row sums below 1e-6, the rule with the default scale, are clamped, and the backward takes them as they were",
                ("PB101", "PB303"),
                partial(first_is_wrong, cosine_of_default_scale, 0, tolerance=0.01, eps=1e-4),
            ),
            *_cosine_bugs(cosine_of_default_scale),
        ),
        doubtful=DOUBTFUL,
    ),
)
