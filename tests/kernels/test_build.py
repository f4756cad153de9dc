"""Compilers: flags avoid a miscompilation, and kernels are keyed by compiler."""

import shutil
import subprocess

import pytest
import torch

from pullback.kernels import build

# g++ 12 -O3, with vectors of AVX-512: where the loop is if-converted, `bits != 0xffff` becomes the mask of the division
LANE_OF_SIXTEEN = """
#include <immintrin.h>
__attribute__((noinline)) void run(long n, const float* x, const float* y, const char* m, float* q) {
  for (long i = 0; i < n; i += 16) {
    char kept[16];
    for (int j = 0; j < 16; j++) kept[j] = *m;
    const __m128i b = _mm_loadu_si128((const __m128i*)kept);
    const unsigned short bits = _mm_test_epi8_mask(b, b);
    const __m512 a = _mm512_loadu_ps(x + i), c = _mm512_loadu_ps(y + i);
    __m512 v = _mm512_setzero_ps();
    if (bits != 0xffff) v = _mm512_div_ps(a, c);
    _mm512_storeu_ps(q + i, v);
  }
}

int main() {
  float x[64], y[64], q[64];
  const char m = 0;
  for (int i = 0; i < 64; i++) x[i] = 2, y[i] = 1;
  run(64, x, y, &m, q);
  int wrong = 0;
  for (const float v : q) wrong += v != 2;
  return wrong;
}
"""


@pytest.mark.parametrize("name", ["g++", "clang++"])
def test_branch_is_not_if_converted_to_a_wrong_mask(native, tmp_path, name):
    compiler = shutil.which(name)
    if compiler is None or torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("no such compiler, or no AVX-512")
    (tmp_path / "main.cpp").write_text(LANE_OF_SIXTEEN)
    flags = [*build.flags(compiler), *build._machine()[1]]
    subprocess.run([compiler, *flags, "main.cpp", "-o", "main"], cwd=tmp_path, check=True, timeout=60)
    assert subprocess.run([tmp_path / "main"], timeout=60).returncode == 0


def test_kernel_key_depends_on_the_compiler(native, tmp_path, monkeypatch):
    other = tmp_path / "c++"
    other.symlink_to(build.compiler())
    before = build._key("void run() {}")
    assert build._key("void run() {}") == before
    monkeypatch.setattr(build, "compiler", lambda: str(other))
    assert build._key("void run() {}") != before
