"""Seeded faults of the right Functions: patches of their source, each with what it does."""

import importlib.util
import itertools
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from torch.autograd import Function

RIGHT = Path(__file__).parent / "right"
NATURAL = Path(__file__).parent / "natural"
_serial = itertools.count()


@dataclass(frozen=True)
class Mutant:
    """A patch of one right module.

    `inside` names the kernel, function or class whose text has `old` ("" is the module); `count` is how often. `also`
    has further patches `(inside, old, new)`. A mutant with `needs_reference` is wrong forward and backward alike, at
    every size and in every layout: only a reference shows it. `shows` is the least that a test must try to see it:

    * "value": a wrong or unwritten value, or an error, with contiguous tensors and the first configuration
    * "irregular": values are right where programs run one after another; accesses race or leave their tensors
    * "layout": inputs or cotangents that are not contiguous
    * "config": another configuration of the autotuner than the first
    * "undefined": lanes of masked loads that hold something else than zero
    * "rounding": float32 tensors, and narrow floats of kernels rounded as on a GPU
    """

    module: str
    slug: str
    inside: str
    old: str
    new: str
    what: str
    also: tuple[tuple[str, str, str], ...] = ()
    count: int = 1
    needs_reference: bool = False
    shows: Literal["value", "irregular", "layout", "config", "undefined", "rounding"] = "value"

    @property
    def name(self) -> str:
        return f"{self.module}.{self.slug}"


def right_names() -> list[str]:
    """Names of the right modules, of both folders, without those that use what this Triton lacks."""
    import triton.language as tl

    paths = (path for folder in (RIGHT, NATURAL) for path in folder.glob("[!_]*.py"))
    used = {path.stem: set(re.findall(r"\btl\.([a-z]\w*)", path.read_text(encoding="utf-8"))) for path in paths}
    return sorted(name for name, attributes in used.items() if all(hasattr(tl, one) for one in attributes))


def source(mutant: Mutant) -> str:
    """The right module's source with the mutant's patches."""
    text = _file(mutant.module).read_text(encoding="utf-8")
    text = _patch(text, mutant.name, mutant.inside, mutant.old, mutant.new, mutant.count)
    for inside, old, new in mutant.also:
        text = _patch(text, mutant.name, inside, old, new)
    return text


def load(mutant: Mutant, directory: Path) -> ModuleType:
    """Write the patched source into `directory` and import it: Triton reads the source of kernels from files."""
    path = Path(directory) / f"{mutant.module}_{mutant.slug}.py"
    path.write_text(source(mutant), encoding="utf-8")
    return _import(path)


def load_right(name: str) -> ModuleType:
    """A fresh import of a right module."""
    return _import(_file(name))


def _file(name: str) -> Path:
    return next(path for folder in (RIGHT, NATURAL) if (path := folder / f"{name}.py").exists())


def function_of(module: ModuleType) -> type[Function]:
    """The one Function that a module defines."""
    (found,) = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Function) and value.__module__ == module.__name__
    ]
    return found


def _patch(text: str, name: str, inside: str, old: str, new: str, count: int = 0) -> str:
    pattern = rf"^(?:def|class) {inside}\b.*?(?=^\S(?<!\))|\Z)" if inside else ".*"
    found = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    assert found, f"{name}: {inside} is not in the module"
    before = found.group()
    assert before.count(old) == count or (old in before and not count), (
        f"{name}: {old!r} occurs {before.count(old)} times in {inside}, not {count}"
    )
    return text[: found.start()] + before.replace(old, new) + text[found.end() :]


def _import(path: Path) -> ModuleType:
    """Import a file under a name of its own, so that no two builds share state."""
    spec = importlib.util.spec_from_file_location(f"triton_function_{path.stem}_{next(_serial)}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_SOFTMAX = (
    Mutant(
        "softmax",
        "zero_in_maximum",
        "softmax_forward",
        'other=-float("inf")',
        "other=0.0",
        "the tail of the row counts as logits of zero",
        needs_reference=True,
    ),
    Mutant(
        "softmax",
        "last_column_unwritten",
        "softmax_backward",
        "dx, mask=mask",
        "dx, mask=cols < n_cols - 1",
        "a store's mask ends one column early",
    ),
    Mutant(
        "softmax",
        "scale_lost",
        "softmax_backward",
        "axis=0)) * scale",
        "axis=0))",
        "the backward has no factor of the scale",
    ),
    Mutant(
        "softmax",
        "last_row_skipped",
        "softmax_backward",
        "n_rows, tl.num",
        "n_rows - 1, tl.num",
        "the loop over rows ends one early",
    ),
    Mutant(
        "softmax",
        "program_id_lost",
        "softmax_backward",
        "tl.program_id(0), n_rows",
        "0, n_rows",
        "every program takes the rows of the first",
    ),
    Mutant(
        "softmax",
        "sign",
        "softmax_backward",
        "dy - tl.sum(dy * y, axis=0)",
        "dy + tl.sum(dy * y, axis=0)",
        "a sign",
    ),
    Mutant(
        "softmax",
        "output_by_input_stride",
        "softmax_forward",
        "row * y_stride",
        "row * x_stride",
        "rows of the output are written with the stride of the input",
        shows="layout",
    ),
    Mutant(
        "softmax",
        "cotangent_strides",
        "Softmax",
        "dy.shape, dy.contiguous()",
        "dy.shape, dy",
        "the cotangent is taken as contiguous",
        shows="layout",
    ),
    Mutant(
        "softmax",
        "mask_lost",
        "softmax_backward",
        "tl.load(dy_ptr + row * stride + cols, mask=mask, other=0.0)",
        "tl.load(dy_ptr + row * stride + cols)",
        "a load without its mask reads past the last row",
        shows="irregular",
    ),
    Mutant(
        "softmax",
        "bare_loads",
        "softmax_backward",
        "mask=mask, other=0.0",
        "mask=mask",
        "masked lanes without a value enter the sum",
        count=2,
        shows="undefined",
    ),
)

