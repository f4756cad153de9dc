"""From a graph to something that runs it. Today there is one lowering, `eager`: PyTorch's own kernels, one by one."""
