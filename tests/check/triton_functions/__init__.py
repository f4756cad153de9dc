"""Functions with Triton kernels: right ones in `right`, seeded faults in `mutants`."""
