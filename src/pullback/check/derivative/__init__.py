"""Derivatives of a subject, numeric and its own, to first and second order, and how they compare."""
