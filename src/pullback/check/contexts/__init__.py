"""The subject inside PyTorch's transforms: each against the eager gradient."""
