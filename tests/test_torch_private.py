"""What we rely on of PyTorch's private parts: where one of these fails, mend `pullback/_torch.py`."""

import inspect
import operator

import pytest
import torch

from pullback import _torch


@torch.library.custom_op("pullback_test_private::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def test_custom_op_def_is_the_class_of_custom_ops():
    assert _torch.is_custom_op(twice)
    assert not _torch.is_custom_op(torch.ops.pullback_test_private.twice)


def test_opdefs_lists_the_custom_ops():
    assert any(op is twice for op in _torch.custom_ops())


def test_init_fn_is_the_decorated_function():
    function = _torch.custom_op_function(twice)
    assert function.__name__ == "twice"
    assert function.__module__ == __name__


def test_overloads_and_packets_are_known_by_class():
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
def test_qualnames_of_ops(op, name):
    assert _torch.op_name(op) == name


def test_stubs_of_function_live_in_torch_autograd_function():
    class Base(torch.autograd.function.InplaceFunction):
        @staticmethod
        def forward(ctx, x):
            return x

    class Derived(Base):
        pass

    stubs = ("forward", "backward", "vjp", "jvp", "vmap", "setup_context")
    assert not any(_torch.given_by(torch.autograd.Function, name) for name in stubs)
    assert [name for name in stubs if _torch.given_by(Derived, name)] == ["forward"]


def test_pytree_gives_the_path_of_each_leaf():
    tree = ((1, [2, {"a": 3}]), {"b": 4})
    leaves, spec, paths = _torch.tree_flatten(tree)
    assert leaves == [1, 2, 3, 4]
    assert paths == [(0, 0), (0, 1, 0), (0, 1, 1, "a"), (1, "b")]
    assert _torch.tree_unflatten([5, 6, 7, 8], spec) == ((5, [6, {"a": 7}]), {"b": 8})


def test_inductor_can_do_without_worker_processes():
    from torch._inductor import config

    before = config.compile_threads
    with _torch.compile_in_this_process():
        assert config.compile_threads == 1
    assert config.compile_threads == before


def test_schemas_give_names_types_defaults_and_keyword_only():
    of_twice = _torch.op_parameters(torch.ops.pullback_test_private.twice)
    assert [(p.name, p.annotation) for p in of_twice] == [("x", "Tensor")]
    of_add = _torch.op_parameters(torch.ops.aten.add.Tensor)
    assert [(p.name, p.kind, p.default) for p in of_add][-1] == ("alpha", inspect.Parameter.KEYWORD_ONLY, 1)


def test_names_traced_are_the_nodes_so_far():
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


def test_schemas_tell_views_and_writes():
    aten = torch.ops.aten
    assert _torch.is_view(aten.view.default)
    assert _torch.is_view(operator.getitem)
    assert not _torch.is_view(aten.sin.default)
    assert _torch.is_mutable(aten.add_.Tensor)
    assert not _torch.is_mutable(aten.add.Tensor)
    assert not _torch.is_mutable(operator.getitem)
