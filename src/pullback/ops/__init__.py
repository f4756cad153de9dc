"""The registry of pointwise ops: one record per op, one family of functions per file."""
