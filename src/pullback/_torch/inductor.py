"""Private PyTorch of Inductor: compilation of graphs of ATen ops."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx

from pullback._torch.private import private
from pullback._torch.trace import evaluated

_FakeTensorMode = private("torch._subclasses.fake_tensor.FakeTensorMode")


def without_compile_workers() -> AbstractContextManager[Any]:
    """Context in which Inductor starts no worker processes.

    Relies on `torch._inductor.config.patch` and its option `compile_threads`.
    """
    from torch._inductor import config

    patched: AbstractContextManager[Any] = config.patch(compile_threads=1)
    return patched


def compile_by_inductor(
    module: fx.GraphModule, examples: list[Any], is_small: bool = False, **options: Any
) -> Callable[..., list[Any]]:
    """Compile a graph of ATen ops, for inputs like the examples, in this process.

    16-bit ops round their results, as PyTorch's kernels do, so that comparisons agree with eager mode.

    Args:
        module: the graph.
        examples: its inputs, without values.
        is_small: whether to compute on one thread; otherwise Inductor decides.
        options: options of `standalone_compile`.

    Relies on `torch._inductor.standalone_compile`, its option `config_patches`, and Inductor's `compile_threads`,
    `emulate_precision_casts` and `cpp.threads`.
    """
    patches: dict[str, Any] = {"compile_threads": 1, "emulate_precision_casts": True}
    if is_small:
        patches["cpp.threads"] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its warnings are about its own code
        from torch._inductor import standalone_compile  # late: it takes seconds

        return standalone_compile(module, examples, options={"config_patches": patches}, **options)


def free_symbols(expressions: Sequence[Any]) -> list[Any]:
    """Symbols of sympy expressions in sizes, sorted by name.

    Relies on these being sympy's.
    """
    return sorted({symbol for expression in expressions for symbol in expression.free_symbols}, key=str)


def compile_for_sizes(
    module: fx.GraphModule,
    sizes: Mapping[Any, int],
    others: Sequence[Any],
    kinds: Sequence[tuple[Sequence[Any], Sequence[Any], torch.dtype]],
    is_small: bool = False,
) -> tuple[Callable[..., list[Any]], Callable[[Sequence[int]], bool]]:
    """Compile a graph of ATen ops for tensors on the CPU of many sizes, in this process.

    Args:
        module: takes the sizes, then the other numbers, then tensors. All symbols must be among the sizes: Inductor's
            disk cache does not store guards on others.
        sizes: the symbols, with their values in an example: neither 0 nor 1.
        others: expressions in these.
        kinds: size, strides and dtype of each tensor, in such expressions.
        is_small: whether to compute on one thread.

    Returns:
        The compiled function, and a predicate of sizes: whether the guards that Inductor added hold for them.

    Relies on what `compile_by_inductor` does; on `dynamic_shapes="from_tracing_context"`, `torch._guards.tracing` and
    `TracingContext`, `FakeTensorMode`, `ConstantSource`; and of `torch.fx.experimental.symbolic_shapes` on `DimDynamic`
    and `ShapeEnv`, with its `create_symbol`, `create_symintnode`, `produce_guards_expression` and
    `evaluate_guards_expression`.
    """
    from torch._dynamo.source import ConstantSource  # late: they take a second
    from torch._guards import TracingContext
    from torch._guards import tracing as in_context
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    environment = ShapeEnv()
    symbols = {
        symbol: environment.create_symbol(n, ConstantSource(f"n{i}"), DimDynamic.DYNAMIC)
        for i, (symbol, n) in enumerate(sizes.items())
    }

    def number(expression: Any) -> Any:
        if isinstance(expression, int):
            return expression
        return environment.create_symintnode(expression.xreplace(symbols), hint=evaluated(expression, sizes))

    mode = _FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    with mode:
        tensors = [
            torch.empty_strided([*map(number, shape)], [*map(number, stride)], dtype=dtype)
            for shape, stride, dtype in kinds
        ]
    given = [number(symbol) for symbol in sizes]
    examples = [*given, *map(number, others), *tensors]
    with in_context(TracingContext(mode)):
        run = compile_by_inductor(module, examples, is_small, dynamic_shapes="from_tracing_context")
    guards = environment.produce_guards_expression(given)

    def admits(numbers: Sequence[int]) -> bool:
        return guards is None or bool(ShapeEnv().evaluate_guards_expression(guards, numbers))

    return run, admits
