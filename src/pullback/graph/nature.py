"""Kinks and domains of ATen ops, and the ops of which neither is known."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from pullback.graph.lines import op_name

SMOOTH = frozenset(
    [
        "add",
        "sub",
        "rsub",
        "mul",
        "neg",
        "addmm",
        "mm",
        "bmm",
        "mv",
        "dot",
        "baddbmm",
        "addmv",
        "addcmul",
        "convolution",
        "exp2",
        "expm1",
        "sin",
        "cos",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "atan",
        "erf",
        "erfc",
        "sigmoid",
        "log_sigmoid_forward",
        "softplus",
        "gelu",
        "silu",
        "mish",
        "square",
        "sum",
        "mean",
        "cumsum",
        "view",
        "_unsafe_view",
        "reshape",
        "expand",
        "permute",
        "transpose",
        "t",
        "unsqueeze",
        "squeeze",
        "slice",
        "select",
        "cat",
        "stack",
        "clone",
        "alias",
        "detach",
        "_to_copy",
        "copy",
        "diagonal",
        "diag_embed",
        "unbind",
        "split",
        "split_with_sizes",
        "chunk",
        "gather",
        "index",
        "index_select",
        "scatter",
        "scatter_add",
        "index_put",
        "embedding",
        "constant_pad_nd",
        "roll",
        "flip",
        "repeat",
        "tril",
        "triu",
        "ones_like",
        "zeros_like",
        "full_like",
        "full",
        "zeros",
        "ones",
        "empty",
        "scalar_tensor",
        "arange",
        "eye",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_not",
        "logical_and",
        "logical_or",
        "bitwise_not",
        "isnan",
        "isinf",
        "isfinite",
        "getitem",
        "softmax",
        "_softmax",
        "log_softmax",
        "_log_softmax",
        "logsumexp",
        "logaddexp",
        "trace",
        "outer",
        "kron",
        "einsum",
        "complex",
        "real",
        "imag",
        "view_as_real",
        "view_as_complex",
        "conj",
        "_conj",
        "resolve_conj",
        "resolve_neg",
        "lift_fresh_copy",
        "native_dropout",
        "sinc",
    ]
)
"""Ops with derivatives of every order wherever they are defined, which is everywhere. (Comparisons are constant.)"""

KINKS = {
    "abs": "abs at 0",
    "relu": "relu at 0",
    "leaky_relu": "leaky_relu at 0",
    "_prelu_kernel": "prelu at 0",
    "elu": "elu (selu, celu) at 0",
    "clamp": "clamp at its bounds",
    "clamp_min": "clamp at its bound",
    "clamp_max": "clamp at its bound",
    "hardtanh": "hardtanh at its bounds",
    "hardswish": "hardswish at ±3",
    "hardsigmoid": "hardsigmoid at ±3",
    "hardshrink": "hardshrink at its bounds, where it jumps",
    "softshrink": "softshrink at its bounds",
    "threshold": "threshold, where it jumps",
    "maximum": "maximum where its arguments are equal",
    "minimum": "minimum where its arguments are equal",
    "fmax": "fmax where its arguments are equal",
    "fmin": "fmin where its arguments are equal",
    "max": "max where elements are equal",
    "min": "min where elements are equal",
    "amax": "amax where elements are equal",
    "amin": "amin where elements are equal",
    "aminmax": "aminmax where elements are equal",
    "median": "median where elements are equal",
    "kthvalue": "kthvalue where elements are equal",
    "mode": "mode where elements are equal",
    "cummax": "cummax where elements are equal",
    "cummin": "cummin where elements are equal",
    "max_pool2d_with_indices": "max pooling where elements are equal",
    "sort": "sort where elements are equal",
    "topk": "topk where elements are equal",
    "sign": "sign at 0 (0 elsewhere)",
    "sgn": "sgn at 0",
    "round": "round at half-integers (0 elsewhere)",
    "floor": "floor at integers (0 elsewhere)",
    "ceil": "ceil at integers (0 elsewhere)",
    "trunc": "trunc at integers (0 elsewhere)",
    "frac": "frac at integers, where it jumps",
    "remainder": "remainder at multiples of the divisor, where it jumps",
    "fmod": "fmod at multiples of the divisor, where it jumps",
    "where": "where, if the two sides differ at the border of its condition",
    "masked_fill": "masked_fill, at the border of its mask",
    "linalg_vector_norm": "a norm at 0",
    "norm": "a norm at 0",
    "_cdist_forward": "a distance at 0",
    "dist": "a distance at 0",
    "hypot": "hypot at 0",
    "std": "a standard deviation at 0",
}
"""Ops that are not differentiable everywhere, by name."""

DOMAINS = {
    "log": "log: its argument must be positive",
    "log2": "log2: its argument must be positive",
    "log10": "log10: its argument must be positive",
    "log1p": "log1p: its argument must be greater than −1",
    "xlogy": "xlogy: its second argument must be positive, or the first 0",
    "sqrt": "sqrt: its argument must not be negative; its derivative is infinite at 0",
    "rsqrt": "rsqrt: its argument must be positive",
    "reciprocal": "reciprocal: its argument must not be 0",
    "div": "a division: the divisor must not be 0",
    "remainder": "remainder: the divisor must not be 0",
    "fmod": "fmod: the divisor must not be 0",
    "acos": "acos: its argument must lie in [−1, 1]; its derivative is infinite at ±1",
    "asin": "asin: its argument must lie in [−1, 1]; its derivative is infinite at ±1",
    "acosh": "acosh: its argument must be at least 1",
    "atanh": "atanh: its argument must lie in (−1, 1)",
    "erfinv": "erfinv: its argument must lie in (−1, 1)",
    "logit": "logit: its argument must lie in (0, 1)",
    "tan": "tan: poles at odd multiples of π/2",
    "lgamma": "lgamma: poles at 0 and the negative integers",
    "digamma": "digamma: poles at 0 and the negative integers",
    "exp": "exp: overflows where its argument is large (above 88 in float32)",
    "atan2": "atan2: no derivative where both arguments are 0",
    "binary_cross_entropy": "binary_cross_entropy: its input must lie in [0, 1]",
    "linalg_inv_ex": "an inverse: the matrix must be invertible",
    "_linalg_solve_ex": "a linear system: the matrix must be invertible",
    "_linalg_det": "a determinant: its derivative needs an invertible matrix",
    "_linalg_slogdet": "a log-determinant: the matrix must be invertible",
    "_linalg_eigh": "eigenvectors: eigenvalues must be distinct",
    "_linalg_svd": "singular vectors: singular values must be distinct",
    "linalg_cholesky_ex": "Cholesky: the matrix must be positive definite",
}
"""Ops that are not defined everywhere, by name."""


def kinks_of(graph: fx.Graph) -> list[str]:
    """Return the kinks of a graph's ops, without repeats; ops whose kinks are unknown come last."""
    return _notes(graph, KINKS)


