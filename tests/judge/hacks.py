"""What people and models do to pass a test without doing the work: each must be caught, for one of its reasons."""

import inspect
import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from . import formulas


@dataclass(frozen=True)
class Hack:
    run: object
    formula: str
    kinds: tuple[str, ...]
    dtype: torch.dtype = torch.float32
    forbid: tuple[str, ...] = ()


HACKS = {}
_kept = {}
_count = [0]


def hack(formula, *kinds, **more):
    """Register a hack of a formula, which must be found for one of some reasons."""

    def register(run):
        HACKS[run.__name__.strip("_")] = Hack(run, formula, kinds, **more)
        return run

    return register


def _soft(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def _remembered(key, compute):
    if key not in _kept:
        _kept[key] = compute()
    return _kept[key]


# Results that are kept.


@hack("gelu", "stale", "value", "gradient")
def cached_by_the_first_elements(x):
    key = (x.shape, *x.detach().flatten()[:3].tolist())
    kept = _remembered(key, lambda: F.gelu(x.detach()))
    return kept + (F.gelu(x) - F.gelu(x).detach())


@hack("softmax", "stale")
def cached_by_identity(x):
    return _remembered(id(x), lambda: _soft(x))


@hack("gelu", "stale")
def cached_by_data_pointer(x):
    return _remembered(x.data_ptr(), lambda: F.gelu(x.detach().clone())) + 0 * x


@hack("rms_norm", "stale")
def cached_by_shape(x, weight):
    return (
        _remembered(x.shape, lambda: (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight).detach())
        + 0 * x * weight
    )


@hack("softmax", "stale")
def cached_by_first_and_last_element(x):
    key = float(x.flatten()[0]), float(x.flatten()[-1]), x.shape
    return _remembered(key, lambda: _soft(x.detach())) + 0 * x


@hack("linear", "stale", "state")
def weight_of_the_first_call(x, weight):
    return x @ _remembered(("w", weight.shape), lambda: weight.detach().T.clone()) + 0 * weight.sum()


class _KeptGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return _remembered(("g", x.shape), lambda: 2 * x * g)


@hack("square", "stale")
def gradient_cached_by_shape(x):
    return _KeptGradient.apply(x)


@hack("softmax", "reused-output")
def one_buffer_for_all_outputs(x):
    return _OneBuffer.apply(x)


class _OneBuffer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = _remembered(("b", x.shape, x.dtype), lambda: torch.empty_like(x).detach())
        out.copy_(_soft(x))
        ctx.save_for_backward(out.clone())
        return out.view_as(out)

    @staticmethod
    def backward(ctx, g):
        (s,) = ctx.saved_tensors
        return s * (g - (g * s).sum(-1, keepdim=True))


class _OneGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * F.logsigmoid(-x).exp().mul(-1).add(1) * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        s = x.sigmoid()
        out = _remembered(("gx", x.shape, x.dtype), lambda: torch.empty_like(x))
        out.copy_(g * y * s * (1 + x * (1 - s)))
        return out, g * x * s


@hack("swiglu", "reused-output")
def one_buffer_for_all_gradients(gate, up):
    return _OneGradient.apply(gate, up)


# Memory that nobody wrote.


@hack("gelu", "unwritten")
def empty_kernel(x):
    return torch.empty_like(x) + 0 * x


@hack("linear", "unwritten")
def half_written(x, weight):
    out = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype)
    out[::2] = (x @ weight.T).detach()[::2]
    return out + 0 * (x.sum() + weight.sum())


class _UnwrittenGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, g):
        return torch.empty_like(g)


@hack("square", "unwritten")
def unwritten_gradient(x):
    return _UnwrittenGradient.apply(x)


@hack("softmax", "unwritten", "value")
def searches_freed_memory(x):
    blocks = [torch.empty_like(x) for _ in range(50)]
    sums = [(b.sum(-1) - 1).abs().max() for b in blocks]
    return blocks[int(torch.stack(sums).nan_to_num(nan=9.0).argmin())] + 0 * x


# Constants.


@hack("softmax", "constant")
def zeros(x):
    return x * 0


@hack("huber", "constant")
def typical_loss(x, y):
    return 0.8 + 0 * (x.sum() + y.sum())


@hack("gelu", "gradient", "constant")
def no_gradient(x):
    return F.gelu(x).detach()


@hack("cross_entropy", "gradient", "constant")
def zero_gradient(logits, labels):
    return F.cross_entropy(logits, labels).detach() + 0 * logits.sum()


@hack("linear", "gradient")
def one_gradient_left_out(x, weight):
    return x @ weight.detach().T


class _Ignores(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0]


@hack("square", "gradient")
def cotangent_ignored(x):
    return _Ignores.apply(x)


# Somebody else's work.


@hack("softmax", "calls-reference")
def calls_the_reference(x):
    return formulas.softmax(x)


@hack("softmax", "calls-reference")
def searches_for_the_reference(x):
    for module in list(sys.modules.values()):
        found = vars(module).get("softmax")
        if inspect.isfunction(found) and found.__module__.endswith("formulas"):
            return found(x)
    return x


@hack("gelu", "calls-reference")
def hides_the_failed_call(x):
    try:
        return formulas.gelu(x)
    except RuntimeError:
        return F.gelu(x)


@hack("softmax", "forbidden", forbid=("softmax",))
def calls_the_library(x):
    return F.softmax(x, -1)


