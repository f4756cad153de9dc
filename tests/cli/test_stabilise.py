"""`pullback stabilise` on a small module: certificates, messages, and errors."""

import textwrap

import pytest
import torch
from click.testing import CliRunner

from pullback.cli import program
from pullback.stable.certificate import load

OPS = """
    import torch
    import pullback


    @pullback.function
    def log_of_sigmoid(x):
        return torch.log(torch.sigmoid(x))


    @pullback.function
    def total(x):
        return x.sum()


    @pullback.function(stable=False)
    def as_written(x):
        return torch.log(torch.sigmoid(x))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stabilised")
    (folder / "stable_ops.py").write_text(textwrap.dedent(OPS))
    return folder


@pytest.fixture
def stabilise(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))

    def run(*args):
        from pullback.errors import PullbackError

        try:
            return CliRunner().invoke(program, ["stabilise", *args], catch_exceptions=False).output
        except PullbackError as error:
            return f"error: {error}"

    return run


@pytest.mark.slow
def test_module_gets_certificates_and_uses_them(stabilise, folder):
    said = stabilise("stable_ops.py", "--wide", "never")
    assert "log_of_sigmoid" in said
    assert "total stays as written" in said
    (found,) = [c for c in load(folder / "stable_ops.stable.toml") if c.name == "log_of_sigmoid"]
    assert found.wide == "never"
    assert not (folder / "cache").exists()

    import importlib.util

    spec = importlib.util.spec_from_file_location("stable_ops", folder / "stable_ops.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x = torch.tensor([-1000.0, -100.0, 30.0], requires_grad=True)
    value = module.log_of_sigmoid(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    # σ(−x): 1 to the last bit on the left; e⁻³⁰ on the right
    torch.testing.assert_close(slope.double(), torch.sigmoid(-x.detach().double()), rtol=2**-22, atol=0.0)
    torch.testing.assert_close(value.detach()[:2], x.detach()[:2], rtol=0.0, atol=0.0)
    (naive,) = torch.autograd.grad(module.as_written(x).sum(), x)
    assert naive.isnan()[0]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["stable_ops.py:nope"], "no 'nope' in stable_ops.py"),
        (["nowhere.py"], "no such file"),
        (["stable_ops.py", "--dtype", "float64"], "float64"),
        (["stable_ops.py", "--domain", "x~3"], "a domain is written as"),
        (["stable_ops.py", "--domain", "z>3"], "no op has a variable 'z'"),
        (["stable_ops.py:log_of_sigmoid", "--domain", "z>3"], "no variable 'z'"),
    ],
)
def test_invalid_arguments_are_one_line_of_error(stabilise, args, expected):
    said = stabilise(*args)
    assert expected in said
    assert len(said.strip().splitlines()) == 1


def test_malformed_certificate_file_is_not_overwritten(stabilise, folder):
    path = folder / "stable_ops.stable.toml"
    before = path.read_text() if path.exists() else None
    path.write_text("not toml [")
    assert "mend or remove" in stabilise("stable_ops.py:log_of_sigmoid", "--wide", "never")
    assert path.read_text() == "not toml ["
    path.unlink() if before is None else path.write_text(before)


VARIABLES = """
    import torch
    import pullback


    @pullback.function
    def complement(x):
        return 1 - torch.sigmoid(x)


    @pullback.function
    def difference(u):
        return torch.exp(u) - 1
"""


@pytest.mark.slow
def test_domain_applies_to_ops_with_that_variable(stabilise, folder):
    (folder / "two_ops.py").write_text(textwrap.dedent(VARIABLES))
    said = stabilise("two_ops.py", "--dtype", "bfloat16", "--domain", "x>0")
    assert "two_ops.stable.toml" in said
    complement, difference = load(folder / "two_ops.stable.toml")
    assert "at x = -" not in str(complement)
    assert "at u = " in str(difference)


PARTS = """
    import torch
    import pullback


    @pullback.function
    def mean_complement(x):
        return (1 - torch.sigmoid(x)).mean(-1) + torch.exp(x).sum(-1)


    @pullback.function
    def in_place(x):
        return torch.exp(x).add_(1).sum()
"""


@pytest.mark.slow
def test_parts_of_a_larger_formula_are_printed_and_written(stabilise, folder):
    (folder / "ops_of_parts.py").write_text(textwrap.dedent(PARTS))
    said = " ".join(stabilise("ops_of_parts.py", "--dtype", "bfloat16").split())
    assert "mean_complement, part 1: 1 -" in said
    assert "mean_complement, part 2: exp(x) stays as written: " in said
    assert "in_place stays as written: " in said
    assert "not cut into parts either: in_place writes in place" in said
    (found,) = load(folder / "ops_of_parts.stable.toml")
    assert found.formula == "1 - sigmoid(x)"
