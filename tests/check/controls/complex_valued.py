"""Complex numbers: gradients are conjugate, as PyTorch defines them, and real inputs get real gradients."""

import torch
from torch.autograd import Function

from ._control import Control, complex_normal, normal


class ComplexMultiply(Function):
    """x * y, with gradients g * conj(y) and g * conj(x)."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return (g * y.conj()).sum_to_size(x.shape), (g * x.conj()).sum_to_size(y.shape)


class ComplexExp(Function):
    """exp(z)."""

    @staticmethod
    def forward(z):
        return torch.exp(z)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return g * out.conj()


class ComplexMatMul(Function):
    """x @ y for complex matrices."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x @ y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g @ y.mH, x.mH @ g


class Modulus(Function):
    """|z|, real, with gradient 0 at 0."""

    @staticmethod
    def forward(z):
        return z.abs()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        return g * torch.sgn(z)


class SquaredModulus(Function):
    """|z|**2, real."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z.real**2 + z.imag**2

    @staticmethod
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        return 2 * g * z


class Phasor(Function):
    """exp(i x) of a real x."""

    @staticmethod
    def forward(ctx, x):
        out = torch.complex(x.cos(), x.sin())
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return (g * (1j * out).conj()).real


class Angle(Function):
    """The angle of z, real, with gradient 0 at 0."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z.angle()

    @staticmethod
    def backward(ctx, g):
        (z,) = ctx.saved_tensors
        square = z.real**2 + z.imag**2
        return g * 1j * z / torch.where(square == 0, 1, square)


class ModulusAndAngle(Function):
    """(|z|, angle(z)): two real outputs of a complex input."""

    @staticmethod
    def forward(z):
        return z.abs(), z.angle()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g_modulus, g_angle):
        (z,) = ctx.saved_tensors
        modulus = z.abs()
        return torch.sgn(z) * torch.complex(g_modulus, g_angle / torch.where(modulus == 0, 1, modulus))


class RealParts(Function):
    """Real and imaginary part side by side, in a last dimension of 2."""

    @staticmethod
    def forward(z):
        return torch.view_as_real(z).clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return torch.complex(g[..., 0], g[..., 1])


class Conjugate(Function):
    """conj(z), as a tensor of its own."""

    @staticmethod
    def forward(ctx, z):
        return z.conj().resolve_conj()

    @staticmethod
    def backward(ctx, g):
        return g.conj()


class ScaleByComplex(Function):
    """factor * z for a Python complex number."""

    @staticmethod
    def forward(ctx, z, factor):
        ctx.factor = factor
        return z * factor

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor.conjugate(), None


class RealGain(Function):
    """gain * z of a real gain and a complex z: the gain gets a real gradient."""

    @staticmethod
    def forward(ctx, z, gain):
        ctx.save_for_backward(z, gain)
        return z * gain

    @staticmethod
    def backward(ctx, g):
        z, gain = ctx.saved_tensors
        gz = (g * gain).sum_to_size(z.shape) if ctx.needs_input_grad[0] else None
        ggain = (g * z.conj()).real.sum_to_size(gain.shape) if ctx.needs_input_grad[1] else None
        return gz, ggain


class HermitianInner(Function):
    """sum(conj(x) * y) over the last dimension."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.linalg.vecdot(x, y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g.conj()[..., None] * y, g[..., None] * x


CONTROLS = [
    Control("complex-multiply", ComplexMultiply, lambda: (complex_normal(2, 3), complex_normal(3, seed=1))),
    Control("complex-exp", ComplexExp, lambda: (complex_normal(3, 2),)),
    Control("complex-matmul", ComplexMatMul, lambda: (complex_normal(2, 3), complex_normal(3, 2, seed=1))),
    Control("modulus", Modulus, lambda: (complex_normal(3, 4),)),
    Control("squared-modulus", SquaredModulus, lambda: (complex_normal(5),)),
    Control("phasor", Phasor, lambda: (normal(3, 4),)),
    Control("angle", Angle, lambda: (complex_normal(3, 4),)),
    Control("modulus-and-angle", ModulusAndAngle, lambda: (complex_normal(3, 2),)),
    Control("real-parts", RealParts, lambda: (complex_normal(3, 2),)),
    Control("conjugate", Conjugate, lambda: (complex_normal(3, 2),)),
    Control("scale-by-complex", ScaleByComplex, lambda: (complex_normal(3, 2), 0.5 - 1.5j)),
    Control("real-gain", RealGain, lambda: (complex_normal(2, 3), normal(3, seed=1))),
    Control("hermitian-inner", HermitianInner, lambda: (complex_normal(2, 3), complex_normal(2, 3, seed=1))),
]
