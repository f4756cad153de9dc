"""verl: what is known of its custom functions.

Four are covered, of thirteen: those that run on a CPU in one process. Truth: the same in PyTorch's operations, and
float64 central differences. Weights, frozen arguments, double backward, strided inputs and cotangents, two backwards,
checkpoints, changes in place, half precision, autocast.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import bare, raises_with
from labels.last import derivative_of_backward_is_wrong, transposed_cotangent_raises
from labels.unseen import nothing_is_trained_without, second_differs, weights_get_none

PACKAGE = Package("verl", "0.9.1", "reinforcement learning", ("einops",))

WIDER = "logits are taken to float32 whatever the hidden states are, by design"
FUSED = dict.fromkeys(("PB303", "PB101", "PB105", "PB102"), WIDER)


class _Perceptron(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gate_proj = torch.nn.Linear(4, 8, bias=False)
        self.up_proj = torch.nn.Linear(4, 8, bias=False)
        self.down_proj = torch.nn.Linear(8, 4, bias=False)
        self.act_fn = torch.nn.functional.silu


def _fused(*size):
    bare("verl", "verl.utils", "verl.utils.experimental")
    from verl.utils.experimental.torch_functional import FusedLinearForPPOFunction

    torch.manual_seed(0)
    hidden, weights, ids = torch.randn(*size, 4), torch.randn(7, 4), torch.randint(0, 7, size)
    return FusedLinearForPPOFunction, (hidden, weights, ids, 0.7, 2)


# Right, twice: PyTorch.
def log_probabilities():
    return _fused(5)


# First order right: PyTorch.
def log_probabilities_of_batch():
    return _fused(2, 3)


# First order right: differences.
def tiled_perceptron():
    bare("verl", "verl.models", "verl.models.transformers")
    from verl.models.transformers.tiled_mlp import TiledMLP, _mlp_forward_fn

    module = _Perceptron().double()
    torch.manual_seed(1)
    x = torch.randn(2, 6, 4, dtype=torch.float64)
    return TiledMLP, (_mlp_forward_fn, module, x, 2, list(module.parameters()))


# Right, twice, where rows are taken once: differences.
def rows():
    bare("verl", "verl.utils")
    from verl.utils.npu_flash_attn_utils import IndexFirstAxis

    torch.manual_seed(1)
    return IndexFirstAxis, (torch.randn(6, 2, 3), torch.tensor([0, 2, 3, 5]))


# Right, twice: differences.
def put_rows():
    bare("verl", "verl.utils")
    from verl.utils.npu_flash_attn_utils import IndexPutFirstAxis

    torch.manual_seed(1)
    return IndexPutFirstAxis, (torch.randn(4, 3), torch.tensor([0, 2, 3, 5]), 6)


def _reference(hidden, weights, ids, temperature, _):
    logs = (hidden @ weights.t() / temperature).log_softmax(-1)
    return logs.gather(-1, ids[..., None])[..., 0], -(logs.exp() * logs).sum(-1)


def _transposed(_, x):
    return x.transpose(0, -1).contiguous().transpose(0, -1) if isinstance(x, torch.Tensor) else x


ONCE = "the package passes the places of tokens that are no padding, each once"
TOGETHER = "it raises where the cotangents of both outputs are undefined, by an assertion that is meant"

CALLS = (
    Call(log_probabilities, doubtful={**FUSED, "PB112": TOGETHER}),
    Call(
        log_probabilities_of_batch,
        bugs=(
            Bug(
                "a view of the hidden states is saved, to which no graph leads: their second derivative is silently wrong",
                ("PB401", "PB404"),
                partial(second_differs, log_probabilities_of_batch, _reference, 0),
            ),
        ),
        doubtful={**FUSED, "PB112": TOGETHER},
    ),
    Call(
        tiled_perceptron,
        bugs=(
            Bug(
                "inputs that do not lie in memory in order, which the forward takes, make the backward raise",
                ("PB119", "PB501", "PB101"),
                partial(raises_with, tiled_perceptron, _transposed, "view size is not compatible"),
            ),
            Bug(
                "cotangents that do not lie in memory in order make the backward raise",
                ("PB502",),
                partial(transposed_cotangent_raises, tiled_perceptron, "view size is not compatible"),
            ),
            Bug(
                "torch.autograd.grad gives the weights None, and the backward adds to their .grad",
                ("PB118", "PB210", "PB107", "PB604"),
                partial(weights_get_none, tiled_perceptron, lambda given: list(given[1][1].parameters())),
            ),
            Bug(
                "where the input needs no gradient, the output needs none either: silently, the weights are not trained",
                ("PB118", "PB113", "PB604"),
                partial(nothing_is_trained_without, tiled_perceptron),
            ),
            Bug(
                "the backward computes again on detached tensors: the second derivative is silently wrong",
                ("PB401", "PB402", "PB404", "PB604"),
                partial(derivative_of_backward_is_wrong, tiled_perceptron),
            ),
        ),
    ),
    Call(
        rows,
        doubtful={
            **dict.fromkeys(("PB101",), ONCE),
            "PB207": "the output is a view of what the forward made",
        },
    ),
    Call(put_rows),
)
