"""Tensors that are laid out in all manner of ways."""

import torch


def layouts(shape, rng):
    """Yield tensors that can be broadcast to a shape."""
    dims = list(range(len(shape)))
    while True:
        own = [1 if rng.random() < 0.2 else n for n in shape]
        order = rng.sample(dims, len(dims)) if rng.random() < 0.7 else dims
        x = torch.ones([own[d] for d in order]).permute([order.index(d) for d in dims])
        kind = rng.random()
        if kind < 0.2:
            x = x.expand(shape)
        elif kind < 0.3 and dims:
            dim = rng.choice(dims)
            x = torch.cat([x, x], dim).narrow(dim, 0, own[dim])
        elif kind < 0.4 and x.numel():
            x = x[(0,) * rng.randrange(len(dims) + 1)]
        elif kind < 0.5 and dims:
            dim = rng.choice(dims)
            x = torch.cat([x, x], dim)[tuple(slice(None, None, 2 if d == dim else 1) for d in dims)]
        yield x
