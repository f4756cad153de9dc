"""Modules that import absent packages."""

import sys

import pytest
import torch

from pullback.check.find.discover import discover
from pullback.check.find.resolve import load_object
from pullback.check.find.stand_ins import AbsentError, AbsentObject

FUNCTION = """
import torch

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write files, by path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def made(**files):
        for name, text in files.items():
            path = tmp_path / (name.replace("_in_", "/") + ".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

    return made


def subject(target):
    (found,) = discover(target)
    return found


def test_functions_load_without_the_absent_module(write):
    write(lacks_one="import not_there_a as a\nfrom not_there_b.sub import c\n" + FUNCTION)
    found = subject("lacks_one.py")
    assert found.target is not None
    assert found.absent == ("not_there_a", "not_there_b")


def test_module_level_uses_of_an_absent_module_succeed(write):
    write(
        lacks_uses="""
import not_there_a as a

@a.jit(nopython=True)
def fast(x):
    return x

class Layer(a.nn.Module):
    size = a.SIZE
"""
        + FUNCTION
    )
    assert subject("lacks_uses.py").absent == ("not_there_a",)


@pytest.mark.parametrize(
    "use",
    [
        "a.f(1)",
        "int(a.N)",
        "a.x + 1",
        "[*a.y]",
        "a.Layer()",
        "bool(a.flag)",
        "Layer()",
        "fast(3)",
        "a.x < 2",
        "1 == a.N",
    ],
)
def test_later_use_of_an_absent_module_raises(write, use):
    name = f"lacks_later_{abs(hash(use))}"
    write(
        **{
            name: f"import not_there_a as a\nclass Layer(a.Base): pass\nfast = a.jit(len)\ndef call(): return {use}\n"
            + FUNCTION
        }
    )
    with pytest.raises(AbsentError, match="it needs not_there_a, which could not be imported here"):
        load_object(f"{name}.py:call")()


def test_import_hooks_are_removed(write):
    write(lacks_then="import not_there_a\nfrom torch import not_there_b\n" + FUNCTION)
    before = list(sys.meta_path)
    assert subject("lacks_then.py").target is not None
    assert sys.meta_path == before
    assert "not_there_a" not in sys.modules
    assert not hasattr(torch, "not_there_b")


def test_isinstance_of_an_absent_object_is_false():
    assert not isinstance(3, AbsentObject("a.b", "a"))


def test_failing_package_init_is_skipped(write):
    write(
        broken_in___init__="raise RuntimeError('no driver')",
        broken_in_ops="from .helpers import two\n" + FUNCTION,
        broken_in_helpers="two = 2",
    )
    found = subject("broken/ops.py")
    assert found.target is not None
    assert found.absent == ("broken.__init__ (RuntimeError: no driver)",)


def test_missing_module_that_another_package_raises_anew_is_absent(write):
    inner = "try:\n    import not_there_g\nexcept ImportError as error:\n    raise Exception(error)\n"
    outer = "import wrapping_pkg.inner\nfrom wrapping_pkg.version import NUMBER\nassert NUMBER > 1\n"
    write(
        wrapping_pkg_in___init__="",
        wrapping_pkg_in_inner=inner,
        wrapping_pkg_in_version="NUMBER = 2\n",
        wraps_pkg_in___init__=outer + FUNCTION,
    )
    found = subject("wraps_pkg")
    assert found.target is not None
    assert found.absent == ("not_there_g",)


def test_failure_in_another_package_is_reported(write):
    write(
        fails_in___init__="from . import deep",
        fails_in_deep="raise RuntimeError('operator fails::nms does not exist')",
        needs_in___init__="import fails",
        needs_in_ops=FUNCTION,
    )
    found = subject("needs/ops.py")
    assert found.target is not None
    assert found.absent == ("fails",)


def test_module_that_compiles_a_kernel_on_import_is_skipped(write):
    write(
        builds_in___init__="from . import ops",
        builds_in_kernels="from torch.utils.cpp_extension import load\nfused = load('fused', ['no_such_file.cu'])",
        builds_in_ops="from .kernels import fused\n" + FUNCTION,
    )
    found = subject("builds.ops")
    assert found.target is not None
    assert found.absent == ("builds.kernels",)


def test_missing_name_of_an_installed_package_is_absent(write):
    write(lacks_name="from torch.nn import not_there_any_more\nimport torch._not_there\n" + FUNCTION)
    found = subject("lacks_name.py")
    assert found.target is not None
    assert found.absent == ("torch.nn.not_there_any_more", "torch._not_there")


def test_failing_submodule_is_listed(write):
    write(
        half_in___init__="",
        half_in_ops=FUNCTION,
        half_in_made="from torch.autograd import Function\nMade = type('Made', (Function,), {})\nraise OSError",
    )
    assert subject("half").absent == ("half.made",)


def test_file_that_raises_is_audited_up_to_that_line(write):
    write(raises_itself=FUNCTION + "raise ValueError('mine')\n" + FUNCTION.replace("class ", "class Late"))
    early, late = discover("raises_itself.py")
    line = 1 + len(FUNCTION.splitlines())
    assert early.target is not None
    assert early.absent == (f"raises_itself.py from line {line} on (ValueError: mine)",)
    namespace = {}
    exec(early.load, namespace)
    assert namespace["fn"](torch.ones(2)).shape == (2,)
    assert late.target is None
    assert late.why_unaudited == "could not be imported: ValueError: mine"
