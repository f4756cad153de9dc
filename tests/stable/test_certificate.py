"""Certificates: text, files, the cache, and invalid files."""

import multiprocessing
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pullback
from pullback.errors import FormulaError
from pullback.stable import certificate
from pullback.stable.certificate import Form, cache_path, label, load, path_beside, save
from pullback.stable.meaning import meaning_of
from pullback.stable.piecewise import Piece, Piecewise, parse_piecewise
from pullback.stable.term import POLY, Poly, Term, const, named, var
from tests.forms import GATE, LOG_SIGMOID, certified, gate_as_written, log_sigmoid_as_written


@pytest.fixture
def no_rules(monkeypatch):
    """Disable the quick rules, so that without a certificate the op equals its formula."""
    monkeypatch.setattr("pullback.stable.lookup.quick_forms", lambda *_: None)


FOUND = certified(log_sigmoid_as_written, LOG_SIGMOID)
OF_TWO = certified(gate_as_written, GATE)
X = torch.tensor([-100.0, 0.5, 30.0])

finite = st.floats(allow_nan=False, allow_infinity=False, width=64)
leaves = st.sampled_from([var("x"), var("y"), named("PI")]) | finite.map(const)
polys = st.builds(Poly, st.lists(finite, min_size=1, max_size=3).map(tuple), st.integers(0, 3), st.booleans(), finite)


def operations(inner):
    return (
        st.builds(lambda op, a, b: Term(op, (a, b)), st.sampled_from(["add", "mul", "div", "hypot"]), inner, inner)
        | st.builds(lambda op, a: Term(op, (a,)), st.sampled_from(["exp", "neg", "sigmoid"]), inner)
        | st.builds(lambda p, a: Term(POLY, (a,), p), polys, inner)
        | st.builds(lambda a, b, c: Term("where", (Term("gt", (a, b)), b, c)), inner, inner, inner)
    )


terms = st.recursive(leaves, operations, max_leaves=6)
plain = st.builds(Piecewise.of, terms, st.booleans())


@st.composite
def piecewise(draw, body=plain):
    uppers = sorted(draw(st.sets(finite, min_size=1, max_size=3)))
    pieces = [Piece(draw(terms), upper, draw(st.booleans())) for upper in uppers[:-1]]
    pieces.append(Piece(draw(piecewise(plain) if draw(st.booleans()) else terms), uppers[-1]))
    return Piecewise(draw(terms), (*pieces, Piece(draw(terms))))


@given(plain | piecewise())
def test_program_round_trips_through_text(program):
    again = parse_piecewise(program.lines())
    assert again.lines() == program.lines()
    assert parse_piecewise(again.lines()) == again


@pytest.mark.parametrize("found", [FOUND, OF_TWO], ids=lambda c: c.name)
def test_certificate_round_trips_through_a_file(found, tmp_path):
    path = tmp_path / "ops.stable.toml"
    save(path, [found, replace(found, dtype="bfloat16", name='of "quotes"\nand lines')])
    first, second = load(path)
    assert first == found
    assert (second.name, second.dtype) == ('of "quotes"\nand lines', "bfloat16")
    assert "otherwise: " in path.read_text()
    assert [p.name for p in tmp_path.glob("*.toml*")] == ["ops.stable.toml"]


def test_uppercase_variables_round_trip(tmp_path):
    found = certified(lambda X: torch.log(torch.sigmoid(X)), {by: t.replace("x", "X") for by, t in _of("X").items()})
    save(tmp_path / "a", [found])
    assert load(tmp_path / "a")[0] == found


def _of(name):
    return {tuple(name for _ in by): text for by, text in LOG_SIGMOID.items()}


def test_parameter_named_like_a_constant_raises():
    with pytest.raises(FormulaError, match="E, the name of a constant"):
        meaning_of(lambda E: E * 2, torch.float32)


