"""Host code in processes of its own, since entering changes a process for good."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

ROOT = Path(__file__).resolve().parents[2]


def output_of(program: str) -> str:
    """Run a program that has entered; return what it prints."""
    lines = "from pullback import interpreter\ninterpreter.enter()\nimport torch\ntorch.manual_seed(0)\n"
    lines += "from tests.interpreter import kernels_of_a_library as library\n"
    done = subprocess.run(
        [sys.executable, "-c", lines + textwrap.dedent(program)],
        capture_output=True, text=True, cwd=ROOT, check=False, timeout=120,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_host_code_gets_its_answers_and_the_caller_float64():
    printed = output_of("""
        x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
        y = library.Scale.apply(x, 2.5)
        print(y.dtype, torch.equal(y, 2.5 * x), y.device.type, x.is_cuda)
        print(torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.full_like(x, 2.5)))
        print(torch.autograd.gradcheck(lambda x: library.Scale.apply(x, 2.5), x))
        print(torch.get_default_dtype(), interpreter.world().launches > 10, interpreter.world().irregularities)
    """)
    assert printed.splitlines() == ["torch.float64 True cpu False", "True", "True", "torch.float32 True []"]


def test_autotuners_take_the_configuration_that_the_world_says():
    printed = output_of("""
        call = interpreter.hosting(library.tuned)
        for config in range(4):
            with interpreter.inside(interpreter.World(config=config)) as world:
                print(call(torch.zeros(3, dtype=torch.float64)).tolist(), world.configurations, sorted(world.blocks))
    """)
    sizes = [4, 8, 16, 4]
    assert printed.splitlines() == [f"{[float(n)] * 3} 3 {[n]}" for n in sizes]


def test_autotuners_benchmark_the_kernel_once_for_each_key_where_the_world_says():
    printed = output_of("""
        call = interpreter.hosting(library.accumulated)
        with interpreter.inside(interpreter.World(tunes=True)):
            for kernel in library.accumulating:
                print([call(kernel, torch.ones(n, dtype=torch.float64)).tolist() for n in (1, 1, 2)])
    """)
    assert printed.splitlines() == ["[[4.0], [3.0], [4.0, 4.0]]"] + ["[[3.0], [3.0], [3.0, 3.0]]"] * 3


def test_the_device_is_as_small_as_the_world_says():
    printed = output_of("""
        import triton
        def asked():
            properties = torch.cuda.get_device_properties("cuda")
            driver = triton.runtime.driver.active.utils.get_device_properties(0)
            return properties.multi_processor_count, driver["multiprocessor_count"], driver["max_shared_mem"]
        with interpreter.inside(interpreter.World(processors=7, shared_memory=92160)):
            print(*interpreter.hosting(asked)())
        print(*interpreter.hosting(asked)())
    """)
    assert printed.splitlines() == ["7 7 92160", "2 2 232448"]


def test_another_device_clears_caches_beside_an_object_that_raises_for_any_attribute():
    printed = output_of("""
        import functools
        class Proxy:
            @property
            def __class__(self):
                raise RuntimeError("there is no session")
        session = Proxy()
        processors = functools.cache(lambda: torch.cuda.get_device_properties("cuda").multi_processor_count)
        call = interpreter.hosting(lambda: processors())
        before = call()
        with interpreter.inside(interpreter.World(processors=7)):
            print(before, call())
    """)
    assert printed.split() == ["2", "7"]


SCRIPT = """
import torch, triton, triton.language as tl

@triton.jit
def double_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)

class Double(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x):
        assert x.is_cuda, "CUDA only"
        y = torch.empty_like(x)
        double_kernel[(1,)](x, y, x.numel(), BLOCK=8)
        return y
