"""Graphs of tensors on a GPU, where there is none."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx


def graph_on_gpu(function, *tensors):
    """Return the graph of a function that returns a list, as if its tensors were on a GPU.

    It is traced on the CPU, since autograd of what is on a GPU ends a process that has no driver.
    """
    return moved(make_fx(lambda *xs: list(function(*xs)), tracing_mode="fake")(*tensors))


def moved(graph):
    """Have all values of a graph lie on a GPU."""
    with FakeTensorMode():
        for node in graph.graph.nodes:
            x = node.meta.get("val")
            if isinstance(x, torch.Tensor):
                node.meta["val"] = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")
    return graph