def test_labels_name_the_derivatives():
    assert [label(by) for by in OF_TWO.forms] == ["value", "d/dx", "d/dy", "d²/dx²", "d²/dx dy", "d²/dy²"]


def test_missing_file_holds_no_certificates(tmp_path):
    assert load(tmp_path / "none.stable.toml") == []


def test_cache_path_depends_on_formula_variables_dtype_and_device():
    others = [replace(FOUND, **{name: "other"}) for name in ("formula", "dtype", "device")]
    paths = {cache_path(c.key) for c in (FOUND, *others, replace(FOUND, variables=("y",)))}
    assert len(paths) == 5
    assert cache_path(replace(FOUND, name="other", made="other", wide="never").key) == cache_path(FOUND.key)


def test_path_beside_is_in_the_folder_of_the_module():
    assert path_beside("/a/ops.py").name == "ops.stable.toml"


TEXT = "\n".join(str(FOUND).splitlines())
BAD = {
    "no TOML": "certificate = [",
    "not a list": "certificate = 3",
    "no forms": '[[certificate]]\nname = "a"',
    "a form is missing": TEXT[: TEXT.rindex("[[certificate.form]]")],
    "a number for a program": TEXT.replace("'''\notherwise: sigmoid(-x)\n'''", "3"),
    "an empty program": TEXT.replace("otherwise: sigmoid(-x)", ""),
    "not Python": TEXT.replace("sigmoid(-x)", "sigmoid(-x"),
    "an unknown op": TEXT.replace("sigmoid(-x)", "load(x)"),
    "a private op": TEXT.replace("sigmoid(-x)", "__import__(x)"),
    "an unknown variable": TEXT.replace("sigmoid(-x)", "sigmoid(-torch)"),
    "an unknown constant": TEXT.replace("sigmoid(-x)", "sigmoid(-TAU)"),
    "an attribute": TEXT.replace("sigmoid(-x)", "x.grad"),
    "a condition": TEXT.replace("sigmoid(-x)", "x > 0"),
    "too many operands": TEXT.replace("sigmoid(-x)", "sigmoid(x, x)"),
    "an infinite constant": TEXT.replace("sigmoid(-x)", "x * 1e999"),
    "a large constant": TEXT.replace("sigmoid(-x)", f"x * {10**400}"),
    "no otherwise": TEXT.replace("otherwise: sigmoid(-x)", "x <= 0.0: sigmoid(-x)"),
    "two branches": TEXT.replace("otherwise: sigmoid(-x)", "x <= 0.0: x\nx*x <= 1.0: x\notherwise: x"),
    "thresholds in disorder": TEXT.replace("otherwise: sigmoid(-x)", "x <= 1.0: x\nx <= 0.0: x\notherwise: x"),
    "a polynomial without end": TEXT.replace("sigmoid(-x)", "poly(x, 1000000000, 0, 0, 0, 0, 1.0)"),
    "a polynomial of nothing": TEXT.replace("sigmoid(-x)", "poly(x, 1)"),
    "parentheses without end": TEXT.replace("sigmoid(-x)", "(" * 5000 + "x" + ")" * 5000),
    "another gradient": TEXT.replace("sigmoid(-x)", "sigmoid(x)"),
    "another gradient far away": TEXT.replace("otherwise: sigmoid(-x)", "x <= -3.0: -1.0\notherwise: sigmoid(-x)"),
    "another value": TEXT.replace("-softplus(-x)", "-softplus(x)"),
    "another second derivative": TEXT.replace("-(sigmoid(x) * sigmoid(-x))", "0"),
    "another second derivative by a factor": TEXT.replace("-(sigmoid(x)", "-(1.1 * sigmoid(x)"),
}