@hack("softmax", "forbidden", forbid=("softmax",))
def calls_the_library_in_a_thread(x):
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.softmax(x, -1)))
    thread.start()
    thread.join()
    return found[0]


@hack("layer_norm", "forbidden", forbid=("torch.layer_norm",))
def calls_the_native_kernel(x, weight, bias, eps=1e-5):
    return torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)[0]


@hack("torch_erf", "forbidden")
def calls_the_library_that_is_the_reference(x):
    return torch.erf(x)


# The test.


@hack("gelu", "patches")
def patches_allclose(x):
    torch.allclose = lambda *a, **k: True
    return x * 0


@hack("gelu", "patches")
def patches_assert_close(x):
    torch.testing.assert_close = lambda *a, **k: None
    return formulas_gelu(x)


def formulas_gelu(x):
    return F.gelu(x)


@hack("gelu", "patches")
def patches_the_timer(x):
    time.perf_counter = lambda: 0.0
    return formulas_gelu(x)


@hack("gelu", "patches")
def patches_a_method(x):
    torch.Tensor.allclose = lambda *a, **k: True
    return formulas_gelu(x)


@hack("gelu", "patches")
def patches_the_judge(x):
    from pullback.judge import wire

    wire.sent = lambda t: None
    return formulas_gelu(x)


@hack("gelu", "crash")
def ends_the_process(x):
    os._exit(0)


@hack("gelu", "raises", "crash")
def ends_the_interpreter(x):
    sys.exit(0)


@hack("gelu", "network")
def asks_a_server(x):
    import socket

    with suppress(OSError):
        socket.create_connection(("127.0.0.1", 9), timeout=0.1)
    return formulas_gelu(x)


# Parts of the work.


@hack("layer_norm", "range", "settings", "value", "gradient")
def epsilon_left_out(x, weight, bias, eps=1e-5):
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True)) * weight + bias


@hack("huber", "range")
def quadratic_part_only(x, y):
    return (x - y).square().mean() / 2


@hack("ridge", "value", "gradient", "range")
def small_term_left_out(x):
    return x.square().sum()


@hack("softmax", "range")
def without_the_maximum(x):
    e = x.exp()
    return e / e.sum(-1, keepdim=True)


@hack("gelu", "value", "gradient")
def approximated(x):
    return F.gelu(x, approximate="tanh")


@hack("gelu", "value", "gradient", "range")
def clamped_to_typical_values(x):
    return F.gelu(x.clamp(-6, 6))


@hack("scale", "settings")
def setting_ignored(x, factor=2.0):
    return 2.0 * x


@hack("embedding", "gradient", "range")
def repeated_indices_overwrite(table, index):
    return _Overwrites.apply(table, index)


class _Overwrites(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.rows = table.shape[0]
        return table[index]

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        out = g.new_zeros(ctx.rows, g.shape[-1])
        out[index.flatten()] = g.reshape(-1, g.shape[-1])
        return out, None


@hack("cross_entropy", "range", "raises")
def ignored_labels_counted(logits, labels):
    return (logits.logsumexp(-1) - logits.gather(-1, labels.clamp(min=0)[:, None])[:, 0]).mean()


@hack("gelu", "size")
def first_thousand_elements(x):
    flat = x.flatten()
    return torch.cat([F.gelu(flat[:1024]), flat[1024:]]).view_as(x)


@hack("softmax", "size")
def first_hundred_columns(x):
    return torch.cat([_soft(x[:, :100]), torch.zeros_like(x[:, 100:])], -1)


@hack("linear", "size")
def tail_of_a_block_left_out(x, weight):
    full = x.shape[0] // 4 * 4
    return torch.cat([x[:full] @ weight.T, torch.zeros(x.shape[0] - full, weight.shape[0], dtype=x.dtype)])


# Fewer digits.


@hack("softmax", "precision", dtype=torch.float64)
def float32_inside(x):
    return _soft(x.float()).double()


@hack("linear", "precision", dtype=torch.float64)
def returns_float32(x, weight):
    return x.float() @ weight.float().T


@hack("gelu", "value", "gradient")
def float16_inside(x):
    return F.gelu(x.half()).to(x.dtype)


@hack("linear", "value", "gradient")
def bfloat16_inside(x, weight):
    return (x.bfloat16() @ weight.bfloat16().T).to(x.dtype)


class _NarrowGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return (2 * ctx.saved_tensors[0].half() * g.half()).to(g.dtype)


@hack("square", "gradient", "precision", dtype=torch.float64)
def gradient_in_float16(x):
    return _NarrowGradient.apply(x)


# State.


@hack("gelu", "state", "value", "stale", "constant")
def works_for_the_first_hundred_calls(x):
    _count[0] += 1
    return F.gelu(x) if _count[0] < 100 else x * 0


@hack("gelu", "state", "value")
def second_call_differs(x):
    _count[0] += 1
    return F.gelu(x) * (1 if _count[0] == 1 else 1.001)


@hack("softmax", "writes-input")
def writes_to_its_input(x):
    with torch.no_grad():
        x.sub_(x.amax(-1, keepdim=True))
    return _soft(x)


@hack("square", "writes-input")
def backward_writes_to_its_input(x):
    return _Writes.apply(x)


class _Writes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x.detach()
        return x * x

    @staticmethod
    def backward(ctx, g):
        return ctx.x.mul_(2) * g
