"""Probes of PyTorch's private API; where one fails, fix `pullback/_torch`."""

import contextlib
import gc
import inspect
import logging
import operator
import subprocess
import sys
import warnings
import weakref
from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pullback import _torch
from pullback import guards as tripwire


@torch.library.custom_op("pullback_test_private::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def test_custom_op_def_is_the_class_of_custom_ops():
    assert _torch.is_custom_op(twice)
    assert not _torch.is_custom_op(torch.ops.pullback_test_private.twice)


def test_custom_op_def_registers_kernels_and_backwards(monkeypatch):
    seen = []
    for name in ("register_kernel", "register_autograd"):
        method = getattr(_torch.custom_op_type(), name)
        monkeypatch.setattr(
            _torch.custom_op_type(), name, lambda *args, m=method, **kw: seen.append(m.__name__) or m(*args, **kw)
        )
    torch.library.custom_op("pullback_test_private::once", mutates_args=())(twice._init_fn)
    torch.library.register_autograd("pullback_test_private::once", lambda ctx, g: g, setup_context=lambda *args: None)
    assert seen == ["register_kernel", "register_autograd"]


def test_opdefs_lists_the_custom_ops():
    assert any(op is twice for op in _torch.custom_ops())


def test_init_fn_is_the_decorated_function():
    function = _torch.custom_op_function(twice)
    assert function.__name__ == "twice"
    assert function.__module__ == __name__


def test_function_of_a_triton_op_is_the_decorated_one():
    def thrice(x: torch.Tensor) -> torch.Tensor:
        return 3 * x

    op = torch.library.triton_op("pullback_test_private::thrice", thrice, mutates_args=())
    assert _torch.custom_op_function(op) is thrice
    assert _torch.decorated_function(thrice) is thrice


def test_overloads_and_packets_are_dispatched_ops():
    assert _torch.is_dispatched_op(torch.ops.aten.sin)
    assert _torch.is_dispatched_op(torch.ops.aten.add.Tensor)
    assert not _torch.is_dispatched_op(torch.sin)
    assert not _torch.is_dispatched_op(twice)


@pytest.mark.parametrize(
    ("op", "name"),
    [
        (twice, "pullback_test_private::twice"),
        (torch.ops.pullback_test_private.twice, "pullback_test_private::twice"),
        (torch.ops.pullback_test_private.twice.default, "pullback_test_private::twice"),
        (torch.ops.aten.add.Tensor, "aten::add.Tensor"),
    ],
)
def test_op_name_is_the_qualified_name(op, name):
    assert _torch.op_name(op) == name


def test_defines_method_ignores_the_stubs_of_function():
    class Base(torch.autograd.function.InplaceFunction):
        @staticmethod
        def forward(ctx, x):
            return x

    class Derived(Base):
        pass

    stubs = ("forward", "backward", "vjp", "jvp", "vmap", "setup_context")
    assert not any(_torch.defines_method(torch.autograd.Function, name) for name in stubs)
    assert [name for name in stubs if _torch.defines_method(Derived, name)] == ["forward"]


def test_tree_flatten_gives_the_path_of_each_leaf():
    tree = ((1, [2, {"a": 3}]), {"b": 4})
    leaves, spec, paths = _torch.tree_flatten(tree)
    assert leaves == [1, 2, 3, 4]
    assert paths == [(0, 0), (0, 1, 0), (0, 1, 1, "a"), (1, "b")]
    assert _torch.tree_unflatten([5, 6, 7, 8], spec) == ((5, [6, {"a": 7}]), {"b": 8})


def test_inductor_has_emulate_precision_casts():
    from torch._inductor import config

    with config.patch(emulate_precision_casts=True):
        assert config.emulate_precision_casts


def test_inductor_can_compile_without_worker_processes():
    from torch._inductor import config

    before = config.compile_threads
    with _torch.without_compile_workers():
        assert config.compile_threads == 1
    assert config.compile_threads == before


def test_op_parameters_come_from_the_schema():
    of_twice = _torch.op_parameters(torch.ops.pullback_test_private.twice)
    assert [(p.name, p.annotation) for p in of_twice] == [("x", "Tensor")]
    of_add = _torch.op_parameters(torch.ops.aten.add.Tensor)
    assert [(p.name, p.kind, p.default) for p in of_add][-1] == ("alpha", inspect.Parameter.KEYWORD_ONLY, 1)


def test_names_traced_lists_the_nodes_so_far():
    seen = []

    def traced(x):
        y = x.sin()
        seen.append(_torch.names_traced())
        return y.cos()

    graph = _torch.trace_ops(traced, torch.zeros(2)).graph
    names = [node.name for node in graph.nodes]
    assert seen[0] == names[: len(seen[0])]
    assert "sin" in seen[0]
    assert "cos" not in seen[0]


def test_schemas_tell_views_and_mutation():
    aten = torch.ops.aten
    assert _torch.is_view(aten.view.default)
    assert _torch.is_view(operator.getitem)
    assert not _torch.is_view(aten.sin.default)
    assert _torch.is_mutable(aten.add_.Tensor)
    assert not _torch.is_mutable(aten.add.Tensor)
    assert not _torch.is_mutable(operator.getitem)
    a, b = torch.ones(2), torch.ones(2)
    assert [x is a for x in _torch.mutated_arguments(aten.add_.Tensor, (a, b), {})] == [True]
    assert [x is b for x in _torch.mutated_arguments(aten.add.out, (a, a), {"out": b})] == [True]
    assert _torch.mutated_arguments(aten.add.Tensor, (a, b), {}) == []


class Nothing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class NoFunctions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def asked_in_each_context(ask):
    """Evaluate a predicate in plain eager mode and in every other context; return the contexts where it is true."""
    x = torch.ones(2)
    seen = {"eager": ask()}

    def note(name):
        def function(t):
            seen[name] = ask()
            return t.sum()

        return function

    torch.func.grad(note("functorch"))(x)
    torch.func.vmap(note("vmap"))(x)
    for name, context in {
        "dispatch mode": Nothing(),
        "function mode": NoFunctions(),
        "autocast": torch.autocast("cpu", dtype=torch.bfloat16),
        "dual": forward_ad.dual_level(),
    }.items():
        with context:
            seen[name] = ask()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.trace", DeprecationWarning)
        torch.jit.trace(note("jit"), (x,), check_trace=False)
    return {name for name, answer in seen.items() if answer}


def test_plain_eager_excludes_transforms_modes_and_tracers():
    assert asked_in_each_context(_torch.is_plain_eager) == {"eager"}


def test_no_grad_and_inference_mode_are_plain_eager():
    with torch.no_grad(), torch.inference_mode():
        assert _torch.is_plain_eager()


def test_may_be_traced_covers_transforms_modes_and_jit():
    assert asked_in_each_context(_torch.may_be_traced) == {"functorch", "vmap", "dispatch mode", "jit"}


def test_in_dual_level_detects_a_dual_level():
    assert asked_in_each_context(_torch.in_dual_level) == {"dual"}


def test_in_functorch_detects_transforms():
    assert asked_in_each_context(_torch.in_functorch) == {"functorch", "vmap"}


def test_any_autocast_detects_autocast():
    assert asked_in_each_context(_torch.any_autocast) == {"autocast"}


def test_backward_in_a_trace_runs_in_the_calling_thread():
    """On a GPU all backward passes share one autograd thread, which may wait for the trace to end."""
    seen = []

    def look():
        with _torch.tracing():
            seen.append(torch._C._is_multithreading_enabled())

    look()
    _torch.apart(look)
    assert seen == [False, False]
    assert torch._C._is_multithreading_enabled()


def test_thread_that_used_fake_tensors_may_end():
    """A CUDA build of PyTorch 2.11 without a GPU crashed at the last line."""
    code = """
import torch
from pullback import _torch

x = torch.ones(2, requires_grad=True)

def fakes():
    with _torch.fake_mode() as mode:
        mode.from_tensor(x).sin()

def work():
    fakes()
    torch.autograd.grad(x.sin().sum(), x)

with _torch.new_thread() as thread:
    thread.submit(work).result()
_torch.apart(work)
fakes()
print("ok")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "ok\n", done.stderr


def test_in_jit_tracing_detects_a_trace():
    assert asked_in_each_context(_torch.in_jit_tracing) == {"jit"}


def test_forward_grad_can_be_enabled_where_pytorch_disabled_it():
    def tangent_in_jvp(enabled):
        class Probe(torch.autograd.Function):
            @staticmethod
            def forward(x):
                return x.clone()

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.save_for_forward(*inputs)

            @staticmethod
            def jvp(ctx, t):
                (x,) = ctx.saved_tensors
                with _torch.forward_grad_enabled() if enabled else contextlib.nullcontext():
                    found.append(forward_ad.unpack_dual(x * 1).tangent is not None)
                return t

        found = []
        torch.func.jvp(Probe.apply, (torch.ones(2),), (torch.ones(2),))
        return found

    assert tangent_in_jvp(enabled=False) == [False]
    assert tangent_in_jvp(enabled=True) == [True]


def test_batched_cotangent_is_detected():
    seen = []

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            seen.append(_torch.is_batched_cotangent(g))
            return g

    x = torch.ones(2, requires_grad=True)
    torch.autograd.grad(Probe.apply(x), x, torch.eye(2), is_grads_batched=True)
    torch.autograd.grad(Probe.apply(x), x, torch.ones(2))
    assert seen == [True, False]


def test_ops_below_autograd_record_nothing():
    x = torch.ones(2, requires_grad=True)
    with _torch.below_autograd():
        assert (x * 2).grad_fn is None
    assert (x * 2).grad_fn is not None


def test_fake_tensors_have_shapes_but_no_values():
    with _torch.fake_mode() as mode:
        fake = mode.from_tensor(torch.ones(2, 3), static_shapes=True)
        assert (fake * torch.ones(3)).shape == (2, 3)  # a real tensor may take part
        assert _torch.is_fake(fake)
        with pytest.raises(_torch.DATA_DEPENDENT):
            fake.sum().item()
    assert not _torch.is_fake(torch.ones(2))


def test_without_modes_gives_real_values_in_every_trace():
    seen = []

    def formula(x):
        with _torch.without_modes():
            seen.append(bool((torch.tensor([1.0, 2.0]) > 0).all()))
        return x.sin()

    for options in (
        {},
        {"tracing_mode": "fake"},
        {"pre_dispatch": True},
    ):  # otherwise the trace would have more than a sine
        module = make_fx(formula, **options)(torch.ones(2))
        assert [n.name for n in module.graph.nodes if n.op == "call_function"] == ["sin"]
    assert seen == [True] * 3


def test_make_fx_records_undecomposed_ops_of_real_tensors():
    traced = _torch.trace_ops(lambda x: [torch.nn.functional.softplus(x)], torch.ones(2))
    assert [node.target for node in traced.graph.nodes if node.op == "call_function"] == [
        torch.ops.aten.softplus.default
    ]
    assert torch.equal(traced(torch.zeros(2))[0], torch.nn.functional.softplus(torch.zeros(2)))


def test_make_fx_records_detach_as_detach():
    """If it recorded `alias` instead, the graph would have a derivative there."""

    def formula(x):
        return [x * x.detach()]

    x = torch.ones(5, requires_grad=True)
    for traced in (_torch.trace_ops(formula, x), _torch.trace_for_sizes(formula, [x], {5})[0]):
        assert torch.autograd.grad(traced(2 * x)[0].sum(), x)[0].tolist() == [4] * 5


def test_value_check_without_a_result_is_not_dead_code():
    traced = _torch.trace_ops(lambda x: [torch.linalg.inv(x)], torch.eye(3))
    traced.graph.eliminate_dead_code()
    traced.recompile()
    with pytest.raises(RuntimeError, match="singular"):
        traced(torch.zeros(3, 3))


def test_schemas_say_which_ops_mutate():
    assert _torch.is_mutable(torch.ops.aten.add_.Tensor)
    assert not _torch.is_mutable(torch.ops.aten.add.Tensor)


def test_efficient_zero_tensor_is_detected():
    assert _torch.is_zero_tensor(torch.ops.aten._efficientzerotensor.default([2]))
    assert not _torch.is_zero_tensor(torch.zeros(2))


def test_efficient_zero_tensor_is_materialised_below_a_mode():
    class Running(_torch.DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    zeros = torch.ops.aten._efficientzerotensor.default([2])
    with Running():
        product, total = torch.ops.aten.mul.Scalar(zeros, 3), torch.ops.aten.add.Scalar(zeros, 3)
    assert product.tolist() == [0, 0]
    assert total.tolist() == [3, 3]


def test_functional_variant_of_in_place_ops():
    aten = torch.ops.aten
    assert _torch.functional_variant(aten.masked_fill_.Scalar) is aten.masked_fill.Scalar
    assert _torch.functional_variant(aten.add_.Tensor) is aten.add.Tensor
    assert _torch.functional_variant(aten.mm.out) is None
    assert _torch.functional_variant(aten.pow_.Scalar) is None  # aten.pow.Scalar raises a number to a tensor


def test_version_counts_in_place_writes():
    x = torch.ones(2)
    before = _torch.version_of(x)
    x[:1].mul_(2)
    assert _torch.version_of(x) == before + 1


def test_storage_of_identifies_shared_memory_of_real_and_fake_tensors():
    with _torch.fake_mode() as mode:
        for x in (torch.ones(4), mode.from_tensor(torch.ones(4))):
            assert _torch.storage_of(x[1:]) == _torch.storage_of(x.view(2, 2))
            assert _torch.storage_of(x.clone()) != _torch.storage_of(x)


def test_tripwire_is_detected_in_a_graph():
    traced = _torch.trace_ops(lambda x: [tripwire.tripwire(x, [x], "op")], torch.ones(2))
    assert [_torch.is_tripwire(node.target) for node in traced.graph.nodes] == [False, True, False]
    assert not _torch.is_tripwire(torch.ops.aten.clone.default)


def test_tree_leaves_come_with_their_structure():
    leaves, spec = _torch.tree_leaves({"b": (1, None), "a": [2]})
    assert leaves == [1, None, 2]
    assert _torch.tree_unflatten([3, 4, 5], spec) == {"b": (3, 4), "a": [5]}


def test_nodes_keep_their_traced_value():
    graph = _torch.trace_ops(lambda x: x.sin().view(-1), torch.zeros(2, 3)).graph
    sin, view = (node for node in graph.nodes if node.op == "call_function")
    assert _torch.traced_value(view).shape == (6,)
    assert _torch.storage_of(_torch.traced_value(sin)) == _torch.storage_of(_torch.traced_value(view))


def test_views_without_tracking_are_not_views():
    x = torch.zeros(3)
    with torch.no_grad(), _torch.without_view_tracking():
        assert not x.view(-1)._is_view()
    with torch.no_grad():
        assert x.view(-1)._is_view()


def test_share_storage_detects_shared_memory():
    x = torch.zeros(4)
    assert _torch.share_storage(x, x)
    assert _torch.share_storage(x[1:], x.view(2, 2).detach())
    assert not _torch.share_storage(x, x.clone())
    torch.func.vmap(lambda row: row if _torch.share_storage(row, row) else None)(x)


def test_numpy_of_a_functorch_tensor_raises_a_storage_error():
    with pytest.raises(RuntimeError) as caught:
        torch.func.grad(lambda x: torch.from_numpy(x.detach().numpy()).sum())(torch.ones(2))
    assert _torch.is_storage_error(caught.value)
    assert not _torch.is_storage_error(RuntimeError("of another kind"))


class Point(NamedTuple):
    x: int
    y: int


@pytest.mark.parametrize(
    "tree",
    [
        3,
        None,
        [],
        (1, [2, {"b": 3, "a": (4,)}]),
        Point(1, [2]),
        OrderedDict(b=1, a=[2]),
        torch.return_types.max((1, 2)),
    ],
    ids=repr,
)
def test_tree_leaves_matches_pytree_and_leaves_no_garbage(tree):
    gc.disable()
    gc.freeze()  # exclude the objects that exist already
    try:
        found = _torch.tree_leaves(tree)
        assert gc.collect() == 0
    finally:
        gc.unfreeze()
        gc.enable()
    assert found == torch.utils._pytree.tree_flatten(tree)
    assert hash(found[1]) == hash(torch.utils._pytree.tree_flatten(tree)[1])


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def test_eager_apply_records_the_function():
    y = _torch.eager_apply(Doubling)(x := torch.ones(2, requires_grad=True))
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [2, 2]


def test_kernel_of_calls_the_op():
    kernel = _torch.kernel_of(torch.ops.aten.sin.default)
    assert torch.equal(kernel(torch.ones(2)), torch.sin(torch.ones(2)))
    assert _torch.kernel_of(len) is len


def test_saved_tensor_hooks_can_be_suspended():
    packed = []
    x = torch.ones(2, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        with _torch.without_saved_tensors_hooks():
            x.sin()
        assert packed == []
        x.sin()
        assert len(packed) == 1


def test_default_hooks_are_removed_and_restored():
    packed = []
    x = torch.ones(2, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        with _torch.without_default_hooks():
            x.sin()
            assert packed == []
        x.sin()
    assert len(packed) == 1


def test_ban_on_hooks_is_lifted_and_restored():
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        with _torch.without_default_hooks(), torch.autograd.graph.save_on_cpu():
            pass
        with pytest.raises(RuntimeError, match="not here"), torch.autograd.graph.save_on_cpu():
            pass


def test_owned_by_node_alone_detects_other_references():
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, x * 2)
            return x + 1

        @staticmethod
        def backward(ctx, g):
            kept = ctx.saved_tensors
            found.append(_torch.owned_by_node_alone(kept[1:]))
            return g

    def hold_nothing(node):
        return None

    def hook(node):
        held = []
        node._raw_saved_tensors[1].register_hooks(lambda t: held.append(t) or t, lambda t: t)
        return held

    holders = [
        hold_nothing,
        lambda node: node.saved_tensors,
        lambda node: node._raw_saved_tensors[1].data,
        lambda node: node.saved_tensors[1].detach(),
        lambda node: node.saved_tensors[1].numpy(),
        lambda node: node.saved_tensors[1].untyped_storage(),
        lambda node: weakref.ref(node.saved_tensors[1]),
        hook,
    ]
    found = []
    for hold in holders:
        y = Keeps.apply(torch.ones(3, requires_grad=True))
        held = hold(y.grad_fn)
        y.sum().backward()
        del held
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        y = Keeps.apply(torch.ones(3, requires_grad=True))
    y.sum().backward()
    assert found == [True] + [False] * len(holders)


def test_retains_graph_reports_the_running_backward():
    seen = []
    x = torch.ones(2, requires_grad=True)
    y = x.sin().sum()
    y.grad_fn.register_prehook(lambda g: seen.append(_torch.retains_graph()))
    y.backward(retain_graph=True)
    torch.autograd.grad(y, x, create_graph=True)
    y.backward()
    assert seen == [True, True, False]
    assert _torch.retains_graph()


def test_fake_tensor_log_can_be_silenced(monkeypatch):
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    records = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = records.append
    monkeypatch.setattr(logger, "handlers", [handler])  # independent of PyTorch's own logging setup
    monkeypatch.setattr(logger, "disabled", False)
    level = logger.level
    logger.setLevel(logging.ERROR)

    def broken():
        with _torch.fake_mode() as mode:
            x = mode.from_tensor(torch.ones(2))
            with pytest.raises(RuntimeError):
                x * torch.ones(3)

    try:
        broken()
        loud = len(records)
        with _torch.without_fake_tensor_log():
            broken()
    finally:
        logger.setLevel(level)
    assert loud > 0
    assert len(records) == loud


@pytest.mark.parametrize("transposed", [False, True])
def test_map_jagged_values_keeps_the_structure(transposed):
    parts = [torch.ones(1, 3), torch.ones(2, 3)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    given = nested.transpose(1, 2) if transposed else nested
    made = _torch.map_jagged_values(lambda a, b: a * b + 1, given, 2 * given)
    assert made.shape == given.shape
    assert [t.tolist() for t in made.unbind()] == [(2 * t * t + 1).tolist() for t in given.unbind()]
    (g,) = torch.autograd.grad(made.values().sum(), nested)
    assert g.values().unique().tolist() == [4]


def test_assume_constant_result_matches_pytorchs():
    ours, theirs = (lambda: 1), (lambda: 1)
    assert _torch.assume_constant_result(ours) is ours
    assert vars(torch.compiler.assume_constant_result(theirs)) == vars(ours) != {}


def test_dispatch_mode_does_not_import_dynamo():
    code = """
import sys, torch
from pullback import _torch

class Counted(_torch.DispatchMode):
    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        Counted.seen += 1
        return func(*args, **(kwargs or {}))

def counted(x):
    with Counted():
        return x.sin()

counted(torch.ones(2))
print(Counted.seen, "torch._dynamo" in sys.modules)
import torch._dynamo
counted(torch.ones(2))
torch._dynamo.config.suppress_errors = False
print(Counted.seen, torch.compile(lambda x: x.cos(), backend="eager")(torch.zeros(1)).item())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "1 False\n2 1.0\n", done.stderr


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin")  # of the base's `__enter__`
def test_dynamo_does_not_compile_the_method_of_a_mode():
    seen = []

    class Asking(_torch.DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(torch.compiler.is_dynamo_compiling())
            return func(*args, **(kwargs or {}))

    def broken(x):
        with Asking():
            torch._dynamo.graph_break()
            return x.sin()

    assert not _torch.DispatchMode._should_skip_dynamo()
    assert TorchDispatchMode._should_skip_dynamo()
    torch._dynamo.reset()
    torch.compile(broken, backend="eager")(torch.zeros(2))
    assert seen == [False]


def test_vmap_of_view_dtype_is_probed():
    x = torch.ones(2, 3)
    bits = torch.func.vmap(lambda t: t.view(torch.int32))
    if _torch.VMAP_HAS_VIEW_DTYPE:
        assert torch.equal(bits(x), x.view(torch.int32))
    else:
        with pytest.raises(RuntimeError, match="atching rule not implemented"):
            bits(x)


IMPORTING = """
import gc, sys
from pullback import _torch

gc.collect()
if {frozen}:
    gc.freeze()
before = gc.isenabled(), bool(gc.get_freeze_count()), gc.get_stats()[2]["collections"]
assert "torch._dynamo" not in sys.modules
_torch.fake_mode()
assert "torch._dynamo" in sys.modules
print((gc.isenabled(), bool(gc.get_freeze_count()), gc.get_stats()[2]["collections"]) == before)
"""


@pytest.mark.parametrize("frozen", [False, True])
def test_fake_mode_imports_dynamo_without_a_full_collection(frozen):
    done = subprocess.run([sys.executable, "-c", IMPORTING.format(frozen=frozen)], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("style", ["old", "new"])
def test_observe_functions_sees_every_apply(style):
    class Old(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    class New(Old):
        @staticmethod
        def forward(x):
            return 2 * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

    Twice = Old if style == "old" else New
    methods = dict(vars(Twice))
    bound, seen = Twice.apply, []
    end = _torch.observe_functions(lambda function, args: seen.append((function, args)))
    inner = _torch.observe_functions(lambda function, args: seen.append(function))
    x = torch.ones(2, requires_grad=True)
    bound(x).sum().backward()
    assert seen == [Twice, (Twice, (x,))]
    assert x.grad.tolist() == [2, 2]
    inner()
    end()
    assert "apply" not in vars(torch.autograd.function._SingleLevelFunction)
    assert vars(Twice) == methods
    bound(x)
    assert len(seen) == 2


def test_symbolic_trace_has_size_symbols_and_guards():
    aten = torch.ops.aten
    table = {op: made for op, made in _torch.decompositions()["silu_backward"] if op is aten.silu_backward.default}
    assert table

    def function(x, y):
        return [x.sum() + y, x.mean(0), aten.silu_backward(y, y)]

    traced = _torch.trace_symbolic(function, [torch.ones(3, 5), torch.ones(7)], table)
    assert not any(node.target is aten.silu_backward.default for node in traced.graph.nodes)
    assert traced(torch.ones(2, 4), torch.ones(6))[1].shape == (4,)
    assert _torch.shape_guards(traced) == []
    x, _ = traced.graph.find_nodes(op="placeholder")
    assert _torch.size_hints(x.meta["val"]) == [3, 5]
    n, m = _torch.size_symbols(x.meta["val"])
    assert n != m
    both = _torch.trace_symbolic(lambda x, y: [x + y], [torch.ones(3), torch.ones(5)[:3]], {})
    first, second = both.graph.find_nodes(op="placeholder")
    assert _torch.size_symbols(first.meta["val"]) == _torch.size_symbols(second.meta["val"])
    halved = _torch.trace_symbolic(lambda x: [x.view(2, -1)], [torch.ones(6)], {})
    assert any(str(guard).startswith("Eq(Mod(") for guard in _torch.shape_guards(halved))


def test_trace_for_sizes_reports_size_dependence():
    x, y = torch.ones(5, 7), torch.ones(7)
    traced, is_general = _torch.trace_for_sizes(lambda x, y: [x * y, x.mean(-1)], [x, y], {5})
    assert is_general
    placeholder, _ = traced.graph.find_nodes(op="placeholder")
    (number, symbol), fixed = map(_torch.example_of, _torch.traced_value(placeholder).shape)
    assert number == 5
    assert fixed == (7, None)
    assert _torch.evaluated(2 * symbol + 1, {symbol: 11}) == 23
    for decides in (
        lambda x, y: [x * 2 if x.shape[0] > 4 else x],
        lambda x, y: [x.reshape(-1, 5)],
        lambda x, y: [x * len(x)],
        lambda x, y: [x[3:]],
        lambda x, y: list(x),
    ):
        assert not _torch.trace_for_sizes(decides, [x, y], {5, 7})[1]


def test_in_proxy_tracing_detects_make_fx():
    seen = []
    make_fx(lambda x: (seen.append(_torch.in_proxy_tracing()), x * 2)[1])(torch.ones(2))
    assert seen == [True]
    assert not _torch.in_proxy_tracing()


def test_differentiation_depth_counts_each_level_once():
    seen = []

    def f(x):
        seen.append(_torch.differentiation_depth())
        return x * x

    x = torch.ones(2)
    torch.func.jvp(f, (x,), (x,))
    torch.func.jvp(lambda t: torch.func.jvp(f, (t,), (t,))[1], (x,), (x,))
    with forward_ad.dual_level():
        f(x)
    assert seen == [1, 2, 1]


def test_in_vmap_sees_a_batch_below_other_levels():
    seen = []

    def f(x):
        seen.append(_torch.in_vmap())
        return x * x

    x = torch.ones(2)
    torch.func.grad(lambda t: f(t).sum())(x)
    torch.func.vmap(torch.func.grad(f))(x)
    torch.func.vmap(f)(x)
    assert seen == [False, True, True]


def test_unwrapped_finds_requires_grad_below_transforms():
    seen = []

    def f(x):
        seen.append(_torch.unwrapped(x).requires_grad)
        return x.sum()

    for requires_grad in (False, True):
        x = torch.ones(2, 2, requires_grad=requires_grad)
        torch.func.vmap(torch.func.grad(f))(x)
        f(x)
    assert seen == [False, False, True, True]


def test_is_differentiated_in_every_transform():
    seen = []

    def f(x, constant=None):
        seen.append(_torch.is_differentiated(x))
        return (x if constant is None else constant).sum()

    x, func = torch.ones(2), torch.func
    func.grad(f)(x)
    func.jvp(f, (x,), (x,))
    func.vmap(func.grad(f))(x[None])
    func.grad(lambda x: func.vmap(f)(x[None]).sum())(x)
    func.grad(lambda y: func.grad(lambda z: f(y, z))(x).sum() + y.sum())(x)
    func.jvp(lambda y: func.jvp(lambda z: f(y, z), (x,), (x,))[1], (x,), (x,))
    func.vmap(f)(x[None].clone().requires_grad_())
    with forward_ad.dual_level():
        f(forward_ad.make_dual(x, x))
    assert seen == [True] * 8
    seen.clear()
    func.grad(lambda z: f(x, z))(x)
    func.jvp(lambda z: f(x, z), (x,), (x,))
    func.vmap(f)(x[None])
    with forward_ad.dual_level():
        f(x)
    assert seen == [False] * 4


def test_is_differentiated_outside_inside_a_function():
    seen = []

    class Reading(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            seen.append(_torch.is_differentiated_outside(held))
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

    def f(w):
        nonlocal held
        held = w
        seen.append(_torch.is_differentiated_outside(w))
        return Reading.apply(x).sum() + w.sum()

    held, x = None, torch.ones(2)
    for run in (f, torch.func.vmap(f), torch.func.grad(f), lambda w: torch.func.jvp(f, (w,), (w,))):
        run(torch.ones(2))
    assert seen == [False, False, False, False, False, True, False, True]


def test_tangent_is_detected_through_a_batch():
    seen = []

    def f(x):
        seen.append(_torch.has_tangent_below(x))
        return x

    with forward_ad.dual_level():
        f(torch.ones(2))
        torch.vmap(f)(torch.ones(2, 2))
        torch.vmap(f)(forward_ad.make_dual(torch.ones(2, 2), torch.ones(2, 2)))
    assert seen == [False, False, True]


def test_skip_in_dynamo_excludes_a_function():
    inner = []

    def count(graph, inputs):
        inner.append(graph)
        return graph.forward

    def left(x):
        torch._dynamo.graph_break()
        return beyond(x)

    def beyond(x):
        return x + 1

    compiled = torch.compile(lambda x: left(x), backend=count)
    compiled(torch.ones(3))
    assert inner
    inner.clear()
    torch._dynamo.reset()
    assert _torch.skip_in_dynamo(left) is left
    assert torch.equal(torch.compile(left, backend=count)(torch.ones(3)), torch.full((3,), 2.0))
    assert not inner


def test_once_differentiable_is_detected_by_its_wrapper():
    def backward(ctx, g):
        return g

    marked = torch.autograd.function.once_differentiable(backward)
    assert _torch.is_once_differentiable(marked)
    assert not _torch.is_once_differentiable(backward)
    assert not _torch.is_once_differentiable(torch.exp)


def test_compiler_log_can_be_silenced():
    logger, records = logging.getLogger("torch.__trace"), []
    handler = logging.Handler()
    handler.emit = records.append
    logger.addHandler(handler)
    try:
        logger.error("told")
        with _torch.without_trace_log():
            logger.error("not told")
    finally:
        logger.removeHandler(handler)
    assert [record.getMessage() for record in records] == ["told"]
    assert not logger.disabled