"""


def test_a_decorated_forward_of_a_script_is_hosted(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    printed = output_of(f"""
        import runpy
        double = runpy.run_path({str(tmp_path / "script.py")!r})["Double"]
        print(double.apply(torch.ones(3, dtype=torch.float64)).tolist())
    """)
    assert printed == "[2.0, 2.0, 2.0]\n"


def test_a_kernel_is_compiled_and_then_launched():
    printed = output_of("""
        import triton
        def scaled(x):
            y = torch.empty_like(x)
            kernel = library.scale_kernel.warmup(x, y, x.numel(), 2.5, EVEN=False, BLOCK=8, grid=(1,))
            kernel._init_handles()
            per_program = kernel.metadata.shared * kernel.n_regs
            kernel[(triton.cdiv(x.numel(), 8), 1, 1)](x, y, x.numel(), 2.5, False, 8)
            return y, per_program > 0
        x = torch.randn(21, dtype=torch.float64)
        y, is_known = interpreter.hosting(scaled)(x)
        print(torch.equal(y, 2.5 * x), is_known)
    """)
    assert printed == "True True\n"


def test_memory_that_is_not_written_is_not_a_number():
    printed = output_of("""
        import triton
        def half_written(x):
            y = torch.empty_like(x)
            library.scale_kernel[(1,)](x, y, 4, 1.0, BLOCK=4)
            return y
        print(interpreter.hosting(half_written)(torch.ones(6, dtype=torch.float64)).isnan().tolist())
    """)
    assert printed.split() == ["[False,", "False,", "False,", "False,", "True,", "True]"]


def test_only_modules_with_kernels_are_hosted():
    printed = output_of("""
        import types, sys
        print(library.Plain.apply(torch.ones(2, dtype=torch.float64)).dtype)
        class Other(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.float()
            @staticmethod
            def backward(ctx, dy):
                return dy
        Other.__module__ = "apart"
        sys.modules["apart"] = types.ModuleType("apart")
        print(Other.apply(torch.ones(2, dtype=torch.float64)).dtype)
        print(interpreter.is_useful("tests.interpreter.kernels_of_a_library"), interpreter.is_useful("apart"))
        print(interpreter.is_useful("torch.nn.functional"), interpreter.is_useful("absent"))
    """)
    assert printed.split() == ["torch.float64", "torch.float32", "True", "False", "False", "False"]


def test_a_module_whose_function_makes_kernels_is_hosted(tmp_path):
    (tmp_path / "late_kernels.py").write_text(
        textwrap.dedent("""
        import functools
        import torch


        @functools.cache
        def kernel():
            import triton
            import triton.language as tl

            @triton.jit
            def double(x, y, BLOCK: tl.constexpr):
                i = tl.arange(0, BLOCK)
                tl.store(y + i, 2 * tl.load(x + i))

            return double


        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                y = torch.empty(x.shape, dtype=torch.float32, device="cuda")
                with torch.cuda.device(x.device) as _:
                    kernel()[(1,)](x, y, BLOCK=8)
                return y

            @staticmethod
            def backward(ctx, dy):
                return 2 * dy
        """)
    )
    printed = output_of(f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import late_kernels
        print(interpreter.is_useful("late_kernels"), torch.cuda.device(0).idx)
        x = torch.randn(8, dtype=torch.float64)
        print(torch.equal(late_kernels.Double.apply(x), 2 * x))
    """)
    assert printed.split() == ["True", "0", "True"]