_LAYER_NORM = (
    Mutant(
        "layer_norm",
        "centred_tail",
        "layer_norm_forward",
        "tl.where(mask, x - mean, 0.0)",
        "x - mean",
        "the tail of the row adds to the variance",
    ),
    Mutant(
        "layer_norm",
        "eps_lost_in_backward",
        "layer_norm_forward",
        "tl.store(rstd_ptr + row, rstd)",
        "tl.store(rstd_ptr + row, 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / n_cols))",
        "the backward has the deviation without eps",
    ),
    Mutant(
        "layer_norm",
        "mean_over_block",
        "layer_norm_forward",
        "tl.sum(x, axis=0) / n_cols",
        "tl.sum(x, axis=0) / BLOCK",
        "the mean is divided by the block, not the row",
    ),
    Mutant(
        "layer_norm",
        "corrections_swapped",
        "layer_norm_backward",
        "xhat * c1 + c2",
        "xhat * c2 + c1",
        "two operands are swapped",
    ),
    Mutant(
        "layer_norm",
        "weight_lost_in_correction",
        "layer_norm_backward",
        "tl.sum(xhat * wdy, axis=0)",
        "tl.sum(xhat * dy, axis=0)",
        "a correction without the weight",
    ),
    Mutant(
        "layer_norm",
        "mean_detached",
        "layer_norm_backward",
        "(xhat * c1 + c2)",
        "xhat * c1",
        "the mean is taken as constant",
    ),
    Mutant(
        "layer_norm",
        "deviation_detached",
        "layer_norm_backward",
        "(xhat * c1 + c2)",
        "c2",
        "the deviation is taken as constant",
    ),
    Mutant(
        "layer_norm",
        "rows_past_the_end",
        "layer_norm_backward",
        "min(first + rows_per_program, n_rows)",
        "first + rows_per_program",
        "the last program takes rows that do not exist",
        shows="irregular",
    ),
    Mutant(
        "layer_norm",
        "rows_rounded_down",
        "LayerNorm",
        "triton.cdiv(rows, programs)",
        "rows // programs",
        "rows that do not divide among the programs are left",
    ),
    Mutant(
        "layer_norm",
        "first_partial_sum",
        "LayerNorm",
        "dw.sum(0)",
        "dw[0]",
        "only the first program's gradient of the weight is kept",
    ),
    Mutant(
        "layer_norm",
        "partial_sums_overlap",
        "layer_norm_backward",
        "program * dw_stride",
        "program",
        "partial sums of programs overlap",
    ),
    Mutant(
        "layer_norm",
        "not_accumulated",
        "layer_norm_backward",
        "db += dy",
        "db = dy",
        "a program keeps its last row's gradient of the bias",
    ),
    Mutant(
        "layer_norm",
        "half_accumulator",
        "layer_norm_backward",
        "dw += dy * xhat",
        "dw = (dw + dy * xhat).to(tl.float16).to(tl.float32)",
        "the gradient of the weight is summed in float16",
        shows="rounding",
    ),
    Mutant(
        "layer_norm",
        "unbiased_variance",
        "layer_norm_forward",
        "/ n_cols + eps",
        "/ (n_cols - 1) + eps",
        "the variance is divided by one less, forward and backward",
        also=(
            ("layer_norm_backward", "tl.sum(xhat * wdy, axis=0) / n_cols", "tl.sum(xhat * wdy, axis=0) / (n_cols - 1)"),
        ),
        needs_reference=True,
    ),
)

