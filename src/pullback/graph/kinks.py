"""Kinks and domains of the ops of a graph, in words; ops of which neither is known are named."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from pullback.graph.trace import op_name
from pullback.ops.registry import BY_ATEN

_OPS = [(name, op) for name, op in BY_ATEN.items() if op.is_readable]
_OTHERS = """
    addmm mm bmm mv dot baddbmm addmv convolution sum mean cumsum view _unsafe_view reshape permute transpose t
    unsqueeze squeeze slice select cat stack copy diagonal diag_embed unbind split split_with_sizes chunk gather
    index index_select scatter scatter_add index_put embedding constant_pad_nd roll flip repeat tril triu empty
    arange eye getitem softmax _softmax log_softmax _log_softmax logsumexp trace outer kron einsum complex real
    imag view_as_real view_as_complex conj _conj resolve_conj resolve_neg native_dropout
"""
SMOOTH = frozenset([*_OTHERS.split(), *(name for name, op in _OPS if not op.kink and not op.domain)])
"""Ops that are defined everywhere and infinitely differentiable. (Comparisons are constant.)"""

_ORDER = "max min amax amin aminmax median kthvalue mode cummax cummin sort topk"
# Ops without a record: most are not pointwise, and `explain` alone asks about their kinks.
_OTHER_KINKS = {
    **{name: f"{name} where elements are equal" for name in _ORDER.split()},
    "max_pool2d_with_indices": "max pooling where elements are equal",
    "linalg_vector_norm": "a norm at 0",
    "norm": "a norm at 0",
    "_cdist_forward": "a distance at 0",
    "dist": "a distance at 0",
    "std": "a standard deviation at 0",
}
KINKS = {**_OTHER_KINKS, **{name: op.kink for name, op in _OPS if op.kink}}
"""Ops that are not differentiable everywhere, by name; those of the registry are pointwise."""

_OTHER_DOMAINS = {
    "erfinv": "erfinv: its argument must lie in (−1, 1)",
    "binary_cross_entropy": "binary_cross_entropy: its input must lie in [0, 1]",
    "linalg_inv_ex": "an inverse: the matrix must be invertible",
    "_linalg_solve_ex": "a linear system: the matrix must be invertible",
    "_linalg_det": "a determinant: its derivative needs an invertible matrix",
    "_linalg_slogdet": "a log-determinant: the matrix must be invertible",
    "_linalg_eigh": "eigenvectors: eigenvalues must be distinct",
    "_linalg_svd": "singular vectors: singular values must be distinct",
    "linalg_cholesky_ex": "Cholesky: the matrix must be positive definite",
}
DOMAINS = {**_OTHER_DOMAINS, **{name: op.domain for name, op in _OPS if op.domain}}
"""Ops that are not defined everywhere, by name."""


def kinks_of(graph: fx.Graph) -> list[str]:
    """Kinks of a graph's ops, without repeats; ops whose kinks are unknown come last."""
    return _notes(graph, KINKS)


def domain_of(graph: fx.Graph) -> list[str]:
    """Domains of a graph's ops, without repeats; ops whose domain is unknown come last."""
    return _notes(graph, DOMAINS)


def _notes(graph: fx.Graph, table: dict[str, str]) -> list[str]:
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    powers = [_power(node) if table is DOMAINS else "" for node in nodes if op_name(node) == "pow"]
    names = [op_name(node).rstrip("_") for node in nodes if op_name(node) != "pow"]
    unknown = [name for name in names if not _is_known(name)]
    notes = [table[name] for name in names if name in table] + [note for note in powers if note]
    return _distinct([*notes, *([f"not known for: {', '.join(_distinct(unknown))}"] if unknown else [])])


def _is_known(name: str) -> bool:
    return name in SMOOTH or name in KINKS or name in DOMAINS


def _power(node: fx.Node) -> str:
    """Domain of a power, by its exponent."""
    base, exponent = node.args[:2]
    if isinstance(exponent, int) or (isinstance(exponent, float) and exponent.is_integer()):
        return "" if exponent >= 0 else f"x**{exponent}: its base must not be 0"
    if isinstance(exponent, float):
        return f"x**{exponent}: its base must be positive"
    if isinstance(base, int | float) and base > 0:
        return f"{base}**x: overflows where its exponent is large"
    return "pow: its base must be positive, unless the exponent is whole"


def _distinct(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))
