"""Discovery of the custom functions of a target, their names, and code that loads each."""

import functools
import sys
import textwrap

import pytest
import torch

from pullback.check.find import target as target_module
from pullback.check.find.discover import discover, static_subjects, subject_of, subjects_of_module
from pullback.errors import TargetError

BODY = """
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g): return g
"""
HEAD = "import torch\nfrom torch.autograd import Function\n"


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """An empty working directory; modules imported from it are removed afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(target_module, "_ADDED", set())
    modules = dict(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - set(modules):
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


@pytest.fixture
def write(project):
    def write(path: str, text: str) -> str:
        file = project / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write


def function(name: str, base: str = "Function", indent: str = "") -> str:
    return textwrap.indent(f"class {name}({base}):{BODY}\n", indent)


def names(subjects):
    return [subject.name for subject in subjects]


def loaded(subject):
    """The function that a reproduction would call."""
    namespace: dict = {}
    exec(subject.load, namespace)
    return namespace["fn"]


# Files


def test_functions_of_a_file_are_in_source_order(write):
    write("ops.py", HEAD + function("Zeta") + function("Alpha"))
    first, second = discover("ops.py")
    assert (first.name, first.kind, str(first.location)) == ("Zeta", "function", "ops.py:3")
    assert second.name == "Alpha"
    assert first.source.methods.keys() == {"forward", "backward"}
    assert first.load == 'import runpy\nfn = runpy.run_path("ops.py")["Zeta"].apply'
    assert loaded(first)(torch.ones(2)).tolist() == [1, 1]
    assert first.call(torch.ones(2)).tolist() == [1, 1]


def test_path_outside_the_current_folder_is_shown_as_given(write, project, monkeypatch):
    write("a/ops.py", HEAD + function("Op"))
    (project / "b").mkdir()
    monkeypatch.chdir(project / "b")
    (subject,) = discover("../a/ops.py")
    assert subject.location.file == "../a/ops.py"
    assert loaded(subject)(torch.ones(1)).item() == 1


def test_file_is_imported_without_running_main(write, project):
    write("helper.py", "VALUE = 3\n")
    write("sub/near.py", "VALUE = 4\n")
    text = "import sys, near\nif __name__ == '__main__': raise SystemExit\nARGS = sys.argv\n"
    write("sub/ops.py", HEAD + text + function("Op"))
    (subject,) = discover("sub/ops.py")
    assert sys.modules["ops"].ARGS == ["sub/ops.py"]
    assert not list(project.rglob("__pycache__"))
    assert subject.load.startswith('import sys\nsys.path.insert(0, "sub")\nimport runpy\n')


def test_file_in_a_package_is_imported_as_its_module(write):
    write("src/pack/__init__.py", "")
    write("src/pack/base.py", HEAD + function("Base"))
    write("src/pack/ops.py", "from .base import Base\n" + function("Op", "Base"))
    (subject,) = discover("src/pack/ops.py")
    assert subject.target.__module__ == "pack.ops"
    assert subject.load == ('import sys\nsys.path.insert(0, "src")\nfrom pack.ops import Op\nfn = Op.apply')
    assert subject.source.inherits
    assert loaded(subject)(torch.ones(1)).item() == 1


def test_file_with_the_name_of_a_loaded_module_is_imported(write):
    write("json.py", HEAD + function("Op"))
    import json

    (subject,) = discover("json.py")
    assert sys.modules["json"] is json
    assert subject.call(torch.ones(1)).item() == 1
    assert loaded(subject)(torch.ones(1)).item() == 1


def test_imported_and_abstract_classes_are_left_out(write):
    write("lib.py", HEAD + function("Elsewhere"))
    write(
        "ops.py",
        HEAD
        + """
from lib import Elsewhere

class NoForward(Function):
    @staticmethod
    def backward(ctx, g): return g

class Stub(Function):
    @staticmethod
    def forward(ctx, x): raise NotImplementedError
    @staticmethod
    def backward(ctx, g): return g

class NeedsMore(Function):
    @classmethod
    def forward(cls, ctx, x): return cls.rule(x)
    @staticmethod
    def backward(ctx, g): return g

class One(NoForward):
    @staticmethod
    def forward(ctx, x): return x.clone()

