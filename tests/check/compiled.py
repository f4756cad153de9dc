"""A stand-in for a GPU that compiles: kernels run on the fake accelerator, by the interpreter that Triton has itself.

As a program, with TRITON_INTERPRET=1, audits the functions of `compiled_kernels.py` there and prints their findings as
JSON. Where the compiler is told to be wrong, its exponential is 1 % too large.
"""

import json
import os
import sys
from types import SimpleNamespace

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import pullback

from .accelerator import NAME, There, compute

WRONG = "WRONG_COMPILER"


def install_driver():
    """Install a driver whose benchmarks say that every kernel takes a second."""
    import triton

    def bench(run, quantiles=None):
        run()
        return [1.0] * len(quantiles or (1,))

    triton.runtime.driver.set_active(SimpleNamespace(get_benchmarker=lambda: bench))


def launch_on_values():
    """Have kernels work on the values that tensors of the device have on the CPU."""
    from triton.runtime.interpreter import InterpretedFunction

    run = InterpretedFunction.run

    def launch(self, *args, **kwargs):
        return run(self, *(x.here if isinstance(x, There) else x for x in args), **kwargs)

    InterpretedFunction.run = launch


def miscompile():
    """Have the exponential of compiled kernels be wrong."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    right = InterpreterBuilder.create_exp
    InterpreterBuilder.create_exp = lambda self, x: TensorHandle(right(self, x).data * 1.01, x.dtype.scalar)


def audited(function):
    """Return rule, severity and message of the findings, and their reproductions by rule."""
    example = torch.linspace(-1, 2, 37).to(NAME)
    report = pullback.check(function, example, select=("PB0", "PB101", "PB905", "PB909"), budget=60)
    told = [(f.rule, f.severity, f.message) for f in report.findings]
    return told, {f.rule: f.reproduce for f in report.findings}


if __name__ == "__main__":
    _setup_privateuseone_for_python_backend(NAME)
    library = torch.library.Library("_", "IMPL")
    library.fallback(compute, "PrivateUse1")
    install_driver()
    launch_on_values()
    if os.environ.get(WRONG):
        miscompile()
    from .compiled_kernels import Exp, ExpOfTwoBlocks, WrongExp

    json.dump({cls.__name__: audited(cls) for cls in (Exp, WrongExp, ExpOfTwoBlocks)}, sys.stdout)