def test_nothing_of_triton_is_imported_until_it_is_needed():
    code = (
        "import pullback, pullback.interpreter, sys; print('triton' in sys.modules, pullback.interpreter.is_entered())"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_host_code_has_a_gpu_and_its_caller_none():
    printed = output_of("""
        print(interpreter.hosting(torch.cuda.is_available)(), torch.cuda.is_available())
    """)
    assert printed.split() == ["True", "False"]


def test_the_active_device_is_that_of_tensors():
    printed = output_of("""
        import triton
        DEVICE = triton.runtime.driver.active.get_active_torch_device()
        x = torch.zeros(3, device=DEVICE)
        def asked():
            y = torch.empty(2, device=DEVICE).to(DEVICE)
            return x.device == DEVICE == y.device, DEVICE == x.device, x.device != DEVICE, DEVICE != torch.device("cpu")
        print(x.device == DEVICE, x.device != DEVICE, DEVICE.type, DEVICE.index, DEVICE)
        print(*interpreter.hosting(asked)())
        with interpreter.inside(interpreter.World(simulates=True)):
            print(*interpreter.hosting(asked)())
    """)
    assert printed.splitlines() == ["True False cuda 0 cuda:0", *["True True False True"] * 2]


def test_host_code_asks_for_index_memory_and_streams_of_the_device():
    printed = output_of("""
        def asked():
            x = torch.zeros(3)
            free, total = torch.cuda.mem_get_info()
            properties = torch.cuda.get_device_properties(0)
            assert free < total == properties.total_memory
            assert properties.shared_memory_per_multiprocessor > properties.shared_memory_per_block_optin
            stream, start, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event()
            start.record()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                end.record(stream)
            torch.cuda.current_stream().wait_event(end)
            assert stream.record_event().query() and start.elapsed_time(end) >= 0
            assert torch.cuda.is_bf16_supported(including_emulation=False)
            return (
                x.get_device(), torch.get_device(x), torch.cuda.current_stream().cuda_stream,
                torch.cuda.is_current_stream_capturing(),
            )
        print(*interpreter.hosting(asked)(), torch.zeros(3).get_device())
    """)
    assert printed == "0 0 0 False -1\n"


def test_host_code_sees_the_presented_dtype_where_tensors_are_lifted():
    printed = output_of("""
        def seen(x, labels):
            same = torch.empty(2, dtype=x.dtype), torch.empty_like(x), x.to(torch.bfloat16), x.float().to(x.dtype)
            sizes = {x.element_size(), labels.element_size()}
            return {x.dtype, *(t.dtype for t in same)}, labels.dtype, sizes, same
        x, labels = torch.randn(3, dtype=torch.float64), torch.arange(3)
        for dtype in (torch.float32, torch.float16):
            interpreter.present(dtype)
            floats, other, sizes, same = interpreter.hosting(seen)(x, labels)
            print(*floats, other, *sorted(sizes), x.dtype, {t.dtype for t in same}, torch.equal(same[2], x))
        with interpreter.inside(interpreter.World(lifts=False)):
            print(interpreter.hosting(lambda: x.dtype)(), interpreter.hosting(lambda: x.half().dtype)())
    """)
    assert printed.splitlines() == [
        "torch.float32 torch.int64 4 8 torch.float64 {torch.float64} True",
        "torch.float16 torch.int64 2 8 torch.float64 {torch.float64} True",
        "torch.float64 torch.float16",
    ]


def test_products_of_narrow_matrices_in_a_wide_type():
    printed = output_of("""
        a, b = torch.randn(3, 40).bfloat16(), torch.randn(40, 5).bfloat16()
        with interpreter.inside(interpreter.World(lifts=False)):
            y = interpreter.hosting(torch.mm)(a, b, out_dtype=torch.float32)
        print(y.dtype, torch.equal(y, a.float() @ b.float()))
    """)
    assert printed.split() == ["torch.float32", "True"]


def test_sums_with_products_of_two_dtypes_raise_as_on_a_gpu():
    printed = output_of("""
        a, b, c = torch.randn(3, 4).bfloat16(), torch.randn(4, 5), torch.zeros(3, 5)
        with torch.autocast("cpu"), interpreter.inside(interpreter.World(lifts=False)):
            try:
                interpreter.hosting(torch.addmm)(c, a, b, out_dtype=torch.float32)
            except RuntimeError as error:
                print(error)
    """)
    assert "same dtype" in printed


def test_autocast_of_a_gpu_is_that_of_the_cpu():
    printed = output_of("""
        @torch.amp.custom_fwd(device_type="cuda")
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            print(torch.is_autocast_enabled(), torch.is_autocast_enabled("cuda"), torch.get_autocast_gpu_dtype())
            with torch.autocast("cuda", enabled=False):
                print((x @ w).dtype)
            return x @ w

        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g @ w.t(), x.t() @ g

        Product = type("Product", (torch.autograd.Function,), dict(
            forward=staticmethod(forward), backward=staticmethod(backward)))
        x, w = torch.randn(2, 3, requires_grad=True), torch.randn(3, 4, requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = Product.apply(x, w)
        got = torch.autograd.grad(y, (x, w), torch.ones_like(y))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = torch.autograd.grad(x @ w, (x, w), torch.ones_like(y))
        print(y.dtype, all(map(torch.equal, got, expected)), torch.is_autocast_enabled())
    """)
    assert printed.splitlines() == ["True True torch.bfloat16", "torch.float32", "torch.bfloat16 True False"]


def test_an_input_of_float32_meets_memory_that_was_lifted():
    printed = output_of("""
        weight, bias = torch.randn(5, 4), torch.randn(3, 4, dtype=torch.float64)
        @interpreter.hosting
        def products():
            x = torch.ones(3, 5, dtype=torch.float32, device="cuda")
            products = x @ weight, torch.mm(x, weight), torch.nn.functional.linear(x, weight.T)
            return *products, torch.einsum("ij,jk", x, weight)
        print(*(out.dtype for out in products()))
    """)
    assert printed.split() == ["torch.float64"] * 4


def test_narrow_numbers_are_written_into_lifted_memory():
    printed = output_of("""
        rows, index = torch.randn(2, 3), torch.tensor([2, 0])

        def written(rows):
            zeros, at = torch.zeros(4, 3, dtype=torch.float32), index[:, None].expand(2, 3)
            return zeros.clone().scatter_(0, at, rows), zeros.scatter(0, at, src=rows), zeros.index_put((index,), rows)

        for found in interpreter.hosting(written)(rows):
            print(found.dtype, torch.equal(found[index], rows.double()), int((found[[1, 3]] == 0).sum()))
    """)
    assert printed.splitlines() == ["torch.float64 True 6"] * 3
