"""Right `torch.autograd.Function`s with Triton kernels, as people and language models write them.

Each module is laid out as those in `right`, and is right for arguments that fit each other; unlike those, most check
nothing. Together they use much of `triton.language`: each names what it shows in its first line.
"""
