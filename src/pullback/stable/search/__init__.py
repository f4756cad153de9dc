"""Search for stable forms: equality saturation, extraction by measured error, regimes and fitted polynomials.

The design follows Herbie (Panchekha et al., "Automatically improving accuracy for floating point expressions", PLDI
2015) and egg (Willsey et al., "egg: fast and extensible equality saturation", POPL 2021). It differs in that rules may
be unsound, since merges are checked by values; that nothing about errors is estimated, since implementations are run;
and that derivatives are searched for together with their antiderivatives. `search.py` is the loop, `certify.py` judges.
"""
