"""Search for stable forms: equality saturation, extraction by measured error, regimes and fitted polynomials."""
