"""tensorcircuit-ng: what is known of its custom functions.

Both are covered: the QR decomposition of its PyTorch backend, and the function that `torch_interface` makes of a circuit.
Truth: float64 central differences, of the real and the imaginary part (below 2e-10, second order 7e-10).
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import second_is_wrong

PACKAGE = Package(
    "tensorcircuit-ng",
    "1.10.0",
    "quantum circuits",
    needs=("tensornetwork-ng", "opt-einsum", "graphviz", "scipy==1.17.1", "networkx", "sympy", "mpmath"),
)

SAVED = "the output is saved: changing it in place raises, with PyTorch's message"
NARROW = "float16 and bfloat16 are refused: no QR in that width"
BROAD = "by design: a diagonal below 1e-8 is taken to be 1e-8, so that the gradient stays finite"
BATCH = "a vectorised backward raises"
QR = {"PB209": SAVED, "PB413": NARROW, "PB303": BROAD, "PB301": BROAD, "PB302": BROAD, "PB305": BROAD, "PB408": BATCH}
REFUSED = "bfloat16 is refused: other libraries have no such numbers"


def _qr(*shape, dtype=torch.float32):
    from tensorcircuit.backends.pytorch_ops import torchqr

    torch.manual_seed(0)
    return torchqr, (torch.randn(shape, dtype=dtype),)


# First and second order right: differences (6e-11, 1e-10).
def qr_tall():
    return _qr(4, 3)


# First and second order right: differences (5e-11, 1e-10).
def qr_wide():
    return _qr(2, 4)


# First and second order right: differences (7e-11, 1e-10).
def qr_batched():
    return _qr(2, 4, 3)


# First and second order right: differences (4e-11, 2e-10).
def qr_complex():
    return _qr(4, 3, dtype=torch.complex128)


# First order right: differences (3e-11).
def interface():
    import tensorcircuit

    tensorcircuit.set_backend("pytorch")
    sine = tensorcircuit.backend.sin
    function = tensorcircuit.interfaces.torch_interface(lambda a, b: a * sine(b))
    torch.manual_seed(0)
    return (lambda a, b: function(a, b)), (torch.randn(3), torch.randn(3))


# First order right: differences (in complex128, 1e-10).
def interface_of_circuit():
    import tensorcircuit

    tensorcircuit.set_backend("pytorch")
    tensorcircuit.set_dtype("complex128")

    def energy(angles):
        circuit = tensorcircuit.Circuit(2)
        circuit.rx(0, theta=angles[0])
        circuit.ry(1, theta=angles[1])
        circuit.cnot(0, 1)
        circuit.rx(1, theta=angles[2])
        return tensorcircuit.backend.real(circuit.expectation([tensorcircuit.gates.z(), [1]]))

    function = tensorcircuit.interfaces.torch_interface(energy)
    return (lambda angles: function(angles)), (torch.tensor([0.3, 0.7, 1.1], dtype=torch.float64),)


def _lost(make, position=0):
    return Bug(
        "the gradient comes without a graph under create_graph: what it adds to a second derivative is lost",
        ("PB401", "PB404", "PB403", "PB604"),
        partial(second_is_wrong, make, position),
    )


CALLS = (
    Call(qr_tall, doubtful=QR),
    Call(qr_wide, doubtful=QR),
    Call(qr_batched, doubtful=QR),
    Call(qr_complex, doubtful=QR),
    Call(interface, bugs=(_lost(interface, 1),), doubtful={"PB413": REFUSED, "PB408": BATCH}),
    Call(interface_of_circuit, bugs=(_lost(interface_of_circuit),), doubtful={"PB413": REFUSED, "PB408": BATCH}),
)
