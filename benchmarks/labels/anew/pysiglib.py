"""pysiglib: what is known of its custom functions.

Nine of its twenty are covered: `Sig`, `SigCombine`, `SigCoef`, `TransformPath`, `LogSigFromPath`, `SigToLogSig`,
`SigKernel` (with both solvers), `SigKernelGram` (also of paths with themselves) and `BranchedSigKernel`. What they call
is compiled C without PyTorch. Truth: float64 central differences. Double backward, strided inputs and cotangents, two
backwards, checkpoints, changes in place, autocast.
"""

import torch

from labels import Bug, Call, Package
from labels.anew import NARROW, NO_FUNC, VIEW, cut
from labels.last import cotangent_is_changed

PACKAGE = Package("pysiglib", "4.0.0", "signatures of time series", ("kauri==2.3.0",))

BACKWARD = "the backward is compiled C, and returns a new leaf"
DOUBTFUL = {
    **dict.fromkeys(("PB119", "PB413", "PB105"), NARROW),
    **dict.fromkeys(("PB405", "PB406", "PB407", "PB408"), NO_FUNC),
    "PB503": "an empty batch is refused",
    "PB603": "tables are kept between calls",
}


def _paths(*sizes):
    torch.manual_seed(0)
    return tuple(torch.randn(size, dtype=torch.float64) for size in sizes)


# First order right: differences.
def signature():
    from pysiglib.torch_api.torch_api import Sig

    return Sig, (*_paths((2, 4, 2)), None, 3, True, False, 1.0, True, False, 1)


# First order right: differences.
def combined():
    from pysiglib.torch_api import sig
    from pysiglib.torch_api.torch_api import SigCombine

    return SigCombine, (*(sig(path, 3) for path in _paths((2, 4, 2), (2, 3, 2))), 2, 3, False, False, 1)


# First order right: differences.
def coefficients():
    from pysiglib.torch_api.torch_api import SigCoef

    return SigCoef, (*_paths((2, 4, 2)), [(0, 1), (1, 1, 0)], False, False, 1.0, 1)


# First order right: differences.
def transformed():
    from pysiglib.torch_api.torch_api import TransformPath

    return TransformPath, (*_paths((2, 4, 2)), True, True, 1.0, 1)


# First order right: differences.
def log_signature():
    from pysiglib.log_sig import prepare_log_sig
    from pysiglib.torch_api.torch_api import LogSigFromPath

    prepare_log_sig(2, 3, 3)
    return LogSigFromPath, (*_paths((2, 4, 2)), 3, False, False, 1.0, 1)


# First order right: differences.
def logarithm():
    from pysiglib.log_sig import prepare_log_sig
    from pysiglib.torch_api import sig
    from pysiglib.torch_api.torch_api import SigToLogSig

    prepare_log_sig(2, 3, 1)
    (path,) = _paths((2, 4, 2))
    return SigToLogSig, (sig(path, 3), 2, 3, False, False, 1, 1)


# First order right: differences.
def kernel():
    from pysiglib.torch_api.torch_api import SigKernel

    return SigKernel, (*_paths((2, 4, 2), (2, 3, 2)), 1, "finite_difference", None, None, False, False, 1.0, 1, False)


# First order right: differences.
def gram():
    from pysiglib.torch_api import sig_kernel_gram

    return (lambda x, y: sig_kernel_gram(x, y, dyadic_order=1)), _paths((2, 4, 2), (3, 3, 2))


# First order right: differences.
def gram_with_itself():
    from pysiglib.torch_api import sig_kernel_gram

    return (lambda x: sig_kernel_gram(x, x, dyadic_order=1)), _paths((3, 4, 2))


# First order right: differences.
def branched():
    from pysiglib.torch_api.torch_api import BranchedSigKernel

    return BranchedSigKernel, (*_paths((2, 4, 2), (2, 3, 2)), 3, 1, None, False, False, 1.0, 1, False)


def _changes_cotangent():
    return cotangent_is_changed(coefficients)


CALLS = (
    *(
        Call(make, bugs=(cut(make, BACKWARD),), doubtful=DOUBTFUL)
        for make in (signature, combined, log_signature, logarithm, branched)
    ),
    *(
        Call(make, bugs=(cut(make, BACKWARD),), doubtful={**DOUBTFUL, "PB207": VIEW})
        for make in (kernel, gram, gram_with_itself)
    ),
    Call(transformed, bugs=(cut(transformed, BACKWARD, linear=True),), doubtful=DOUBTFUL),
    Call(
        coefficients,
        bugs=(
            cut(coefficients, BACKWARD),
            Bug(
                "the backward writes to its cotangent, silently: others may share it",
                ("PB203",),
                _changes_cotangent,
            ),
        ),
        doubtful=DOUBTFUL,
    ),
)
