"""Known unfixed faults, of Pullback or PyTorch: trials that show them are skipped."""

import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.adversary.agree import GUARDED, Trial, wrongs
from tests.adversary.judge import Wrong
from tests.adversary.program import Program

KNOWN: list[Callable[[Trial, Sequence[Wrong]], bool]] = [
    # the layout of a gradient where an input is not contiguous: PyTorch's kernels and its fake tensors disagree on it
    lambda trial, wrong: (
        not _is_contiguous(trial.program) and all("gradient" in w.label and _is_layout(w) for w in wrong)
    ),
    # and PyTorch's exported programs lay out results in another way than the modules that they are made of
    lambda trial, wrong: (
        "exported" in trial.context and not _is_contiguous(trial.program) and all(map(_is_layout, wrong))
    ),
    # PyTorch's kernels and its fake tensors also disagree on the layout for these functions
    lambda trial, wrong: bool(_ODDLY_LAID.search(trial.program.formula)) and all(map(_is_layout, wrong)),
    # and for slopes like these and extremes, of a cotangent that is transposed inside of a formula
    lambda trial, wrong: (
        bool(_SLOPES.search(trial.program.formula) and _TURNS.search(trial.program.formula))
        and all("gradient" in w.label and _is_layout(w) for w in wrong)
    ),
    # and, in 16 bits, for all functions of expanded operands, by which a relaxed op is traced
    lambda trial, wrong: (
        trial.making == "relaxed" and bool(_SHORT.search(trial.program.inputs)) and all(map(_is_layout, wrong))
    ),
    # PyTorch's `masked_fill` returns a contiguous tensor; the `masked_fill_` of these backwards keeps the layout
    lambda trial, wrong: (
        trial.backend == "eager"
        and bool(_MASKING.search(trial.program.formula))
        and all("gradient" in w.label and _is_layout(w) for w in wrong)
    ),
    # PyTorch's median over a dimension that is expanded reads memory that is not the tensor's
    lambda trial, wrong: "median" in trial.program.formula and "expand" in trial.program.inputs + trial.program.formula,
    # the layout of a gradient of an op with a relaxation, since it is held against another formula
    lambda trial, wrong: trial.making == "relaxed" and all("gradient" in w.label and _is_layout(w) for w in wrong),
    # PyTorch's tensor of zeros without memory times an infinity is 0 where any other is NaN
    lambda trial, wrong: "'zero'" in trial.context and all(w.what.startswith("nan at") for w in wrong),
    # a transposed gradient has an extreme's mask as a factor, here in other places than in PyTorch's: 0 times NaN
    lambda trial, wrong: trial.making in GUARDED and all(_is_nan_of_tangent(w) for w in wrong),
    # PyTorch's `min()` and `max()` of all numbers under vmap, differentiated from outside, choose one of those that tie
    lambda trial, wrong: (
        trial.making in GUARDED
        and "vmap_backward" in trial.context
        and bool(re.search(r"\.(min|max)\(\)", trial.program.formula))
        and all("gradient" in w.label for w in wrong)
    ),
    # a loss by chunks is multiplied by its cotangent at the end: the gradient may overflow before, times 0
    lambda trial, wrong: (
        trial.making == "chunked"
        and all("gradient" in w.label and w.what.startswith("nan at") for w in wrong)
        and ("torch.float16" in trial.program.inputs or all(_PYTORCH_HAS_0.search(w.what) for w in wrong))
    ),
    # PyTorch's cumprod has another backward under `torch.func`, by which these rules are written: 0 times an infinity
    lambda trial, wrong: (
        trial.making in GUARDED
        and "cumprod" in trial.program.formula
        and all("gradient" in w.label and w.what.startswith("nan at") for w in wrong)
    ),
    # and so has this loss, of which the terms cancel
    lambda trial, wrong: (
        trial.making in GUARDED
        and "binary_cross_entropy_with_logits" in trial.program.formula
        and all("gradient" in w.label for w in wrong)
    ),
    # PyTorch divides a product by a factor for its gradient, a graph multiplies the others: either underflows first
    lambda trial, wrong: (
        bool(re.search(r"\bprod\(", trial.program.formula))
        and all("gradient" in w.label and re.match("-?0 at", w.what) for w in wrong)
    ),
    # PyTorch's sigmoid is 0 in float64 below −709; that of a kernel or a stable form is not, and has a logarithm
    lambda trial, wrong: (
        "log(torch.sigmoid" in trial.program.formula
        and any(w.label.startswith("output") and "PyTorch has -inf, float64 -inf" in w.what for w in wrong)
        and all(_OVERFLOWN.match(w.what) for w in wrong)
    ),
    # PyTorch's i0 of an infinity is NaN in float64 too, e^x times 0; that of a kernel is infinite
    lambda trial, wrong: (
        "i0(" in trial.program.formula and all("where PyTorch has nan, float64 nan" in w.what for w in wrong)
    ),
    # Inductor's vector code of loops that share a small buffer is wrong (pytorch/pytorch#185702)
    lambda trial, wrong: "inductor" in trial.context and _is_right_without_vectors(trial),
    # an op with a rule returns a copy of what is an input: it lies elsewhere, and is not the tensor that is written to
    lambda trial, wrong: trial.making in GUARDED and all(_is_layout(w) or _is_cut_off(trial, w) for w in wrong),
]

_OVERFLOWN = re.compile(r"-?[1-9].* where PyTorch has (-?inf|nan), float64 (-?inf|nan) ")
_PYTORCH_HAS_0 = re.compile("PyTorch has -?0,")
_SHORT = re.compile("float16")
_ODDLY_LAID = re.compile("logsigmoid|logaddexp|xlogy|copysign|heaviside|huber_loss|one_hot|smooth_l1")
_SLOPES = re.compile("elu|softplus|hardtanh|relu6|hardswish|hardsigmoid|logit|max|min")
_TURNS = re.compile(r"\.mT|transpose|movedim|\.t_\(")
_MASKING = re.compile("maximum|minimum|fmax|fmin")


def _is_right_without_vectors(trial: Trial) -> bool:
    """Whether Inductor is right without vector code, which it generates from the same graphs."""
    from torch._inductor import config

    torch._dynamo.reset()
    with config.patch({"cpp.simdlen": 1}):
        return not wrongs(trial)


def _is_contiguous(program: Program) -> bool:
    return all(x.is_contiguous() for x in program.make().values() if isinstance(x, Tensor))


def _is_layout(wrong: Wrong) -> bool:
    return wrong.what.startswith("stride is")


def _is_nan_of_tangent(wrong: Wrong) -> bool:
    return wrong.label.startswith("tangent") and wrong.what.startswith("nan at")


def _is_cut_off(trial: Trial, wrong: Wrong) -> bool:
    return "recast" in trial.context and wrong.what.startswith("None, ")


def is_known(trial: Trial, wrong: Sequence[Wrong]) -> bool:
    """Whether all differences are of known kinds."""
    return any(known(trial, wrong) for known in KNOWN)
