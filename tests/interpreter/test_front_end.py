"""Kernels in front of Triton's compiler, each in a process that has entered; and Triton's private API behind it."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

import triton

from pullback.interpreter.front_end import refusal
from pullback.interpreter.worlds import Specialisation
from tests.check.triton_functions.mutants import right_names

ROOT = Path(__file__).resolve().parents[2]
KERNELS = Path(__file__).with_name("compiled_kernels.py")
MARK = re.compile(r"# refused: (.*)")
REFUSED = {
    "shape_in_loop", "dtype_in_loop", "number_of_module", "name_of_a_branch", "type_of_a_branch", "return_in_loop",
    "break_of_loop", "small_dot", "number_in_a_helper", "second_configuration",
}  # fmt: skip
COMPILED = {"arguments_of_many_kinds", "heuristic", "configuration_that_asserts", "described"}


def report_of(module: str):
    """Run a module; return the JSON that it prints in its last line."""
    done = subprocess.run(
        [sys.executable, "-m", module], capture_output=True, text=True, cwd=ROOT, check=False, timeout=300,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def report():
    return report_of("tests.interpreter.compiled_kernels")


@pytest.fixture(scope="module")
def right():
    return report_of("tests.interpreter.compile_right")


def marked() -> dict[int, str]:
    """Lines with a mark, and the part of a message that each asks for."""
    lines = enumerate(KERNELS.read_text(encoding="utf-8").splitlines(), 1)
    return {number: found[1] for number, line in lines if (found := MARK.search(line)) and "TEXT" not in line}


def test_every_launch_is_expected(report):
    assert report.keys() == REFUSED | COMPILED
    assert len(marked()) == len(REFUSED)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refusal_names_the_statement_and_says_what_the_compiler_says(report, name):
    ((kernel, line, message),) = report[name]["refused"]
    assert kernel == name
    assert marked()[line] in message


@pytest.mark.parametrize("name", sorted(COMPILED))
def test_what_compiles_is_not_refused(report, name):
    assert report[name]["refused"] == []
    assert report[name]["arguments"]


def test_arguments_are_those_of_a_launch_on_a_gpu(report):
    assert report["arguments_of_many_kinds"]["arguments"] == [
        "x: *fp32, out: *fp32, n: i32, function=squared, KIND=triton.language.float32, bias=None, one=1, "
        "several: ('i32', 'fp32', 'constexpr'), flag: u1, BLOCK=16"
    ]


def test_every_configuration_is_recorded_once_with_any_number_of_warps(report):
    assert sorted(report["second_configuration"]["arguments"]) == [
        f"x: *fp32, out: *fp32, n: i32, BLOCK=16, STEP={step}" for step in (0, 1)
    ]


@pytest.mark.parametrize("name", right_names())
def test_kernels_of_right_functions_compile(right, name):
    refused = right[name]["refused"]
    if any("have been removed" in message for _, _, message in refused):
        pytest.skip("this Triton has no block pointers")
    assert right[name]["launches"] > 0
    assert refused == []


def test_fault_of_the_compiler_is_no_refusal():
    class Source:
        @staticmethod
        def make_ir(options, context):
            raise RuntimeError("a pass failed")

    assert refusal(Specialisation(test_fault_of_the_compiler_is_no_refusal, Source(), {}, "")) is None


# ---- the private API ------------------------------------------------------------------------------------------------


@triton.jit
def nothing(x):
    pass


def test_launch_binds_arguments_then_compiles_by_an_attribute():
    source = inspect.getsource(triton.JITFunction)
    assert "self.compile = compile" in inspect.getsource(triton.JITFunction.create_binder)
    assert "self.compile(src, target=target, options=options.__dict__" in source
    assert "self.device_caches[device]" in inspect.getsource(triton.JITFunction.run)
    assert nothing.pre_run_hooks == []
    assert nothing.device_caches.default_factory == nothing.create_binder


def test_source_has_signature_constants_and_a_front_end():
    from triton.compiler import ASTSource

    source = ASTSource(nothing, {"x": "constexpr"}, {"x": 3})
    assert (source.signature, source.constants) == ({"x": "constexpr"}, {(0,): 3})
    known = {"target", "options", "codegen_fns", "module_map", "context"}
    assert inspect.signature(source.make_ir).parameters.keys() <= known


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")  # of Triton 3.9
def test_backend_and_context_are_made_without_a_gpu():
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    backend = make_backend(GPUTarget("cuda", 90, 32))
    options = backend.parse_options({"num_warps": 2})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    assert options.num_warps == 2
    assert isinstance(backend.get_codegen_implementation(options), dict)
    assert isinstance(backend.get_module_map(), dict)


def test_errors_have_source_node_and_message():
    from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure

    error = CompilationError("def f():\n    pass", None, "a message")
    assert (error.src, error.node, error.error_message) == ("def f():\n    pass", None, "a message")
    assert issubclass(CompileTimeAssertionFailure, CompilationError)


def test_front_end_holds_the_function_and_its_source():
    from triton.compiler.code_generator import CodeGenerator

    assert "jit_fn" in inspect.signature(CodeGenerator.__init__).parameters
    assert nothing.src.startswith("def nothing(x):")
    assert nothing.fn.__name__ == "nothing"
