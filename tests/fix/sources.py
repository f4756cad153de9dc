"""Source of old-style Functions, for tests of fixes."""

import textwrap


def op(body, takes="ctx, x", gives="g", decorator="@staticmethod", cotangents="g"):
    """A Function `Op` by the body of its forward."""
    lines = textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8)
    return (
        f"class Op(Function):\n    {decorator}\n    def forward({takes}):\n{lines}\n\n"
        f"    @staticmethod\n    def backward(ctx, {cotangents}):\n        return {gives}\n"
    )
