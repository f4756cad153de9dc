"""Calls that run in C++, from the argument checks to the autograd node."""
