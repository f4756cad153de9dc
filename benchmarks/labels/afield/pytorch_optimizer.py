"""pytorch-optimizer: what is known of its custom function.

`ComputeNormalization` is covered above 1 with the default of 5 iterations, below 1 with 60, and within the loss that
applies it. Below 1 with 5 iterations, the forward is an estimate to one or two digits, and the gradient that of what it
estimates. Truth: float64 central differences. Double backward, strided inputs and cotangents, two backwards,
checkpoints, in place, dtypes.
"""

import torch

from labels import Call, Package

PACKAGE = Package("pytorch-optimizer", "4.1.0", "training tools")

ESTIMATE = "what the iterations have not reached yet: the gradient is that of the limit"


def _normalization(*arguments):
    from pytorch_optimizer.loss.bi_tempered import compute_normalization

    torch.manual_seed(0)
    return (lambda activations: compute_normalization(activations, *arguments)), (torch.randn(3, 4),)


# Right, twice: differences.
def heavy_tail():
    return _normalization(1.2)


# Right, twice: differences.
def finite_support():
    return _normalization(0.8, 60)


# Right, twice: differences.
def loss():
    from pytorch_optimizer.loss.bi_tempered import BiTemperedLogisticLoss

    torch.manual_seed(0)
    function, targets = BiTemperedLogisticLoss(0.8, 1.2), torch.tensor([1, 3, 0])
    return (lambda predictions: function(predictions, targets)), (torch.randn(3, 4),)


CALLS = (
    *(Call(make, doubtful={"PB303": ESTIMATE, "PB101": ESTIMATE}) for make in (heavy_tail, loss)),
    Call(finite_support, doubtful={"PB303": ESTIMATE, "PB505": "the last dimension is that of the classes"}),
)
