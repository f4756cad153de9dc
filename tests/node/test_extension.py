"""The C++ extension: compiled once, in the background; calls run in Python where it is missing."""

import os
import stat
import subprocess
import sys
import textwrap
import time

import pytest

from pullback import caches
from pullback.errors import RunnerError
from pullback.kernels import build
from pullback.node.extension import Extension


def run(program, **environment):
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


PROGRAM = """
    import torch, pullback
    from pullback.node import calls as node
    op = pullback.function(backend="native")(lambda x: torch.exp(x) * x)
    x = torch.ones(5, requires_grad=True)
    op(x).sum().backward()
    {}
    """


NO_CHILDREN = """
    import os
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass
    else:
        raise SystemExit("it has a child")
    """


@pytest.mark.slow
def test_extension_is_compiled_once_in_the_background(on, tmp_path):
    """Two processes start the compilation and end before it; a later process uses it from its second call on."""
    environment = {"PULLBACK_CACHE_DIR": str(tmp_path), "PULLBACK_NODE": "on"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(PROGRAM.format(NO_CHILDREN))],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for _ in range(2)
    ]
    assert [p.communicate(timeout=120)[0] for p in processes] == [b"", b""]
    assert len(list((tmp_path / "nodes").glob("making-*"))) == 1
    waiting = PROGRAM.format("print(node.EXTENSION.wait()); op(x); print(op(x).grad_fn.name())")
    assert run(waiting, **environment).split() == ["True", "<lambda>Backward"]
    folder = tmp_path / "nodes"
    for _ in range(50):
        if not list(folder.glob("making-*")):
            break
        time.sleep(0.1)
    assert sorted(path.suffix for path in folder.iterdir()) == [".lock", ".so"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert run(PROGRAM.format("op(x); print(op(x).grad_fn.name())"), **environment) == "<lambda>Backward\n"
    (module,) = folder.glob("*.so")
    module.write_bytes(b"damaged")
    assert run(PROGRAM.format("op(x); print(type(op(x).grad_fn).__name__)"), **environment) == "_KernelsBackward\n"
    assert not module.exists()


@pytest.mark.slow
def test_extension_can_be_turned_off(on, tmp_path):
    environment = {"PULLBACK_CACHE_DIR": str(tmp_path), "PULLBACK_NODE": "off"}
    program = PROGRAM.format("op(x); op.compile(x); print(type(op(x).grad_fn).__name__)")
    assert run(program, **environment) == "_KernelsBackward\n"
    assert not (tmp_path / "nodes").exists()


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A module that does not compile, in a cache of its own."""
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cpp").mkdir()
    source = tmp_path / "cpp" / "module.cpp"
    source.write_text("#error no such PyTorch\n")
    return Extension(source, "_broken")


def test_failed_compilation_is_recorded_and_not_retried(broken, monkeypatch):
    try:
        build.require()
    except RunnerError as error:
        pytest.skip(str(error))
    assert not broken.wait()
    assert "no such PyTorch" in broken.trouble()
    again = Extension(broken._source, "_broken")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
    assert not again.wait()


def test_missing_headers_or_cache_do_not_raise(broken, monkeypatch, tmp_path):
    monkeypatch.setattr("pullback.node.extension._python_headers", lambda: tmp_path)
    assert not broken.wait()
    assert not caches.root().exists() or not list((caches.root() / "nodes").glob("making-*"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "file"))
    other = Extension(broken._source, "_broken")
    monkeypatch.undo()
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "file"))
    assert not other.wait()
    assert not other.is_there()


def test_world_writable_cache_folder_is_not_used(broken, monkeypatch):
    folder = caches.root() / "nodes"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert not broken.wait()
    (folder / f"{broken._key}.so").write_bytes(b"anything")
    assert not broken.is_there()
