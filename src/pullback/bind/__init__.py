"""How a call is carried out: kernels inside one Function in plain eager mode, native ops anywhere else."""