_RMS_NORM = (
    Mutant(
        "rms_norm",
        "store_for_atomic",
        "rms_norm_backward",
        "tl.atomic_add(",
        "tl.store(",
        "programs overwrite each other's gradient of the weight",
    ),
    Mutant(
        "rms_norm",
        "read_add_write",
        "rms_norm_backward",
        "tl.atomic_add(dw_ptr + cols, dy * x * rstd, mask=mask)",
        "tl.store(dw_ptr + cols, tl.load(dw_ptr + cols, mask=mask, other=0.0) + dy * x * rstd, mask=mask)",
        "programs add to the gradient of the weight in turn, not atomically",
        shows="irregular",
    ),
    Mutant(
        "rms_norm",
        "stale_sum",
        "RMSNorm",
        "torch.zeros(weight.shape",
        "torch.empty(weight.shape",
        "atomic additions to memory that was not set to zero",
    ),
    Mutant(
        "rms_norm",
        "last_block_skipped",
        "rms_norm_backward",
        """n_cols
    for start in range(0, n_cols, BLOCK)""",
        """n_cols
    for start in range(0, n_cols - BLOCK + 1, BLOCK)""",
        "the loop over blocks leaves the tail",
    ),
    Mutant(
        "rms_norm",
        "first_block_alone",
        "rms_norm_forward",
        """dtype=tl.float32)
    for start in range(0, n_cols, BLOCK)""",
        """dtype=tl.float32)
    for start in range(0, BLOCK, BLOCK)""",
        "squares are summed over the first block alone",
    ),
    Mutant(
        "rms_norm",
        "offset_lost",
        "rms_norm_backward",
        "inner += dy * (offset + w) * x",
        "inner += dy * w * x",
        "one of two terms forgets the offset of the weight",
    ),
    Mutant(
        "rms_norm",
        "offset_lost_everywhere",
        "rms_norm_forward",
        "x * rstd * (offset + w)",
        "x * rstd * w",
        "the offset of the weight is ignored, forward and backward",
        also=(
            ("rms_norm_backward", "inner += dy * (offset + w) * x", "inner += dy * w * x"),
            ("rms_norm_backward", "rstd * (dy * (offset + w) - x * factor)", "rstd * (dy * w - x * factor)"),
        ),
        needs_reference=True,
    ),
    Mutant(
        "rms_norm",
        "size_lost",
        "rms_norm_backward",
        "rstd * rstd / n_cols",
        "rstd * rstd",
        "a sum in place of a mean",
    ),
    Mutant(
        "rms_norm",
        "row_lost",
        "rms_norm_backward",
        "    dy_ptr += row * stride\n",
        "",
        "every row reads the cotangent of the first",
    ),
    Mutant(
        "rms_norm",
        "column_too_many",
        "rms_norm_forward",
        "mask=cols < n_cols, other",
        "mask=cols <= n_cols, other",
        "the squares take the first element of the next row too",
    ),
)

_SWIGLU = (
    Mutant(
        "swiglu",
        "factor_lost",
        "swiglu_backward",
        "a * sigmoid * (1 - sigmoid)",
        "sigmoid * (1 - sigmoid)",
        "a factor of the derivative of SiLU",
    ),
    Mutant("swiglu", "sigmoid_lost", "swiglu_backward", "dc * a * sigmoid", "dc * a", "a factor"),
    Mutant("swiglu", "gradients_swapped", "SwiGLU", "return da, db", "return db, da", "gradients in the wrong order"),
    Mutant(
        "swiglu",
        "grid_rounded_down",
        "SwiGLU",
        'swiglu_backward[lambda META: (triton.cdiv(n, META["BLOCK"]),)]',
        'swiglu_backward[lambda META: (max(1, n // META["BLOCK"]),)]',
        "no program takes the tail",
    ),
    Mutant(
        "swiglu",
        "program_id_lost",
        "swiglu_backward",
        "tl.program_id(0) * BLOCK + tl.arange",
        "tl.arange",
        "every program takes the first block",
    ),
    Mutant(
        "swiglu",
        "gap_between_blocks",
        "swiglu_backward",
        "tl.program_id(0) * BLOCK",
        "tl.program_id(0) * (BLOCK + 1)",
        "an element between blocks is left",
    ),
    Mutant(
        "swiglu",
        "cotangent_strides",
        "SwiGLU",
        "        dc = dc.contiguous()\n",
        "",
        "the cotangent is taken as contiguous",
        shows="layout",
    ),
    Mutant(
        "swiglu",
        "other_gate",
        "swiglu_forward",
        "silu(a).to(b.dtype) * b",
        "silu(a).to(b.dtype) * (b + 1)",
        "the formula of another gate, forward and backward",
        also=(("swiglu_backward", "dc * b *", "dc * (b + 1) *"),),
        needs_reference=True,
    ),
    Mutant(
        "swiglu",
        "store_past_the_end",
        "swiglu_forward",
        "mask = i < n",
        "mask = i <= n",
        "one element past the end is read and written",
        shows="irregular",
    ),
)

