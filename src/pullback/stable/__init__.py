"""Accuracy of pointwise formulas and of their gradients: measured against exact values, and mended by rewriting."""
