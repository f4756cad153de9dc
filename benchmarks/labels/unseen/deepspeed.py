"""deepspeed: what is known of its custom functions.

Six that run on a CPU in one process are covered, of some thirty. Truth: float64 central differences, of the loss in
float32. Weights that a call holds, frozen arguments, double backward, strided inputs and cotangents, two backwards,
checkpoints, changes in place, half precision, autocast.
"""

from functools import partial

import torch
from torch.nn.functional import cross_entropy, silu

from labels import Bug, Call, Package
from labels.fresh import gradients, input_change_is_unnoticed, raises, raises_when_frozen
from labels.last import cotangent_is_changed, derivative_of_backward_is_wrong, second_backward_raises
from labels.unseen import nothing_is_trained_without, weights_get_none

PACKAGE = Package(
    "deepspeed",
    "0.19.8",
    "training of language models",
    (
        "tqdm",
        "psutil",
        "hjson",
        "py-cpuinfo",
        "einops",
        "pydantic==2.14.4",
        "pydantic-core==2.50.5",
        "annotated-types",
        "typing-inspection",
    ),
)

WIDER = "the loss of each row is float32 whatever the logits are, by design"
PLAIN = "the sum of gradients is float32 whatever the weights are"


class _Perceptron(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up = torch.nn.Linear(4, 8, bias=False)
        self.down = torch.nn.Linear(8, 4, bias=False)

    def forward(self, x):
        return torch.nn.functional.linear(
            silu(torch.nn.functional.linear(x, self.up.weight.to(x.dtype))), self.down.weight.to(x.dtype)
        )


# Right, twice: differences.
def linear():
    from deepspeed.runtime.zero.linear import LinearFunctionForZeroStage3

    torch.manual_seed(0)
    return LinearFunctionForZeroStage3, (torch.randn(2, 3, 4), torch.randn(5, 4), torch.randn(5))


# Right: differences of float32.
def chunked_cross_entropy():
    from deepspeed.runtime.chunked_cross_entropy import _ChunkedCrossEntropy

    torch.manual_seed(0)
    return _ChunkedCrossEntropy, (torch.randn(5, 7), torch.tensor([1, 0, -100, 6, 3]), -100, 2)


# Right, once: differences.
def feed_forward():
    from deepspeed.sequence.fpdt_layer import FPDT_FFN

    torch.manual_seed(0)
    sizes = ((4, 2, 3), (6, 3), (6,), (3, 6), (3,))
    return (lambda *args: FPDT_FFN.apply(*args, True, 2)[0]), tuple(torch.randn(size) for size in sizes)


# First order right: differences.
def tiled_perceptron():
    from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledMLP

    module = _Perceptron()
    torch.manual_seed(1)
    return TiledMLP, (lambda module, x: module(x), module, torch.randn(2, 5, 4), 2, list(module.parameters()))


def _labelled(*size):
    torch.manual_seed(1)
    return torch.randn(*size, 4), torch.randint(0, 5, size), torch.randn(5, 4)


# First order right: differences.
def tiled_mean():
    from deepspeed.runtime.sequence_parallel.ulysses_sp import sequence_tiled_compute

    hidden, target, head = _labelled(1, 6)

    def loss(x, y):
        return cross_entropy((x @ head.to(x.dtype).t()).flatten(0, 1), y.flatten())

    return (lambda x: sequence_tiled_compute(loss, 6, 2, {"x": x, "y": target}, {}, "x", [], 0, "mean")), (hidden,)


# Wrong.
def tiled_logits():
    from deepspeed.runtime.sequence_parallel.ulysses_sp import sequence_tiled_compute

    hidden, _, head = _labelled(1, 6)

    def logits(x):
        return x @ head.to(x.dtype).t()

    return (lambda x: sequence_tiled_compute(logits, 6, 2, {"x": x}, {}, "x", [], 1, None)), (hidden,)


# First order right for the hidden states: differences.
def tiled_loss():
    from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledFusedLogitsLoss

    hidden, target, weight = _labelled(2, 3)
    head = torch.nn.Linear(4, 5, bias=False)
    head.weight = torch.nn.Parameter(weight)

    def loss(head, x, y):
        return cross_entropy(x @ head.weight.to(x.dtype).t(), y)

    return TiledFusedLogitsLoss, (loss, head, hidden, target, None, 2, [head.weight], "mean")


def _of_module(given):
    return list(given[1][1].parameters())


def input_is_overwritten():
    """Whether the backward leaves its result in the memory of the input."""
    function, arguments = feed_forward()
    x = arguments[0].requires_grad_()
    before = x.detach().clone()
    function(x, *(a.requires_grad_() for a in arguments[1:])).sum().backward()
    return not torch.allclose(x.detach(), before)


def head_ignores_scale():
    """Whether the weights get the same gradient of a loss and of a tenth of it, and the hidden states do not."""
    found = []
    for scale in (1.0, 0.1):
        function, arguments = tiled_loss()
        arguments[2].requires_grad_()
        (scale * function.apply(*arguments)).backward()
        found.append((arguments[1].weight.grad.clone(), arguments[2].grad.clone()))
    (weight, hidden), (other_weight, other_hidden) = found
    return torch.allclose(weight, other_weight) and torch.allclose(0.1 * hidden, other_hidden)


def _detached_again(make, position=0):
    return Bug(
        "the backward computes again on detached tensors: the second derivative is silently wrong",
        ("PB401", "PB402", "PB404", "PB604"),
        partial(derivative_of_backward_is_wrong, make, position),
    )


SHARED = False, "the audit had given two backwards one cotangent, which the first of them had divided"

CALLS = (
    Call(linear),
    Call(
        chunked_cross_entropy,
        doubtful={
            **dict.fromkeys(("PB303", "PB101", "PB105"), WIDER),
            "PB403": "the second derivative is refused in plain words",
            "PB209": "targets are whole numbers that nobody changes",
        },
    ),
    Call(
        feed_forward,
        bugs=(
            Bug(
                "the backward writes the gradient of the input into the input, silently: whoever reads it next gets that",
                ("PB203", "PB206", "PB807"),
                input_is_overwritten,
            ),
            Bug(
                "where the input needs no gradient nothing is saved, and the weights' backward raises",
                ("PB113",),
                partial(raises_when_frozen, feed_forward, 1, "not enough values to unpack"),
            ),
        ),
        doubtful={
            **dict.fromkeys(("PB303", "PB101", "PB105"), PLAIN),
            "PB401": "a double backward raises, as the input is written to",
            "PB403": "a double backward raises, as the input is written to",
        },
        judged={"PB119": (True, "the gradient is written to the input, which PyTorch refuses of one that is expanded")},
    ),
    Call(
        tiled_perceptron,
        bugs=(
            Bug(
                "torch.autograd.grad gives the weights None, and the backward adds to their .grad",
                ("PB118", "PB210", "PB107", "PB604"),
                partial(weights_get_none, tiled_perceptron, _of_module),
            ),
            Bug(
                "where the input needs no gradient, the output needs none either: silently, the weights are not trained",
                ("PB118", "PB113", "PB604"),
                partial(nothing_is_trained_without, tiled_perceptron),
            ),
            _detached_again(tiled_perceptron),
        ),
    ),
    Call(
        tiled_mean,
        bugs=(
            Bug(
                "the backward divides its cotangent in place by the number of tiles, silently",
                ("PB203",),
                partial(cotangent_is_changed, tiled_mean),
            ),
            Bug(
                "the hidden states are kept on ctx: a change in place silently changes the gradient",
                ("PB209", "PB201"),
                partial(input_change_is_unnoticed, tiled_mean, 0),
            ),
            _detached_again(tiled_mean),
        ),
        judged=dict.fromkeys(("PB409", "PB411", "PB412", "PB413", "PB414"), SHARED),
    ),
    Call(
        tiled_logits,
        bugs=(
            Bug(
                "where the outputs are wider than the inputs, the backward raises: it takes their shapes to be one",
                ("PB119",),
                lambda: raises(lambda: gradients(tiled_logits), "invalid for input of size"),
            ),
        ),
        doubtful={"PB201": "the hidden states are kept on ctx", "PB209": "the hidden states are kept on ctx"},
    ),
    Call(
        tiled_loss,
        bugs=(
            Bug(
                "the weights get their gradient in the forward, before the loss is scaled: silently not that of the loss",
                ("PB118", "PB210", "PB107", "PB604"),
                head_ignores_scale,
            ),
            Bug(
                "the backward multiplies a saved tensor in place: a second one over a retained graph raises",
                ("PB206",),
                partial(second_backward_raises, tiled_loss, "modified by an inplace operation", dtype=None),
            ),
            _detached_again(tiled_loss),
        ),
        doubtful={"PB205": "the gradient is kept, not an argument"},
    ),
)
