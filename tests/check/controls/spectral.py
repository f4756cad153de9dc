"""Fourier transforms: a real one's gradient counts every frequency that stands for two once, or twice."""

import torch
import torch.nn.functional as F
from torch.autograd import Function

from ._control import Control, complex_normal, normal

ADJOINT_NORM = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


class Fft(Function):
    """The Fourier transform of the last dimension; its adjoint is the inverse, scaled the other way."""

    @staticmethod
    def forward(ctx, z, norm):
        ctx.norm = norm
        return torch.fft.fft(z, norm=norm)

    @staticmethod
    def backward(ctx, g):
        return torch.fft.ifft(g, norm=ADJOINT_NORM[ctx.norm]), None


class Rfft(Function):
    """The transform of a real signal: the upper half of the spectrum, absent, has no cotangent."""

    @staticmethod
    def forward(ctx, x):
        ctx.length = x.shape[-1]
        return torch.fft.rfft(x)

    @staticmethod
    def backward(ctx, g):
        return torch.fft.ifft(g, n=ctx.length, norm="forward").real


class Irfft(Function):
    """The real signal of half a spectrum: a frequency counts twice, but for 0 and half of an even length."""

    @staticmethod
    def forward(spectrum, length):
        return torch.fft.irfft(spectrum, n=length)

    @staticmethod
    def setup_context(ctx, inputs, output):
        spectrum, ctx.length = inputs
        ctx.width = spectrum.shape[-1]

    @staticmethod
    def backward(ctx, g):
        gspectrum = torch.fft.rfft(g, norm="forward")
        frequency = torch.arange(gspectrum.shape[-1], device=g.device)
        single = (frequency == 0) | (2 * frequency == ctx.length)
        gspectrum = torch.where(single, 1, 2) * gspectrum
        return F.pad(gspectrum, (0, ctx.width - gspectrum.shape[-1])), None


class CircularConvolution(Function):
    """The circular convolution of two real signals, through their spectra."""

    @staticmethod
    def forward(x, kernel):
        spectrum = torch.fft.rfft(x) * torch.fft.rfft(kernel)
        return torch.fft.irfft(spectrum, n=x.shape[-1])

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, kernel = (t.to(g.dtype) for t in ctx.saved_tensors)  # 16 bits under autocast, where g has 32
        length = x.shape[-1]
        gs = torch.fft.rfft(g)
        gx = torch.fft.irfft(gs * torch.fft.rfft(kernel).conj(), n=length)
        gkernel = torch.fft.irfft(gs * torch.fft.rfft(x).conj(), n=length)
        return gx.sum_to_size(x.shape), gkernel.sum_to_size(kernel.shape)


CONTROLS = [
    Control("fft", Fft, lambda: (complex_normal(2, 5), "backward")),
    Control("fft-forward", Fft, lambda: (complex_normal(2, 4), "forward")),
    Control("rfft-even", Rfft, lambda: (normal(2, 6),)),
    Control("rfft-odd", Rfft, lambda: (normal(2, 5),)),
    Control("irfft-even", Irfft, lambda: (complex_normal(2, 4), 6)),
    Control("irfft-odd", Irfft, lambda: (complex_normal(2, 3), 5)),
    Control("circular-convolution", CircularConvolution, lambda: (normal(2, 6), normal(6, seed=1))),
]
