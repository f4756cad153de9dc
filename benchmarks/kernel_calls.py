"""Example calls of Functions with Triton kernels: Liger-Kernel, flash-linear-attention and five other packages.

A table for each package, by module and class: a function that makes the arguments, by position or by name. Tensors are
float64, on the CPU; sequences have two chunks, the second of which is not full; sizes differ where a kernel allows it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Make = Callable[[], tuple[Any, ...] | dict[str, Any]]

B, T, H, K, V = 2, 70, 2, 16, 32
"""Batch, length (a chunk of 64 and a tail), heads, and channels of keys and of values."""
SHORT = 21
"""Length for kernels that go step by step, or in chunks of 16."""


def arguments(function: Any, make: Make) -> tuple[Any, ...]:
    """Return the positional arguments of an example call.

    Args:
        function: an `autograd.Function` class, or another callable.
        make: entry of a table.
    """
    torch.manual_seed(0)
    made = make()
    if isinstance(made, tuple):
        return made
    context = (None,) if hasattr(function, "forward") else ()
    bound = inspect.signature(getattr(function, "forward", function)).bind(*context, **made)
    bound.apply_defaults()
    return bound.args[len(context) :]


# ---- tensors --------------------------------------------------------------------------------------------------------


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    """Normal values that require a gradient."""
    return (torch.randn(shape, dtype=torch.float64) * scale).requires_grad_()


def fixed(*shape: int) -> Tensor:
    """Normal values that require none."""
    return torch.randn(shape, dtype=torch.float64)


def leaf(x: Tensor) -> Tensor:
    """Return values as a leaf that requires a gradient."""
    return x.detach().double().requires_grad_()


def decay(*shape: int) -> Tensor:
    """Logarithms of decays, in (-inf, 0)."""
    return leaf(F.logsigmoid(fixed(*shape)))


def share(*shape: int) -> Tensor:
    """Values between 0 and 1."""
    return leaf(fixed(*shape).sigmoid())


def positive(*shape: int) -> Tensor:
    """Values above 0.1."""
    return leaf(fixed(*shape).exp() + 0.1)


def unit(*shape: int) -> Tensor:
    """Vectors of norm 1."""
    return leaf(F.normalize(fixed(*shape), dim=-1))


def weight(n: int) -> Tensor:
    """Weights of a normalisation, around 1."""
    return leaf(1 + 0.3 * fixed(n))


def probabilities(*shape: int) -> Tensor:
    """Distributions over the last axis; no gradient."""
    return fixed(*shape).softmax(-1)


def labels(n: int, classes: int, ignored: int | None = -100) -> Tensor:
    """Labels, of which one is ignored."""
    found = torch.randint(classes, (n,))
    if ignored is not None:
        found[1] = ignored
    return found


def cumulative(*lengths: int) -> Tensor:
    """Bounds of packed sequences."""
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.long)


def angles(length: int, width: int, *front: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of a rotary embedding."""
    at = torch.arange(length, dtype=torch.float64)[:, None] / 100 ** (torch.arange(width, dtype=torch.float64) / width)
    at = at.expand(*front, length, width)
    return at.cos().contiguous(), at.sin().contiguous()


# ---- families -------------------------------------------------------------------------------------------------------


def qkv(t: int = T, k: int = K, v: int = V, heads: int = H, value_heads: int | None = None) -> tuple[Tensor, ...]:
    """Queries, keys of norm 1, and values, of shape (batch, time, heads, channels)."""
    return normal(B, t, heads, k), unit(B, t, heads, k), normal(B, t, value_heads or heads, v)


def heads_first(t: int = T, k: int = K, v: int = V) -> tuple[Tensor, ...]:
    """Queries, keys and values of shape (batch, heads, time, channels)."""
    return normal(B, H, t, k), normal(B, H, t, k), normal(B, H, t, v)


def linear(t: int = T, k: int = K, v: int = V, **more: Any) -> dict[str, Any]:
    """Arguments of linear attention with an initial and a final state."""
    q, keys, values = qkv(t, k, v)
    state = normal(B, H, k, v)
    common = {"q": q, "k": keys, "v": values, "scale": k**-0.5, "initial_state": state, "output_final_state": True}
    return common | more


def delta(t: int = T, **more: Any) -> dict[str, Any]:
    """Arguments of a delta rule: linear attention with a rate of writing."""
    return linear(t, **{"beta": share(B, t, H)} | more)


def preconditioned(t: int = T, **more: Any) -> dict[str, Any]:
    """Arguments of a preconditioned delta rule."""
    own = {"g_atk": decay(B, t, H), "beta_atk": share(B, t, H), "initial_A_state": positive(B, H, K)}
    return delta(t, **own | {"log_atk_scale": normal(H)} | more)


def normed(n: int = 5, width: int = 40, **more: Any) -> dict[str, Any]:
    """Arguments of a normalisation."""
    return {"x": normal(n, width), "weight": weight(width), "bias": normal(width)} | more


def normed_linear(n: int = 5, width: int = 40, **more: Any) -> dict[str, Any]:
    """Arguments of a normalisation and a linear layer."""
    norm = {"x": normal(n, width), "norm_weight": weight(width), "norm_bias": normal(width)}
    return norm | {"linear_weight": normal(24, width), "linear_bias": normal(24)} | more


def two(*shape: int) -> tuple[Tensor, Tensor]:
    """Two tensors of one shape."""
    return normal(*shape), normal(*shape)


