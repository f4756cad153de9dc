"""torchkbnufft: what is known of its custom functions.

All four `Function`s of `torchkbnufft/_autograd/interp.py` are covered, the table ones with one trajectory for all of the
batch and with a trajectory per batch element (which take different ways through the code). Nothing is left out.
Labelled by reading the source, float64 central differences, and a checker in plain PyTorch (strides, conjugate bit,
checkpointing, in-place changes, leaks, double backward), with 1 and with 2 threads.
"""

import torch

from labels import Bug, Call, Package

PACKAGE = Package("torchkbnufft", "1.5.2", "MRI", needs=("scipy",))

DOUBTFUL = {
    "PB107": "the trajectory omega gets None: the table look-up is piecewise constant in it, and no gradient is promised",
    "PB503": "an empty batch (or no coils) is refused by the forward, with PyTorch's message on reshape",
    "PB603": "the number of threads is set and set back, but not set back if an error is raised in between",
}
TABLE = DOUBTFUL | {
    "PB204": "now and then a thread of torch.jit.fork holds an input for some milliseconds more; there is no cycle",
}


def _omega(batch=None):
    generator = torch.Generator().manual_seed(0)
    shape = (2, 20) if batch is None else (batch, 2, 20)
    return (torch.rand(shape, generator=generator) - 0.5) * 6


def _table(omega):
    import torchkbnufft as tkbn
    from torchkbnufft.functional import kb_table_interp

    ob = tkbn.KbInterp(im_size=(8, 8), numpoints=3, dtype=torch.complex64)
    tables = [ob.table_0, ob.table_1]

    def table_interp(image, omega):
        return kb_table_interp(image, omega, tables, ob.n_shift, ob.numpoints, ob.table_oversamp, ob.offsets)

    torch.manual_seed(1)
    return table_interp, (torch.randn(2, 3, 16, 16, dtype=torch.complex64, requires_grad=True), omega)


def _table_adjoint(omega):
    import torchkbnufft as tkbn
    from torchkbnufft.functional import kb_table_interp_adjoint

    ob = tkbn.KbInterpAdjoint(im_size=(8, 8), numpoints=3, dtype=torch.complex64)
    tables = [ob.table_0, ob.table_1]

    def table_interp_adjoint(data, omega):
        return kb_table_interp_adjoint(
            data, omega, tables, ob.n_shift, ob.numpoints, ob.table_oversamp, ob.offsets, ob.grid_size
        )

    torch.manual_seed(1)
    return table_interp_adjoint, (torch.randn(2, 3, 20, dtype=torch.complex64, requires_grad=True), omega)


def _matrices():
    import torchkbnufft as tkbn

    return tkbn.calc_tensor_spmatrix(_omega(), im_size=(8, 8), grid_size=(16, 16), numpoints=3)


def table():
    """First and second derivative equal differences (also at equal points and at the border of k-space)."""
    return _table(_omega())


def table_batched():
    """As for `table`; a trajectory per batch element takes the other branch, whose backward takes all strides."""
    return _table(_omega(2))


def table_adjoint():
    """First and second derivative equal differences; its backward is `table`'s forward."""
    return _table_adjoint(_omega())


def table_adjoint_batched():
    """As for `table_adjoint`; the branch with a trajectory per batch element takes all strides."""
    return _table_adjoint(_omega(2))


def spmat():
    """First and second derivative equal differences; the matrices are constants."""
    from torchkbnufft.functional import kb_spmat_interp

    matrices = _matrices()

    def spmat_interp(image):
        return kb_spmat_interp(image, matrices)

    torch.manual_seed(1)
    return spmat_interp, (torch.randn(2, 3, 16, 16, dtype=torch.complex64, requires_grad=True),)


def spmat_adjoint():
    """First and second derivative equal differences; the matrices are constants."""
    from torchkbnufft.functional import kb_spmat_interp_adjoint

    matrices = _matrices()
    grid_size = torch.tensor([16, 16])

    def spmat_interp_adjoint(data):
        return kb_spmat_interp_adjoint(data, matrices, grid_size)

    torch.manual_seed(1)
    return spmat_interp_adjoint, (torch.randn(2, 3, 20, dtype=torch.complex64, requires_grad=True),)


