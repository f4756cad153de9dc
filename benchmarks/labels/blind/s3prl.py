"""s3prl: what is known of its custom function, of which it has three copies.

Truth: the forward is the identity and the gradient is scaled; every dtype, strided inputs, double backward.
"""

import torch

from labels import Call, Package

PACKAGE = Package("s3prl", "0.4.18", "speech")

SCALED = "by design: the gradient is scaled"
VIEW = "the output shares the input's memory: changing it in place raises, with PyTorch's message on views"


# Right.
def grad_multiply():
    from s3prl.upstream.wav2vec2.wav2vec2_model import GradMultiply

    torch.manual_seed(0)
    return GradMultiply, (torch.randn(2, 4, 5), 0.1)


CALLS = (Call(grad_multiply, "other", doubtful={"PB101": SCALED, "PB401": SCALED, "PB207": VIEW}),)
