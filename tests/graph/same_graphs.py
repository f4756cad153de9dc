"""Graphs of what is recorded here beside those of `make_fx`, node by node."""

import itertools
import warnings

import torch
from torch import fx
from torch.utils import _pytree

from pullback import _torch
from pullback.graph import record


def with_gradient(function):
    """Return a function of tensors that returns its results, and the gradients of what is differentiable."""

    def both(*given):
        xs = [x.detach().requires_grad_(x.is_floating_point()) for x in given]
        with torch.enable_grad():
            outs = [out for out in _pytree.tree_leaves(function(*xs)) if isinstance(out, torch.Tensor)]
        names = record.names_traced()
        roots = [out for out in outs if out.requires_grad]
        leaves = [x for x in xs if x.requires_grad]
        grads = _torch.pulled(roots, leaves, [torch.ones_like(r) for r in roots], keep=True) if roots else []
        return [outs, grads, len(names)]

    return both


def differences(function, *tensors):
    """Return None where a function is not recorded here, and else how its graph differs from that of `make_fx`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = record._recorded(function, tensors)
        if not isinstance(ours, fx.GraphModule):
            return None
        with _torch.quiet_fake_tensors():
            return _unlike(ours, _torch.trace_ops(function, *tensors), tensors)


def _unlike(ours, theirs, tensors):
    mine, others = list(ours.graph.nodes), list(theirs.graph.nodes)
    if str(ours.graph) != str(theirs.graph) or ours.code != theirs.code:
        return f"{ours.graph}\n{theirs.graph}"
    for a, b in zip(mine, others, strict=True):
        if (a.op, a.name, a.target) != (b.op, b.name, b.target):
            return f"{a.format_node()}, not {b.format_node()}"
        if _shown((a.args, a.kwargs)) != _shown((b.args, b.kwargs)):
            return f"{a.name}: {a.args} {a.kwargs}, not {b.args} {b.kwargs}"
        if a.op == "get_attr":
            x, y = getattr(ours, a.target), getattr(theirs, b.target)
            if x.dtype != y.dtype or not torch.equal(x, y):
                return f"constant {a.name}: {x}, not {y}"
        if _kinds(a, strides=False) != _kinds(b, strides=False):
            return f"{a.format_node()} {a.args}: {_kinds(a)}, not {_kinds(b)}"
    if _memory(mine) != _memory(others):
        return f"memory: {_memory(mine)}, not {_memory(others)}\n{ours.graph}"
    if any(_kinds(a) != _kinds(b) for a, b in zip(mine, others, strict=True)):
        return _Real(ours).run(*tensors)
    return ""


class _Real(fx.Interpreter):
    """Runs a graph to see which strides tensors have: where fake tensors say others, they are wrong."""

    def run_node(self, node):
        result = super().run_node(node)
        if node.op not in ("placeholder", "output", "get_attr") and _kinds(node) != _kinds(result):
            self.wrong = f"{node.format_node()}: {_kinds(node)}, but is {_kinds(result)}"
        return result

    def run(self, *tensors):
        self.wrong = ""
        super().run(*tensors)
        return self.wrong


def _shown(arguments):
    """Return arguments with their types, nodes by their names."""
    return fx.node.map_aggregate(arguments, lambda v: v.name if isinstance(v, fx.Node) else (type(v).__name__, repr(v)))


def _kinds(node, strides=True):
    values = node.meta.get("val") if isinstance(node, fx.Node) else node
    return [
        (tuple(v.shape), strides and v.stride(), v.dtype, v.device, v.storage_offset())
        for v in _pytree.tree_leaves(values)
        if isinstance(v, torch.Tensor)
    ]


def _memory(nodes):
    """Return which nodes share memory, by the first that does."""
    first = {}
    return {
        node.name: first.setdefault(_torch.storage_of(node.meta["val"]), node.name)
        for node in nodes
        if isinstance(node.meta.get("val"), torch.Tensor)
    }


def samples(entry):
    """Yield functions of tensors alone, and tensors for them, of an entry of the operator database."""
    if torch.float32 not in entry.supported_backward_dtypes("cpu"):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(itertools.islice(entry.sample_inputs("cpu", torch.float32, requires_grad=True), 2))
    for sample in found:
        leaves, spec = _pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def function(*xs, leaves=leaves, spec=spec, at=at):
            filled = list(leaves)
            for i, x in zip(at, xs, strict=True):
                filled[i] = x
            x, args, kwargs = _pytree.tree_unflatten(filled, spec)
            return entry.op(x, *args, **kwargs)

        plain = [leaves[i].detach() for i in at]
        yield function, plain
        if any(t.dim() > 1 for t in plain) and all(t.layout is torch.strided for t in plain):
            yield function, [t.mT.contiguous().mT if t.dim() > 1 else t for t in plain]
