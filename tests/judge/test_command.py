"""The command, on files: what a candidate file may do, the form of the verdict, and the exit status."""

import json
import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import pullback
from pullback.cli import program
from pullback.judge.verdict import CHEATS, UNDECIDED, WRONG

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "agents.md"
REFERENCE = """
import torch

def formula(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight

def inputs(function):
    return [((torch.randn(3, 5), torch.randn(5)), {})]
"""
RIGHT = """
def solution(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
"""


@pytest.fixture
def judged(tmp_path, monkeypatch):
    """Judge a candidate file by the command; return the exit status and the verdict."""
    monkeypatch.setattr("pullback.judge.api._SHRINK_SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)
    Path("reference.py").write_text(REFERENCE)

    def judge_file(candidate, *options, reference="reference.py:formula"):
        Path("candidate.py").write_text(candidate)
        options = options or ("--inputs", "reference.py:inputs")
        done = CliRunner().invoke(program, ["judge", "candidate.py:solution", reference, "--json", "-", *options])
        if not done.stdout:
            raise done.exception
        return done.exit_code, json.loads(done.stdout)

    return judge_file


def kinds(verdict):
    return {reason["kind"] for reason in verdict["reasons"]}


@pytest.fixture(autouse=True)
def _status_of_the_command(monkeypatch):
    """Click's runner ignores what a command returns, which the program turns into its exit status."""
    from pullback.cli.judge import judge

    plain = judge.callback
    monkeypatch.setattr(judge, "callback", lambda **options: raise_exit(plain(**options)))


def raise_exit(status):
    raise SystemExit(status)


def test_right_candidate(judged):
    status, verdict = judged(RIGHT)
    assert (status, verdict["verdict"], verdict["reasons"], verdict["smallest"]) == (0, "right", [], None)
    assert verdict["compared"] > 1000
    assert verdict["error"] < 1e-10
    assert (verdict["declared"], verdict["computed"]) == ("float32", "float64")


@pytest.mark.parametrize(
    ("candidate", "kind"),
    [
        ("from reference import formula as solution", "calls-reference"),
        (
            "def solution(x, weight):\n    from reference import formula\n    return formula(x, weight)",
            "calls-reference",
        ),
        (
            "names = {}\nexec(open('reference.py').read(), names)\n"
            "def solution(x, weight):\n    return names['formula'](x, weight)",
            "reads-reference",
        ),
        ("def solution(x, weight):\n    return x +", "import"),
        ("raise RuntimeError('no')", "import"),
        ("def other(x):\n    return x", "import"),
        ("import os\nos._exit(0)", "crash"),
        ("import ctypes\ndef solution(x, weight):\n    ctypes.string_at(0)", "crash"),
        ("import torch\ntorch.equal = lambda *a: True\n" + RIGHT, "patches"),
        ("def solution(x, weight):\n    return x, weight", "structure"),
        ("def solution(x, weight):\n    return x[:, :1] * weight[:1]", "structure"),
    ],
    ids=[
        "imports",
        "imports later",
        "executes",
        "syntax",
        "raises",
        "no name",
        "exits",
        "crashes",
        "patches",
        "two",
        "shape",
    ],
)
@pytest.mark.few(5)
def test_wrong_file(judged, candidate, kind):
    status, verdict = judged(candidate)
    assert status == 1
    assert kind in kinds(verdict), verdict
    assert verdict["verdict"] == ("cheats" if kind in CHEATS else "wrong")


def test_candidate_beside_the_reference_in_one_file(judged):
    status, _ = judged(REFERENCE + RIGHT, reference="candidate.py:formula")
    assert status == 0
    one = REFERENCE + "\ndef solution(x, weight):\n    return formula(x, weight) * 1"
    status, verdict = judged(one, reference="candidate.py:formula")
    assert (status, kinds(verdict) & {"calls-reference"}) == (1, {"calls-reference"})


def test_example_is_guessed(judged):
    status, verdict = judged(RIGHT, "--seed", "3")
    assert (status, verdict["verdict"], verdict["seed"]) == (0, "right", 3)


def test_seed_repeats_the_calls(judged):
    wrong = RIGHT.replace("1e-6", "2e-6")
    options = ("--inputs", "reference.py:inputs", "--seed", "5")
    Path("reference.py").write_text(REFERENCE.replace("randn(3, 5)", "ones(3, 5)").replace("randn(5)", "ones(5)"))
    first, second = (judged(wrong, *options)[1]["reasons"] for _ in range(2))
    assert first == second != []


def test_bad_targets_are_usage_errors(judged):
    with pytest.raises(pullback.TargetError, match=r"no such file: nosuch\.py"):
        judged(RIGHT, reference="nosuch.py:formula")
    with pytest.raises(pullback.OptionError, match="cannot be judged"):
        pullback.judge(3, torch.sin)


@pytest.mark.parametrize(
    ("reference", "inputs", "message"),
    [
        ("reference.py:formular", "inputs", "no 'formular' in reference.py; did you mean formula?"),
        (
            "reference.py",
            "inputs",
            "name a function of reference.py, as in reference.py:NAME; there are formula, inputs",
        ),
        (
            "reference.py:formula",
            "input",
            "--inputs reference.py:input: no 'input' in reference.py; did you mean inputs?",
        ),
        ("reference.py:formula", "formula", "--inputs reference.py:formula: for formula, it raised TypeError: "),
    ],
)
def test_command_that_cannot_run_gives_no_verdict(judged, reference, inputs, message):
    with pytest.raises(pullback.PullbackError, match=re.escape(message)):
        judged(RIGHT, "--inputs", f"reference.py:{inputs}", reference=reference)


def test_mistyped_name_of_a_candidate_is_wrong_and_has_a_suggestion(judged):
    status, verdict = judged(RIGHT.replace("solution", "solutions"))
    assert (status, kinds(verdict)) == (1, {"import"})
    assert verdict["reasons"][0]["message"] == "no 'solution' in candidate.py; did you mean solutions?"


def test_reference_that_fails_is_inconclusive(judged):
    Path("reference.py").write_text(REFERENCE.replace("return x *", "return y *"))
    status, verdict = judged(RIGHT)
    assert (status, verdict["verdict"], kinds(verdict)) == (2, "inconclusive", {"no-example"})


def test_text_and_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("reference.py").write_text(REFERENCE)
    Path("candidate.py").write_text(RIGHT.replace("* weight", "* weight.abs()"))
    command = ["judge", "candidate.py:solution", "reference.py:formula", "--inputs", "reference.py:inputs"]
    done = CliRunner().invoke(program, [*command, "--json", "verdict.json"])
    assert done.exit_code == 1
    assert re.match(r"candidate\.py:solution  wrong  against reference\.py:formula  \d+ calls, ", done.stdout)
    assert re.search(r"value: output 0\[\d, \d\] is \S+; expected \S+ \(on the example\)\n", done.stdout), done.stdout
    verdict = json.loads(Path("verdict.json").read_text())
    names = {}
    exec("def candidate(x, weight): return x\nreference = candidate\n" + verdict["smallest"]["code"], names)
    assert names["x"].numel() < 15, "the failing call was not shrunk"


def test_page_has_the_schema_of_a_verdict(judged):
    _, verdict = judged(RIGHT.replace("* weight", "* weight.abs()"))
    example, schema = (
        json.loads(block) for block in re.findall(r"^```json\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    )
    described = schema["properties"]
    for shown in (example, verdict):
        assert shown.keys() == described.keys()
        assert {key for reason in shown["reasons"] for key in reason} == described["reasons"]["items"][
            "properties"
        ].keys()
        assert shown["smallest"].keys() == described["smallest"]["properties"].keys()
    listed = dict(
        re.findall(r"^\| (\w+) \| `([\w-]+)` \|", PAGE.read_text(), re.M)[k][::-1] for k in range(len(CHEATS))
    )
    assert listed == dict.fromkeys(CHEATS, "cheats")
    kinds_of_page = set(re.findall(r"^\| \w+ \| `([\w-]+)` \|", PAGE.read_text(), re.M))
    assert kinds_of_page == {*CHEATS, *WRONG, *UNDECIDED}


def test_skill_names_kinds_and_options_that_exist():
    text = (ROOT / "docs" / "agents" / "pullback-judge" / "SKILL.md").read_text()
    assert re.match(r"---\nname: pullback-judge\ndescription: .{50,1000}\n---\n", text)
    rows = re.findall(r"^\| (`.*?`) \|", text, re.M)
    named = {kind for row in rows for kind in re.findall(r"`([\w-]+)`", row)} - {"kind"}
    assert named <= {*CHEATS, *WRONG, *UNDECIDED}
    options = {option for command in program.commands["judge"].params for option in command.opts}
    assert set(re.findall(r"(?<!\w)(--[a-z]+)", text)) <= options
