"""Accuracy of pointwise formulas and of their gradients: measured against exact values, and mended by rewriting.

From a formula to a certificate, in the order in which to read:

1. `formula.py` calls a function, `graphs.py` turns its trace into terms (`term.py`), and `meaning.py` decides whether
   one term is equal to it for every call.
2. `derivative.py` differentiates terms; `oracle/` has their exact values, by ball arithmetic of rising precision.
3. `sampling.py` and `singularities.py` choose points to measure at; `measure.py` states errors in ulp.
4. `search/` looks for better programs (`piecewise.py`): rewriting in an e-graph, extraction by measured error,
   polynomials, and thresholds between them. `search/certify.py` judges what was found, at fresh points.
5. `certificate.py` stores programs as text; `forms.py` turns them into functions with derivatives (`jet.py`,
   `tower.py`), and `lookup.py` puts these in place of the formula.

Without a certificate, `quick.py` applies a few safe rules (`rules.py`, `rewriting.py`) in milliseconds and compares the
result with the formula (`trial.py`). A formula with reductions is split into pointwise parts (`parts.py`).
`pullback.accuracy` is in `accuracy.py`; at every float32 number, in `sweep.py`, with exact values mostly from float64
bounds (`intervals.py`).
"""
