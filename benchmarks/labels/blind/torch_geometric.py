"""torch-geometric: what is known of its custom functions.

All three are covered. Truth: the Jacobian of the sparse products (they are linear) in float32, as they refuse float64
without weights; float64 central differences of the others (2e-11 and 6e-11), and the loss in plain PyTorch; frozen
arguments, strided inputs, double backward, two backwards, changes in place, leaks.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong, gradients, is_kept, output_change_is_unnoticed, raises, second_is_wrong

PACKAGE = Package(
    "torch-geometric",
    "2.8.1",
    "graphs",
    (
        "xxhash",
        "tqdm",
        "aiohttp",
        "aiosignal",
        "multidict",
        "frozenlist",
        "yarl",
        "propcache",
        "aiohappyeyeballs",
        "attrs",
    ),
)

ONCE = "once_differentiable: backward() raises, torch.autograd.grad may leave the term out"
TWICE = {"PB401": ONCE, "PB402": ONCE, "PB403": ONCE, "PB404": ONCE}
DOUBLE = "without weights the forward refuses float64, with PyTorch's message on sparse products"
EQUAL = "of a label that occurs twice, see below"
FREED = "documented: the input is freed, and one backward is allowed"
SPARSE = {"PB413": DOUBLE, "PB501": DOUBLE, "PB303": DOUBLE}

EDGES = torch.tensor([[0, 0, 1, 2, 2, 3], [1, 2, 2, 0, 3, 1]])


def _features(*shape):
    torch.manual_seed(0)
    return torch.randn(shape)


# Right: the Jacobian. The gradient of the weights is refused, clearly; with weights that need one it isn't called.
def product():
    from torch_geometric import EdgeIndex

    graph = EdgeIndex(EDGES, sparse_size=(4, 4), sort_order="row")

    def product(x):
        return graph.matmul(x)

    return product, (_features(4, 3),)


# Right: the Jacobian and float64 differences (1e-11).
def weighted_product():
    from torch_geometric import EdgeIndex

    graph = EdgeIndex(EDGES, sparse_size=(4, 4), sort_order="row")
    weights = torch.tensor([0.5, 0.1, 0.9, 0.3, 0.7, 0.2])

    def product(x):
        return graph.matmul(x, input_value=weights.to(x.dtype))

    return product, (_features(4, 3),)


# The backward never works: it builds the matrix of the forward with the sizes of its transpose.
def transposed_product():
    from torch_geometric import EdgeIndex

    graph = EdgeIndex(torch.tensor([[0, 2, 0, 1, 3, 2], [0, 0, 1, 1, 1, 2]]), sparse_size=(4, 3), sort_order="col")

    def product(x):
        return graph.matmul(x, transpose=True)

    return product, (_features(4, 2),)


# First order right: differences (2e-11).
def cross_entropy():
    from torch_geometric.utils.cross_entropy import SparseCrossEntropy

    return SparseCrossEntropy, (_features(4, 5), torch.tensor([[0, 0, 1, 2], [0, 3, 2, 4]]), None)


# First order right: differences (1e-11).
def weighted_cross_entropy():
    from torch_geometric.utils.cross_entropy import sparse_cross_entropy

    def loss(x):
        weights = torch.tensor([0.5, 1.0, 2.0, 0.3, -3.0], dtype=x.dtype)
        return sparse_cross_entropy(x, torch.tensor([[0, 0, 1, 2, 1], [0, 3, 2, 4, 1]]), weights)

    return loss, (_features(4, 5),)


# Wrong: differences. An interaction that happened twice is a label that occurs twice.
def cross_entropy_of_repeated_labels():
    from torch_geometric.utils.cross_entropy import SparseCrossEntropy

    return SparseCrossEntropy, (_features(4, 5), torch.tensor([[0, 0, 0, 2], [0, 3, 3, 4]]), None)


class _Convolution(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([[0.3, -0.2], [0.5, 0.7]], dtype=torch.float64))

    def forward(self, x, edges):
        near = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        return torch.tanh(near @ self.weight.to(x.dtype))


def _reversible(freeze):
    from torch_geometric.nn import GroupAddRev

    module = GroupAddRev(_Convolution(), num_groups=2).requires_grad_(not freeze)

    def layer(x):
        # It frees its input, which is an intermediate in a network.
        return module(x * 1.0, EDGES)

    return layer, (_features(4, 4),)


# First order right: differences (6e-11).
def reversible():
    return _reversible(freeze=False)


# The backward never works.
def frozen_reversible():
    return _reversible(freeze=True)


CALLS = (
    Call(product, doubtful=SPARSE),
    Call(weighted_product, doubtful=SPARSE),
    Call(
        transposed_product,
        bugs=(
            Bug(
                "the backward of a graph that isn't square raises: it takes the sizes of the transpose",
                ("PB119", "PB104"),
                partial(raises, partial(gradients, transposed_product, torch.float32), "cannot be multiplied"),
            ),
        ),
        doubtful=SPARSE,
    ),
    Call(cross_entropy, doubtful={**TWICE, "PB101": EQUAL}),
    Call(weighted_cross_entropy, doubtful={**TWICE, "PB101": EQUAL}),
    Call(
        cross_entropy_of_repeated_labels,
        bugs=(
            Bug(
                "a label that occurs twice counts twice in the value, and once in the gradient",
                ("PB101",),
                partial(first_is_wrong, cross_entropy_of_repeated_labels, 0),
            ),
        ),
        doubtful=TWICE,
    ),
    Call(
        reversible,
        bugs=(
            Bug(
                "the second derivative is silently wrong: a backward within the backward keeps no graph",
                ("PB401", "PB404", "PB403", "PB604"),
                partial(second_is_wrong, reversible),
            ),
            Bug(
                "the output is kept on ctx, in a list: changing it in place silently changes the gradient",
                ("PB201", "PB209"),
                partial(output_change_is_unnoticed, reversible),
            ),
            Bug(
                "the output is kept on ctx, in a reference cycle: it is not freed before the garbage collector runs",
                ("PB204", "PB201"),
                partial(is_kept, reversible),
            ),
        ),
        judged={
            "PB002": (False, "the audit read an output that the backward had freed"),
            "PB113": (True, "with the weights frozen the backward returns one gradient too many"),
        },
        doubtful={"PB206": FREED, "PB202": FREED, "PB119": FREED},
    ),
    Call(
        frozen_reversible,
        bugs=(
            Bug(
                "where no weight requires a gradient, the backward raises: it returns the input's gradient twice",
                ("PB103", "PB113", "PB119"),
                partial(raises, partial(gradients, frozen_reversible), "incorrect number of gradients"),
            ),
        ),
        doubtful={
            **dict.fromkeys(("PB206", "PB202"), FREED),
            **dict.fromkeys(("PB401", "PB404", "PB201", "PB204", "PB209"), "as of reversible"),
        },
    ),
)
