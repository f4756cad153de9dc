"""Functions that exist only as source text, and the findings of static rules on them."""

import textwrap

from pullback.check.find.discover import static_subjects
from pullback.check.run_audit import static_findings
from pullback.check.subject import Options

HEAD = """
import torch
from torch.autograd import Function

"""


def subject(body, folder, after=""):
    """Return the Function of a file with this class body; the file is not imported."""
    path = folder / "kernels.py"
    text = f"{HEAD}class Op(Function):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n{textwrap.dedent(after)}"
    path.write_text(text, encoding="utf-8")
    (one,) = static_subjects(str(path), "it needs a GPU")
    return one


def found(rule, body, folder, after=""):
    """Return severity and message of each finding of the rule."""
    options = Options(select=(rule,))
    return [(f.severity, f.message) for f in static_findings(subject(body, folder, after), options)]


def op(forward="return kernel(x)", backward="return g", arguments="x"):
    """Return the body of a class with these two methods."""
    return f"""\
@staticmethod
def forward(ctx, {arguments}):
    {forward}

@staticmethod
def backward(ctx, g):
    {backward}
"""
