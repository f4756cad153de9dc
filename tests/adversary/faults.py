"""Seeded faults, modelled on real ones: the adversary has to find nine of ten.

A fault that it does not find stays in the list.

Each one replaces text of a file of `src/pullback` in a copy of the library. Faults of vector code are put into the code
for AVX-512 and for AVX2, of which a processor runs one.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """A change of one file that makes the library wrong."""

    name: str
    file: str
    right: str
    wrong: str
    in_avx2: tuple[str, str] | None = None

    def put_into(self, package: Path) -> None:
        """Apply the fault to a copy of the package."""
        self._change(package / self.file, self.right, self.wrong)
        if self.in_avx2 is not None:
            self._change(package / "kernels/include/avx2.h", *self.in_avx2)

    def _change(self, path: Path, right: str, wrong: str) -> None:
        text = path.read_text()
        if text.count(right) != 1:
            raise ValueError(f"{self.name}: {path.name} has {text.count(right)} of what is to be changed")
        path.write_text(text.replace(right, wrong))


FAULTS = [
    # vectors
    Fault(
        "the last lane of a constant mask",
        "kernels/include/avx512.h",
        "(c ? 0xffff : 0)",
        "(c ? 0x7fff : 0)",
        ("_mm256_set1_epi32(c ? -1 : 0)", "_mm256_setr_epi32(-c, -c, -c, -c, -c, -c, -c, 0)"),
    ),
    Fault(
        "the upper half of a choice",
        "kernels/include/avx512.h",
        "(__mmask8)(m.bits >> 8), b.hi",
        "(__mmask8)m.bits, b.hi",
        ("_mm256_blendv_pd(b.hi, a.hi, upper(m))", "_mm256_blendv_pd(b.hi, a.hi, lower(m))"),
    ),
    Fault(
        "the upper half of a comparison",
        "kernels/include/avx512.h",
        "_mm512_cmp_pd_mask(a.hi, b.hi",
        "_mm512_cmp_pd_mask(a.lo, b.lo",
        ("_mm256_cmp_pd(a.hi, b.hi, code)", "_mm256_cmp_pd(a.lo, b.lo, code)"),
    ),
    Fault(
        "rounding to bfloat16 left out",
        "kernels/include/avx512.h",
        "_mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))",
        "_mm512_add_epi32(odd, _mm512_set1_epi32(0xffff))",
        ("_mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))", "_mm256_add_epi32(odd, _mm256_set1_epi32(0xffff))"),
    ),
    Fault(
        "the tail of a vector",
        "kernels/include/loop.h",
        "void put(T* p, int64_t n) const { memcpy(p, kept, n * sizeof(T)); }",
        "void put(T* p, int64_t n) const { memcpy(p, kept, (n - 1) * sizeof(T)); }",
    ),
    Fault(
        "a broadcast input read as dense",
        "kernels/include/loop.h",
        "return DENSE || step ? load(p + i) : splat(p);",
        "return load(p + i);",
    ),
    Fault(
        "a broadcast truth value in the first lane alone",
        "kernels/include/loop.h",
        "return set(one(p).byte != 0, M{});",
        "return {(decltype(M::bits))(one(p).byte != 0)};",
    ),
    Fault("a lane too many of a row", "kernels/include/rows.h", "i < n; i++) on[i]", "i <= n && i < LANES; i++) on[i]"),
    Fault("the rows that a share adds up last", "kernels/include/column_sums.h", "      add_up();\n", ""),
    # functions
    Fault(
        "a coefficient of the exponential",
        "kernels/include/functions.h",
        "t, c<R>(0.5)), t, one), t, one);\n  return scaled",
        "t, c<R>(0.50001)), t, one), t, one);\n  return scaled",
    ),
    Fault(
        "the edge of a clamp",
        "kernels/include/functions.h",
        "gt(x, lower) & lt(x, upper)",
        "ge(x, lower) & le(x, upper)",
    ),
    Fault(
        "a NaN in an extreme",
        "kernels/include/functions.h",
        "BINARY(maximum) { return where(isnan(x) | gt(x, y), x, y); }",
        "BINARY(maximum) { return where(gt(x, y), x, y); }",
    ),
    Fault(
        "a slope of SiLU", "kernels/include/functions.h", "g * (s * (ONE + x * (ONE - s)))", "g * (s * (ONE + x * s))"
    ),
    Fault("the tail of GELU by tanh", "kernels/include/functions.h", "c<V>(3 * 0.044715)", "c<V>(0.044715)"),
    # the source of kernels
    Fault(
        "the largest of negative numbers",
        "kernels/row_kernel.py",
        '"V", "-__builtin_inf()", "maximum',
        '"V", "0.", "maximum',
    ),
    Fault("a mean over rows by another number", "kernels/sums.py", 'f"(double)({rows})"', 'f"(double)({rows} - 1)"'),
    Fault("one side of a choice", "kernels/writer.py", 'condition if i == 0 else f"~{condition}"', "condition"),
    Fault("the strides of all but the first input", "kernels/compiled.py", "' or '.join(differs)", "differs[0]"),
    Fault("strides of kernels over rows", "kernels/row_kernel.py", "elif stride != step * rows:", "elif False:"),
    Fault(
        "loops merged that do not go on",
        "kernels/layout.py",
        "if loops and all(a == b * shape[i]",
        "if loops and any(a == b * shape[i]",
    ),
    # graphs
    Fault(
        "a border of a kept comparison",
        "graph/partition.py",
        "aten.le.Scalar, x, threshold",
        "aten.lt.Scalar, x, threshold",
    ),
    Fault("the bits of the last byte", "graph/bits.py", "return (count + 7) // 8", "return count // 8"),
    Fault("the layout of a cotangent", "plan.py", "if is_any or g.stride() == stride or not g.numel():", "if True:"),
    Fault("a cotangent that waits to be negated", "plan.py", "g = g.resolve_conj().resolve_neg()", "pass"),
    Fault("outputs without a derivative", "kernel_function.py", "        if plan.dead:\n", "        if False:\n"),
    # plans
    Fault("a stale plan: strides", "call.py", "leaf.stride(), leaf.dtype", "leaf.dtype"),
    Fault("a stale plan: who requires grad", "call.py", "grad and leaf.requires_grad)", "grad)"),
    Fault(
        "a stale plan: sizes that have not varied",
        "graph/symbolic.py",
        "if any(at(kind, numbers) != (x.shape, x.stride())",
        "if any(len(at(kind, numbers)[0]) != x.dim()",
    ),
    Fault(
        "a rounding left out",
        "kernels/writer.py",
        "return through(node, text) if self._exact or is_rounded(node) else text",
        "return through(node, text) if self._exact else text",
    ),
    Fault(
        "what is decided by is computed again",
        "graph/partition.py",
        "(exactly or decides(node, a)) and not certain(a)",
        "exactly and not certain(a)",
    ),
    Fault(
        "a tensor that the backward is given is not checked",
        "kernel_function.py",
        "saved = as_saved(plan.name, saved, layouts)",
        "pass",
    ),
    # derivatives of higher order, relaxed ops
    Fault(
        "the gradient that is differentiated",
        "kernel_function.py",
        "saved[: plan.n_inputs], list(given.values())",
        "saved[: plan.n_inputs], list(given.values())[::-1]",
    ),
    Fault("the second derivative of stable forms", "stable/jet.py", "if repeats > 1:", "if repeats > 2:"),
    Fault(
        "an input that changes its version",
        "kernel_function.py",
        "        ctx.plan = plan\n",
        "        ctx.plan = plan\n        tensors[0].detach().mul_(1)\n",
    ),
    # graphs that others make
    Fault(
        "a rule that an export drops",
        "guards.py",
        "exporting = _is_exporting()",
        "exporting = False",
    ),
    Fault(
        "a class that torch.fx looks into",
        "function_class.py",
        "if world is World.SYMBOLIC:",
        "if False:",
    ),
    Fault("zeros without memory", "graph/partition.py", "if node.target is _UNALLOCATED:", "if False:"),
]
