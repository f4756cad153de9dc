"""The corpus is large enough, its patches apply, and its bases are right."""

import warnings

import pytest
from torch.autograd import gradcheck, gradgradcheck

from .catalogue import MUTANTS
from .load import base_names, build, function_of, load_base


def test_corpus_is_large_and_covers_every_base():
    assert len(MUTANTS) >= 50
    assert len({mutant.base for mutant in MUTANTS}) >= 8
    assert {mutant.base for mutant in MUTANTS} == set(base_names())


def test_ids_are_unique():
    assert len({mutant.id for mutant in MUTANTS}) == len(MUTANTS)
    assert len({mutant.slug for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_mutant_runs_forward(mutant, tmp_path):
    module = build(mutant, tmp_path)
    function_of(module).apply(*module.inputs())


@pytest.mark.parametrize("name", base_names())
def test_base_is_right(name):
    module = load_base(name)
    with warnings.catch_warnings():
        # gradcheck's own use of the legacy vmap and of nested jacobians warns, depending on the base
        warnings.simplefilter("ignore")
        assert gradcheck(function_of(module).apply, module.inputs())
        assert gradgradcheck(function_of(module).apply, module.inputs())
