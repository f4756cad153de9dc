"""Pointwise regions as Triton kernels, for NVIDIA GPUs."""
