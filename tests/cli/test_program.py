"""The command line in a process: standard output, standard error, and exit status."""

import functools
import json
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

import pullback
from pullback.check.pages import all_pages
from pullback.check.rules import all_rules
from pullback.check.runner.targets import Interrupted
from pullback.cli import main
from pullback.cli.reporting import Reporting

HEADER = """
import os, sys
import torch
from torch.autograd import Function

"""

NOISY = (
    HEADER
    + """
print("import noise")
os.write(1, b"import noise\\n")
os.system("echo import noise")
print("import noise", file=sys.stderr)


class Sine(Function):
    @staticmethod
    def forward(ctx, x):
        print("forward noise")
        os.write(1, b"forward noise\\n")
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        print("backward noise")
        (x,) = ctx.saved_tensors
        return g * x.sin()
"""
)

QUIET = (
    HEADER
    + """
class Shift(Function):
    @staticmethod
    def forward(ctx, x):
        return x + 1

    @staticmethod
    def backward(ctx, g):
        return g.clone()


def inputs(fn):
    yield (torch.ones(3, dtype=torch.float64),), {}


def silent(fn):
    if fn.__name__ == "Other":
        yield (torch.ones(3),), {}


def empty(fn):
    return []


def not_pairs(fn):
    return [torch.ones(3)]


def raising(fn):
    raise LookupError("nothing\\nfor you")
"""
)


HANGING, SLEEP = f"hangs_{os.getpid()}.py", f"sleep 1000.{os.getpid()}"
"""The process id makes them unique among the test runs on a machine."""

HANGS = (
    HEADER
    + f"""
class Hangs(Function):
    @staticmethod
    def forward(ctx, x):
        os.system("{SLEEP} &")
        while True:
            pass

    @staticmethod
    def backward(ctx, g):
        return g
"""
)


def run(verb, *arguments, cwd=None):
    command = [sys.executable, "-m", "pullback", verb, "-q", *arguments]  # a slow machine would print progress
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120)


@pytest.fixture
def call(folder, monkeypatch, capfd):
    """Run the command in this process, where torch is already loaded."""

    def call(*arguments):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["pullback", *arguments])
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setattr("pullback.cli.console._EVERY", math.inf)  # a slow machine would print progress
        with pytest.raises(SystemExit) as exit:
            main()
        return exit.value.code, *capfd.readouterr()

    before = signal.getsignal(signal.SIGTERM)
    yield call
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    files = {
        "noisy.py": NOISY,
        "quiet.py": QUIET,
        "empty.py": "x = 1\n",
        "not_python.py": "class (:\n",
        "broken.py": "import there_is_no_such_module\n",
        "dies.py": HEADER + "os._exit(7)\n",
        "dies_with_function.py": QUIET + "\nimport ctypes; ctypes.string_at(0)\n",
        HANGING: HANGS,
    }
    for name, content in files.items():
        (folder / name).write_text(textwrap.dedent(content))
    return folder


@pytest.fixture(scope="module")
def noisy(folder):
    return run("check", "noisy.py", "--format", "json", "--budget", "1", "--select", "PB1", cwd=folder)


def test_json_is_alone_on_standard_output(noisy):
    report = json.loads(noisy.stdout)
    assert [subject["name"] for subject in report["subjects"]] == ["Sine"]
    assert "PB101" in {finding["rule"] for finding in report["findings"]}
    assert noisy.stderr == ""


def test_errors_give_status_1(noisy):
    assert noisy.returncode == 1


def test_several_targets_make_one_report(folder):
    both = run(
        "check", "quiet.py", "dies_with_function.py", "--select", "PB101,PB102",
        "--inputs", "quiet.py:inputs", cwd=folder,
    )  # fmt: skip
    assert both.stderr == ""
    assert re.search(r"^ok +Shift ", both.stdout, re.MULTILINE)
    assert re.search(r"^unaudited +Shift ", both.stdout, re.MULTILINE)
    assert "importing it ended with SIGSEGV (Segmentation fault)" in " ".join(both.stdout.split())
    assert both.stdout.endswith("2 functions: 1 warning; not audited: 1\n")
    assert both.returncode == 0
    assert "\x1b" not in both.stdout


SINE = ("check", "noisy.py", "--select", "PB101", "--budget", "1")


@pytest.mark.parametrize(
    ("form", "begins"), [("sarif", '{\n  "$schema"'), ("html", "<!doctype html>"), ("text", "Sine  wrong")]
)
@pytest.mark.few(1)
def test_report_formats_go_to_standard_output_or_a_file(form, begins, call, tmp_path):
    status, out, _ = call(*SINE, "--format", form)
    assert status == 1
    assert out.startswith(begins)
    assert "PB101" in out
    file = tmp_path / "report"
    assert call(*SINE, "--format", form, "--output", str(file))[:2] == (1, "")
    assert file.read_text().startswith(begins)