def policy(n: int = 3, length: int = 7, words: int = 50) -> dict[str, Any]:
    """Arguments of a loss of policy optimisation."""
    mask = torch.ones(n, length, dtype=torch.int32)
    mask[0, -2:] = 0
    return {
        "logits": normal(n, length + 1, words), "ref_logp": -positive(n, length).detach(),
        "advantages": fixed(n), "completion_mask": mask,
    }  # fmt: skip


def grouped(t: int = T, k: int = K, v: int = V, groups: int = 2) -> tuple[Tensor, ...]:
    """Queries of more heads than keys and values have."""
    return normal(B, t, H * groups, k), normal(B, t, H, k), normal(B, t, H, v)


def blocks_of_queries(t: int, heads: int, chosen: int, size: int) -> Tensor:
    """Indices of earlier blocks that each query attends to, of shape (batch, time, heads, chosen)."""
    own = torch.arange(t)[:, None] // size
    at = own - torch.arange(chosen)
    return torch.where(at >= 0, at, t).expand(B, heads, t, chosen).transpose(1, 2).contiguous()


def routed(tokens: int, experts: int, chosen: int) -> tuple[Tensor, Tensor]:
    """Experts of each token, and their weights."""
    best = fixed(tokens, experts).topk(chosen, dim=-1)
    return best.indices.int(), leaf(best.values.softmax(-1))


