"""The precompiled header of kernels: compiled once, and dispensable."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch

import pullback
from pullback.kernels import build
from pullback.kernels import build as headers

POINTWISE = "lambda x: torch.exp(x) * 2 + 1"
ROWS = "lambda x: x / x.square().mean(-1, keepdim=True)"
SHORT = "lambda x: torch.sigmoid(x.double()).sqrt().float()"
CALL = "print(pullback.function(backend='native')({})(torch.ones(64, 64, requires_grad=True)).sum().item())"


def ran(cache, *lines):
    """Run a process that compiles with `-H`; return its output, and the precompiled headers that its compiler read."""
    program = """
        import subprocess, sys, torch, pullback
        def run(arguments, run=subprocess.run, **options):
            done = run([*arguments, "-H"], **options)
            read = {line for line in done.stderr.splitlines() if line.endswith("gch")}
            sys.stderr.writelines(line + "\\n" for line in read)
            return done
        subprocess.run = run
        """
    text = "\n".join([textwrap.dedent(program), *lines])
    environment = os.environ | {"PULLBACK_CACHE_DIR": cache.name}  # a relative path works, too
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=120, env=environment, cwd=cache.parent
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("formula", [POINTWISE, ROWS, SHORT])
def test_every_kind_of_kernel_uses_the_precompiled_header(native, tmp_path, formula):
    if "g++" not in build.compiler():
        pytest.skip("what is told of headers is known of g++")
    got, said = ran(tmp_path, CALL.format(formula))
    (made,) = (tmp_path / "headers").glob("*.gch")
    assert said.splitlines() == [f"! {made}"] * 2  # by the forward and the backward
    assert not list((tmp_path / "headers").glob("making-*"))

    made.write_bytes(made.read_bytes()[:1000000])
    other = CALL.format(formula.replace("x: ", "x: 1 * "))
    assert ran(tmp_path, other)[0] == got  # damaged: not used, and removed
    assert not made.exists()
    assert ran(tmp_path, CALL.format(formula.replace("x: ", "x: 2 * ")))[1].splitlines() == [f"! {made}"] * 2


@pytest.fixture
def folder(native, empty_cache, monkeypatch):
    """An empty header folder, with the state of a process that has compiled nothing."""
    for name in ("_loaded", "_locks"):
        monkeypatch.setattr(build, name, {})
    monkeypatch.setattr(headers, "_useless", set())
    headers.folder().parent.mkdir(parents=True)
    return headers.folder()


def compiles(number=1):
    """Compile one kernel, a different one for each number."""
    before, x = len(build._loaded), torch.ones(5)
    got = pullback.function(lambda x: torch.exp(x) * 2 + number)(x)
    return len(build._loaded) == before + 1 and torch.allclose(got, torch.exp(x) * 2 + number)


def test_kernels_compile_where_the_header_cannot_be_stored(folder):
    folder.write_text("")
    assert compiles()


def test_header_in_a_world_writable_folder_is_not_read(folder):
    folder.mkdir()
    folder.chmod(0o777)
    assert compiles()
    assert not list(folder.iterdir())


def test_failing_header_is_compiled_once(folder, monkeypatch):
    tried, call = [], build._call

    def refusing(arguments, at):
        if "c++-header" in arguments:
            tried.append(arguments)
            raise build.RunnerError("no")
        call(arguments, at)

    monkeypatch.setattr(build, "_call", refusing)
    assert compiles()
    assert compiles(2)
    assert len(tried) == 1


def test_header_depends_on_the_compiler(folder, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(headers, "ahead", lambda text, parts, compile_in: asked.append((text, *parts)))
    assert compiles()
    linked = tmp_path / "c++"
    linked.write_text(f'#!/bin/sh\nexec {build.compiler()} "$@"\n')
    linked.chmod(0o755)
    monkeypatch.setattr(build, "compiler", lambda: str(linked))
    assert compiles(2)
    os.utime(linked, (0, 0))
    assert compiles(3)
    copied = shutil.copy2(linked, tmp_path / "g++")
    monkeypatch.setattr(build, "compiler", lambda: str(copied))
    assert compiles(4)
    assert len(set(asked)) == 4