_CROSS_ENTROPY = (
    Mutant(
        "cross_entropy",
        "ignored_in_forward_alone",
        "cross_entropy_backward",
        "if target == ignore_index",
        "if target == -1",
        "ignored rows have a gradient",
    ),
    Mutant(
        "cross_entropy",
        "sum_not_rescaled",
        "cross_entropy_forward",
        "d * tl.exp(m - new)",
        "d",
        "the running sum keeps the old maximum's scale",
    ),
    Mutant(
        "cross_entropy",
        "maximum_not_kept",
        "cross_entropy_forward",
        "        m = new\n",
        "",
        "the running maximum stays at minus infinity",
    ),
    Mutant(
        "cross_entropy",
        "mean_over_all_rows",
        "CrossEntropy",
        "kept.sum()",
        "torch.ones_like(kept).sum()",
        "ignored rows count in the mean, forward and backward",
        needs_reference=True,
    ),
    Mutant(
        "cross_entropy",
        "smoothing_lost",
        "cross_entropy_backward",
        " - smoothing / n_classes",
        "",
        "a term of label smoothing",
    ),
    Mutant(
        "cross_entropy",
        "smoothing_of_target_lost",
        "cross_entropy_backward",
        "dx - (1 - smoothing)",
        "dx - 1",
        "a factor of label smoothing",
    ),
    Mutant(
        "cross_entropy",
        "cotangent_ignored",
        "cross_entropy_backward",
        "tl.load(dloss_ptr) /",
        "1.0 /",
        "the cotangent is taken to be one",
    ),
    Mutant(
        "cross_entropy",
        "maximum_lost_in_saved",
        "cross_entropy_forward",
        "tl.store(lse_ptr + row, lse)",
        "tl.store(lse_ptr + row, tl.log(d))",
        "the saved logarithm lacks the maximum",
    ),
    Mutant(
        "cross_entropy",
        "program_id_lost",
        "cross_entropy_backward",
        "tl.program_id(1) * BLOCK + tl.arange",
        "tl.arange",
        "blocks of classes beyond the first are left",
    ),
    Mutant(
        "cross_entropy",
        "ignored_row_unwritten",
        "cross_entropy_backward",
        "        tl.store(dx_ptr + row * dx_stride + cols, 0.0, mask=mask)\n",
        "",
        "the gradient of ignored rows is left as it was allocated",
    ),
    Mutant(
        "cross_entropy",
        "wrong_row_zeroed",
        "cross_entropy_backward",
        "row * dx_stride + cols, 0.0",
        "(row - 1) * dx_stride + cols, 0.0",
        "an ignored row sets the row before it to zero",
    ),
    Mutant(
        "cross_entropy",
        "zero_in_maximum",
        "cross_entropy_forward",
        'other=-float("inf")',
        "other=0.0",
        "the tail counts as classes of logit zero",
        needs_reference=True,
    ),
    Mutant(
        "cross_entropy",
        "target_shifted",
        "cross_entropy_backward",
        "cols == target",
        "cols == target + 1",
        "the gradient of the target's class goes to the next",
    ),
)

_EMBEDDING = (
    Mutant(
        "embedding",
        "store_for_atomic",
        "embedding_backward",
        "tl.atomic_add(",
        "tl.store(",
        "repeated indices overwrite each other",
    ),
    Mutant(
        "embedding",
        "stale_gradient",
        "Embedding",
        "torch.zeros(",
        "torch.empty(",
        "atomic additions to memory that was not set to zero",
    ),
    Mutant(
        "embedding",
        "rows_mask_lost",
        "embedding_backward",
        "(rows < n)[:, None] & (cols < width)[None, :]",
        "(rows >= 0)[:, None] & (cols < width)[None, :]",
        "indices past the end add to row 0",
        shows="irregular",
    ),
    Mutant(
        "embedding",
        "scale_lost",
        "embedding_backward",
        "dout * scale",
        "dout",
        "the backward has no factor of the scale",
    ),
    Mutant(
        "embedding",
        "stride_of_block",
        "embedding_backward",
        "index[:, None] * dweight_stride",
        "index[:, None] * BLOCK_W",
        "rows of the gradient are a block apart, not a row",
    ),
    Mutant(
        "embedding",
        "program_id_lost",
        "embedding_backward",
        "tl.program_id(1) * BLOCK_W + tl.arange",
        "tl.arange",
        "every program adds to the first columns",
    ),
    Mutant(
        "embedding",
        "position_for_index",
        "embedding_forward",
        "weight_ptr + index[:, None]",
        "weight_ptr + rows[:, None]",
        "rows are taken by position",
    ),
)

_ROTARY = (
    Mutant(
        "rotary",
        "backward_turns_forward",
        "rotate",
        "        sin = -sin\n",
        "        sin = sin\n",
        "the backward turns the same way",
    ),
    Mutant(
        "rotary",
        "keys_turn_forward",
        "Rotary",
        "launch(dk, cos, sin, True)",
        "launch(dk, cos, sin, False)",
        "the backward of the keys turns the same way",
    ),
    Mutant(
        "rotary",
        "turns_the_other_way",
        "rotate",
        "x1 * cos - x2 * sin",
        "x1 * cos + x2 * sin",
        "the rotation has the wrong sense, forward and backward",
        also=(("rotate", "x2 * cos + x1 * sin", "x2 * cos - x1 * sin"),),
        needs_reference=True,
    ),
    Mutant(
        "rotary",
        "position_over_batch",
        "rotate",
        "t = token % time\n",
        "t = token\n",
        "positions go on from one sample to the next",
    ),
    Mutant(
        "rotary",
        "head_too_many",
        "rotate",
        "(h < heads)",
        "(h <= heads)",
        "the first head of the next token is written too, before its own program writes it",
        shows="irregular",
    ),
    Mutant(
        "rotary",
        "heads_in_one_block",
        "launch",
        'triton.cdiv(heads, META["BLOCK_H"])',
        "1",
        "heads beyond the first block are left",
    ),
    Mutant(
        "rotary",
        "start_ignored",
        "Rotary",
        "torch.arange(start, start + time",
        "torch.arange(0, time",
        "the first position is ignored, forward and backward",
        needs_reference=True,
    ),
    Mutant(
        "rotary",
        "frequencies",
        "Rotary",
        "torch.arange(0, dim, 2, dtype=torch.float32, device=q.device)",
        "torch.arange(0, dim // 2, dtype=torch.float32, device=q.device)",
        "the frequencies, forward and backward",
        needs_reference=True,
    ),
)

