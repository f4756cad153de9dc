"""The certificates of the catalogue at infinite inputs."""

from pathlib import Path

import pytest
import torch

import pullback.catalog
from pullback.stable.certificate import load
from pullback.stable.evaluate import evaluate
from pullback.stable.term import parse

FILES = sorted(Path(pullback.catalog.__file__).parent.glob("*.stable.toml"))
CERTIFICATES = [c for path in FILES for c in load(path)]


@pytest.mark.parametrize("certificate", CERTIFICATES, ids=lambda c: f"{c.name}-{c.dtype}")
def test_certified_value_at_infinity_equals_the_formula_unless_nan(certificate):
    x = torch.tensor([torch.inf, -torch.inf], dtype=getattr(torch, certificate.dtype))
    grid = torch.meshgrid(*[x] * len(certificate.variables), indexing="ij")
    at = {name: column.flatten() for name, column in zip(certificate.variables, grid, strict=True)}
    written, form = (
        evaluate(parse(certificate.formula, certificate.variables), at),
        certificate.forms[()].program.run(at),
    )
    kept = ~written.isnan()
    torch.testing.assert_close(form[kept], written[kept])