class Two(Stub):
    @staticmethod
    def forward(ctx, x): return x.clone()

class Three(NeedsMore):
    @classmethod
    def rule(cls, x): return x.clone()

class ForExport(Function):
    @staticmethod
    def symbolic(g, x): return g.op("Identity", x)
    @staticmethod
    def forward(ctx, x): return x.clone()
""",
    )
    assert names(discover("ops.py")) == ["One", "Two", "Three"]


def test_class_with_misspelt_backward_is_listed(write):
    write("ops.py", HEAD + function("Op").replace("backward", "backwards"))
    (subject,) = discover("ops.py")
    assert subject.target is None
    assert "no backward" in subject.why_unaudited


def test_class_shadowed_by_its_apply_is_found(write):
    write("ops.py", HEAD + function("exp") + "exp = exp.apply\n")
    (subject,) = discover("ops.py")
    assert subject.name == "exp"
    assert subject.load.endswith('["exp"]')
    assert loaded(subject)(torch.ones(1)).item() == 1


def test_class_under_a_false_condition_is_listed_with_reason(write):
    write("ops.py", HEAD + "if torch is None:\n" + function("Op", indent="    "))
    (subject,) = discover("ops.py")
    assert (subject.name, subject.target, str(subject.location)) == ("Op", None, "ops.py:4")
    assert "condition" in subject.why_unaudited


def test_classes_of_the_same_name_are_qualified(write):
    nested = f"class A:\n{function('Op', indent='    ')}class B:\n{function('Op', indent='    ')}"
    write("ops.py", HEAD + nested)
    subjects = discover("ops.py")
    assert names(subjects) == ["A.Op", "B.Op"]
    assert [loaded(s)(torch.ones(1)).item() for s in subjects] == [1, 1]


def test_custom_ops_are_found(write):
    write(
        "ops.py",
        """
        import torch
        @torch.library.custom_op("pullback_test_discover::double", mutates_args=())
        def double(x: torch.Tensor) -> torch.Tensor:
            return 2 * x
        """,
    )
    (subject,) = discover("ops.py")
    assert (subject.name, subject.kind) == ("pullback_test_discover::double", "op")
    assert str(subject.location) == "ops.py:4"
    assert subject.call(torch.ones(1)).item() == 2
    assert loaded(subject)(torch.ones(1)).item() == 2
    assert names(discover("ops.py:double")) == ["double"]
    assert names(discover("ops.py:pullback_test_discover::double")) == ["pullback_test_discover::double"]
    given = subject_of(torch.ops.pullback_test_discover.double.default)
    assert (given.name, given.kind, given.location) == (subject.name, "op", subject.location)
    assert given.call(torch.ones(1)).item() == 2


# Functions defined inside functions


def test_factory_with_guessable_arguments_is_called(write):
    write(
        "ops.py",
        f"""
{HEAD}
def make(k, alpha: float, flag=True, *rest):
{function("Op", indent="    ")}
    return Op
def make_apply():
{function("Applied", indent="    ")}
    return Applied.apply
def wrapped():
{function("Inner", indent="    ")}
    return lambda x: Inner.apply(x)
""",
    )
    op, applied, inner = discover("ops.py")
    assert names([op, applied, inner]) == ["Op", "Applied", "Inner"]
    assert op.load.endswith('["make"](k=2, alpha=1.0).apply')
    assert loaded(op)(torch.ones(1)).item() == 1
    assert applied.load.endswith('["make_apply"]()')
    assert inner.load.endswith('if c.__qualname__ == "wrapped.<locals>.Inner").apply')
    assert loaded(inner)(torch.ones(1)).item() == 1
    assert inner.call(torch.ones(1)).item() == 1


def test_factory_that_cannot_be_called_is_listed_with_reason(write):
    write(
        "ops.py",
        f"""
{HEAD}
def make(kernel):
{function("Op", indent="    ")}
    return Op
