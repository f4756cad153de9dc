"""Seeded bugs that the auditor must catch: right Functions in `bases`, patches of them in `catalogue`."""
