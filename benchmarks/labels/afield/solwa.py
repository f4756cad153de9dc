"""solwa: what is known of its custom functions.

`Eig` is covered by its eigenvalues, and by a function of the matrix that does not depend on how eigenvectors are scaled,
`_MaterialFn` by the material that applies it, of a small table. Truth: float64 central differences. Double backward,
strided inputs and cotangents, two backwards, checkpoints, changes in place.
"""

import tempfile
from functools import partial
from pathlib import Path

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong, is_kept, output_change_is_unnoticed, second_is_wrong

PACKAGE = Package("solwa", "0.1.0", "diffraction of light", ("scipy==1.17.1",))

BROAD = "broadened on purpose, by 1e-10, where eigenvalues are near each other"
SETUP = "torch.func does not take it: it has no setup_context"
NARROW = "complex numbers have no half precision here"
DOUBTFUL = {
    **dict.fromkeys(("PB303", "PB301", "PB302"), BROAD),
    **dict.fromkeys(("PB405", "PB406", "PB407", "PB408"), SETUP),
    **dict.fromkeys(("PB119", "PB413", "PB105"), NARROW),
}


def _matrix():
    torch.manual_seed(0)
    return (torch.randn(4, 4, 2, dtype=torch.float64),)


# Right, twice: differences.
def eigenvalues():
    from solwa import Eig

    return (lambda a: Eig.apply(torch.view_as_complex(a.contiguous()))[0]), _matrix()


# Right, twice: differences.
def matrix_function():
    from solwa import Eig

    def call(a):
        values, vectors = Eig.apply(torch.view_as_complex(a.contiguous()))
        return values, vectors @ torch.diag(torch.exp(-values)) @ torch.linalg.inv(vectors)

    return call, _matrix()


# Wrong.
def refractive_index():
    from solwa.materials import Material

    rows = [(0.3 + 0.1 * i, 1.5 + 0.1 / (0.3 + 0.1 * i) ** 2, 0.01 * i) for i in range(8)]
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.txt"
        table.write_text("\n".join(" ".join(map(str, row)) for row in rows), encoding="utf-8")
        material = Material(table)
    return material.apply, (torch.tensor(0.62, dtype=torch.float64),)


def _kept(make):
    return Bug(
        "the outputs are kept on ctx, which they hold: they live on until the garbage collector runs",
        ("PB204", "PB201"),
        partial(is_kept, make),
    )


def _unnoticed(make):
    return Bug(
        "the outputs are kept on ctx: a change of them in place silently changes the gradient",
        ("PB209", "PB201"),
        partial(output_change_is_unnoticed, make),
    )


BROAD = "documented: a gap of eigenvalues is broadened, so that the gradient stays finite where two are equal"

CALLS = (
    Call(
        eigenvalues,
        bugs=(_kept(eigenvalues),),
        doubtful={**DOUBTFUL, "PB201": "kept on ctx"},
        judged={"PB209": (True, "the eigenvalues are kept on ctx: changed in place, they change the gradient")},
    ),
    Call(
        matrix_function,
        bugs=(_kept(matrix_function), _unnoticed(matrix_function)),
        doubtful={**DOUBTFUL, "PB101": BROAD},
    ),
    Call(
        refractive_index,
        bugs=(
            Bug(
                "the backward gives twice the derivative",
                ("PB101",),
                partial(first_is_wrong, refractive_index, 0),
            ),
            Bug(
                "the derivative is a number of NumPy: the second derivative is silently 0",
                ("PB401", "PB402", "PB604"),
                partial(second_is_wrong, refractive_index),
            ),
        ),
        doubtful={**DOUBTFUL, "PB303": "differences of the table, with a step of 0.005"},
    ),
)
