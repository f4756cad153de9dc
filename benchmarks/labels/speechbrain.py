"""speechbrain: what is known of its custom functions.

Covered: the quaternion linear layer, the straight-through vector quantization, and the gradient scaling of BEATs. Left
out: `Transducer`, which runs on CUDA alone, and `VectorQuantization`, whose only output is an index without a gradient
(the straight-through function calls it). `import speechbrain` needs torchaudio, whose wheel does not fit a CPU-only
PyTorch: its packages are entered here without running their `__init__`, and two modules that `beats` imports, and that
the function does not use, are stood in for.

Truth: float64 central differences, with random cotangents, of values and of first-order gradients of a non-linear
function of the output; for the quaternion layer also `quaternion_linear_op`, the package's own plain-autograd twin.
"""

import importlib.util
import sys
import types
from pathlib import Path

import torch

from labels import Bug, Call, Package

PACKAGE = Package("speechbrain", "1.1.2", "speech", needs=("scipy==1.17.1",))


def part(name):
    """Return the module `name` of the package, without torchaudio."""
    if "speechbrain" not in sys.modules:
        folder = Path(importlib.util.find_spec("speechbrain").origin).parent
        for inner in ("", "nnet", "nnet/quaternion_networks", "lobes", "lobes/models", "dataio"):
            module = types.ModuleType(".".join(["speechbrain", *inner.split("/")]) if inner else "speechbrain")
            module.__path__ = [str(folder / inner)]
            sys.modules[module.__name__] = module
        dataio = types.ModuleType("speechbrain.dataio.dataio")
        dataio.length_to_mask = None
        sys.modules[dataio.__name__] = dataio
    return importlib.import_module(f"speechbrain.{name}")


def beats():
    """Return `speechbrain.lobes.models.beats`; the filter banks that it takes from torchaudio are stood in for."""
    added = []
    for name in ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"):
        if name not in sys.modules:
            module = types.ModuleType(name)
            module.__path__ = []
            sys.modules[name] = module
            added.append(name)
            if "." in name:
                setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)
    try:
        return part("lobes.models.beats")
    finally:
        for name in added:
            del sys.modules[name]


def quaternions(dtype=torch.float32):
    """Return input, four weights and bias, as QLinear(autograd=False) passes them."""
    torch.manual_seed(0)
    shapes = ((6, 8), (2, 3), (2, 3), (2, 3), (2, 3), (12,))
    return tuple(torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes)


def function():
    return part("nnet.quaternion_networks.q_ops").QuaternionLinearCustomBackward


def twin(*args):
    return part("nnet.quaternion_networks.q_ops").quaternion_linear_op(*args)


# --- the calls


def quaternion_linear():
    # Twin and central differences: all six first-order gradients are right where all six are asked for.
    return function(), quaternions()


def quantization():
    # The codebook's gradient by central differences; the input's is the cotangent, by design.
    from_package = part("lobes.models.PIQ").VectorQuantizationStraightThrough

    torch.manual_seed(0)
    inputs, codebook = torch.randn(3, 4, 5, 6).requires_grad_(), torch.randn(20, 6).requires_grad_()
    return from_package, (inputs, codebook, torch.tensor([1, 0, 2]), 3, True, 2, True)


def gradient_scale():
    # The gradient is the cotangent times the scale, by design (layer-wise decay).
    torch.manual_seed(0)
    return beats().GradMultiply, (torch.randn(5, 2, 8).requires_grad_(), 0.6)


# --- the proofs


def second(call):
    args = quaternions(torch.float64)
    first = torch.autograd.grad(torch.tanh(call(*args)).sum(), args, create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in first), args)


def second_is_wrong():
    found, expected = second(function().apply), second(twin)
    return all(bool((f - e).norm() > 1e-3 * e.norm()) for f, e in zip(found[:5], expected[:5], strict=True))


def frozen_bias_is_dropped():
    args = quaternions(torch.float64)
    with_bias = function().apply(*args)
    args[5].requires_grad_(False)
    without = function().apply(*args)
    return bool(torch.allclose(with_bias - without, args[5].expand(6, 12)) and args[5].norm() > 1)


def freezing_one_weight_loses_others():
    def gradients(call):
        args = quaternions(torch.float64)
        args[1].requires_grad_(False)
        return torch.autograd.grad(call(*args).square().sum(), args[2:5], allow_unused=True)

    found, expected = gradients(function().apply), gradients(twin)
    return all(g is None for g in found) and all(bool(g.norm() > 0) for g in expected)


def autocast_raises():
    def run(call):
        args = quaternions()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = call(*args)
        y.sum().backward()

    run(twin)
    try:
        run(function().apply)
    except RuntimeError as error:
        return "same dtype" in str(error) or "dtype" in str(error)
    return False


DESIGN = "the gradient is not meant to be the derivative"

CALLS = (
    Call(
        quaternion_linear,
        bugs=(
            Bug(
                "the backward takes weights and input out of the graph (`Variable(..., requires_grad=False)`): mixed "
                "second derivatives are lost without an error",
                ("PB401", "PB404", "PB604"),
                second_is_wrong,
            ),
            Bug(
                "the bias is added only if it requires a gradient: freezing it changes the output",
                ("PB117", "PB113"),
                frozen_bias_is_dropped,
            ),
            Bug(
                "whether the weights get gradients is asked of the first one alone: freezing it gives None to others",
                ("PB113", "PB107"),
                freezing_one_weight_loses_others,
            ),
            Bug(
                "under autocast the backward multiplies a bfloat16 cotangent with float32 weights, and raises",
                ("PB413", "PB119"),
                autocast_raises,
            ),
        ),
        doubtful={
            "PB104": "for a bias of one element alone, which broadcasts: the sum that the engine takes is right",
            "PB704": "the gradients of all four weights are computed where one is asked for: time alone",
        },
    ),
    Call(
        quantization,
        "other",
        doubtful={
            "PB501": "the forward takes only inputs that can be viewed as rows: its caller makes them contiguous",
            "PB205": "of the codebook, saved for the backward, only the shape is used; a change of it raises",
            "PB701": "of the codebook, saved for the backward, only the shape is used; a change of it raises",
        },
    ),
    Call(
        gradient_scale,
        "other",
        doubtful={
            "PB207": "the output is a view of the input (`x.new(x)`); PyTorch notices an in-place change and raises",
        },
    ),
)
