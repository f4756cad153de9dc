"""The seventh part of the labels: packages that were chosen and read after the sixth part had been worked on.

They were chosen by field, before anything was known of them but that they hold custom functions and install as pure
Python. Here is what their proofs share beside `labels.fresh` and `labels.last`; see `labels.fresh` for what `make` is.
"""

from __future__ import annotations

import torch

from labels.fresh import Make, called, linear, prepared, raises


def argument_is_changed(make: Make) -> bool:
    """Whether the forward writes to an argument, and the output is not that argument."""
    function, arguments, which = prepared(make)
    before = [arguments[i].clone() for i in which]
    leaves = [arguments[i].requires_grad_() for i in which]
    outputs = called(function, arguments)
    is_other = all(y.data_ptr() != x.data_ptr() for y in outputs for x in leaves)
    return is_other and any(not torch.equal(x.detach(), b) for x, b in zip(leaves, before, strict=True))


def input_changes_with_output(make: Make) -> bool:
    """Whether an ordinary change of an output in place changes an input, and the input's version does not tell."""
    function, arguments, which = prepared(make)
    leaves = [arguments[i].requires_grad_() for i in which]
    before = [(x.detach().clone(), x._version) for x in leaves]
    for y in called(function, arguments):
        y.mul_(2)
    return any(
        torch.equal(x.detach(), 2 * b) and x._version == version for x, (b, version) in zip(leaves, before, strict=True)
    )


def one_output_raises(make: Make, position: int, *texts: str) -> bool:
    """Whether the backward fails where one of the outputs alone is used, and not where all are."""
    function, arguments, which = prepared(make)
    leaves = [arguments[i].requires_grad_() for i in which]
    torch.autograd.grad(linear(called(function, arguments)), leaves, allow_unused=True)
    one = linear(called(function, arguments)[position : position + 1])
    return raises(lambda: torch.autograd.grad(one, leaves, allow_unused=True), *texts)
