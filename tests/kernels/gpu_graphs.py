"""Graphs of GPU tensors on a machine without a GPU, and inputs for them."""

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx


def graph_on_gpu(function, *tensors):
    """Return the graph of a function that returns a list, as if its tensors were on a GPU.

    It is traced on the CPU, since autograd of GPU tensors ends a process that has no driver.
    """
    return moved(make_fx(lambda *xs: list(function(*xs)), tracing_mode="fake")(*tensors))


def moved(graph):
    """Move all values of a graph to a GPU."""
    with FakeTensorMode():
        for node in graph.graph.nodes:
            x = node.meta.get("val")
            if isinstance(x, torch.Tensor):
                node.meta["val"] = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")
    return graph


LAYOUTS = {
    "as it is": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "every other column": lambda x: torch.stack([x, torch.full_like(x, torch.nan)], -1).flatten(1)[:, ::2],
    "from an offset": lambda x: torch.cat([torch.full_like(x[:1], torch.nan), x]).flatten()[x.shape[1] :].view(x.shape),
    "a row": lambda x: x[:1],
    "a column": lambda x: x[:, :1],
    "a vector": lambda x: x[0],
    "a number": lambda x: x[0, 0],
    "an expanded number": lambda x: x[0, 0].expand(x.shape),
    "expanded rows": lambda x: x[:1].expand(x.shape),
    "all alike in memory, but in part": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
}
"""From a 2-d tensor, a tensor that broadcasts to its shape; memory between its elements is NaN."""


ZEROS = torch.tensor([0.0, -0.0, 0.0, -0.0]), torch.tensor([0.0, 0.0, -0.0, -0.0])
EXTREMES = {
    "relu": lambda x, y: torch.relu(x),
    "clamp_min 0": lambda x, y: torch.clamp_min(x, 0.0),
    "clamp_max -0": lambda x, y: torch.clamp_max(x, -0.0),
    "clamp 0, 1": lambda x, y: torch.clamp(x, 0.0, 1.0),
    "clamp -1, -0": lambda x, y: torch.clamp(x, -1.0, -0.0),
    "relu6": lambda x, y: F.relu6(x),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}
"""Ops of signed zeros that return one of two equal operands, which differ in sign."""