def test_unwritable_output_file_is_one_line_of_error(call, tmp_path):
    status, out, err = call(*SINE, "--output", str(tmp_path / "no" / "report"))
    assert (status, out) == (2, "")
    assert err.count("\n") == 1


def test_baseline_fails_only_on_new_findings(call, tmp_path):
    file = str(tmp_path / "baseline.json")
    status, out, err = call(*SINE, "--baseline", file, "--update-baseline")
    assert (status, out) == (0, "")
    assert err == f"pullback: {file}: 1 known finding\n"
    status, out, _ = call(*SINE, "--baseline", file)
    assert status == 0
    assert "\n1 function: nothing found; in the baseline: 1" in out
    other = (*SINE[:-3], "PB103", *SINE[-2:])
    assert call(*other, "--baseline", file, "--update-baseline")[0] == 0
    assert call(*SINE, "--baseline", file)[0] == 1


@pytest.mark.parametrize("no_color", ["", "1"])
def test_colours_follow_the_environment_variables(no_color, call, monkeypatch):
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "NO_COLOR": no_color}.items():
        monkeypatch.setenv(name, value)  # FORCE_COLOR makes standard output count as a terminal
    out = call(*SINE)[1]
    colours = re.findall(r"\x1b\[(?:\d+;)*([349][0-8])[;m]", out)
    assert bool(colours) is not bool(no_color)
    assert "PB101" in out


@pytest.mark.parametrize(("fail_on", "status"), [("error", 1), ("warning", 1), ("info", 1), ("never", 0)])
def test_fail_on_sets_the_status(fail_on, status, call):
    assert call(*SINE, "--fail-on", fail_on)[0] == status


BAD = {
    "no such file": (["check", "nosuch.py"], "no such file"),
    "no such file after one that is there": (["check", "quiet.py", "nosuch.py"], "no such file"),
    "no such module": (["check", "no_such_module_at_all"], "no_such_module_at_all"),
    "not Python": (["check", "not_python.py"], "not valid Python"),
    "does not import and holds nothing": (["check", "broken.py"], "there_is_no_such_module"),
    "dies at import and holds nothing": (["check", "dies.py"], "no"),
    "nothing in it": (["check", "empty.py"], "no custom function in empty.py"),
    "no such name": (["check", "quiet.py:Shft"], "did you mean"),
    "unknown rule": (["check", "quiet.py", "--select", "PB999"], "select: no rule 'PB999'"),
    "misspelt rule": (["rules", "wrong-vpj"], "did you mean wrong-vjp?"),
    "budget": (["check", "quiet.py", "--budget", "0"], "positive number of seconds"),
    "budget is not a number": (["check", "quiet.py", "--budget", "much"], "not a valid float"),
    "seed": (["check", "quiet.py", "--seed", "-1"], "seed must be"),
    "format": (["check", "quiet.py", "--format", "xml"], "'xml'"),
    "fail-on": (["check", "quiet.py", "--fail-on", "dawn"], "'dawn'"),
    "inputs without name": (["check", "quiet.py", "--inputs", "quiet.py"], "--inputs quiet.py"),
    "inputs of no file": (
        ["check", "quiet.py", "--inputs", "nosuch.py:f"],
        "--inputs nosuch.py:f: no such file",
    ),
    "inputs of no function": (["check", "quiet.py", "--inputs", "quiet.py:inptus"], "did you mean inputs"),
    "inputs that are no pairs": (["check", "quiet.py", "--inputs", "quiet.py:not_pairs"], "type Tensor"),
    "inputs that are empty": (
        ["check", "quiet.py", "--inputs", "quiet.py:empty"],
        "for Shift, it returned an empty list: return None to have inputs guessed",
    ),
    "inputs that raise": (
        ["check", "quiet.py", "--inputs", "quiet.py:raising"],
        "for Shift, it raised LookupError: nothing for you",
    ),
    "no target": (["check"], "Missing argument 'TARGET...'. See `pullback check --help`."),
    "empty target": (["check", ""], "names nothing to audit"),
    "no such command": (["chek"], "No such command"),
    "no such option": (["check", "--fast", "quiet.py"], "See `pullback check --help`."),
}


def test_inputs_generator_that_yields_nothing_means_guessed_inputs(call):
    status, out, err = call("check", "quiet.py", "--inputs", "quiet.py:silent", "--select", "PB101")
    assert (status, err) == (0, "")
    assert "Shift" in out


