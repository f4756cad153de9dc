"""Search for stable forms of the pointwise parts of five formulas that are not pointwise, and the cost of a call.

    python benchmarks/parts.py [NAME …]

Each search takes from seconds to minutes. Writes no file.
"""

import sys
import time

import torch
from torch import Tensor

import pullback
from pullback.errors import FormulaError
from pullback.stable.certificate import label
from pullback.stable.search.certify import certify_parts

SHAPE = (1024, 1000)
ROUNDS = 12


def softplus_sum(x: Tensor) -> Tensor:
    return torch.log(1 + torch.exp(x)).sum(-1)


def bce(x: Tensor, y: Tensor) -> Tensor:
    return (-(y * torch.log(torch.sigmoid(x)) + (1 - y) * torch.log(1 - torch.sigmoid(x)))).mean()


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (torch.log(p) - torch.log(q))).sum(-1)


def norm_silu(x: Tensor, w: Tensor) -> Tensor:
    n = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w
    return n / (1 + torch.exp(-n))


def softmax(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


FORMULAS = {f.__name__: (f, n) for f, n in ((softplus_sum, 1), (bce, 2), (kl, 2), (norm_silu, 2), (softmax, 1))}


def milliseconds(call) -> float:
    taken = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        call()
        taken.append(time.thread_time() - start)
    return 1e3 * min(taken)


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:] or FORMULAS:
        formula, n = FORMULAS[name]
        start = time.time()
        try:
            found, left = certify_parts(formula)
        except FormulaError as error:  # on another processor PyTorch's functions, and so the formula, are more accurate
            print(f"{name}: {time.time() - start:.0f} s\n  stays as written: {error}\n")
            continue
        print(f"{name}: {time.time() - start:.0f} s")
        for certificate in found:
            print(f"  {certificate.name}")
            for by, form in certificate.forms.items():
                print(f"    {label(by)}: {form.measured}")
        for part, why in left:
            print(f"  {part} stays as written: {why}")
        op, plain = pullback.function(formula), pullback.function(stable=False)(formula)
        op._stable.use(*found)
        tensors = [torch.rand(SHAPE, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(n)]
        both = [milliseconds(lambda f=f, xs=tensors: torch.autograd.grad(f(*xs).sum(), xs)) for f in (op, plain)]
        print(f"  forward and backward {both[0]:.1f} ms, as written {both[1]:.1f} ms: {both[0] / both[1]:.1f} times\n")


if __name__ == "__main__":
    main()
