"""Known unfixed faults, of Pullback or PyTorch: trials that show them are skipped."""

import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.adversary.agree import GUARDED, Trial, wrongs
from tests.adversary.judge import Wrong
from tests.adversary.program import Program

KNOWN: list[Callable[[Trial, Sequence[Wrong]], bool]] = [
    # layout of the gradient of a non-contiguous input: PyTorch's kernels and its fake tensors disagree on it
    lambda trial, wrong: (
        not _is_contiguous(trial.program) and all("gradient" in w.label and _is_layout(w) for w in wrong)
    ),
    # layout of results of PyTorch's exported programs, which differs from that of the exported module
    lambda trial, wrong: (
        "exported" in trial.context and not _is_contiguous(trial.program) and all(map(_is_layout, wrong))
    ),
    # layout of results of these functions: PyTorch's kernels and its fake tensors disagree on it, too
    lambda trial, wrong: bool(_ODDLY_LAID.search(trial.program.formula)) and all(map(_is_layout, wrong)),
    # likewise for these activations and extremes, if the formula transposes the cotangent
    lambda trial, wrong: (
        bool(_SLOPES.search(trial.program.formula) and _TURNS.search(trial.program.formula))
        and all("gradient" in w.label and _is_layout(w) for w in wrong)
    ),
    # likewise, in 16 bits, for all functions of expanded operands, with which a relaxed op is traced
    lambda trial, wrong: (
        trial.making == "relaxed" and bool(_SHORT.search(trial.program.inputs)) and all(map(_is_layout, wrong))
    ),
    # PyTorch's `masked_fill` returns a contiguous tensor; the `masked_fill_` of these backwards keeps the layout
    lambda trial, wrong: (
        trial.backend == "eager"
        and bool(_MASKING.search(trial.program.formula))
        and all("gradient" in w.label and _is_layout(w) for w in wrong)
    ),
    # PyTorch's median over an expanded dimension reads out of bounds
    lambda trial, wrong: "median" in trial.program.formula and "expand" in trial.program.inputs + trial.program.formula,
    # layout of the gradient of a relaxed op, which is compared with another formula
    lambda trial, wrong: trial.making == "relaxed" and all("gradient" in w.label and _is_layout(w) for w in wrong),
    # PyTorch's efficient zero tensor times infinity is 0, where a dense zero tensor gives NaN
    lambda trial, wrong: "'zero'" in trial.context and all(w.what.startswith("nan at") for w in wrong),
    # a transposed gradient multiplies by the mask of an extreme in another order than PyTorch: 0 · NaN
    lambda trial, wrong: trial.making in GUARDED and all(_is_nan_of_tangent(w) for w in wrong),
    # under vmap, PyTorch's full `min()` and `max()` give the gradient to one of several ties
    lambda trial, wrong: (
        trial.making in GUARDED
        and "vmap_backward" in trial.context
        and bool(re.search(r"\.(min|max)\(\)", trial.program.formula))
        and all("gradient" in w.label for w in wrong)
    ),
    # a chunked loss multiplies by its cotangent last: the gradient may overflow before it is multiplied by 0
    lambda trial, wrong: (
        trial.making == "chunked"
        and all("gradient" in w.label and w.what.startswith("nan at") for w in wrong)
        and ("torch.float16" in trial.program.inputs or all(_PYTORCH_HAS_0.search(w.what) for w in wrong))
    ),
    # under `torch.func`, which makes these rules, cumprod has another backward: 0 · ∞
    lambda trial, wrong: (
        trial.making in GUARDED
        and "cumprod" in trial.program.formula
        and all("gradient" in w.label and w.what.startswith("nan at") for w in wrong)
    ),
    # under `torch.func`, this loss has another backward, whose terms cancel
    lambda trial, wrong: (
        trial.making in GUARDED
        and "binary_cross_entropy_with_logits" in trial.program.formula
        and all("gradient" in w.label for w in wrong)
    ),
    # gradient of prod: PyTorch divides the product by a factor, a graph multiplies the others; either underflows first
    lambda trial, wrong: (
        bool(re.search(r"\bprod\(", trial.program.formula))
        and all("gradient" in w.label and re.match("-?0 at", w.what) for w in wrong)
    ),
    # PyTorch's float64 sigmoid is 0 below −709; a kernel's or a stable form's is positive and has a finite logarithm
    lambda trial, wrong: (
        "log(torch.sigmoid" in trial.program.formula
        and any(w.label.startswith("output") and "PyTorch has -inf, float64 -inf" in w.what for w in wrong)
        and all(_OVERFLOWN.match(w.what) for w in wrong)
    ),
    # PyTorch's i0 at infinity is NaN, e^x · 0, in float64 too; a kernel's is infinite
    lambda trial, wrong: (
        "i0(" in trial.program.formula and all("where PyTorch has nan, float64 nan" in w.what for w in wrong)
    ),
    # Inductor's vector code of loops that share a small buffer is wrong (pytorch/pytorch#185702)
    lambda trial, wrong: "inductor" in trial.context and _is_right_without_vectors(trial),
    # a ruled op returns a copy of a returned input: with other strides, and unaffected by writes to the input
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