@pytest.mark.parametrize("case", BAD)
def test_invalid_arguments_are_one_line_of_error_and_status_2(case, call):
    arguments, expected = BAD[case]
    status, out, err = call(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("pullback: ")
    assert err.count("\n") == 1
    assert expected in err


@pytest.mark.parametrize(
    ("number", "status", "said"), [(signal.SIGINT, 130, b"interrupted"), (signal.SIGTERM, 143, b"")]
)
@pytest.mark.slow
def test_ctrl_c_leaves_no_process(number, status, said, folder):
    command = [sys.executable, "-m", "pullback", "check", "-q", HANGING]
    # a shell ignores SIGINT in background jobs, and the tests may run in one
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    program = subprocess.Popen(command, cwd=folder, preexec_fn=heard, **pipes)
    try:
        assert eventually(lambda: SLEEP in processes())
        program.send_signal(number)
        out, err = program.communicate(timeout=60)  # a loaded machine
    finally:
        program.terminate()
    assert (program.returncode, out, err.strip()) == (status, b"", said)
    assert f"check {HANGING}" not in processes()
    assert eventually(lambda: SLEEP not in processes())


SWALLOWING = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    os.getpid()
except KeyboardInterrupt:
    pass
raise ImportError("it went on")
"""


@pytest.mark.parametrize("package", ["click", "numpy"])
def test_ctrl_c_during_an_import_is_not_swallowed(package, tmp_path):
    (tmp_path / f"{package}.py").write_text(SWALLOWING)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-m", "pullback", "check", "math"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(("form", "shows"), [("text", True), ("json", False)])
def test_ctrl_c_prints_finished_audits_as_text_only(form, shows, call, folder, monkeypatch):
    """Machine-readable formats hold a whole report or nothing."""
    report = pullback.check(f"{folder / 'quiet.py'}:Shift", torch.ones(2), select="PB101")

    def stopped(*_, **__):
        raise Interrupted(report, 3)

    monkeypatch.setattr("pullback.check.runner.targets.run_targets", stopped)
    status, out, err = call("check", "quiet.py", "--format", form)
    assert status == 130
    assert ("Shift" in out) is shows
    assert ("pullback: 1 of 3 functions were audited" in err) is shows
    assert err.rstrip().endswith("interrupted")


def processes():
    return subprocess.check_output(["ps", "-eo", "args"], text=True)


def eventually(condition):
    deadline = time.monotonic() + 60  # a loaded machine
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return met


def test_verbose_and_quiet_combine(call, monkeypatch):
    asked = []
    monkeypatch.setattr(Reporting, "end", lambda reports, *_, **__: asked.append((reports.verbose, reports.quiet)) or 0)
    for flags in ([], ["-v"], ["-q"], ["-v", "-q"], ["-qv"]):
        call("check", *flags, "quiet.py", "--select", "PB8")
    assert asked == [(False, False), (True, False), (False, True), (True, True), (True, True)]


@pytest.mark.parametrize("arguments", [["rules"], ["rules", "PB101"]])
def test_broken_pipe_is_no_error(arguments):
    read, write = os.pipe()
    os.close(read)
    program = subprocess.run([sys.executable, "-m", "pullback", *arguments], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (program.returncode, program.stderr) == (141, b"")


def test_help_and_version_do_not_load_torch():
    code = "import sys\nfrom pullback.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    verbs = ("check", "run", "accuracy", "stabilise", "write", "cache", "rules")
    for arguments in (["--help"], *([verb, "--help"] for verb in verbs), ["--version"]):
        result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
        assert (result.returncode, result.stderr) == (0, "")


def test_rules_do_not_load_torch():
    code = "import sys\nfrom pullback.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    for arguments in (["rules"], ["rules", "PB1"], ["rules", "PB101"]):
        result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
        assert (result.returncode, result.stderr) == (0, "")


def test_pages_read_without_torch_match_the_rules():
    assert [(page.id, page.name, page.summary, page.text) for page in all_pages()] == [
        (rule.id, rule.name, rule.summary, rule.page) for rule in all_rules()
    ]


def test_rules_lists_a_family(call):
    listed = call("rules", "pb7")[1].splitlines()
    assert [line[:5] for line in listed] == ["PB701", "PB702", "PB703", "PB704", "PB705"]


def test_rules_lists_all_rules_and_prints_a_page(call):
    assert re.search(r"^PB101 +wrong-vjp +the gradient", call("rules")[1], re.MULTILINE)
    page = call("rules", "pb101")[1]
    assert page.startswith("wrong-vjp (PB101)")
    assert call("rules", "wrong-vjp")[1] == page


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_full_disk_is_one_line_of_error():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pullback", "rules"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, "pullback: the report cannot be written: No space left on device\n")


def test_older_click_versions_work(tmp_path):
    code = (
        "import click; vars(click.exceptions).pop('NoArgsIsHelpError', None)\nfrom pullback.cli import main\nmain()\n"
    )
    command = [sys.executable, "-c", code, "check", "nosuch.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "pullback: no such file: nosuch.py\n")
