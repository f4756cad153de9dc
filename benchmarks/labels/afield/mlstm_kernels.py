"""mlstm-kernels: what is known of its custom functions.

Of those without Triton, three are covered by the functions that apply them: parallel, parallel with a sigmoid for input
gate, chunkwise. Their gradients take the normaliser for a constant, on purpose, as a normalisation follows that cancels
it: with one they are the derivative. Truth: float64 central differences, of the output as it is and of the normalised
one. Double backward, strided inputs and cotangents, each argument frozen, two backwards, checkpoints, in place, dtypes.
"""

from functools import partial

import torch
from torch.nn.functional import layer_norm

from labels import Bug, Call, Package
from labels.fresh import raises_in_autocast

PACKAGE = Package("mlstm-kernels", "2.0.6", "language models", ("einops==0.8.2", "tqdm"))

CONSTANT = "by design: the normaliser is taken for a constant, and the normalisation that follows cancels it"
VIEW = "the output is a view: changing it in place raises, with PyTorch's message on views"
ADDED = "the small number in the denominators is not cancelled"
BY_DESIGN = dict.fromkeys(("PB101", "PB110", "PB305", "PB401", "PB402", "PB404", "PB604"), CONSTANT)


def _inputs():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 4, 3).unbind()
    i, f = torch.randn(2, 2, 2, 4).unbind()
    return q, k, v, i, f + 2


def _normalized(h):
    return layer_norm(h, h.shape[-1:], eps=1e-12)


# Right, twice: differences.
def sigmoid_gate():
    from mlstm_kernels.torch.parallel.native_siging import mlstm_siging_parallel__native_custbw as function

    return partial(function, normalize=False), _inputs()


# Its formula.
def parallel():
    from mlstm_kernels.torch.parallel.native import mlstm_parallel__native_custbw as function

    return function, _inputs()


# Right, twice: differences.
def parallel_with_norm():
    function, inputs = parallel()
    return (lambda *given: _normalized(function(*given))), inputs


# Right, twice: differences.
def chunkwise_with_norm():
    from mlstm_kernels.torch.chunkwise.native import mlstm_chunkwise__native_custbw as function

    return (lambda *given: _normalized(function(*given, chunk_size=2))), _inputs()


# Right for the first state: differences. The norm and the maximum of the last one have no gradient.
def chunkwise_with_state():
    from mlstm_kernels.torch.chunkwise.native import mlstm_chunkwise__native_custbw as function

    def call(q, k, v, i, f, c, n):
        m = torch.zeros(2, 2, dtype=q.dtype)
        h, (c, n, m) = function(q, k, v, i, f, c, n, m, return_last_states=True, chunk_size=2)
        return _normalized(h), c, n

    return call, (*_inputs(), torch.randn(2, 2, 3, 3), torch.randn(2, 2, 3))


def _autocast(make):
    return Bug(
        "after a forward under autocast on a CPU the backward raises: its decorators are for CUDA alone",
        ("PB413",),
        partial(raises_in_autocast, make, "expected scalar type"),
    )


CALLS = (
    Call(sigmoid_gate, bugs=(_autocast(sigmoid_gate),)),
    Call(parallel, "other", bugs=(_autocast(parallel),), doubtful=BY_DESIGN),
    Call(parallel_with_norm, bugs=(_autocast(parallel_with_norm),), doubtful={"PB303": ADDED}),
    Call(
        chunkwise_with_norm,
        doubtful={"PB303": ADDED, "PB207": VIEW},
        judged={"PB101": (False, "2e-10 where a gradient is 0, beside ones of ordinary size: rounding")},
    ),
    Call(
        chunkwise_with_state,
        "other",
        doubtful={
            **BY_DESIGN,
            **dict.fromkeys(("PB107", "PB111", "PB208", "PB114", "PB413"), CONSTANT),
            "PB207": VIEW,
        },
    ),
)
