"""transformers: what is known of its custom functions.

Six are covered, of some twenty, of as many models; most others need a GPU or several processes. Truth: float64 central
differences (below 1e-6), to second order too, and the formulas of what is straight-through or clipped. Half precision,
autocast, rows that are masked as a whole, strided inputs and cotangents, `torch.compile`, changes in place.
"""

from importlib import import_module

import torch

from labels import Call, Package

PACKAGE = Package(
    "transformers",
    "5.24.0",
    "language models",
    (
        *("huggingface-hub", "pyyaml", "regex", "tokenizers", "safetensors", "tqdm", "filelock", "fsspec", "httpx2"),
        *(
            "httpcore2",
            "h11",
            "anyio",
            "idna",
            "certifi",
            "sniffio",
            "truststore",
            "click",
            "typer",
            "rich",
            "shellingham",
        ),
    ),
)

TAILS = "digits are lost in the tails, as in PyTorch's own; in float16 squares overflow beyond 780"
BOUNDED = "by design, and named so: the gradient of the root is clipped near 0"
BELOW = "a root of negative numbers is NaN"
NEGATIVE = "the mask is an argument; where it is false the gradient is 0"
STRAIGHT = "straight-through: scale and bounds are not trained"
CONSTANT = "the scale is a constant, kept as an attribute of ctx"
ORDERS = "both orders are arguments, each the inverse of the other, kept as attributes of ctx"


def _model(name):
    return import_module(f"transformers.models.{name}")


def _hidden():
    torch.manual_seed(0)
    return torch.randn(2, 3, 4)


# First and second order right: differences.
def gelu():
    return _model("bloom.modeling_bloom").GeLUFunction, (_hidden(),)


# Right, for what it is.
def bounded_square_root():
    return _model("recurrent_gemma.modeling_recurrent_gemma").SqrtBoundDerivative, (_hidden().sigmoid(),)


# First and second order right: differences.
def masked_softmax():
    mask = torch.arange(4) < torch.tensor([3, 2, 4]).unsqueeze(1)
    return _model("sew_d.modeling_sew_d").XSoftmax, (_hidden(), mask.repeat(2, 1, 1), -1)


# First and second order right, for the mask that is drawn: differences.
def dropout():
    return _model("sew_d.modeling_sew_d").XDropout, (_hidden(), 0.3)


# First and second order right: differences.
def reverse_sort():
    torch.manual_seed(0)
    order = torch.stack([torch.randperm(5) for _ in range(4)]).view(2, 2, 5)
    vectors, logits = torch.randn(2, 2, 5, 3), torch.randn(2, 2, 5)
    return _model("reformer.modeling_reformer").ReverseSort, (vectors, logits, order, order.argsort(-1))


# Straight-through, right.
def integer_quantisation():
    return _model("ibert.quant_modules").SymmetricQuantFunction, (_hidden(), 8, False, torch.tensor([0.02]))


CALLS = (
    Call(gelu, doubtful={"PB301": TAILS, "PB302": TAILS, "PB303": TAILS}),
    Call(bounded_square_root, "other", doubtful={"PB101": BOUNDED, "PB301": BELOW, "PB302": BOUNDED, "PB303": BOUNDED}),
    Call(masked_softmax, doubtful={"PB101": NEGATIVE}),
    Call(dropout),
    Call(reverse_sort, doubtful=dict.fromkeys(("PB101", "PB201", "PB209"), ORDERS)),
    Call(
        integer_quantisation,
        "other",
        doubtful={
            **dict.fromkeys(("PB201", "PB209"), CONSTANT),
            **dict.fromkeys(("PB101", "PB107"), STRAIGHT),
            "PB103": "there is one None more than arguments, which PyTorch drops",
            "PB105": "of half precision the output is float32",
        },
    ),
)