_CAUSAL = "cols[None, :] <= rows[:, None] + shift"
_STRICT = "cols[None, :] < rows[:, None] + shift"
_KERNELS = ("attention_forward", "attention_backward_keys", "attention_backward_queries")

_ATTENTION = (
    Mutant(
        "attention",
        "strict_in_keys",
        "attention_backward_keys",
        _CAUSAL,
        _STRICT,
        "the causal mask of dk and dv ends one early",
    ),
    Mutant(
        "attention",
        "strict_in_queries",
        "attention_backward_queries",
        _CAUSAL,
        _STRICT,
        "the causal mask of dq ends one early",
    ),
    Mutant(
        "attention",
        "mask_from_the_start",
        "attention_forward",
        "shift = n_keys - n_queries",
        "shift = 0",
        "the causal mask starts at the first key, forward and backward",
        also=tuple((kernel, "shift = n_keys - n_queries", "shift = 0") for kernel in _KERNELS[1:]),
        needs_reference=True,
    ),
    Mutant(
        "attention",
        "scale_lost_in_keys",
        "attention_backward_keys",
        "ds = p * (dp - delta[:, None]) * scale",
        "ds = p * (dp - delta[:, None])",
        "dk has no factor of the scale",
    ),
    Mutant(
        "attention",
        "scale_lost_in_queries",
        "attention_backward_queries",
        "dq * scale",
        "dq",
        "dq has no factor of the scale",
    ),
    Mutant(
        "attention",
        "values_not_rescaled",
        "attention_forward",
        "acc * alpha[:, None]",
        "acc",
        "the running output keeps the old maximum's scale",
    ),
    Mutant(
        "attention",
        "first_head_of_group",
        "attention_backward_keys",
        "range(GROUP)",
        "range(1)",
        "dk and dv come from the first head of a group alone",
    ),
    Mutant(
        "attention",
        "heads_interleaved_in_backward",
        "attention_backward_keys",
        "key_head * GROUP + i",
        "i * key_heads + key_head",
        "dk and dv sum the wrong heads",
    ),
    Mutant(
        "attention",
        "heads_interleaved",
        "attention_forward",
        "head // GROUP",
        "head % (HEADS // GROUP)",
        "heads share keys in another order, forward and backward",
        also=(
            ("attention_backward_keys", "key_head * GROUP + i", "i * key_heads + key_head"),
            ("attention_backward_queries", "head // GROUP", "head % (HEADS // GROUP)"),
        ),
        count=2,
        needs_reference=True,
    ),
    Mutant(
        "attention",
        "delta_lost",
        "attention_backward_keys",
        "(dp - delta[:, None])",
        "dp",
        "the normalisation of the softmax is taken as constant",
    ),
    Mutant(
        "attention",
        "begin_without_shift",
        "attention_backward_keys",
        "max(0, tl.program_id(0) * BLOCK_N - shift)",
        "tl.program_id(0) * BLOCK_N",
        "dk and dv begin a block of queries late",
    ),
    Mutant(
        "attention",
        "end_too_early",
        "attention_backward_queries",
        "(tl.program_id(0) + 1) * BLOCK_M + shift",
        "tl.program_id(0) * BLOCK_M + shift",
        "dq ends before the diagonal",
    ),
    Mutant(
        "attention",
        "keys_past_the_end",
        "attention_forward",
        "allowed = (cols < n_keys)[None, :]",
        "allowed = (cols >= 0)[None, :]",
        "the tail counts as keys of score zero",
        needs_reference=True,
    ),
    Mutant(
        "attention",
        "statistics_overlap",
        "attention_forward",
        "tl.program_id(1) * n_queries + rows",
        "tl.program_id(1) * BLOCK_M + rows",
        "heads store their statistics a block apart",
    ),
    Mutant(
        "attention",
        "transpose_lost",
        "attention_backward_keys",
        "tl.dot(tl.trans(p), dout",
        "tl.dot(p, dout",
        "a transpose, of a square block",
    ),
    Mutant(
        "attention",
        "gradients_swapped",
        "Attention",
        "return dq, dk, dv",
        "return dq, dv, dk",
        "gradients in the wrong order",
    ),
    Mutant(
        "attention",
        "bare_loads",
        "attention_forward",
        ", other=0.0",
        "",
        "masked lanes without a value enter the products",
        count=3,
        shows="undefined",
    ),
    Mutant(
        "attention",
        "half_accumulator",
        "attention_forward",
        'tl.dot(p, v, input_precision="ieee")',
        "tl.dot(p.to(tl.float16), v.to(tl.float16)).to(tl.float32)",
        "weights and values are rounded to float16",
        shows="rounding",
    ),
    Mutant(
        "attention",
        "cotangent_strides",
        "Attention",
        "        dout = dout.contiguous()\n",
        "",
        "the cotangent is taken as contiguous",
        shows="layout",
    ),
)

