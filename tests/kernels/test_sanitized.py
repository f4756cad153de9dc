"""The generated C++ under AddressSanitizer and UBSan, without PyTorch."""

import shutil
import subprocess

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pullback.kernels import build
from pullback.kernels.regions import regions_of
from pullback.kernels.row_kernel import row_source_of
from pullback.kernels.rows import row_regions_of
from pullback.kernels.source import source_of

MAIN = """
#include <cstdio>
#include <cstdlib>
template <class T> static T* room(int64_t n) { return (T*)calloc(n ? n : 1, sizeof(T)); }

int main() {
  for (int64_t rows = 1; rows <= 3; rows++)
    for (int64_t columns = 1; columns <= 70; columns++)
      for (int kind = 0; kind < 4; kind++) {
        // dense; the second input one number for each column; one for each row; one in all
        const int64_t n = rows * columns;
        const int64_t size = kind == 0 ? n : kind == 1 ? columns : kind == 2 ? rows : 1;
        const int64_t steps[] = {columns, 1, kind == 2 ? 1 : 0, kind == 1 ? 1 : 0};
        X0* x = room<X0>(n);
        X1* b = room<X1>(size);
        Y0* y = room<Y0>(n);
        Y1* z = room<Y1>(n);
        if (kind == 0) run(x, b, y, z, nullptr, 1, n);
        else run(x, b, y, z, steps, rows, columns);
        free(x), free(b), free(y), free(z);
      }
  puts("done");
}
"""
ROWS = """
#include <cstdio>
#include <cstdlib>
template <class T> static T* room(int64_t n) { return (T*)calloc(n ? n : 1, sizeof(T)); }

int main() {
  for (int64_t rows = 1; rows <= 3; rows++)
    for (int64_t columns = 1; columns <= 70; columns++)
      for (int kind = 0; kind < 3; kind++) {
        // the second input dense; one number for each column; one in all
        const int64_t n = rows * columns, size = kind == 0 ? n : kind == 1 ? columns : 1;
        const int64_t steps[] = {columns, 1, kind == 0 ? columns : 0, kind < 2};
        X0* x = room<X0>(n);
        X1* b = room<X1>(size);
        X0* s = room<X0>(rows);
        X0* y = room<X0>(n);
        X0* t = room<X0>(rows);
        run(x, b, s, y, t, steps, rows, columns);
        free(x), free(b), free(s), free(y), free(t);
      }
  puts("done");
}
"""
SUMS = """
#include <cstdio>
#include <cstdlib>
template <class T> static T* room(int64_t n) { return (T*)calloc(n ? n : 1, sizeof(T)); }

int main() {
  for (int64_t rows : {1, 2, 15, 17, 33, 70})
    for (int64_t columns : {1, 3, 16, 33, 70, 4097})
      for (int64_t period : {columns, 2 * columns})
        for (bool dense : {false, true}) {
          // the second input one number for each column; or all dense, in one row
          if (rows * columns % period) continue;
          const int64_t n = rows * columns, steps[] = {columns, 1, 0, 1};
          X0* x = room<X0>(n);
          X0* b = room<X0>(dense ? n : columns);
          X0* y = room<X0>(n);
          X0* s = room<X0>(ROOM);
          RUN
          free(x), free(b), free(y), free(s);
        }
  puts("done");
}
"""
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
COMPILER = "g++"
STORED = {torch.float32: "float", torch.float64: "double", torch.bfloat16: "bfloat", torch.float16: "half"}
TYPES = "using X0 = {}; using X1 = X0;\n"


def sanitizer(folder):
    """Return a compiler with AddressSanitizer and UBSan, or skip."""
    compiler = shutil.which(COMPILER)
    if compiler is None:
        pytest.skip(f"no {COMPILER}")
    (folder / "empty.cpp").write_text("int main() { return 0; }")
    made = subprocess.run([compiler, *SANITIZED, "empty.cpp", "-o", "empty"], cwd=folder, capture_output=True)
    if made.returncode or subprocess.run([folder / "empty"], capture_output=True).returncode:
        pytest.skip("no sanitizers")
    return compiler


def chosen(x, b):
    return [torch.where(x > b, x * b + 1, x - b), x >= b]


def computed_again(x, b):
    """At 0, the content of the arrays, the reduced-precision sum cancels to 0."""
    return [(torch.sigmoid(x.double()) - 0.5).float() * b, x >= b]


def sanitized(folder, dtype, change=lambda source: source, formula=chosen):
    """Run a kernel on arrays of all sizes; return its exit status and output."""
    x, b = torch.zeros(4, 8, dtype=dtype), torch.zeros(8, dtype=dtype)
    (region,) = regions_of(make_fx(formula, tracing_mode="fake")(x, b).graph)
    types = TYPES.format(STORED[dtype])
    outputs = [STORED.get(node.meta["val"].dtype, "boolean") for node in region.outputs]
    types += "\n".join(f"using Y{i} = {name};" for i, name in enumerate(outputs))
    return ran(folder, change(source_of(region, build.header()).text) + types + MAIN)