def train():
    raise AssertionError("never called")
{function("Trained", indent="    ")}
def broken(n):
    raise ValueError("no such n")
{function("Broken", indent="    ")}
""",
    )
    op, trained, broken = discover("ops.py")
    assert op.target is None
    assert op.why_unaudited.startswith("defined inside make(kernel), which was not called; ")
    assert "pullback.check" in op.why_unaudited
    assert "train(), which was not called" in trained.why_unaudited
    assert "broken(n=2), which raised ValueError: no such n" in broken.why_unaudited


def test_classes_of_one_factory_have_the_names_of_their_variables(write):
    made = "Twice = make(2)\nthrice = make(3).apply\nunused = [make(4), make(5)]\n"
    text = f"def make(fn):\n{function('Op', indent='    ')}    return Op\n"
    write("ops.py", HEAD + text + made)
    subjects = discover("ops.py")
    assert names(subjects) == ["Twice", "thrice"]
    assert [loaded(s)(torch.ones(1)).item() for s in subjects] == [1, 1]


# Modules and packages


def package(write):
    write("pack/__init__.py", "")
    write("pack/ops.py", HEAD + function("Op") + function("Same"))
    write("pack/deep/__init__.py", "")
    write("pack/deep/more.py", "from pack.ops import Op\n" + function("Derived", "Op") + function("Same", "Op"))
    write("pack/quiet.py", "raise AssertionError('has nothing to do with us')\n")
    write("pack/needs.py", "import not_installed_anywhere\n" + HEAD + function("Needs"))
    write("pack/exits.py", HEAD + function("Exits") + "raise SystemExit(3)\n")
    write("pack/tests/__init__.py", "")
    write("pack/tests/test_ops.py", HEAD + function("InTest"))
    write("pack/__main__.py", HEAD + function("InMain"))


@pytest.mark.parametrize("target", ["pack", "pack/", "pack/__init__.py"])
def test_package_is_walked(write, target):
    package(write)
    found = {subject.name: subject for subject in discover(target)}
    assert list(found) == ["Derived", "deep.more.Same", "Exits", "Needs", "Op", "ops.Same"]
    assert found["Derived"].load == "from pack.deep.more import Derived\nfn = Derived.apply"
    assert str(found["Derived"].location) == "pack/deep/more.py:2"
    needs, exits = found["Needs"], found["Exits"]
    assert (needs.target.__name__, exits.target) == ("Needs", None)
    assert needs.absent == ("not_installed_anywhere",)
    assert exits.why_unaudited == "could not be imported: SystemExit: 3"


def test_package_with_only_syntax_errors_is_refused(write):
    write("old/__init__.py", "")
    write("old/ops.py", HEAD + function("Op") + 'print "Python 2"\n')
    with pytest.raises(TargetError, match=r"in what can be read of old.*ops\.py could not be imported: SyntaxError"):
        discover("old")


def test_package_that_fails_to_import_is_parsed(write):
    package(write)
    write("pack/__init__.py", "1 / 0\n")
    subjects = discover("pack")
    assert {s.why_unaudited for s in subjects} == {"", "could not be imported: SystemExit: 3"}
    assert {s.absent[0] for s in subjects} == {"pack.__init__ (ZeroDivisionError: division by zero)"}
    assert names(subjects) == ["Derived", "deep.more.Same", "Exits", "Needs", "Op", "ops.Same"]


@pytest.mark.slow
def test_one_module_of_a_package(write):
    package(write)
    assert names(discover("pack.ops")) == ["Op", "Same"]
    assert names(discover("pack.deep")) == ["Derived", "Same"]
    (op,) = discover("pack:ops.Op")
    assert (op.name, op.load) == ("ops.Op", "from pack.ops import Op\nfn = Op.apply")
    assert names(discover("pack:Derived")) == ["Derived"]
    assert names(discover("pack:Same")) == ["deep.more.Same", "ops.Same"]


def test_installed_packages_have_short_paths(write, project, monkeypatch):
    write("env/lib/site/installed/ops.py", HEAD + function("Op"))
    write("env/lib/site/installed/__init__.py", "")
    write("env/lib/site/installed-1.0.dist-info/METADATA", "")
    monkeypatch.syspath_prepend(project / "env/lib/site")
    (subject,) = discover("installed")
    assert str(subject.location) == "installed/ops.py:3"


# Names


def names_file(write):
    return write(
        "ops.py",
        f"""
{HEAD}
{function("Op")}
def make(kernel, k):
{function("Nested", indent="    ")}
    return Nested
def tested():
{function("Twin", indent="    ")}
def plain(x): return 2 * x
class Layer(torch.nn.Module):
    def forward(self, x): return 3 * x