_RECURRENCE = (
    Mutant(
        "recurrence",
        "state_not_decayed",
        "pass_states",
        "tl.exp(sums) * state[None, :]",
        "state[None, :]",
        "a chunk takes the state before it without decay",
    ),
    Mutant(
        "recurrence",
        "last_row_of_chunk",
        "pass_states",
        "min(CHUNK, time - chunk * CHUNK) - 1",
        "CHUNK - 1",
        "the final state is that of a row past the end",
    ),
    Mutant(
        "recurrence",
        "state_after",
        "pass_states_backward",
        "h_ptr + at - width",
        "h_ptr + at",
        "the gradient of a gate has the state after it, not before",
    ),
    Mutant(
        "recurrence",
        "decay_lost_in_gates",
        "pass_states_backward",
        "decayed * before",
        "dx * before",
        "the gradient of a gate has no factor of the gate",
    ),
    Mutant(
        "recurrence",
        "carry_not_decayed",
        "pass_states_backward",
        "decayed, 0.0), axis=0)",
        "dx, 0.0), axis=0)",
        "what a chunk asks of the one before lacks the decay of its first gate",
    ),
    Mutant(
        "recurrence",
        "final_cotangent_ignored",
        "scan_chunks_backward",
        "if last == time - 1:",
        "if last == time:",
        "the cotangent of the final state is ignored",
    ),
    Mutant(
        "recurrence",
        "initial_state_ignored",
        "pass_states_backward",
        "            before = tl.where((t == 0)[:, None], initial[None, :], before)\n",
        "",
        "the first gate's gradient forgets the initial state",
    ),
    Mutant(
        "recurrence",
        "chunks_in_order",
        "pass_states_backward",
        "chunk = n_chunks - 1 - back",
        "chunk = back",
        "the backward passes chunks from first to last",
    ),
    Mutant(
        "recurrence",
        "chunk_past_the_end",
        "scan_chunks_backward",
        "min(first + CHUNK, time) - 1",
        "first + CHUNK - 1",
        "the last chunk is taken to be whole",
    ),
    Mutant(
        "recurrence",
        "batch_lost",
        "scan_chunks",
        "(tl.program_id(2) * time + first)",
        "first",
        "every sample takes the place of the first",
    ),
    Mutant(
        "recurrence",
        "gates_negated",
        "GatedRecurrence",
        "x, g = x.contiguous(), g.contiguous()",
        "x, g = x.contiguous(), -g.contiguous()",
        "gates have the wrong sign, forward and backward",
        also=(("GatedRecurrence", "return dx, dg, dinitial", "return dx, -dg, dinitial"),),
        needs_reference=True,
    ),
    Mutant(
        "recurrence",
        "gates_not_summed",
        "scan_chunks",
        "total += g",
        "total = g",
        "the decay over a chunk is that of its last gate",
    ),
)

_GROUP_NORM = (
    Mutant(
        "group_norm",
        "channel_of_element",
        "group_norm_forward",
        "i // space",
        "i % per_group",
        "channels are taken as the fastest dimension",
    ),
    Mutant(
        "group_norm",
        "group_lost",
        "group_norm_backward",
        "w_ptr + group * per_group + i // space",
        "w_ptr + i // space",
        "every group has the weights of the first",
    ),
    Mutant(
        "group_norm",
        "sample_lost",
        "group_norm_backward",
        "dw_ptr + sample * groups * per_group + channel",
        "dw_ptr + channel",
        "samples overwrite each other's gradient of the weight",
    ),
    Mutant(
        "group_norm",
        "divided_by_space",
        "group_norm_backward",
        "(xhat * c1 + c2) / size",
        "(xhat * c1 + c2) / space",
        "the size of a channel in place of a group's",
    ),
    Mutant(
        "group_norm",
        "centred_tail",
        "group_norm_forward",
        "tl.where(i < size, x - mean, 0.0)",
        "x - mean",
        "the tail of the last block adds to the variance",
    ),
    Mutant(
        "group_norm",
        "store_past_the_group",
        "group_norm_forward",
        "mask = i < size\n",
        "mask = i <= size\n",
        "the first element of the next group is written too",
        shows="irregular",
    ),
    Mutant(
        "group_norm",
        "statistic_of_sample",
        "group_norm_backward",
        "rstd_ptr + sample * groups + group",
        "rstd_ptr + sample * groups",
        "every group has the deviation of the first",
    ),
    Mutant(
        "group_norm",
        "first_sample",
        "GroupNorm",
        "db.sum(0)",
        "db[0]",
        "the gradient of the bias is that of the first sample",
    ),
    Mutant(
        "group_norm",
        "weight_lost_in_correction",
        "group_norm_backward",
        "c1 += w * tl.sum(dw, axis=0)",
        "c1 += tl.sum(dw, axis=0)",
        "a correction without the weight",
    ),
    Mutant(
        "group_norm",
        "eps_lost_in_backward",
        "group_norm_forward",
        "tl.store(rstd_ptr + sample * groups + group, rstd)",
        "tl.store(rstd_ptr + sample * groups + group, 1.0 / tl.sqrt(squares / size))",
        "the backward has the deviation without eps",
    ),
)

_TAPS = ("t - (WIDTH - 1) + j", "t - WIDTH + j")

