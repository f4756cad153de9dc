"""Small custom functions, and audits in the process of the test."""

import torch
from torch.autograd import Function

from pullback.check.audit import Audit
from pullback.check.case import make_case
from pullback.check.cases.signature import positional_names
from pullback.check.derivative.first_order import first_order
from pullback.check.find.discover import subject_of
from pullback.check.subject import Options


def function(value, gradient):
    """Return a Function of one tensor that computes `value(x)` and whose backward is `gradient(g, x)`."""

    class Custom(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return value(x)

        @staticmethod
        def backward(ctx, g):
            return gradient(g, *ctx.saved_tensors)

    return Custom


def normal(*shape, seed=0, dtype=torch.float64):
    """Return standard normal values."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def uniform(*shape, low=0.0, high=1.0, seed=0):
    """Return values uniform between `low` and `high`."""
    return low + (high - low) * torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Silent:
    """Events of an audit that collects findings and steps."""

    def __init__(self):
        self.findings = []
        self.steps = []

    def step(self, rule, what, reproduce):
        self.steps.append((rule, what, reproduce))

    def beat(self):
        pass

    def finding(self, finding):
        self.findings.append(finding)


def case_of(target, *args, **kwargs):
    """Return the case that an audit would make of these arguments."""
    subject = subject_of(target)
    return make_case(args, kwargs, positional_names(subject), nested=subject.kind != "function")


def audit_of(target, *args, seed=0, **kwargs):
    """Return the state of an audit of `target` that has run no rule yet."""
    return Audit(subject_of(target), Options(seed=seed), case_of(target, *args, **kwargs), [], Silent())


def compare(target, *args, directions=3, seed=0, **options):
    """Compare the gradient of `target` with the numeric derivative of its forward, by the defaults of an audit."""
    generator = torch.Generator().manual_seed(seed)
    return first_order(subject_of(target), case_of(target, *args), generator, directions, **options)


def status(target, *args, **options):
    """Return the status of the comparison of each input."""
    return [comparison.status for comparison in compare(target, *args, **options).comparisons]