class Mlp(torch.nn.Module):
    """A small network, for a Function that runs one by tiles."""

    def __init__(self) -> None:
        """Make its two layers."""
        super().__init__()
        self.up, self.down = (torch.nn.Linear(16, 16, dtype=torch.float64) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return its output."""
        out: Tensor = self.down(torch.tanh(self.up(x)))
        return out


# ---- tables ---------------------------------------------------------------------------------------------------------

_LIGER: Mapping[str, Make] = {
    "attn_res:LigerAttnResFunction": lambda: (normal(3, 2, 5, 24), normal(24), weight(24), 1e-6),
    "cross_entropy:LigerCrossEntropyFunction": lambda: (
        normal(7, 50), labels(7, 50), positive(50).detach(), -100, 1e-3, 0.1, "mean", 15.0,
    ),
    "dyt:LigerDyTFunction": lambda: (normal(2, 5, 40), normal(1), weight(40), normal(40)),
    "experimental.embedding:LigerEmbeddingFunction": lambda: (normal(11, 40), torch.randint(11, (2, 7))),
    "fused_add_rms_norm:LigerFusedAddRMSNormFunction": lambda: (*two(5, 40), weight(40), 1e-6),
    "fused_ce_tvd:LigerFusedCETVDFunction": lambda: (normal(7, 50), fixed(7, 50), labels(7, 50)),
    "fused_linear_cross_entropy:LigerFusedLinearCrossEntropyFunction": lambda: (
        normal(7, 24), normal(50, 24), labels(7, 50), normal(50), None, -100, 1e-3, 0.1,
    ),
    "fused_linear_jsd:LigerFusedLinearJSDFunction": lambda: (
        normal(7, 24), normal(50, 24), fixed(7, 24), fixed(50, 24), labels(7, 50), 0.3,
    ),
    "fused_linear_kl_div:LigerFusedLinearKLDivFunction": lambda: (
        normal(7, 24), normal(50, 24), probabilities(7, 50), labels(7, 50),
    ),
    "fused_linear_scaled_cross_entropy:_FusedLinearPPOFallbackFunction": lambda: (
        normal(7, 24), normal(50, 24), labels(7, 50), 0.7, -100, True,
    ),
    "fused_moe:LigerFusedMoEFunction": lambda: (
        normal(9, 24), normal(4, 32, 24), normal(4, 24, 16), *routed(9, 4, 2),
    ),
    "softmax:LigerSoftmaxFunction": lambda: (normal(5, 40),),
    "fused_neighborhood_attention:LigerFusedNeighborhoodAttentionFunction": lambda: (
        *heads_first(37, 16, 16), 7, 2,
    ),
    "geglu:LigerGELUMulFunction": lambda: two(5, 40),
    "group_norm:LigerGroupNormFunction": lambda: (normal(3, 12, 5), weight(12), normal(12), 12, 4, 1e-6),
    "grpo_loss:GrpoLossFunction": lambda: policy() | {
        "old_logp": -positive(3, 7).detach(), "completion_ids": torch.randint(50, (3, 7)), "temperature": 0.9,
        "beta": 0.04, "eps_low": 0.2, "eps_high": 0.3, "inplace": False,
    },
    "jsd:LigerJSDFunction": lambda: (
        leaf(fixed(7, 50).log_softmax(-1)), fixed(7, 50).log_softmax(-1), labels(7, 50), 0.3,
    ),
    "kl_div:LigerKLDivLossFunction": lambda: (leaf(fixed(7, 50).log_softmax(-1)), probabilities(7, 50)),
    "layer_norm:LigerLayerNormFunction": lambda: (normal(5, 40), weight(40), normal(40), 1e-6),
    "llama4_rope:LigerLlama4RopeFunction": lambda: (
        normal(B, 7, 4, 16), normal(B, 7, 2, 16), torch.polar(torch.ones(7, 8).double(), fixed(7, 8)),
    ),
    "mhc:LigerMHCCoeffsFunction": lambda: (
        normal(5, 4, 24), normal(96, 24), normal(24), normal(), normal(), normal(), True, 5, 1e-6, 1e-6, 1e-6, 2.0,
    ),
    "mhc:LigerMHCPreFunction": lambda: (normal(5, 4, 24), normal(5, 4)),
    "mhc:LigerMHCPostResFunction": lambda: (normal(5, 4, 24), normal(5, 24), normal(5, 4), normal(5, 4, 4)),
    "mlp:LigerMLPFunction": lambda: (normal(2, 5, 24), normal(32, 24), normal(32, 24), normal(24, 32)),
    "modulated_rms_norm:LigerModulatedRMSNormFunction": lambda: (
        normal(2, 5, 40), weight(40), normal(2, 40), normal(2, 40), 1e-6,
    ),
    "sparsemax:LigerSparsemaxFunction": lambda: (normal(5, 40), -1),
    "multi_token_attention:LigerMultiTokenAttentionFunction": lambda: (
        normal(2, 3, 11, 11), normal(3, 3, 3, 3), normal(3), 1, 1,
    ),
    "poly_norm:LigerPolyNormFunction": lambda: (normal(5, 40), normal(3), normal()),
    "qwen2vl_mrope:LigerQwen2VLMRopeFunction": lambda: (
        normal(B, 4, 7, 16), normal(B, 2, 7, 16), *angles(7, 16, 3, B), [2, 3, 3],
    ),
    "relu_squared:LigerReLUSquaredFunction": lambda: (normal(5, 40),),
    "rms_norm:LigerRMSNormFunction": lambda: (normal(5, 40), weight(40), 1e-6),
    "rope:LigerRopeFunction": lambda: (normal(B, 4, 7, 16), normal(B, 2, 7, 16), *angles(7, 16, 1)),
    "swiglu:LigerSiLUMulFunction": lambda: (*two(5, 40), 0.7, 1.3),
    "swiglu:LigerFusedGateUpSiLUMulFunction": lambda: (normal(5, 80),),
    "tiled_mlp:LigerTiledMLPFunction": lambda: (lambda m, x: m(x), Mlp(), normal(2, 9, 16), 2),
    "tvd:LigerTVDLossFunction": lambda: (leaf(probabilities(7, 50)), probabilities(7, 50), labels(7, 50)),
}  # fmt: skip
LIGER: Mapping[str, Make] = {f"liger_kernel.ops.{name}": make for name, make in _LIGER.items()}

_FLA_MODULES: Mapping[str, Make] = {
    "activations.ops:SigmoidFunction": lambda: (normal(5, 40),),
    "activations.ops:ELUPlusOneFunction": lambda: (normal(5, 40),),
    "activations.ops:LogSigmoidFunction": lambda: (normal(5, 40), 2.0),
    "activations.ops:SwishFunction": lambda: (normal(5, 40),),
    "activations.ops:GeLUFunction": lambda: (normal(5, 40), normal(40)),
    "activations.ops:FastGeLUFunction": lambda: (normal(5, 40),),
    "activations.ops:SquaredReLUFunction": lambda: (normal(5, 40),),
    "activations.ops:SwiGLUFunction": lambda: two(5, 40),
    "activations.ops:SwiGLULinearFunction": lambda: (*two(5, 40), normal(24, 40), normal(24)),
    "activations.ops:SigmoidGLUFunction": lambda: two(5, 40),
    "activations.ops:SigmoidGLULinearFunction": lambda: (*two(5, 40), normal(24, 40), normal(24)),
    "activations.ops:PowGLUFunction": lambda: (*two(5, 40), 3.0),
    "activations.ops:PowGLULinearFunction": lambda: (*two(5, 40), normal(24, 40), normal(24), 3.0),
    "causal_conv1d.ops:CausalConv1dFunction": lambda: {
        "x": normal(B, T, 24), "weight": normal(24, 4), "bias": normal(24), "residual": normal(B, T, 24),
        "initial_state": normal(B, 24, 4), "output_final_state": True, "activation": "silu",
    },
    "fused_cross_entropy.ops:FusedCrossEntropyFunction": lambda: (normal(7, 50), labels(7, 50), 0.1, 0.8, 1e-3),
    "fused_kl_div.ops:FusedKLDivLossFunction": lambda: (
        normal(7, 24), fixed(7, 24), normal(50, 24), fixed(50, 24), "batchmean", True, True,
    ),
    "fused_linear_cross_entropy.ops:FusedLinearCrossEntropyFunction": lambda: (
        normal(7, 24), labels(7, 50), normal(50, 24), normal(50), -100, 0.1, 0.8,
    ),
    "grpo.ops:GrpoLoss": lambda: policy() | {
        "input_ids": torch.randint(50, (3, 9)), "beta": 0.04, "save_kl": False, "inplace": False,
    },
    "l2warp:L2Wrap": lambda: (normal(), normal(2, 5, 40)),
    "norm.fused_norm_gate:LayerNormGatedFunction": lambda: normed(
        g=normal(5, 40), activation="swish", residual=normal(5, 40), prenorm=True,
    ),
    "norm.fused_norm_gate:LayerNormGatedLinearFunction": lambda: normed_linear(
        g=normal(5, 40), residual=normal(5, 40), prenorm=True,
    ),
    "norm.l2norm:L2NormFunction": lambda: (normal(5, 40),),
    "norm.layernorm:LayerNormFunction": lambda: normed(residual=normal(5, 40), prenorm=True, num_groups=2),
    "norm.layernorm:LayerNormLinearFunction": lambda: normed_linear(residual=normal(5, 40), prenorm=True),
    "norm.layernorm_gated:LayerNormFn": lambda: normed(z=normal(5, 40), group_size=20),
    "rotary.ops:RotaryEmbeddingFunction": lambda: (normal(B, T, H, 16), *angles(T, 8)),
    "token_shift:TokenShift": lambda: (normal(B, T, 24),),
}  # fmt: skip

_FLA_OPS: Mapping[str, Make] = {
    "abc.chunk:ChunkABCFunction": lambda: (
        *heads_first(), normal(B, H, T, 16), (normal(B, H, K, 16), normal(B, H, 16, V)), True,
    ),
    "attn.parallel:ParallelAttentionFunction": lambda: (*grouped(), decay(B, T, 4), normal(4), 0.3, 40, None),
    "attnres.fused:FusedAttnresFunction": lambda: (
        normal(24), weight(24), weight(24), 1e-6, 0.5, False, 1, *(normal(10, 24) for _ in range(3)),
    ),
    "based.fused_chunk:FusedChunkBasedFunction": lambda: (*heads_first(), 0.25),
    "based.parallel:ParallelBasedFunction": lambda: (*heads_first(150), 0.25),
    "comba.chunk:ChunkCombaFunction": lambda: delta(p=unit(B, T, H, K), g=decay(B, T, H)),
    "common.fused_chunk:FusedChunkFunction": lambda: linear(g=decay(B, T, H), g_gamma=None, cu_seqlens=None),
    "common.fused_recurrent:FusedRecurrentFunction": lambda: linear(
        SHORT, g=decay(B, SHORT, H), gk=decay(B, SHORT, H, K), gv=decay(B, SHORT, H, V),
    ),
    "common.gate:BetaSigmoidFunction": lambda: (normal(B, T, H), 2.0),
    "cyfa.chunk:ChunkCyFAFunction": lambda: {
        "q": normal(B, T, H, K), "k": normal(B, T, H, K), "v": normal(B, T, H, V), "g": decay(B, T, H),
        "delta": normal(B, T, H), "beta": share(B, T, H), "readout_table": normal(H, 16, 16),
        "q_norm_weight": weight(K), "k_norm_weight": weight(K), "q_norm_eps": 1e-6, "k_norm_eps": 1e-6,
        "scale": 0.25, "initial_k": None, "initial_v": None, "initial_lambda": None, "output_final_state": True,
        "cu_seqlens": None, "cu_seqlens_cpu": None, "checkpoint_level": 0,
    },
    "deltaformer.parallel:ParallelDeltaformerFunction": lambda: (
        *qkv(T, 32, 32), share(B, T, H), 64,
    ),
    "delta_rule.chunk:ChunkDeltaRuleFunction": lambda: delta(),
    "delta_rule.fused_recurrent:FusedRecurrentFunction": lambda: delta(SHORT),
    "gated_delta_product.chunk:ChunkGatedDeltaProductFunction": lambda: {
        "q": normal(B, T, H, K), "k": unit(B, 2 * T, H, K), "v": normal(B, 2 * T, H, V), "g": decay(B, T, H),
        "beta": share(B, 2 * T, H), "scale": 0.25, "num_householder": 2, "initial_state": normal(B, H, K, V),
        "output_final_state": True,
    },
    "gated_delta_rule.chunk:ChunkGatedDeltaRuleFunction": lambda: delta(g=decay(B, T, H)),
    "gated_delta_rule.gate:GDNGateFunction": lambda: (normal(B, T, H), normal(H), normal(H)),
    "gated_oja_rule.chunk:ChunkOJAFunction": lambda: delta(gv=decay(B, T, H, V)),
    "gdn2.chunk:ChunkGDN2Function": lambda: linear(
        g=decay(B, T, H, K), b=share(B, T, H, K), w=share(B, T, H, V), A_log=None, dt_bias=None,
        use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, cu_seqlens=None, cu_seqlens_cpu=None,
        safe_gate=False, lower_bound=None, chunk_size=64, disable_recompute=False, return_intermediate_states=False,
        state_v_first=False,
    ),
    "generalized_delta_rule.dplr.chunk:ChunkDPLRDeltaRuleFunction": lambda: linear(
        a=unit(B, T, H, K), b=unit(B, T, H, K), gk=decay(B, T, H, K),
    ),
    "generalized_delta_rule.iplr.fused_recurrent:FusedRecurrentIPLRDeltaRuleFunction": lambda: linear(
        SHORT, a=unit(B, SHORT, H, K), b=unit(B, SHORT, H, K),
    ),
    "gla.chunk:ChunkGLAFunction": lambda: linear(
        g=decay(B, T, H, K), state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None,
    ),
    "gsa.chunk:ChunkGSAFunction": lambda: {
        **dict(zip("qkv", qkv(), strict=True)), "s": normal(B, T, H, 16), "g": decay(B, T, H, 16), "scale": 0.25,
        "hk0": normal(B, H, K, 16), "hv0": normal(B, H, 16, V), "output_final_state": True, "checkpoint_level": 2,
        "cu_seqlens": None, "cu_seqlens_cpu": None,
    },
    "gsa.fused_recurrent:FusedRecurrentGSAFunction": lambda: {
        **dict(zip("qkv", qkv(SHORT), strict=True)), "s": normal(B, SHORT, H, 16), "g": decay(B, SHORT, H, 16),
        "scale": 0.25, "hk0": normal(B, H, K, 16), "hv0": normal(B, H, 16, V), "output_final_state": True,
    },
    "gsa.gate:FusedAdditiveGateFunction": lambda: (normal(B, T, H, K), normal(B, 1, H, K), None, None, None),
    "hgrn.chunk:ChunkHGRNFunction": lambda: (normal(B, 150, 24), decay(B, 150, 24), normal(B, 24), True),
    "hgrn.fused_recurrent:FusedRecurrentHGRNFunction": lambda: (
        normal(B, SHORT, 24), decay(B, SHORT, 24), normal(B, 24), True,
    ),
    "kda.chunk:ChunkKDAFunction": lambda: delta(g=decay(B, T, H, K), A_log=None, dt_bias=None),
    "kda.gate:KDAGateFunction": lambda: (normal(B, T, H, K), normal(H), normal(H * K)),
    "linear_attn.utils:StatefulNormalizeFunction": lambda: (
        normal(B, T, H, V), positive(B, T, H, K), positive(B, T, H, K), 0.25, positive(B, 1, H, K), False, None,
    ),
    "log_linear_attn.chunk:ChunkLogLinearAttentionFunction": lambda: {
        "q": normal(B, T, 1, 64), "k": normal(B, T, 1, 64), "v": normal(B, T, H, 64), "g": decay(B, T, H),
        "level_scales": positive(B, T, H, 8), "initial_state": None, "output_final_state": False,
        "cu_seqlens": None, "scale": 0.25,
    },
    "mesa_net.chunk:ChunkMesaNetFunction": lambda: {
        **dict(zip("qkv", qkv(T, 16, 16), strict=True)), "g": decay(B, T, H), "beta": share(B, T, H),
        "lamb": leaf(0.3 + share(H, 16)), "cu_seqlens": None, "cu_seqlens_cpu": None, "max_CG_iteration": 30,
        "h_kk_init": torch.eye(16).double().expand(B, H, 16, 16).contiguous(), "h_kv_init": normal(B, H, 16, 16),
        "output_final_state": True, "use_qk_l2norm_in_kernel": False,
    },
    "momentum_delta_rule.chunk:ChunkMomentumDeltaRuleFunction": lambda: _momentum(T) | {"chunk_size": 64},
    "momentum_delta_rule.fused_recurrent:FusedRecurrentMomentumDeltaRuleFunction": lambda: _momentum(SHORT),
    "nsa.compression:ParallelNSACompressionFunction": lambda: (
        normal(B, T, 16, K), normal(B, 3, 1, K), normal(B, 3, 1, V), T, 32, 0.25, None,
    ),
    "nsa.parallel:ParallelNSAFunction": lambda: (
        normal(B, T, 16, K), normal(B, T, 1, K), normal(B, T, 1, V), blocks_of_queries(T, 1, 2, 32), 2, 32, 0.25, None,
    ),
    "parallax.parallel:ParallaxFunction": lambda: (
        normal(B, T, 4, K), normal(B, T, 4, K), normal(B, T, H, K), normal(B, T, H, K), 0.25, -1, None,
    ),
    "path_attn.parallel:ParallelPATHAttentionFunction": lambda: (
        *grouped(), unit(B, T, H, K), share(B, T, H), decay(B, T, 4), 0.25, None,
    ),
    "precond_gated_delta_rule.chunk:ChunkPrecondGatedDeltaRuleFunction": lambda: preconditioned(g=decay(B, T, H)),
    "precond_kda.chunk:ChunkPrecondKDAFunction": lambda: preconditioned(g=decay(B, T, H, K)),
    "rebased.parallel:ParallelBasedFunction": lambda: (*heads_first(150), 0.25),
    "rwkv4.fused_recurrent:FusedRecurrentRWKV4Function": lambda: (
        normal(24), normal(24), normal(B, SHORT, 24), normal(B, SHORT, 24),
        leaf(torch.stack([fixed(B, 1, 24), positive(B, 1, 24), fixed(B, 1, 24)], 1)),
    ),
    "rwkv6.chunk:ChunkRWKV6Function": lambda: linear(
        g=decay(B, T, H, K), u=normal(H, K), cu_seqlens=None, cu_seqlens_cpu=None,
    ),
    "rwkv6.fused_recurrent:FusedRecurrentRWKV6Function": lambda: linear(
        SHORT, w=decay(B, SHORT, H, K), u=normal(H, K),
    ),
    "rwkv7.channel_mixing:Rwkv7ChannelMixing": lambda: (
        normal(B, SHORT, 24), normal(B, 24), normal(24), normal(24, 32), normal(32, 24), False,
    ),
    "rwkv7.fused_addcmul:Rwkv7FusedAddcmul": lambda: (*two(B, SHORT, 24), *(normal(1, 1, 24) for _ in range(6))),
    "rwkv7.fused_k_update:KUpdateFunction": lambda: (*two(B, SHORT, 24), normal(24)),
    "rwkv7.gate_output_correction:GateOutputCorrection": lambda: (
        normal(B, SHORT, 32), *two(B, SHORT, H, 16), normal(H, 16), normal(B, SHORT, H, 16), normal(B, SHORT, 32),
    ),
    "simple_gla.chunk:ChunkSimpleGLAFunction": lambda: linear(
        g=decay(B, T, H), g_gamma=None, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None,
    ),
    "simple_gla.parallel:ParallelSimpleGLAFunction": lambda: (
        *qkv(150), decay(B, 150, H), 0.25, False, None, None,
    ),
    "stickbreaking_attn.parallel:ParallelStickBreakingAttentionFunction": lambda: (*grouped(), 0.25, False, None),
    "ttt.chunk:ChunkTTTLinearFunction": lambda: _ttt() | {"chunk_size": 16, "cu_seqlens_cpu": None},
    "ttt.fused_chunk:FusedChunkTTTLinearFunction": lambda: _ttt() | {"BT": 16},
    "utils.pack:PackSequenceFunction": lambda: (normal(3, 9, 24), cumulative(9, 4, 6), "left"),
    "utils.pack:UnpackSequenceFunction": lambda: (normal(19, 24), cumulative(9, 4, 6), "right"),
    "utils.pooling:MeanPoolingFunction": lambda: (normal(B, T, H, K), 32),
    "utils.sinkhorn.ops:SinkhornFunction": lambda: (normal(5, 4, 4), 5),
    "wall_attn.parallel:WallParallelAttentionFunction": lambda: (
        *grouped(), decay(B, T, 4, K), normal(4), 0.25, 40, None, decay(B, T, 4),
    ),
}  # fmt: skip
FLA: Mapping[str, Make] = {
    **{f"fla.modules.{name}": make for name, make in _FLA_MODULES.items()},
    **{f"fla.ops.{name}": make for name, make in _FLA_OPS.items()},
    "fla.layers.utils:IndexFirstAxis": lambda: (normal(9, 24), torch.tensor([3, 0, 5, 8])),
    "fla.layers.utils:IndexPutFirstAxis": lambda: (normal(4, 24), torch.tensor([3, 0, 5, 8]), 9),
}


def _momentum(t: int) -> dict[str, Any]:
    q, k, v = qkv(t)
    return {
        "q": q, "k": k, "v": v, "p": unit(B, t, H, K), "log_alpha": decay(B, t, H), "log_mu": decay(B, t, H),
        "beta": share(B, t, H), "eta": share(B, t, H), "scale": 0.25, "initial_S": normal(B, H, K, V),
        "initial_M": normal(B, H, K, V), "output_final_state": True, "cu_seqlens": None,
        "use_qk_l2norm_in_kernel": True, "use_p_times_alpha": True,
    }  # fmt: skip


def _ttt() -> dict[str, Any]:
    q, k, v = qkv(37, 16, 16)
    return {
        "q": q, "k": k, "v": v, "w": weight(H * 16).detach().view(H, 16).requires_grad_(), "b": normal(H, 16),
        "eta": leaf(0.1 * share(B, 37, H, 1)), "scale": 0.25, "eps": 1e-6, "initial_state": normal(B, H, 16, 16),
        "initial_state_bias": normal(B, H, 1, 16), "output_final_state": True, "cu_seqlens": None,
    }  # fmt: skip


# ---- Mamba, unsloth, xformers, attorch -------------------------------------------------------------------------------


def _chunks(batch: int = 2, chunks: int = 3, size: int = 16) -> dict[str, Any]:
    """Sequences of whole chunks with logarithms of decays that are summed within each."""
    length = chunks * size
    falling = -fixed(batch, H, chunks, size).exp() * 0.2
    return {
        "B": normal(batch, length, 1, K), "x": normal(batch, length, H, 16), "dt": share(batch, H, chunks, size),
        "dA_cumsum": leaf(falling.cumsum(-1)),
    }  # fmt: skip


def _ssd() -> dict[str, Any]:
    return {
        "x": normal(B, 37, H, 16), "dt": share(B, 37, H), "A": leaf(-fixed(H).exp()), "B": normal(B, 37, 1, K),
        "C": normal(B, 37, 1, K), "chunk_size": 16, "D": normal(H), "z": normal(B, 37, H, 16), "dt_bias": normal(H),
        "initial_states": normal(B, H, 16, K), "dt_softplus": True, "return_final_states": True,
    }  # fmt: skip


def _siso() -> dict[str, Any]:
    states = dict.fromkeys(("Input_Angle_State", "Input_SSM_State", "Input_K_State", "Input_V_State", "cu_seqlens"))
    return {
        "Q": normal(B, 37, 1, K), "K": normal(B, 37, 1, K), "V": normal(B, 37, H, 16),
        "ADT": leaf(-fixed(B, H, 37).exp() * 0.2), "DT": share(B, H, 37), "Trap": share(B, H, 37),
        "Q_bias": normal(H, K), "K_bias": normal(H, K), "Angles": normal(B, 37, H, 8), "D": normal(H),
        "Z": normal(B, 37, H, 16), **states, "chunk_size": 16, "return_final_states": False,
    }  # fmt: skip


_MAMBA: Mapping[str, Make] = {
    "k_activations:SwiGLU": lambda: (normal(3, 2, 14),),
    "layer_norm:LayerNormFn": lambda: {
        "x": normal(3, 5, 9), "weight": weight(9), "bias": normal(9), "residual": normal(3, 5, 9),
        "x1": normal(3, 5, 9), "weight1": weight(9), "bias1": normal(9), "prenorm": True,
    },
    "layer_norm:LayerNormLinearFn": lambda: {
        "x": normal(3, 5, 9), "norm_weight": weight(9), "norm_bias": normal(9), "linear_weight": normal(7, 9),
        "linear_bias": normal(7), "residual": normal(3, 5, 9), "prenorm": True,
    },
    "layernorm_gated:LayerNormFn": lambda: {
        "x": normal(3, 5, 16), "weight": weight(16), "bias": normal(16), "z": normal(3, 5, 16), "group_size": 8,
    },
    "ssd_chunk_scan:ChunkScanFn": lambda: {
        **_chunks(), "C": normal(2, 48, 1, K), "prev_states": normal(2, 3, H, 16, K), "D": normal(H),
        "z": normal(2, 48, H, 16),
    },
    "ssd_chunk_state:ChunkStateFn": _chunks,
    "ssd_state_passing:StatePassingFn": lambda: {
        "states": normal(2, 3, H, 16), "dA_chunk_cumsum": leaf(-fixed(2, H, 3).exp()),
        "initial_states": normal(2, H, 16),
    },
    "ssd_combined:MambaChunkScanCombinedFn": _ssd,
    "mamba3.mamba3_siso_combined:_Mamba3Function": _siso,
}  # fmt: skip
MAMBA: Mapping[str, Make] = {f"mamba_ssm.ops.triton.{name}": make for name, make in _MAMBA.items()}


def _turned(head: int, *more: Any) -> tuple[Any, ...]:
    """Cosines and sines for 7 positions, of both halves of a head."""
    return (*(torch.cat([x, x], -1) for x in angles(7, head // 2)), *more)


def _adapted(out: int, wide: int) -> tuple[Any, ...]:
    """A frozen weight, its quantisation, two factors of low rank, and their scale."""
    return fixed(out, wide), None, normal(2, wide), normal(out, 2), 0.5


def _lora_mlp() -> tuple[Any, ...]:
    from unsloth.kernels.swiglu import swiglu_DWf_DW_dfg_kernel, swiglu_fg_kernel

    both = swiglu_fg_kernel, swiglu_DWf_DW_dfg_kernel
    return normal(2, 5, 6), *_adapted(10, 6), *_adapted(10, 6), *_adapted(6, 10), *both, False


def _grouped_gemm() -> tuple[Any, ...]:
    from unsloth.kernels.moe.grouped_gemm.kernels import tuning

    kinds = tuning.KernelConfigForward, tuning.KernelConfigBackward_dX, tuning.KernelConfigBackward_dW
    sizes, order = torch.tensor([20, 0, 20], dtype=torch.int32), torch.randperm(40).to(torch.int32)
    configs = (kind(16, 16, 16) for kind in kinds)
    return normal(40, 32), normal(3, 48, 32), sizes, 1, order, True, False, None, False, *configs, *[False] * 3


_UNSLOTH: Mapping[str, Make] = {
    "layernorm:Fast_Layernorm": lambda: (normal(3, 5, 9), weight(9), normal(9), 1e-5),
    "rms_layernorm:Fast_RMS_Layernorm": lambda: (normal(3, 5, 9), weight(9), 1e-6),
    "cross_entropy_loss:Fast_CrossEntropyLoss": lambda: (normal(6, 11), labels(6, 11), 3.0, 0.5),
    "rope_embedding:Fast_RoPE_Embedding": lambda: (normal(2, 5, 3, 16), *_turned(16)),
    "rope_embedding:Fast_RoPE_Embedding_QK": lambda: (normal(2, 4, 5, 16), normal(2, 2, 5, 16), *_turned(16, None)),
    "rope_embedding:Fast_RoPE_Embedding_QK_Positions": lambda: (
        normal(2, 4, 5, 16), normal(2, 2, 5, 16), *_turned(16),
    ),
    "rope_embedding:Slow_RoPE_Embedding": lambda: (normal(2, 4, 5, 16), *(x[:5] for x in _turned(16)), None),
    "qk_norm_rope:Fast_QK_Norm_RoPE": lambda: (
        normal(2, 5, 4, 16), normal(2, 5, 2, 16), weight(16).detach(), weight(16).detach(),
        *_turned(16, torch.zeros(1, dtype=torch.int32), 1e-6, 1e-6, False),
    ),
    "moe.grouped_gemm.interface:GroupedGemm": _grouped_gemm,
    "fast_lora:LoRA_MLP": _lora_mlp,
    "fast_lora:LoRA_QKV": lambda: (normal(2, 5, 6), *_adapted(8, 6), *_adapted(4, 6), *_adapted(4, 6), False),
    "fast_lora:LoRA_W": lambda: (normal(2, 5, 6), *_adapted(7, 6)),
}  # fmt: skip
UNSLOTH: Mapping[str, Make] = {
    **{f"unsloth.kernels.{name}": make for name, make in _UNSLOTH.items()},
    "unsloth_zoo.temporary_patches.moe_router_triton:_RouterFunction": lambda: (
        normal(7, 12), fixed(12), 3, 2, True, 2, 1, 2.5, False,
    ),
    "unsloth_zoo.temporary_patches.moe_fused_swiglu:_FusedSwiGLU": lambda: (normal(5, 14), 1, True, 1.702, 7.0, False),
    "unsloth_zoo.temporary_patches.moe_triton_kernels:_WeightedUnpermute": lambda: (
        normal(12, 5), torch.randperm(12), share(12), 6, 2, None,
    ),
    "unsloth_zoo.temporary_patches.mhc_sinkhorn:_SinkhornKnopp": lambda: (share(3, 4, 4), 4, 1e-6),
}  # fmt: skip
MADE_BY_THE_PACKAGE = {"unsloth.kernels.fast_lora:LoRA_MLP", "unsloth.kernels.moe.grouped_gemm.interface:GroupedGemm"}
"""Functions whose arguments are objects of their package."""
XFORMERS: Mapping[str, Make] = {
    "xformers.ops.indexing:_IndexSelectCat": lambda: (
        normal(6, 8), normal(5, 4), torch.tensor([4, 0, 2]), torch.tensor([1, 3]),
    ),
    "xformers.ops.swiglu_op:_SwiGLUDecomposedFunc": lambda: (
        normal(4, 6), normal(5, 6), normal(5), normal(5, 6), normal(5), normal(6, 5), normal(6),
    ),
    "xformers.ops.unbind:_Unbind": lambda: (normal(3, 4, 5), 1),
}  # fmt: skip


def _batch_norm() -> dict[str, Any]:
    return {
        "input": normal(4, 6, 5), "training": True, "weight": weight(6), "bias": normal(6), "running_mean": fixed(6),
        "running_var": fixed(6).exp(), "momentum": 0.1, "eps": 1e-5, "track_running_stats": True,
    }  # fmt: skip


_ATTORCH: Mapping[str, Make] = {
    "act_layers:ActFuncAutoGrad": lambda: (normal(3, 7), "mish", 0.0, True),
    "batch_norm_layer:BatchNormAutoGrad": _batch_norm,
    "conv_layer:Conv2dAutoGrad": lambda: {
        "input": normal(2, 4, 7, 6), "weight": normal(6, 2, 3, 3), "bias": normal(6), "groups": 2,
    },
    "cross_entropy_loss_layer:CrossEntropyLossAutoGrad": lambda: (
        normal(6, 9), torch.randint(9, (6,)), positive(9).detach(),
    ),
    "glu_layer:GLUAutoGrad": lambda: (normal(3, 8, 5), 1, "silu"),
    "layer_norm_layer:LayerNormAutoGrad": lambda: (normal(3, 5, 9), weight(9), normal(9)),
    "linear_layer:LinearAutoGrad": lambda: (normal(2, 5, 6), normal(6, 7), normal(7), "relu"),
    "multi_head_attention_kernels:_attention": lambda: (
        *(normal(1, 2, 128, 32, scale=0.5) for _ in range(2)), normal(1, 2, 128, 32), True, 0.3,
    ),
    "nll_loss_layer:NLLLossAutoGrad": lambda: (normal(6, 9), torch.randint(9, (6,)), "mean", positive(9).detach()),
    "p_loss_layers:PLossAutoGrad": lambda: (normal(4, 6), fixed(4, 6), 1, "mean"),
    "rms_norm_layer:RMSNormAutoGrad": lambda: (normal(3, 5, 9), weight(9), 1e-5),
    "softmax_layers:SoftmaxAutoGrad": lambda: (normal(3, 5, 9), False, True),
}  # fmt: skip
ATTORCH: Mapping[str, Make] = {f"attorch.{name}": make for name, make in _ATTORCH.items()}


SKIPPED: Mapping[str, str] = {
    "liger_kernel.ops.fused_linear_scaled_cross_entropy:_TensorParallelFusedLinearPPOFallbackFunction": (
        "needs a process group"
    ),
    "liger_kernel.ops.vocab_parallel_cross_entropy:LigerVocabParallelCEFunction": "needs a process group",
    "liger_kernel.ops.backends._ascend.ops.attn_res:LigerAttnResFunction": "for another device",
    "fla.modules.activations.triton_ascend:SwiGLULinearFunctionNPU": "for another device",
    "fla.modules.activations.triton_ascend:PowGLULinearFunctionNPU": "for another device",
    "fla.modules.grpo.triton_ascend:GrpoLossNPU": "for another device",
    "fla.modules.causal_conv1d.cp:CausalConv1dFunctionCP": "needs a process group",
    "fla.modules.token_shift_cp:TokenShiftCPFunction": "needs a process group",
    "fla.modules.causal_conv1d.backends.cuda.ops:FastCausalConv1dFn": "needs the package causal_conv1d, in CUDA",
    "fla.modules.norm.layernorm_quant:LayerNormLinearQuantFunction": "rounds its output to 8 bits: no derivative",
    "fla.ops.attnres.backends.gluon:FusedAttnresGluonFunction": "written in Gluon, not in Triton",
    "fla.ops.moba.parallel:ParallelMoBAFunction": "needs the package flash-attn, in CUDA",
    "fla.ops.comba.fused_recurrent:FusedRecurrentCombaFunction": "has no backward",
    "fla.ops.gated_delta_rule.fused_recurrent:FusedRecurrentFunction": "has no backward",
    "fla.ops.gated_oja_rule.fused_recurrent:FusedRecurrentFunction": "has no backward",
    "fla.ops.generalized_delta_rule.dplr.fused_recurrent:FusedRecurrentDPLRDeltaRuleFunction": "has no backward",
    "fla.ops.generalized_delta_rule.iplr.chunk:ChunkGeneralizedIPLRDeltaRuleFunction": "has no backward",
    "fla.ops.precond_gated_delta_rule.fused_recurrent:FusedRecurrentPrecondGatedDeltaRuleFunction": "has no backward",
    "fla.ops.cyfa.fused_recurrent:FusedRecurrentCyFAFunction": "has no backward",
    "mamba_ssm.ops.triton.ssd_combined:MambaSplitConv1dScanCombinedFn": "needs the package causal_conv1d, in CUDA",
    "xformers.ops.indexing:_ScaledIndexAdd": "changes its input in place",
    "attorch.dropout_layer:DropoutAutoGrad": "draws its seed by Python's random",
}
"""Functions without a call, and why."""
MEANT: Mapping[str, str] = {
    "fla.modules.grpo.ops:GrpoLoss": "the value has -advantage where the derivative is that of a ratio of policies",
    "fla.modules.l2warp:L2Wrap": "adds the derivative of a penalty that the value has not",
    "fla.ops.mesa_net.chunk:ChunkMesaNetFunction": "derivative of the exact solution of a system that is solved nearly",
}
"""Functions whose backward is not the derivative of the forward, on purpose, and why."""
