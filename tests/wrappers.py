"""A wrapper tensor subclass."""

import torch


class Wrapper(torch.Tensor):
    """Holds another tensor, to which it forwards each op."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        opened = torch.utils._pytree.tree_map(lambda a: a.inner if isinstance(a, cls) else a, (args, kwargs or {}))
        out = func(*opened[0], **opened[1])
        return torch.utils._pytree.tree_map(lambda a: cls(a) if isinstance(a, torch.Tensor) else a, out)
