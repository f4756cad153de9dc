"""From a formula to graphs of ATen ops: what it reads, its trace, its derivative, what is saved."""