def domain_of(graph: fx.Graph) -> list[str]:
    """Return the domains of a graph's ops, without repeats; ops whose domain is unknown come last."""
    return _notes(graph, DOMAINS)


def _notes(graph: fx.Graph, table: dict[str, str]) -> list[str]:
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    powers = [_power(node) if table is DOMAINS else "" for node in nodes if op_name(node) == "pow"]
    names = [op_name(node).rstrip("_") for node in nodes if op_name(node) != "pow"]
    unknown = [name for name in names if not _is_known(name)]
    notes = [table[name] for name in names if name in table] + [note for note in powers if note]
    return _once([*notes, *([f"not known for: {', '.join(_once(unknown))}"] if unknown else [])])


def _is_known(name: str) -> bool:
    return name in SMOOTH or name in KINKS or name in DOMAINS


def _power(node: fx.Node) -> str:
    """Return where a power is defined, by its exponent."""
    base, exponent = node.args[:2]
    if isinstance(exponent, int) or (isinstance(exponent, float) and exponent.is_integer()):
        return "" if exponent >= 0 else f"x**{exponent}: its base must not be 0"
    if isinstance(exponent, float):
        return f"x**{exponent}: its base must be positive"
    if isinstance(base, int | float) and base > 0:
        return f"{base}**x: overflows where its exponent is large"
    return "pow: its base must be positive, unless the exponent is whole"


def _once(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))
