"""Right `torch.autograd.Function`s with Triton kernels, in the styles of published packages.

Each module stands alone and has one Function, `reference` (the formula in PyTorch's operations, same arguments),
`example(**size)` (arguments of `apply`, float64 on the CPU) and `SIZES`: sizes for `example` that reach tails of
blocks, several blocks, exact blocks and a single element. Each is right for every size of at least one and any
strides, of inputs and of cotangents, and refuses arguments that do not fit each other.
"""