_CAUSAL_CONV = (
    Mutant(
        "causal_conv",
        "padding_lost",
        "conv_forward",
        "((s >= 0) & (s < time))",
        "(s < time)",
        "times before the first are read from other channels",
    ),
    Mutant(
        "causal_conv",
        "a_step_late",
        "conv_forward",
        *_TAPS,
        "the output is a step late, forward and backward",
        also=(
            ("conv_backward_weight", *_TAPS),
            ("conv_backward_input", "t + (WIDTH - 1) - j", "t + WIDTH - j"),
        ),
        needs_reference=True,
    ),
    Mutant(
        "causal_conv",
        "taps_not_flipped",
        "conv_backward_input",
        "t + (WIDTH - 1) - j",
        "t + j",
        "the gradient of x has the taps in the wrong order",
    ),
    Mutant(
        "causal_conv",
        "factor_lost",
        "conv_backward_weight",
        "(1 + pre * (1 - sigmoid))",
        "(1 + (1 - sigmoid))",
        "a factor of the derivative of SiLU",
    ),
    Mutant(
        "causal_conv",
        "bias_lost",
        "conv_backward_weight",
        "        pre += tl.load(b_ptr + d, mask=d_mask, other=0.0).to(tl.float32)[:, None]\n",
        "",
        "the recomputed output lacks the bias",
    ),
    Mutant(
        "causal_conv",
        "batch_lost_in_parts",
        "conv_backward_weight",
        "(batch * tl.num_programs(0) + tl.program_id(0)) * dim",
        "tl.program_id(0) * dim",
        "samples overwrite each other's share of the gradients",
    ),
    Mutant(
        "causal_conv",
        "first_block_of_time",
        "CausalConv",
        "dw.sum((0, 1))",
        "dw[:, 0].sum(0)",
        "the gradient of the weight is that of the first block of times",
    ),
    Mutant(
        "causal_conv",
        "strides_ignored",
        "conv_backward_weight",
        """        x = tl.load(x_ptr + at, mask""",
        """        x = tl.load(x_ptr + batch * x_batch + d[:, None] * time + s[None, :], mask""",
        "the gradient of the weight takes x as contiguous",
    ),
    Mutant(
        "causal_conv",
        "channels_mask_lost",
        "conv_backward_weight",
        "tl.sum(dpre, axis=1), mask=d_mask",
        "tl.sum(dpre, axis=1), mask=d >= 0",
        "channels past the end write into the next share",
    ),
    Mutant(
        "causal_conv",
        "times_mask_lost",
        "conv_backward_input",
        "d_mask[:, None] & (s < time)[None, :]",
        "d_mask[:, None] & (s >= 0)[None, :]",
        "times past the end are read from the next channel",
    ),
    Mutant(
        "causal_conv",
        "last_tap_unwritten",
        "conv_backward_weight",
        """    part = (batch * tl.num_programs(0) + tl.program_id(0)) * dim
    for j in tl.static_range(WIDTH)""",
        """    part = (batch * tl.num_programs(0) + tl.program_id(0)) * dim
    for j in tl.static_range(WIDTH - 1)""",
        "the loop over taps ends one early",
    ),
    Mutant(
        "causal_conv",
        "cotangent_strides",
        "CausalConv",
        "        dy = dy.contiguous()\n",
        "",
        "the cotangent is taken as contiguous",
        shows="layout",
    ),
)

_LINEAR_RELU = (
    Mutant(
        "linear_relu",
        "step_of_sixteen",
        "matmul",
        "range(0, K, BLOCK_K)",
        "range(0, K, 16)",
        "the loop over K has the step of one configuration",
        shows="config",
    ),
    Mutant(
        "linear_relu",
        "even_by_sixteen",
        "",
        'args["K"] % args["BLOCK_K"] == 0',
        'args["K"] % 16 == 0',
        "a heuristic has the block of one configuration: masks are left out where the tail needs them",
        shows="config",
    ),
    Mutant(
        "linear_relu",
        "columns_by_block_of_rows",
        "matmul",
        "block_n * BLOCK_N",
        "block_n * BLOCK_M",
        "blocks of columns are as far apart as those of rows",
        shows="config",
    ),
    Mutant(
        "linear_relu",
        "height_of_last_group",
        "matmul",
        "min(blocks_m - first_m, GROUP_M)",
        "GROUP_M",
        "the last group of blocks is taken to be whole",
    ),
    Mutant(
        "linear_relu",
        "tail_of_k",
        "matmul",
        "if EVEN_K:",
        "if BLOCK_K > 1:",
        "the tail of K is read without a mask",
    ),
    Mutant(
        "linear_relu",
        "bias_after_relu",
        "matmul",
        """    if HAS_BIAS:
        acc += tl.load(bias_ptr + n, mask=n_mask, other=0.0).to(tl.float32)[None, :]
    if RELU:
        acc = tl.maximum(acc, 0.0)
""",
        """    if RELU:
        acc = tl.maximum(acc, 0.0)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + n, mask=n_mask, other=0.0).to(tl.float32)[None, :]
""",
        "the bias is added after the ReLU",
    ),
    Mutant("linear_relu", "relu_ignored", "relu_backward", "y > 0", "y >= 0", "zeros let the cotangent pass"),
    Mutant(
        "linear_relu",
        "bias_before_relu",
        "relu_backward",
        "db += tl.sum(dz, axis=0)",
        "db += tl.sum(dy, axis=0)",
        "the gradient of the bias ignores the ReLU",
    ),
    Mutant(
        "linear_relu",
        "bias_not_accumulated",
        "relu_backward",
        "db += tl.sum(dz, axis=0)",
        "db = tl.sum(dz, axis=0)",
        "the gradient of the bias is that of the last block of rows",
    ),
    Mutant(
        "linear_relu",
        "wrong_cotangent",
        "LinearReLU",
        "product(dz, weight)",
        "product(dy, weight)",
        "the gradient of x ignores the ReLU",
    ),
    Mutant(
        "linear_relu",
        "strides_swapped",
        "product",
        "*b.stride()",
        "b.stride(1), b.stride(0)",
        "the strides of the right matrix are swapped",
    ),
    Mutant(
        "linear_relu",
        "half_accumulator",
        "matmul",
        'acc = tl.dot(a, b, acc, input_precision="ieee")',
        "acc = (acc + tl.dot(a, b)).to(tl.float16).to(tl.float32)",
        "products are summed in float16",
        shows="rounding",
    ),
    Mutant(
        "linear_relu",
        "bias_strides",
        "LinearReLU",
        "bias.contiguous()",
        "bias",
        "the bias is taken as contiguous",
        shows="layout",
    ),
)

