"""torchinterp1d: what is known of its custom function.

`Interp1d` is covered with points and values of one dimension. With two, the saved output, in place of the inner graph
that it stands for, leads back to the function itself: its backward calls itself until no thread is left, which is no
label, for running it ends the process. Truth: PyTorch's error.
"""

import torch

from labels import Bug, Call, Package
from labels.fresh import gradients, raises

PACKAGE = Package("torchinterp1d", "1.1", "interpolation")


def _function():
    from torchinterp1d import interp1d

    torch.manual_seed(0)
    return interp1d


# Wrong.
def one_row():
    return _function(), (torch.linspace(0, 1, 5), torch.randn(5), torch.rand(4))


# Wrong.
def rows_of_queries():
    x = torch.linspace(0, 1, 5)
    function = _function()
    return (lambda y, queries: function(x.to(y.dtype), y, queries)), (torch.randn(5), torch.rand(3, 4))


def _unused(make):
    return Call(
        make,
        bugs=(
            Bug(
                "what is saved of arguments of one dimension are views that the inner graph does not know: it raises, always",
                ("PB119", "PB101"),
                lambda: raises(lambda: gradients(make), "not have been used in the graph"),
            ),
        ),
        judged={
            "PB002": (True, "without rows of queries the backward calls itself until the process has no thread left")
        },
    )


CALLS = tuple(map(_unused, (one_row, rows_of_queries)))