def sanitized_rows(folder, dtype, change=lambda source: source):
    """Run a row kernel in the same way."""

    def formula(x, b):
        s = (x * b).sum(-1, keepdim=True)
        return [x * s + b, s, x.amax(-1)]

    x, b = torch.zeros(8, 16, dtype=dtype), torch.zeros(16, dtype=dtype)
    (region,) = row_regions_of(make_fx(formula, tracing_mode="fake")(x, b).graph)
    assert [region.is_whole(node) for node in region.outputs] == [False, True, False]
    return ran(folder, change(row_source_of(region, build.header()).text) + TYPES.format(STORED[dtype]) + ROWS)


def sanitized_column_sums(folder, dtype, over_rows, change=lambda source: source):
    """Run a kernel with column sums in the same way, with or without row reductions."""

    def formula(x, b):
        y = x * b + x
        return [y * y.sum(-1, keepdim=True) if over_rows else y, y.mean(0)]

    x, b = torch.zeros(64, 16, dtype=dtype), torch.zeros(16, dtype=dtype)
    graph = make_fx(formula, tracing_mode="fake")(x, b).graph
    (region,) = row_regions_of(graph) if over_rows else regions_of(graph)
    assert len(region.column_sums) == 1
    source = (row_source_of(region, build.header()) if over_rows else source_of(region, build.header())).text
    main = SUMS.replace("ROOM", "columns" if over_rows else "period")
    row_call = "if (period == columns && !dense) run(x, b, y, s, steps, rows, columns);"
    calls = "dense ? run(x, b, y, s, nullptr, 1, n, period) : run(x, b, y, s, steps, rows, columns, period);"
    return ran(
        folder, change(source) + TYPES.format(STORED[dtype]) + main.replace("RUN", row_call if over_rows else calls)
    )


def ran(folder, source):
    """Compile and run a program; return its exit status and output."""
    (folder / "kernel.cpp").write_text(source)
    compiler = sanitizer(folder)
    flags = [*build.flags(compiler), "-O1", "-g", *SANITIZED, *build._machine()[1]]
    includes = [f"-I{build._INCLUDE}", f"-I{build.TORCH / 'include'}"]
    command = [compiler, *flags, *includes, "kernel.cpp", "-o", "kernel"]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    run = subprocess.run([folder / "kernel"], capture_output=True, text=True, timeout=60)
    return run.returncode, run.stdout, run.stderr


@pytest.mark.parametrize("dtype", list(STORED), ids=str)
@pytest.mark.few(2)
def test_kernels_stay_within_bounds(native, tmp_path, dtype):
    code, said, complaints = sanitized(tmp_path, dtype)
    assert (code, said) == (0, "done\n"), complaints


@pytest.mark.slow
@pytest.mark.parametrize(("change", "code"), [("TILE", 0), ("1", 1)])
def test_recomputed_vectors_are_recorded_within_a_tile(native, tmp_path, change, code):
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("short functions are written for AVX-512")

    def changed(source):
        assert "noted[TILE]" in source
        return source.replace("noted[TILE]", f"noted[{change}]")

    found, _, complaints = sanitized(tmp_path, torch.float32, changed, computed_again)
    assert bool(found) == bool(code)
    assert ("runtime error" in complaints) == bool(code)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(STORED), ids=str)
def test_row_kernels_stay_within_bounds(native, tmp_path, dtype):
    code, said, complaints = sanitized_rows(tmp_path, dtype)
    assert (code, said) == (0, "done\n"), complaints


@pytest.mark.slow
def test_out_of_bounds_row_kernel_is_detected(native, tmp_path):
    code, _, complaints = sanitized_rows(tmp_path, torch.float32, lambda s: s.replace("i + LANES <= n", "i < n"))
    assert code != 0
    assert "heap-buffer-overflow" in complaints


def test_out_of_bounds_kernel_is_detected(native, tmp_path):
    code, _, complaints = sanitized(
        tmp_path, torch.float32, lambda s: s.replace("whole = count / LANES * LANES", "whole = count")
    )
    assert code != 0
    assert "heap-buffer-overflow" in complaints


@pytest.mark.slow
@pytest.mark.parametrize("over_rows", [False, True])
@pytest.mark.parametrize("dtype", list(STORED), ids=str)
def test_kernels_with_column_sums_stay_within_bounds(native, tmp_path, dtype, over_rows):
    code, said, complaints = sanitized_column_sums(tmp_path, dtype, over_rows)
    assert (code, said) == (0, "done\n"), complaints


@pytest.mark.slow
@pytest.mark.parametrize(
    ("over_rows", "right", "wrong"),
    [(False, "? period + count : period", "? period : period"), (True, "part(c0 + i, 1, n - i)", "load(c0 + i)")],
)
def test_out_of_bounds_kernel_with_column_sums_is_detected(native, tmp_path, over_rows, right, wrong):
    def change(source):
        assert right in source
        return source.replace(right, wrong)

    code, _, complaints = sanitized_column_sums(tmp_path, torch.float32, over_rows, change)
    assert code != 0
    assert "heap-buffer-overflow" in complaints
