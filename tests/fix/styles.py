"""Functions of the old style, for tests that put them into the new."""

import textwrap


def op(body, takes="ctx, x", gives="g", decorator="@staticmethod"):
    lines = textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8)
    return (
        f"class Op(Function):\n    {decorator}\n    def forward({takes}):\n{lines}\n\n"
        f"    @staticmethod\n    def backward(ctx, g):\n        return {gives}\n"
    )