_NATURAL = (
    Mutant(
        "cumsum",
        "not_reversed",
        "CumSum",
        "REVERSE=True",
        "REVERSE=False",
        "the backward sums from the beginning, too",
    ),
    Mutant(
        "gated_scan",
        "own_gate",
        "scan_bwd",
        "a_ptr + offs + C",
        "a_ptr + offs",
        "the gradient passes by the gate of its own step",
    ),
    Mutant(
        "batch_norm",
        "mean_over_batch",
        "bn_bwd",
        "g - a / total",
        "g - a / N",
        "a mean over the batch, not over batch and space",
    ),
    Mutant(
        "rope_pairs",
        "turned_again",
        "RopePairs",
        "D, -1, BLOCK",
        "D, 1, BLOCK",
        "the backward turns the same way as the forward",
    ),
    Mutant(
        "seeded_dropout",
        "another_seed",
        "SeededDropout",
        "ctx.p, ctx.seed, BLOCK",
        "ctx.p, ctx.seed + 1, BLOCK",
        "the backward draws another mask",
    ),
    Mutant(
        "ordered_average",
        "ties_share_a_rank",
        "owa_bwd",
        "(x[None, :] > x[:, None]) | ((x[None, :] == x[:, None]) & (c[None, :] < c[:, None]))",
        "x[None, :] > x[:, None]",
        "equal elements all get the first rank among them",
    ),
    Mutant(
        "class_means",
        "not_divided",
        "mean_backward",
        "other=0.0) / count",
        "other=0.0)",
        "the gradient of a sum, not of a mean",
    ),
    Mutant(
        "topk_gate",
        "empty_gradient",
        "TopKGate",
        "torch.zeros(T, ctx.E",
        "torch.empty(T, ctx.E",
        "the gradient of experts that were not chosen is not written",
    ),
    Mutant(
        "gqa_block_pointers",
        "first_of_group",
        "gqa_bwd_dkv",
        "range(G)",
        "range(1)",
        "keys get the gradient of the first query head of their group alone",
    ),
    Mutant(
        "split_k_matmul",
        "empty_accumulator",
        "_matmul",
        "torch.zeros",
        "torch.empty",
        "atomic additions to memory that nobody wrote",
    ),
    Mutant(
        "while_logsumexp",
        "next_row_overwritten",
        "lse_bwd",
        "gi * tl.exp(v - norm), mask=offs < end",
        "tl.where(offs < end, gi * tl.exp(v - norm), 0.0)",
        "the last block of a row writes into the next row, and beyond the last",
        shows="irregular",
    ),
    Mutant(
        "embedding_bag",
        "padding_learns",
        "bag_bwd",
        "mask=used[:, None] &",
        "mask=(k < L)[:, None] &",
        "the row of the padding index gets a gradient",
    ),
    Mutant(
        "fused_linear_loss",
        "cotangent_of_a_part",
        "loss_bwd",
        "(p - tl.where(v[None, :] == t[:, None], 1.0, 0.0)) * gi[:, None]",
        "p * gi[:, None] - tl.where(v[None, :] == t[:, None], 1.0, 0.0)",
        "the cotangent scales the softmax, and not the label's one",
    ),
    Mutant(
        "segment_sum",
        "contiguous_cotangent",
        "segment_bwd",
        "seg * sg_row + d * sg_col",
        "seg * D + d",
        "the cotangent is read as if it were contiguous",
        shows="layout",
    ),
    Mutant(
        "tuned_swiglu",
        "pair_of_16",
        "swiglu_bwd",
        "tl.program_id(1) * BLOCK_N",
        "tl.program_id(1) * 16",
        "blocks of the backward begin every 16 columns, whatever their size",
        shows="config",
    ),
    Mutant(
        "kl_div",
        "scaled_once",
        "_kl_kernel",
        "(q - p) * scale / temperature",
        "(q - p) * scale",
        "the derivative of x / temperature is left out",
    ),
)

MUTANTS: tuple[Mutant, ...] = (
    *_SOFTMAX,
    *_LAYER_NORM,
    *_RMS_NORM,
    *_SWIGLU,
    *_CROSS_ENTROPY,
    *_EMBEDDING,
    *_ROTARY,
    *_ATTENTION,
    *_RECURRENCE,
    *_GROUP_NORM,
    *_CAUSAL_CONV,
    *_LINEAR_RELU,
    *_NATURAL,
)
