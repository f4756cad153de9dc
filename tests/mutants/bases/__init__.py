"""Right custom Functions, one per file, which the mutants of `tests/mutants/catalogue` patch.

Each file defines one `Function` and `inputs()`, the positional arguments of its `apply`. Each is right in
first and second order, for every real dtype, layout, size and subset of requires_grad.
"""