class Callable:
    def __call__(self, x): return 4 * x
layer, call = Layer(), Callable()
number = 5
Missing = None
""",
    )


def test_name_may_be_any_callable(write):
    file = names_file(write)
    (plain,) = discover(f"{file}:plain")
    assert (plain.name, plain.kind, plain.call(1)) == ("plain", "callable", 2)
    assert loaded(plain)(1) == 2
    assert plain.source.methods["forward"].name == "plain"
    (layer,) = discover(f"{file}:layer")
    assert (layer.kind, layer.call(1), loaded(layer)(1)) == ("callable", 3, 3)
    assert layer.source.qualname == "Layer.forward"
    (call,) = discover(f"{file}:call")
    assert (call.call(1), str(call.location)) == (4, str(call.location))
    (op,) = discover(f"{file}:Op.apply")
    assert (op.kind, op.target.__name__) == ("function", "Op")
    assert loaded(op)(torch.ones(1)).item() == 1


@pytest.mark.parametrize("name", ["Nested", "make.<locals>.Nested", "make.Nested"])
def test_name_may_be_inside_a_function(write, name):
    (subject,) = discover(f"{names_file(write)}:{name}")
    assert subject.name == "Nested"
    assert "make(kernel, k), which was not called" in subject.why_unaudited


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Opp", r"no 'Opp' in ops\.py; did you mean Op\?"),
        ("zzz", r"no 'zzz' in ops\.py; there are Nested, Op, Twin"),
        ("Missing", r"no 'Missing' in ops\.py"),
        ("Layer", "Layer is an nn.Module to be constructed first"),
        ("Callable", "Callable is a class to be constructed first"),
        ("number", "ops.py:number is of type int: give an autograd.Function class"),
    ],
)
def test_unauditable_names_are_refused(write, name, message):
    with pytest.raises(TargetError, match=message):
        discover(f"{names_file(write)}:{name}")


# Invalid targets


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("", "names nothing"),
        ("op.py", r"no such file: op\.py; did you mean ops\.py\?"),
        ("gone/ops.py", r"no such file: gone/ops\.py \(nor is there a folder gone\)"),
        ("opps", "no module named 'opps'; did you mean ops.py"),
        ("not_installed_anywhere", r"no module named 'not_installed_anywhere'; give a file"),
        ("what is this", "no such file or module: what is this"),
        ("folder", r"folder is a folder: name a Python file in it \(inside\.py\), or an importable package"),
        ("folder/", "folder is a folder"),
        ("bad.py", r"^bad\.py:2 is not valid Python: "),
        ("raises.py", r"^raises\.py could not be imported: ValueError: first line, and its source shows no"),
        ("exits.py", r"^exits\.py could not be imported: SystemExit: 2, and"),
        ("book.ipynb", "is a notebook: call pullback.check"),
        ("ops.py", r"no custom function in ops\.py\. To audit another callable: ops\.py:f$"),
        ("math", "no custom function in math"),
        (
            "kernels.py",
            r"no custom function in kernels\.py, only Triton kernels: name the function that launches them$",
        ),
        ("both.py", r"To audit another callable: both\.py:launch$"),
    ],
)
def test_invalid_targets_are_refused(write, target, message):
    write("ops.py", "def f(x): return x\n")
    kernel = (
        "class KernelInterface:\n    __call__ = print\n\ndef jit(f):\n    made = KernelInterface()\n"
        "    made.__module__ = f.__module__\n    return made\n"
    )
    write("triton_like.py", kernel)
    write("kernels.py", "from triton_like import jit\n@jit\ndef kernel(x): pass\n")
    write("both.py", "from triton_like import jit\n@jit\ndef kernel(x): pass\ndef launch(x): return x\n")
    write("bad.py", "x = 1\ny = (\n")
    write("raises.py", "raise ValueError('first line\\nsecond line')\n")
    write("exits.py", "raise SystemExit(2)\n")
    write("book.ipynb", "{}")
    write("folder/inside.py", "")
    with pytest.raises(TargetError, match=message) as caught:
        discover(target)
    assert "\n" not in str(caught.value)


def test_keyboard_interrupt_propagates(write):
    write("ops.py", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        discover("ops.py")


def test_file_that_fails_to_import_is_parsed(write):
    write("ops.py", HEAD + "raise OSError('no driver')\n" + function("Op"))
    (subject,) = discover("ops.py")
    assert (subject.name, subject.kind, subject.target) == ("Op", "function", None)
    assert "OSError: no driver" in subject.why_unaudited
    assert names(discover("ops.py:Op")) == ["Op"]
    with pytest.raises(TargetError, match=r"no 'Opp' in ops\.py \(could not be imported: .*did you mean Op"):
        discover("ops.py:Opp")


# Without importing


@pytest.mark.parametrize("target", ["pack", "pack/"])
def test_static_subjects_import_nothing(write, target):
    package(write)
    write("pack/__init__.py", "raise AssertionError('imported')\n")
    subjects = static_subjects(target, "it crashed")
    assert names(subjects) == ["Derived", "deep.more.Same", "Exits", "Needs", "Op", "ops.Same"]
    assert {(s.kind, s.target, s.why_unaudited) for s in subjects} == {("function", None, "it crashed")}
    assert "pack" not in sys.modules
    assert names(static_subjects("pack.deep.more", "it crashed")) == ["Derived", "Same"]
    assert names(static_subjects("pack/deep/more.py", "it crashed")) == ["Derived", "Same"]


def test_static_subjects_by_name(write):
    write("ops.py", HEAD + function("Op") + function("Other"))
    assert names(static_subjects("ops.py:Op", "why")) == ["Op"]
    with pytest.raises(TargetError, match="no 'Opp' in ops"):
        static_subjects("ops.py:Opp", "why")


# Live objects


class Mine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g


def double(x):
    return 2 * x


def test_subject_of_a_function_and_of_its_apply():
    subject = subject_of(Mine)
    assert (subject.name, subject.kind, subject.target) == ("Mine", "function", Mine)
    assert subject.source.docstring == ""
    assert subject.load == f"from {__name__} import Mine\nfn = Mine.apply"
    assert subject_of(Mine.apply) == subject


def test_subject_of_a_local_class():
    class Local(Mine):
        pass

    subject = subject_of(Local)
    assert subject.name == "Local"
    assert subject.load == f"# fn = Local.apply  (defined at {subject.location})"


@pytest.mark.parametrize(
    ("obj", "name", "load"),
    [
        (double, "double", f"from {__name__} import double\nfn = double"),
        (functools.partial(double, 1), "double", "# fn = double"),
        (torch.nn.Linear(2, 2), "Linear", "# fn = Linear"),
        (torch.sin, "sin", "from torch import sin\nfn = sin"),
        (lambda x: x, "<lambda>", "# fn = <lambda>"),
    ],
)
def test_subject_of_a_callable(obj, name, load):
    subject = subject_of(obj)
    assert (subject.name, subject.kind, subject.target) == (name, "callable", obj)
    assert subject.load.startswith(load)


def test_subject_of_a_dispatched_op():
    subject = subject_of(torch.ops.aten.sin)
    assert (subject.name, subject.kind) == ("aten::sin", "op")
    assert loaded(subject) is torch.ops.aten.sin


class Abstract(torch.autograd.Function):
    pass


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (3, "of type int"),
        ("ops.py", "of type str"),
        (torch.nn.Linear, "Linear is an nn.Module to be constructed first"),
        (Abstract, "Abstract has no forward"),
    ],
)
def test_other_objects_are_refused(obj, message):
    with pytest.raises(TargetError, match=message) as caught:
        subject_of(obj)
    assert "\n" not in str(caught.value)


def test_subjects_of_a_module():
    mine, local = subjects_of_module(sys.modules[__name__])
    assert mine.target is Mine
    assert (local.name, local.target) == ("Local", None)


def test_objects_that_raise_for_any_attribute_are_skipped(tmp_path, monkeypatch):
    """Some libraries substitute such classes for names that need an absent package."""
    text = """
import torch

class Missing(type):
    def __getattr__(cls, name):
        raise ModuleNotFoundError("install the other package")

class Absent(metaclass=Missing):
    pass

thing = Absent()

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g
"""
    (tmp_path / "partly.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert [subject.name for subject in discover("partly.py")] == ["Double"]
