"""Faults of Triton kernels and their backwards that Liger-Kernel and flash-linear-attention had, and mended.

A table of commits: each mends a fault of a Function. `kernel_replay.py` audits the tree before it and its own.
Arguments by name that a Function did not have yet are left out; those it had no default for are `None`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from kernel_calls import (
    SHORT,
    B,
    H,
    K,
    Make,
    T,
    V,
    angles,
    blocks_of_queries,
    cumulative,
    decay,
    delta,
    fixed,
    grouped,
    labels,
    leaf,
    linear,
    normal,
    normed_linear,
    positive,
    probabilities,
    qkv,
    routed,
    share,
    two,
    unit,
    weight,
)  # fmt: skip
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Fault:
    """A fault that a commit mends.

    Attributes:
        package: LIGER or FLA.
        commit: the one that mends it.
        function: module, without the package's, and name.
        wrong: what was wrong.
        sign: pattern of the findings, as "RULE: message", that are this fault and no other.
        call: a natural call.
        reference: the function in plain PyTorch, of the same arguments.
        referenced: the call that is compared with it, if it is another one.
        telling: the call of the commit's own test, if the natural one cannot show the fault.
        known: patterns of errors that are true of the commit's own tree as well, and why.
    """

    package: str
    commit: str
    function: str
    wrong: str
    sign: str
    call: Make
    reference: Callable[..., Any] | None = None
    referenced: Make | None = None
    telling: Make | None = None
    known: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Commit and name of the function."""
        return f"{self.package} {self.commit} {self.function.rpartition(':')[2]}"

    @property
    def calls(self) -> dict[str, Make]:
        """The calls, by what they take."""
        found = {"natural": self.call}
        if self.reference is not None:
            found["reference"] = self.referenced or self.call
        if self.telling is not None:
            found["telling"] = self.telling
        return found


# ---- Liger-Kernel ---------------------------------------------------------------------------------------------------

_FLCE = "fused_linear_cross_entropy:LigerFusedLinearCrossEntropyFunction"
_FLJSD = "fused_linear_jsd:LigerFusedLinearJSDFunction"
_CE = "cross_entropy:LigerCrossEntropyFunction"
_RMS = "rms_norm:LigerRMSNormFunction"
_LAYER = "layer_norm:LigerLayerNormFunction"
_ROPE = "rope:LigerRopeFunction"

_WEIGHT_ALONE = {r"PB113: .*only weight.* got 0": "no gradient where the head alone is trained: still so in 0.8.5"}
_SCALED_TWICE = {
    r"PB(101|121): .*\(with transposed": "of a transposed input the gradient is scaled twice, if the loss is scaled"
}
_NONE = {
    r"PB101: .*reduction = 'none'|PB101: the gradient of [^(]*(\(utils.py:\d+\))?$|PB121: the gradient": (
        "wrong with reduction='none': mended by 05b43a14 and 9ac26bb8"
    )
}
_ONE_TOKEN = {
    r"PB902: .*7 -> 1|PB121: .*7 -> 1": "takes the stride of a dimension of size 1, with one token of several sequences"
}
_IN_PLACE = {
    r"PB20[236]|PB411": "writes the gradient over an input or a cotangent, on purpose and undeclared",
    r"PB101: .*b the same tensor as a": "so the two gradients overwrite each other, if the inputs are one tensor",
    r"PB101: .*\((with )?(_input )?(transposed|expanded)": "of logits that are not contiguous, these come back",
    r"PB501: .*expanded|PB902: .*expanded": "rows of one storage are written while others read them",
}


def _flce(**more: Any) -> Make:
    return lambda: {
        "_input": normal(7, 24), "weight": normal(50, 24), "target": labels(7, 50), "bias": normal(50),
    } | more  # fmt: skip


def _flce_without_bias() -> dict[str, Any]:
    return {"_input": normal(7, 24), "weight": normal(50, 24), "target": labels(7, 50)}


def _ce(**more: Any) -> Make:
    options = {"ignore_index": -100, "lse_square_scale": 0.0, "label_smoothing": 0.0, "reduction": "mean"}
    return lambda: {"_input": normal(7, 50), "target": labels(7, 50)} | options | more