@pytest.mark.usefixtures("no_rules")
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("what", BAD)
def test_invalid_certificate_warns_once_and_is_not_used(what):
    path = cache_path(FOUND.key)
    path.parent.mkdir(parents=True)
    path.write_text(BAD[what])
    op, x = pullback.function(log_sigmoid_as_written), X.clone().requires_grad_()
    with pytest.warns(UserWarning, match=r"stable forms are not used: .*Renew .* with `pullback stabilise`") as told:
        y = op(x)
    assert len(told) == 1
    assert torch.equal(y, log_sigmoid_as_written(x))
    assert torch.equal(op(x), y)
    assert not op.certificates
    torch.testing.assert_close(torch.func.grad(op)(X[1]), torch.sigmoid(-X[1]))


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_text_of_a_certificate_is_never_executed(tmp_path):
    path, trace = cache_path(FOUND.key), tmp_path / "was_run"
    path.parent.mkdir(parents=True)
    name = f"name = \"a():\\n  pass\\nopen({str(trace)!r}, 'w')\\ndef b\""
    path.write_text(TEXT.replace('name = "log_sigmoid_as_written"', name))
    op = pullback.function(log_sigmoid_as_written)
    assert op(X).isfinite().all()  # the certificate is used: its name is not part of a form
    assert op.certificates
    assert not trace.exists()


@pytest.mark.usefixtures("no_rules")
def test_certificate_of_another_formula_is_not_used():
    found = certified(lambda x: torch.log(2 * torch.sigmoid(x)), LOG_SIGMOID)
    save(cache_path(FOUND.key), [found])
    op = pullback.function(log_sigmoid_as_written)
    assert op(X).isinf().any()
    assert not op.certificates


def test_use_of_a_wrong_certificate_raises():
    op = pullback.function(log_sigmoid_as_written)
    wrong = replace(FOUND, forms={**FOUND.forms, ("x",): Form(parse_piecewise(["otherwise: sigmoid(x)"]), "")})
    with pytest.raises(FormulaError, match="the form of d/dx of log_sigmoid_as_written does not compute it"):
        op._stable.use(wrong)
    assert not op.certificates


def test_failing_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.stable.toml"
    save(path, [FOUND])

    def fails(self, target):
        raise OSError("no space")

    monkeypatch.setattr(certificate.Path, "replace", fails)
    with pytest.raises(OSError, match="no space"):
        save(path, [OF_TWO])
    assert load(path) == [FOUND]
    assert [p.name for p in tmp_path.glob("*.toml*")] == ["a.stable.toml"]


@pytest.mark.usefixtures("no_rules")
def test_unwritable_cache_warns(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    op = pullback.function(log_sigmoid_as_written)
    with pytest.warns(UserWarning, match="the certificate is used but not kept"):
        op._stable.keep(FOUND)
    assert op(X).isinf().any()  # nothing was found there either


def test_cache_folder_is_private_to_the_user(tmp_path, monkeypatch):
    save(cache_path(FOUND.key), [FOUND])
    assert cache_path(FOUND.key).parent.stat().st_mode & 0o077 == 0


def test_processes_write_the_same_certificate_concurrently():
    def write_and_read():
        for _ in range(200):
            save(cache_path(FOUND.key), [FOUND])
            assert load(cache_path(FOUND.key)) == [FOUND]

    running = [multiprocessing.get_context("fork").Process(target=write_and_read) for _ in range(2)]
    for process in running:
        process.start()
    for process in running:
        process.join()
    assert [process.exitcode for process in running] == [0, 0]
    assert [p.name for p in certificate.cache_folder().iterdir()] == [cache_path(FOUND.key).name]


def test_changed_file_is_reloaded(tmp_path):
    path = tmp_path / "a.stable.toml"
    save(path, [FOUND])
    assert load(path) == load(path) == [FOUND]
    save(path, [FOUND, OF_TWO])
    assert load(path) == [FOUND, OF_TWO]
    path.write_text(TEXT.replace('name = "', 'name = "another '))
    assert load(path)[0].name == f"another {FOUND.name}"
    path.unlink()
    assert load(path) == []
