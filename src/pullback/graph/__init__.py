"""From a formula to graphs of ATen ops: guards on what it reads, trace, derivative, partition into residuals."""