def _confident() -> dict[str, Any]:
    """Logits that are nearly sure of the label."""
    logits, found = fixed(7, 50), labels(7, 50, None)
    logits[torch.arange(7), found] += 9
    made: dict[str, Any] = _ce()()
    return made | {"_input": leaf(logits), "target": found}


def _rms(n: int = 5, width: int = 40) -> Make:
    return lambda: {
        "X": normal(n, width), "W": weight(width), "eps": 1e-6, "offset": 0.0, "casting_mode": "llama",
    }  # fmt: skip


def _layer_norm() -> dict[str, Any]:
    return {"X": normal(5, 40), "W": weight(40), "B": normal(40), "eps": 1e-6}


def _rotary(cos: Tensor, sin: Tensor) -> dict[str, Any]:
    return {"q": normal(B, 4, 7, 16), "k": normal(B, 2, 7, 16), "cos": cos, "sin": sin}


def _angles_of_batch(*front: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines that differ in each sequence; both halves alike."""
    at = fixed(*front, 7, 8)
    return torch.cat([at.cos()] * 2, -1), torch.cat([at.sin()] * 2, -1)


def _sections() -> dict[str, Any]:
    return {"mrope_section": [2, 3, 3]}


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate by the angles of the left half, which is all that the kernels read."""
    halves = x.chunk(2, -1)
    cos, sin = (torch.cat([part.chunk(2, -1)[0]] * 2, -1) for part in (cos, sin))
    return x * cos.unsqueeze(1) + torch.cat([-halves[1], halves[0]], -1) * sin.unsqueeze(1)


def _rope_by_torch(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _rotated(q, cos, sin), _rotated(k, cos, sin)


def _mrope_by_torch(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, section: Any, *_: Any) -> tuple[Tensor, Tensor]:
    def chosen(x: Tensor) -> Tensor:
        return torch.cat([part[i % 3] for i, part in enumerate(x.split(list(section) * 2, dim=-1))], -1)

    return _rotated(q, chosen(cos), chosen(sin)), _rotated(k, chosen(cos), chosen(sin))


def _ce_by_torch(
    logits: Tensor, target: Tensor, ignored: int, scale: float, smoothing: float, reduction: str, softcap: Any, *_: Any
) -> Tensor:
    """Return the loss, and `scale` times the square of the logarithm of the normaliser."""
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    loss = F.cross_entropy(logits, target, ignore_index=ignored, label_smoothing=smoothing, reduction="none")
    kept = target != ignored
    loss = loss + scale * logits.logsumexp(-1).square() * kept
    return loss if reduction == "none" else loss.sum() / (kept.sum() if reduction == "mean" else 1)


def _flce_by_torch(x: Tensor, head: Tensor, target: Tensor, bias: Tensor | None, *options: Any) -> Tensor:
    return _ce_by_torch(x @ head.t() + (0 if bias is None else bias), target, *options)


def _jsd_by_torch(
    x: Tensor, head: Tensor, y: Tensor, teacher: Tensor, target: Tensor, beta: float, ignored: int, temperature: float
) -> Tensor:
    student, other = ((a @ b.t() / temperature).log_softmax(-1) for a, b in ((x, head), (y, teacher)))
    mean = (beta * other.exp() + (1 - beta) * student.exp()).log()
    each = beta * other.exp() * (other - mean) + (1 - beta) * student.exp() * (student - mean)
    kept = target != ignored
    return (each.sum(-1) * kept).sum() / kept.sum()


def _fljsd() -> dict[str, Any]:
    return {
        "student_input": normal(7, 24), "student_weight": normal(50, 24), "teacher_input": fixed(7, 24),
        "teacher_weight": fixed(50, 24), "shift_labels": labels(7, 50), "jsd_beta": 0.5, "ignore_index": -100,
        "temperature": 1.0,
    }  # fmt: skip


_LIGER = (
    Fault(
        "LIGER", "9ac26bb8", _FLCE, "the weight's and the bias's gradient with reduction='none'",
        r"PB101: the gradient of (weight|bias).*reduction = 'none'", _flce(), known=_WEIGHT_ALONE | _SCALED_TWICE,
    ),
    Fault(
        "LIGER", "be1cdc17", _CE, "the gradient of the label's logit is rounded before a subtraction",
        r"PB907: .*_input", _ce(), telling=_confident, known=_IN_PLACE,
    ),
    Fault(
        "LIGER", "96ce8e85", "fused_moe:LigerFusedMoEFunction", "offsets of loaded rows overflow 32 bits", r"PB906",
        lambda: dict(zip(
            ("x", "gate_up_proj", "down_proj", "top_k_index", "top_k_weights"),
            (normal(9, 24), normal(4, 32, 24), normal(4, 24, 16), *routed(9, 4, 2)), strict=True,
        )),
    ),
    Fault(
        "LIGER", "7d54ff88", _RMS, "sums of the weight's gradient in bfloat16", r"PB907: .*\bW\b", _rms(),
        telling=_rms(32768, 16), known=_IN_PLACE,
    ),
    Fault(
        "LIGER", "4a1677b8", _FLCE, "raises if the weight alone requires a gradient", r"PB113: .*UnboundLocalError",
        _flce(), known={r"PB113: .*NoneType": "raises with another message: mended by d8d6630e"},
    ),
    Fault(
        "LIGER", "d8d6630e", _FLCE, "raises if the weight alone requires a gradient", r"PB113: .*NoneType", _flce(),
        known=_WEIGHT_ALONE | _SCALED_TWICE | _NONE,
    ),
    Fault(
        "LIGER", "b27b4c5f", _RMS, "offsets overflow 32 bits", r"PB906: kernel _rms_norm", _rms(),
        telling=_rms(5, 300), known=_IN_PLACE,
    ),
    Fault(
        "LIGER", "b27b4c5f", _ROPE, "offsets overflow 32 bits", r"PB906: kernel _triton_rope",
        lambda: _rotary(*angles(7, 16, 1)), known=_ONE_TOKEN,
    ),
    Fault(
        "LIGER", "f4a51fb8", _LAYER, "the gradient of X", r"PB101: the gradient of X\b", _layer_norm,
    ),
    Fault(
        "LIGER", "d7c78df1", _ROPE, "reads the first sequence's angles for all", r"PB121: output",
        lambda: _rotary(*angles(7, 16, 1)), _rope_by_torch, lambda: _rotary(*_angles_of_batch(B)), known=_ONE_TOKEN,
    ),
    Fault(
        "LIGER", "d790b64c", _CE, "reduction='none' gives a sum", r"PB121: .*shapes", _ce(), _ce_by_torch,
        _ce(reduction="none"), known=_IN_PLACE | _NONE,
    ),
    Fault(
        "LIGER", "05b43a14", _CE, "the gradient with reduction='none'", r"PB101: the gradient of .*reduction = 'none'",
        _ce(), known=_IN_PLACE,
    ),
    Fault(
        "LIGER", "05b43a14", _FLCE, "the gradients with reduction='none'",
        r"PB101: the gradient of .*reduction = 'none'", _flce(), known=_SCALED_TWICE,
    ),
    Fault(
        "LIGER", "9875488b", _FLCE, "reduction='none' gives a sum", r"PB121: .*shapes", _flce(), _flce_by_torch,
        _flce(reduction="none"), known=_SCALED_TWICE | _NONE,
    ),
    Fault(
        "LIGER", "78e8a854", "qwen2vl_mrope:LigerQwen2VLMRopeFunction", "reads the first sequence's angles for all",
        r"PB121: output", lambda: _rotary(*angles(7, 16, 3, B)) | _sections(), _mrope_by_torch,
        lambda: _rotary(*_angles_of_batch(3, B)) | _sections(),
    ),
    Fault(
        "LIGER", "563e5e53", _RMS, "writes the gradient over its cotangent", r"PB203", _rms(),
        known={r"PB203": "the commit adds an option: this stays the default"},
    ),
    Fault(
        "LIGER", "58fd2bc8", "geglu:LigerGELUMulFunction", "offsets overflow 32 bits", r"PB906",
        lambda: two(5, 40), known=_IN_PLACE,
    ),
    Fault(
        "LIGER", "58fd2bc8", "swiglu:LigerSiLUMulFunction", "offsets overflow 32 bits", r"PB906",
        lambda: two(5, 40), known=_IN_PLACE,
    ),
    Fault(
        "LIGER", "1dc65557", "kl_div:LigerKLDivLossFunction",
        "NaN unless the width fills a block; the gradient with reduction='mean'",
        r"PB101: (the output is not finite|.*reduction = 'mean')",
        lambda: (leaf(fixed(7, 50).log_softmax(-1)), probabilities(7, 50)),
    ),
    Fault(
        "LIGER", "1c0c75c3", _FLJSD, "labels of the first chunk for all", r"PB121: output", _fljsd, _jsd_by_torch,
        known=_SCALED_TWICE,
    ),
    Fault(
        "LIGER", "d75dfb3b", _RMS, "a name without a value with casting_mode='none'", r"PB119: .*dX_row", _rms(),
        known=_IN_PLACE,
    ),
    Fault("LIGER", "6a2c4913", _LAYER, "offsets overflow 32 bits", r"PB906", _layer_norm),
    Fault(
        "LIGER", "53d5934c", _FLCE, "NaN if all labels are ignored", r"PB\d+: .*(nan|not finite)", _flce(),
        telling=lambda: _flce()() | {"target": torch.full((7,), -100)}, known=_SCALED_TWICE,
    ),
    Fault(
        "LIGER", "fa241661", _FLCE, "use_token_scaling raises if a label is ignored", r"PB\d+: .*use_token_scaling",
        _flce(), telling=_flce(use_token_scaling=True), known=_NONE,
    ),
    Fault("LIGER", "ac2e8f45", _FLJSD, "raises under autocast", r"PB413", _fljsd, known=_SCALED_TWICE),
    Fault("LIGER", "6cdc93de", _FLCE, "raises under autocast", r"PB413", _flce(), known=_SCALED_TWICE),
    Fault("LIGER", "174b191c", _FLCE, "raises under autocast", r"PB413", _flce_without_bias, known=_NONE),
    Fault(
        "LIGER", "bab144c7", _FLCE, "raises under autocast", r"PB413", _flce_without_bias,
        known=_NONE | _WEIGHT_ALONE,
    ),
    Fault(
        "LIGER", "e7c2505c", _RMS, "multiplies in bfloat16", r"PB907", _rms(),
        known=_IN_PLACE | {r"PB119: .*dX_row": "a name without a value: mended by d75dfb3b"},
    ),
)  # fmt: skip


# ---- flash-linear-attention -----------------------------------------------------------------------------------------


def _conv(x: int = T, **more: Any) -> dict[str, Any]:
    return {"x": normal(B, x, 24), "weight": normal(24, 4), "bias": normal(24), "activation": "silu"} | more


def _conv_with_state(x: int = T) -> dict[str, Any]:
    return _conv(x, initial_state=normal(B, 24, 4))


def _named(args: tuple[Tensor, ...], **more: Any) -> dict[str, Any]:
    return dict(zip("qkv", args, strict=True)) | more


def _path(t: int = T, k: int = K, v: int = V, gates: bool = False) -> Make:
    return lambda: _named(
        grouped(t, k, v), w=unit(B, t, H, k), beta=share(B, t, H), g=decay(B, t, 2 * H) if gates else None, scale=0.25
    )


def _packed_path() -> dict[str, Any]:
    """One sequence of more than 512 tokens."""
    n = 600
    return {
        "q": normal(1, n, 4, K), "k": normal(1, n, 2, K), "v": normal(1, n, 2, K), "w": unit(1, n, 2, K),
        "beta": share(1, n, 2), "g": None, "scale": 0.25, "cu_seqlens": cumulative(n),
    }  # fmt: skip


def _gsa(factor: float = 1.0) -> dict[str, Any]:
    return _named(
        qkv(), s=normal(B, T, H, 16), g=leaf(factor * decay(B, T, H, 16)), scale=0.25, output_final_state=False,
        checkpoint_level=2,
    )  # fmt: skip


def _dplr(**more: Any) -> dict[str, Any]:
    return linear(a=unit(B, T, H, K), b=unit(B, T, H, K), gk=decay(B, T, H, K)) | more


def _compressed(v: int = V) -> dict[str, Any]:
    return {
        "q": normal(B, T, 16, K), "k": normal(B, 3, 1, K), "v": normal(B, 3, 1, v), "TK": T, "block_size": 32,
        "scale": 0.25,
    }  # fmt: skip


def _selected(v: int = V) -> dict[str, Any]:
    return {
        "q": normal(B, T, 16, K), "k": normal(B, T, 1, K), "v": normal(B, T, 1, v),
        "block_indices": blocks_of_queries(T, 1, 2, 32), "block_counts": 2, "block_size": 32, "scale": 0.25,
    }  # fmt: skip


def _log_linear() -> dict[str, Any]:
    return {
        "q": normal(B, T, 1, 64), "k": normal(B, T, 1, 64), "v": normal(B, T, H, 64), "g": decay(B, T, H),
        "level_scales": positive(B, T, H, 8), "output_final_state": False,
    }  # fmt: skip


def _corrected(b: int = B, t: int = SHORT, h: int = H, d: int = 16) -> Make:
    return lambda: (
        normal(b, t, h * d), *two(b, t, h, d), normal(h, d), normal(b, t, h, d), normal(b, t, h * d),
    )  # fmt: skip


def _delta_by_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    gk: Any,
    gv: Any,
    beta: Tensor,
    scale: float,
    state: Tensor,
    *_: Any,
) -> tuple[Tensor, Tensor]:
    """Return the gated delta rule, step by step."""
    outputs = []
    for t in range(q.shape[1]):
        if g is not None:
            state = state * g[:, t, :, None, None].exp()
        error = v[:, t] - (state * k[:, t, :, :, None]).sum(-2)
        state = state + k[:, t, :, :, None] * (beta[:, t, :, None] * error)[..., None, :]
        outputs.append((state * q[:, t, :, :, None]).sum(-2) * scale)
    return torch.stack(outputs, 1), state


_FINAL_STATE = {
    r"PB101: the gradient of (x|initial_state)\b.*output_final_state": "wrong through the final state: so in 0.6.0, too"
}
_CACHE = {
    r"PB101: .*use_cache = True": "with use_cache=True the gradient of k is wrong: a flag of inference",
    r"PB910: .*do_not_specialize": "mended by a074cc43: Triton refuses a constexpr that is not to be specialised",
}
_FAR_TILES = {r"PB901: kernel parallel_deltaformer_bwd_kernel_qk": "reads rows past the end, which a mask drops"}

_FLA = (
    Fault(
        "FLA", "71ebc498", "modules.conv.triton.ops:CausalConv1dFunction", "assumes that a cotangent is contiguous",
        r"PB502: .*(weight|\bx\b)", _conv, known=_FINAL_STATE | {
            r"PB502: .*the gradient of initial_state": "assumes that it is contiguous there: mended by 6d80721f",
        },
    ),
    Fault(
        "FLA", "de09abdf", "ops.log_linear_attn.chunk:ChunkLogLinearAttentionFunction",
        "reads past the end of a chunk that is not full", r"PB901: kernel chunkwise_(fwd|bwd_kernel_diag)", _log_linear,
    ),
    Fault(
        "FLA", "674f0852", "modules.fused_norm_gate:LayerNormGatedLinearFunction", "the linear weight's gradient",
        r"PB101: the gradient of linear_weight", lambda: normed_linear(g=normal(5, 40)),
    ),
    Fault(
        "FLA", "4b02d15d", "ops.linear_attn.chunk:chunk_linear_attn", "the gradient of k with normalize=True",
        r"PB101: the gradient of k\b", lambda: {
            "q": positive(B, T, H, K), "k": positive(B, T, H, K), "v": normal(B, T, H, V), "normalize": True,
        },
    ),
    Fault(
        "FLA", "03964a5b", "modules.activations:GeLUFunction", "returns a tuple for a gradient", r"PB119: .*tuple",
        lambda: (normal(5, 40), normal(40)),
    ),
    Fault(
        "FLA", "ebd4dd27", "ops.rwkv7.channel_mixing:Rwkv7ChannelMixing", "reads and writes past the end", r"PB901",
        lambda: (normal(B, SHORT, 24), normal(B, 24), normal(24), normal(24, 32), normal(32, 24), False),
        known={r"PB413": "the backward multiplies float32 by bfloat16, and raises"},
    ),
    Fault(
        "FLA", "370fe304", "ops.kda.chunk:ChunkKDAFunction", "reads past the end", r"PB901: .*Akk_diag",
        lambda: delta(g=decay(B, T, H, K)),
    ),
    Fault(
        "FLA", "a9dac8b1", "ops.path_attn.parallel:ParallelPATHAttentionFunction", "adds past the end",
        r"PB901: .*(dkv_kernel|intra_chunk)", _path(SHORT, v=K, gates=True),
        known={r"PB901: .*dq_kernel": "mended by 3d70f7de"} | _CACHE,
    ),
    Fault(
        "FLA", "3d70f7de", "ops.path_attn.parallel:ParallelPATHAttentionFunction", "adds past the end",
        r"PB901: .*dq_kernel", _path(SHORT, v=K, gates=True), known=_CACHE,
    ),
    Fault(
        "FLA", "e4c7f880", "ops.attn.parallel:ParallelAttentionFunction",
        "programs overwrite each other's part of a gradient, on devices with little shared memory", r"PB905",
        lambda: _named(grouped(), scale=0.3), telling=lambda: _named(grouped(v=128), scale=0.3),
    ),
    Fault(
        "FLA", "6d80721f", "modules.conv.triton.ops:CausalConv1dFunction",
        "assumes that a cotangent is contiguous, in the gradient of the initial state", r"PB502: .*initial_state",
        _conv, telling=_conv_with_state, known=_FINAL_STATE,
    ),
    Fault(
        "FLA", "fdeba1bb", "modules.convolution:CausalConv1dFunction", "gradients with an initial state",
        r"PB101: the gradient of (weight|initial_state)", _conv, telling=_conv_with_state,
        known=_FINAL_STATE | {
            r"PB502": "assumes that a cotangent is contiguous: mended by 71ebc498",
            r"PB(901|101): .*70 -> 1": "reads past the end of one token: mended by 7cbe461b",
        },
    ),
    Fault(
        "FLA", "51a8c0a8", "ops.deltaformer.parallel:ParallelDeltaformerFunction",
        "keys whose tile spans two chunks are not written",
        r"PB101: output 0.*never wrote|PB903: kernel parallel_deltaformer_fwd",
        lambda: (*qkv(T, 32, 32), share(B, T, H), 64), telling=lambda: (*qkv(96, 32, 32), share(B, 96, H), 48),
        known=_FAR_TILES | {
            r"PB101: the gradient of .*never wrote|PB903: kernel parallel_deltaformer_bwd":
                "the backward starts at a multiple of the chunk: still so in 0.6.0",
            r"PB501": "takes tensors to be contiguous: still so in 0.6.0",
        },
    ),
    Fault(
        "FLA", "7cbe461b", "modules.conv.triton.ops:CausalConv1dFunction", "reads past the end of one token", r"PB901",
        _conv, telling=lambda: _conv_with_state(1), known=_FINAL_STATE | {r"PB502": "mended by 71ebc498"},
    ),
    Fault(
        "FLA", "5aea42b7", "ops.rwkv7.gate_output_correction:GateOutputCorrection", "tokens past 65536 are not written",
        r"PB101: output 0.*never wrote|PB903|PB101: .*655", _corrected(), telling=_corrected(1, 65600, 1, 2),
    ),
    Fault(
        "FLA", "b9bdbcf2", "modules.l2warp:L2Wrap", "a gradient that ignores the cotangent", r"PB1(09|01)",
        lambda: (normal(), normal(2, 5, 40)),
    ),
    Fault(
        "FLA", "1c403c3a", "ops.path_attn.parallel:ParallelPATHAttentionFunction",
        "reads v by the width of k, beyond 512 tokens",
        r"PB901: kernel parallel_path_bwd_d|PB119: .*parallel_path_bwd_dkv_kernel", _path(), telling=_path(600),
        known=_CACHE | {r"PB101: the gradient of v\b": "takes the heads of dv to be K apart, not V: still so in 0.6.0"},
    ),
    Fault(
        "FLA", "91d870f8", "ops.gated_delta_rule.chunk:ChunkGatedDeltaRuleFunction", "0 · ∞ for large decays",
        r"PB301: .*(nan|inf\b)", lambda: delta(g=decay(B, T, H)),
        telling=lambda: delta(84, g=leaf(30 * decay(B, 84, H))),
    ),
    Fault(
        "FLA", "40334f1c", "ops.generalized_delta_rule.dplr.chunk:ChunkDPLRDeltaRuleFunction",
        "an offset against overflow is read elsewhere", r"PB301: .*(nan|inf\b)", _dplr,
        telling=lambda: _dplr(safe_gate=True, chunk_size=16, gk=leaf(30 * decay(B, T, H, K))),
    ),
    Fault(
        "FLA", "0abbe028", "ops.nsa.compression:ParallelNSACompressionFunction",
        "gradients of values of more than 128 channels are written elsewhere",
        r"PB90[123]: (?!kernel parallel_attn_bwd_kernel_preprocess)|PB101: the gradient of [kv]", _compressed,
        telling=lambda: _compressed(160),
        known={r"PB111": "the cotangent of the second output is ignored: still so in 0.6.0"},
    ),
    Fault(
        "FLA", "3a904f02", "ops.gsa.chunk:ChunkGSAFunction", "0 · ∞ for large decays", r"PB301: .*(nan|inf\b)",
        _gsa, telling=lambda: _gsa(40.0),
    ),
    Fault(
        "FLA", "2cec2a33", "ops.nsa.parallel:ParallelNSAFunction", "gradients of values of more than 128 channels",
        r"PB101: the gradient of [qk]\b", _selected, telling=lambda: _selected(160),
    ),
    Fault(
        "FLA", "794f183c", "modules.fused_kl_div:FusedKLDivLossFunction", "sums the weight's gradient in bfloat16",
        r"PB907: .*weight", lambda: {
            "x": normal(7, 24), "target_x": fixed(7, 24), "weight": normal(50, 24), "target_weight": fixed(50, 24),
            "reduction": "batchmean", "accumulate_grad_in_fp32": True,
        },
    ),
    Fault(
        "FLA", "f636f5a1", "ops.gated_delta_rule.fused_recurrent:FusedRecurrentFunction",
        "without a gate the state is not read", r"PB121: output", lambda: delta(SHORT, g=decay(B, SHORT, H)),
        _delta_by_torch, lambda: delta(SHORT),
    ),
    Fault(
        "FLA", "6b7df989", "ops.path_attn.parallel:ParallelPATHAttentionFunction",
        "packed sequences of more than 512 tokens write past the end", r"PB90[123]: (?!.*dg_cumsum)", _path(v=K),
        telling=_packed_path, known=_CACHE | {
            r"PB901: .*(dkv_kernel|dq_kernel|intra_chunk).*dg_cumsum":
                "adds zeros past the end: mended by a9dac8b1 and 3d70f7de",
        },
    ),
)  # fmt: skip

FAULTS = (*_LIGER, *_FLA)
KNOWN: Mapping[str, str] = {r"PB40[14]": "the gradients do not require one: second derivatives silently lack a part"}
"""Patterns of errors that are true of nearly every Function of both packages, and why."""
LEFT_OUT: Mapping[str, str] = {
    "LIGER 57848d53": "no fault: imitates PyTorch's rounding",
    "LIGER 449f5cba": "no fault of the kernel: the same numbers",
    "LIGER 9b80613f": "no fault: refactoring",
    "LIGER 90fb5e4a": "no fault: a scalar in float32 already made the loop float32",
    "LIGER 88ffbdfc, 37c91c0e, 11702da9, 9af8936f, 10acf80c, 2d8b2283, c5bda07f, 6b3d7618": "only a compiler shows it",
    "LIGER 91ae44ae, fc8e95da, ed08f6ea, 6b01b1cf, 2dc738d6, 665751e2": "of a device or of an old Triton",
    "LIGER 51560182": "labels out of range: against the contract",
    "LIGER 5101e3cd": "needs a process group",
    "FLA f52529ee": "no fault by Triton's semantics: an empty range",
    "FLA 8ff1f117, 5659576e": "programs store equal values: harmless",
    "FLA f5347537": "of a bare forward function, not of a Function",
    "FLA 7bc42455": "a wrong sign of a plain function, whose derivative is right",
    "FLA 23da0a15": "no Function reaches it",
    "FLA 769035e9, cff34514": "no fault: a feature",
    "FLA bb1f9b9c": "its own part cannot be told from 370fe304's",
}
"""Commits that look like such a fault and are none, or that cannot be run, and why."""
