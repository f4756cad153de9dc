"""Activation checkpointing, and saved-tensor hooks."""

import functools

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tests.compose._contexts import cells, context, gradient, judge, leaf


def selective(policy):
    return functools.partial(create_selective_checkpoint_contexts, lambda ctx, op, *args, **kwargs: policy)


@context("memory", "checkpoint")
def non_reentrant(op):
    return gradient(lambda x: checkpoint(op, x, use_reentrant=False))


@context("memory", "checkpoint, create_graph", order=2)
def create_graph(op):
    x = leaf()
    (g,) = torch.autograd.grad(checkpoint(op, x, use_reentrant=False).sum(), x, create_graph=True)
    return torch.autograd.grad(g.sum(), x)[0]


@context("memory", "checkpoint, reentrant")
def reentrant(op):
    x = leaf()
    y = checkpoint(op, x, use_reentrant=True)
    y.sum().backward()
    return y, x.grad


@context("memory", "selective checkpoint, all saved")
def all_saved(op):
    saves = selective(CheckpointPolicy.MUST_SAVE)
    return gradient(lambda x: checkpoint(op, x, use_reentrant=False, context_fn=saves))


@context("memory", "selective checkpoint, all recomputed")
def all_recomputed(op):
    saves = selective(CheckpointPolicy.MUST_RECOMPUTE)
    return gradient(lambda x: checkpoint(op, x, use_reentrant=False, context_fn=saves))


@context("memory", "saved_tensors_hooks")
def hooks(op):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(force=True).copy(), torch.from_numpy):
        return gradient(op)


@context("memory", "save_on_cpu")
def save_on_cpu(op):
    with torch.autograd.graph.save_on_cpu():
        return gradient(op)


@context("memory", "disable_saved_tensors_hooks")
def no_hooks(op):
    with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
        return gradient(op)


@context("memory", "allow_mutation_on_saved_tensors")
def mutation_allowed(op):
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        x = leaf()
        inside = x * 1
        y = op(inside)
        inside.detach().zero_()
        return y.detach().clone(), torch.autograd.grad(y.sum(), x)[0]


@cells("memory")
def test_derivative_is_kept_under_checkpoint_and_hooks(row, column):
    judge(row, column)
