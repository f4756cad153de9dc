"""The oracle: exact values of terms at points of float64, by ball arithmetic of rising precision.

A ball is an interval, a midpoint with a radius, that is proved to hold the exact value; the library is Arb (Johansson,
"Arb: efficient arbitrary-precision midpoint-radius interval arithmetic", IEEE Trans. Computers 66, 2017), in the
optional package python-flint. `balls.py` evaluates terms over balls, `limits.py` tells why a point has no value and
finds limits, `values.py` raises the precision until each value is settled.
"""