def nufft():
    """The NUFFT as it is used: differences, and a direct (slow) Fourier transform within the accuracy of the tables."""
    import torchkbnufft as tkbn

    torch.manual_seed(1)
    image = torch.randn(2, 3, 8, 8, dtype=torch.complex64, requires_grad=True)
    return tkbn.KbNufft(im_size=(8, 8), numpoints=3, dtype=torch.complex64), (image, _omega())


# Proofs


def _checkpoint_raises(make):
    def proof():
        from torch.utils.checkpoint import checkpoint

        function, arguments = make()
        function(*arguments).abs().sum().backward()  # works
        try:
            checkpoint(function, *arguments, use_reentrant=False).abs().sum().backward()
        except RuntimeError as error:
            return "already unpacked once" in str(error)
        return False

    return proof


def _backward_raises(make, loss, message):
    def proof():
        function, arguments = make()
        function(*arguments).abs().sum().backward()  # works
        try:
            loss(function(*arguments)).backward()
        except RuntimeError as error:
            return message in str(error)
        return False

    return proof


def _forward_raises(make, change, message):
    def proof():
        function, (x, *rest) = make()
        function(change(x).resolve_conj().contiguous(), *rest)  # works
        try:
            function(change(x), *rest)
        except RuntimeError as error:
            return message in str(error)
        return False

    return proof


def _coils_first(y):
    return y.transpose(0, 1).reshape(-1)[1:].abs().sum()


def _with_conjugate(y):
    return (y.conj() * torch.linspace(0, 1, y.shape[-1])).real.sum()


def _transposed(x):
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def _checkpointed(make):
    return Bug(
        "with checkpoint(use_reentrant=False) the backward raises, for it reads ctx.saved_tensors twice",
        ("PB411",),
        _checkpoint_raises(make),
    )


def _strided_cotangent(make):
    return Bug(
        "the backward raises on a cotangent whose batch and coils are transposed: it takes a view of it",
        ("PB502", "PB119"),
        _backward_raises(make, _coils_first, "view size is not compatible"),
    )


def _strided_input(make):
    return Bug(
        "the forward raises on data whose batch and coils are transposed: it takes a view of it",
        ("PB501",),
        _forward_raises(make, _transposed, "view size is not compatible"),
    )


def _conjugate_cotangent(make):
    return Bug(
        "the backward raises when the loss takes the conjugate: view_as_real refuses a cotangent with the conjugate bit",
        ("PB119", "PB502"),
        _backward_raises(make, _with_conjugate, "unresolved conjugated"),
    )


def _conjugate_input(make):
    return Bug(
        "the forward raises on x.conj(): view_as_real refuses an input with the conjugate bit",
        ("PB501",),
        _forward_raises(make, torch.Tensor.conj, "unresolved conjugated"),
    )


CALLS = (
    Call(table, bugs=(_checkpointed(table), _strided_cotangent(table)), doubtful=TABLE),
    Call(table_batched, bugs=(_checkpointed(table_batched),), doubtful=TABLE),
    Call(table_adjoint, bugs=(_checkpointed(table_adjoint), _strided_input(table_adjoint)), doubtful=TABLE),
    Call(table_adjoint_batched, bugs=(_checkpointed(table_adjoint_batched),), doubtful=TABLE),
    Call(
        spmat,
        bugs=(_checkpointed(spmat), _strided_cotangent(spmat), _conjugate_cotangent(spmat), _conjugate_input(spmat)),
        doubtful=DOUBTFUL,
    ),
    Call(
        spmat_adjoint,
        bugs=(
            _checkpointed(spmat_adjoint),
            _strided_input(spmat_adjoint),
            _conjugate_cotangent(spmat_adjoint),
            _conjugate_input(spmat_adjoint),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(nufft, bugs=(_checkpointed(nufft), _strided_cotangent(nufft)), doubtful=TABLE),
)
