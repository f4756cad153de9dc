"""geomloss: what is known of its custom function.

It has one, `DoubleGrad`, behind the kernel losses. Left out: `potentials=True`, which is documented to be no
differentiable value (its gradient is wrong there), the losses "sinkhorn" and "hausdorff", and KeOps.
"""

import torch

from labels import Bug, Call, Package

PACKAGE = Package("geomloss", "0.3.1", "optimal transport", needs=("scipy",))


def double_grad():
    """Doubles the gradient, on purpose; strides, in-place changes, leaks and a second backward tried."""
    from geomloss._legacy.kernel_samples import DoubleGrad

    torch.manual_seed(0)
    return DoubleGrad, (torch.randn(6, 3),)


def _loss(kernel, dtype=torch.float32):
    from geomloss import SamplesLoss

    torch.manual_seed(0)
    a, b = (torch.rand(n, dtype=dtype) for n in (6, 7))
    x, y = (torch.randn(n, 2, dtype=dtype) for n in (6, 7))
    return SamplesLoss(kernel, blur=0.7), (a / a.sum(), x, b / b.sum(), y)


def gaussian():
    """First derivatives in all four arguments equal differences; second derivatives don't."""
    return _loss("gaussian")


def laplacian():
    """As for `gaussian`."""
    return _loss("laplacian")


def energy():
    """As for `gaussian`; x and y apart, since equal points are kinks of this kernel."""
    return _loss("energy")


def _second_is_wrong(kernel):
    def proof():
        loss, (a, x, b, y) = _loss(kernel, torch.float64)
        x.requires_grad_()
        u, v = torch.randn_like(x), torch.randn_like(x)

        def gradient(x):
            return torch.autograd.grad(loss(a, x, b, y) ** 2, x, create_graph=True)[0]

        (hessian,) = torch.autograd.grad((gradient(x) * u).sum(), x)
        found = (hessian * v).sum().item()
        step = 1e-5
        after, before = gradient(x + step * v), gradient(x - step * v)
        expected = (((after - before) * u).sum() / (2 * step)).item()
        return abs(found - expected) > 1e-2 * abs(expected)

    return proof


KERNELS = {
    "PB303": "squared distances are expanded, and centring is left to the user (a comment says so): in float32 1e-4 off, "
    "and 0.1 off for points at a distance of 100 from the origin",
}


AUTOCAST = {
    "PB413": "the product of the points is bfloat16 under autocast, and what is left of small distances has another sign"
}


def _calls():
    for make in (gaussian, laplacian, energy):
        bug = Bug(
            "second derivatives are wrong without an error: x, y and the weights are detached in one of their two places",
            ("PB401", "PB404"),
            _second_is_wrong(make.__name__),
        )
        yield Call(make, bugs=(bug,), doubtful=KERNELS | AUTOCAST)


CALLS = (
    Call(double_grad, "other", doubtful={"PB101": "by design twice the gradient", "PB401": "by design"}),
    *_calls(),
)
