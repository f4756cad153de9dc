"""Private PyTorch of trees: nested tuples, lists and dicts."""

from __future__ import annotations

from typing import Any

from pullback._torch.private import Missing, private

_LEAF_SPEC = private("torch.utils._pytree._LEAF_SPEC")
_SUPPORTED_NODES = private("torch.utils._pytree.SUPPORTED_NODES")
_TreeSpec = private("torch.utils._pytree.TreeSpec")
_get_node_type = private("torch.utils._pytree._get_node_type")
_tree_flatten = private("torch.utils._pytree.tree_flatten")
_tree_flatten_with_path = private("torch.utils._pytree.tree_flatten_with_path")
_tree_unflatten = private("torch.utils._pytree.tree_unflatten")


def tree_flatten(tree: Any) -> tuple[list[Any], Any, list[tuple[Any, ...]]]:
    """Flatten nested tuples, lists and dicts: leaves, structure, and the path of each leaf.

    Relies on `torch.utils._pytree.tree_flatten_with_path` and its `SequenceKey.idx`, `MappingKey.key`,
    `GetAttrKey.name`.
    """
    keyed, spec = _tree_flatten_with_path(tree)
    paths = [tuple(_step(key) for key in path) for path, _ in keyed]
    return [leaf for _, leaf in keyed], spec, paths


def tree_unflatten(leaves: list[Any], spec: Any) -> Any:
    """Build the tree of leaves and a structure from `tree_flatten`.

    Relies on `torch.utils._pytree.tree_unflatten`.
    """
    return _tree_unflatten(leaves, spec)


def _step(key: Any) -> Any:
    for attribute in ("idx", "key", "name"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return key


def tree_leaves(tree: Any, containers: list[Any] | None = None) -> tuple[list[Any], Any]:
    """Leaves of nested tuples, lists and dicts, and their structure.

    As `torch.utils._pytree.tree_flatten`, whose every call leaves a closure that refers to itself, garbage for the
    collector. Relies on `_get_node_type`, `SUPPORTED_NODES`, `TreeSpec` and `_LEAF_SPEC` of that module.

    Args:
        tree: the tree.
        containers: filled with type, context (the keys of a dict) and number of children of each container, and
            `None` for each leaf, parents before children.
    """
    if not _NODES_ARE_KNOWN and containers is None:
        return _tree_flatten(tree)  # type: ignore[no-any-return]
    leaves: list[Any] = []
    return leaves, _spec_of(tree, leaves, containers)


_NODES_ARE_KNOWN = not any(isinstance(x, Missing) for x in (_get_node_type, _SUPPORTED_NODES, _TreeSpec, _LEAF_SPEC))


def _spec_of(node: Any, leaves: list[Any], containers: list[Any] | None) -> Any:
    kind = _get_node_type(node)
    container = _SUPPORTED_NODES.get(kind)
    if container is None:
        leaves.append(node)
        if containers is not None:
            containers.append(None)
        return _LEAF_SPEC
    children, context = container.flatten_fn(node)
    children = list(children)
    if containers is not None:
        containers.append((kind, context, len(children)))
    return _TreeSpec(kind, context, [_spec_of(child, leaves, containers) for child in children])
