"""Functions with Triton kernels: right ones in `right` and `natural`, seeded faults in `mutants`."""
