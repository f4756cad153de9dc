"""Exact values of terms, by ball arithmetic of rising precision (python-flint)."""
