"""Accuracy of a subject's values and gradients, number by number, for the rules about accuracy."""
