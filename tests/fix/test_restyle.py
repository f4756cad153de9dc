"""Functions of the old style in the new one: what changes in the author's source, and that nothing else does."""

from pullback.fix.model import Restyle
from pullback.fix.restyle import restyled

from .styles import op

OLD = '''\
# -*- coding: utf-8 -*-
import torch


class Scaled(torch.autograd.Function):
    """x·k, é."""   # two spaces more than need be

    # of the forward
    @staticmethod
    def forward( ctx, x: torch.Tensor,
                 k=2.0 ) -> torch.Tensor:  # the head
        """Scale."""

        # what the backward reads
        ctx.save_for_backward(x)  # saved
        ctx.k = k

        # the value
        out = x*k   # scaled
        return out
        # the end of it

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors   # not needed
        return g*ctx.k, None


last = [ 1,2 ]
'''

NEW = '''\
# -*- coding: utf-8 -*-
import torch


class Scaled(torch.autograd.Function):
    """x·k, é."""   # two spaces more than need be

    # of the forward
    @staticmethod
    def forward( x: torch.Tensor,
                 k=2.0 ) -> torch.Tensor:  # the head
        """Scale."""

        # the value
        out = x*k   # scaled
        return out
        # the end of it

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, k = inputs
        # what the backward reads
        ctx.save_for_backward(x)  # saved
        ctx.k = k

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors   # not needed
        return g*ctx.k, None


last = [ 1,2 ]
'''


def test_comments_layout_annotations_and_defaults_stay():
    assert restyled(OLD.encode(), {"Scaled": Restyle()}).decode() == NEW


def test_encoding_line_endings_and_indentation_are_those_of_the_file():
    def other(text):
        return text.replace("utf-8", "latin-1").replace("    ", "\t").replace("\n", "\r\n").encode("latin-1")

    assert restyled(other(OLD), {"Scaled": Restyle()}) == other(NEW)


def test_a_second_time_changes_nothing():
    again = Restyle(is_split=False)
    assert restyled(NEW.encode(), {"Scaled": again}) == NEW.encode()
    assert restyled(OLD.encode(), {}) == OLD.encode()


def test_methods_become_static_where_they_can():
    source = """
class Op(Function):
    # twice
    def forward(self, x):
        return x * 2

    @classmethod
    def backward(cls, ctx, g):
        return g * 2

    def helper(self):
        return self

    @classmethod
    def jvp(cls, ctx, t):
        return cls.helper(t)
"""
    new = restyled(source.encode(), {"Op": Restyle(is_split=False)}).decode()
    assert "    # twice\n    @staticmethod\n    def forward(self, x):\n" in new
    assert "    @staticmethod\n    def backward(ctx, g):\n" in new
    assert "\n\n    def helper(self):\n" in new
    assert "    @classmethod\n    def jvp(cls, ctx, t):\n" in new


def test_the_old_name_of_saved_tensors_is_replaced():
    source = op("return x", gives="g * ctx.saved_variables[0]") + "\nother.saved_variables\n"
    new = restyled(source.encode(), {"Op": Restyle(is_split=False)}).decode()
    assert new == source.replace("ctx.saved_variables", "ctx.saved_tensors")


def test_instances_that_are_called_are_applied():
    calls = "a = Op()(x, y)\nb = Op( ) (x)\nc = Op(1)(x)\nd = Op()(x=x)\ne = Op()\nf = Other()(x)\ng = h.Op()(x)\n"
    new = restyled((op("return x") + calls).encode(), {"Op": Restyle(is_split=False)}).decode()
    assert new.endswith("a = Op.apply(x, y)\nb = Op.apply (x)\n" + calls.partition("(x)\n")[2])
    again = op("return x") + calls + "Op = 1\n"
    assert restyled(again.encode(), {"Op": Restyle(is_split=False)}) == again.encode()
