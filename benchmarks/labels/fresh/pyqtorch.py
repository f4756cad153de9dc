"""pyqtorch: what is known of its custom functions.

Both are covered, called through `expectation` with the modes "adjoint" and "gpsr". Truth: float64 central differences
and the mode "ad" of the package, which is plain autograd (both below 1e-9), also with repeated and batched parameters.
Left out: evolution under a Hamiltonian, whose first order is right in both modes.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import (
    first_is_wrong,
    gradients,
    raises,
    raises_when_frozen,
    second_backward_differs,
    second_is_wrong,
)

PACKAGE = Package("pyqtorch", "1.7.8", "quantum circuits")

VIEW = "the output is a view: changing it in place raises, with PyTorch's message on views"
CONSUMED = "the backward undoes the circuit on what ctx holds: {}, and nothing is said"
STATE = {
    "PB107": "the state gets no gradient in this mode: it is no parameter",
    "PB207": VIEW,
    "PB209": VIEW,
    "PB413": "float16 and bfloat16 have no complex numbers",
    "PB303": "in float32 the state is still complex128",
}


def _expectation(circuit, observable, names, mode):
    def expectation(*values):
        import pyqtorch

        return pyqtorch.expectation(circuit, None, dict(zip(names, values, strict=True)), observable, mode)

    generator = torch.Generator().manual_seed(0)
    return expectation, tuple(torch.rand(1, generator=generator) + 0.3 for _ in names)


def _observable():
    from pyqtorch import Observable, X, Z

    return Observable([Z(0), X(1)])


def _circuit(mode, *control):
    from pyqtorch import CNOT, CRX, RX, RY, QuantumCircuit

    gates = [RX(0, "a"), RY(1, "b"), CNOT(0, 1), CRX(*control, "c"), RY(1, "d"), RX(0, "a")]
    return _expectation(QuantumCircuit(2, gates), _observable(), "abcd", mode)


# First order right: differences, and "ad" (1e-10).
def adjoint():
    return _circuit("adjoint", 0, 1)


# First and second order right: differences, and "ad" (1e-10).
def parameter_shift():
    return _circuit("gpsr", 1, 0)


# Wrong: differences, and "ad", which agrees with "gpsr".
def adjoint_of_a_later_control():
    return _circuit("adjoint", 1, 0)


# First and second order right: differences, and "ad" (1e-10), with a batch of three values for each parameter.
def parameter_shift_batched():
    from pyqtorch import CNOT, RX, RY, QuantumCircuit

    circuit = QuantumCircuit(2, [RX(0, "a"), CNOT(0, 1), RY(1, "b"), RY(0, "a")])
    function, _ = _expectation(circuit, _observable(), "ab", "gpsr")
    torch.manual_seed(0)
    return function, (torch.rand(3), torch.rand(3))


def _product(gates, mode):
    from pyqtorch import ConcretizedCallable, QuantumCircuit

    return _expectation(QuantumCircuit(2, gates(ConcretizedCallable("mul", ["a", "b"]))), _observable(), "ab", mode)


def _shared(product):
    from pyqtorch import CNOT, RX, RY

    return [RX(0, product), RY(1, "a"), CNOT(0, 1), RX(0, "b")]


def _twice(product):
    from pyqtorch import CNOT, RX, RY

    return [RX(0, product), CNOT(0, 1), RY(1, product)]


# Wrong: differences, and "ad".
def adjoint_of_a_product_and_its_factors():
    return _product(_shared, "adjoint")


# Wrong: differences, and "ad".
def adjoint_of_a_product_twice():
    return _product(_twice, "adjoint")


# The backward never works.
def parameter_shift_of_a_product():
    return _product(_twice, "gpsr")


def _weighted(mode):
    from pyqtorch import CNOT, RX, RY, Add, Observable, QuantumCircuit, Scale, X, Z

    circuit = QuantumCircuit(2, [RX(0, "a"), RY(1, "b"), CNOT(0, 1)])
    return _expectation(circuit, Observable(Add([Scale(Z(0), "w"), X(1)])), "abw", mode)


# First order right in the parameters of the circuit: differences (1e-10); no gradient of that of the observable.
def adjoint_of_a_weighted_observable():
    return _weighted("adjoint")


# First order right in the parameters of the circuit: differences (1e-10); no gradient of that of the observable.
def parameter_shift_of_a_weighted_observable():
    return _weighted("gpsr")


def weight_gets_none(make):
    return gradients(make)[2] is None and first_is_wrong(make, 2)


GRAPH = "the gradient comes without a graph under create_graph: what it adds to a second derivative is lost"


def _adjoint(make):
    return (
        Bug(
            CONSUMED.format("a second backward over a retained graph gives another gradient"),
            ("PB206", "PB408", "PB203", "PB120"),
            partial(second_backward_differs, make),
        ),
        Bug(GRAPH, ("PB401", "PB404", "PB604", "PB403"), partial(second_is_wrong, make)),
    )


def _silent(make):
    return Bug(
        "the parameter of the observable gets no gradient, without a word, where mode 'ad' has one",
        ("PB107", "PB101"),
        partial(weight_gets_none, make),
    )


CALLS = (
    Call(adjoint, bugs=_adjoint(adjoint), doubtful=STATE),
    Call(
        adjoint_of_a_later_control,
        bugs=(
            Bug(
                "a gate whose control comes after its target is undone with the two exchanged",
                ("PB101",),
                partial(first_is_wrong, adjoint_of_a_later_control, 1),
            ),
            *_adjoint(adjoint_of_a_later_control),
        ),
        doubtful=STATE,
    ),
    Call(parameter_shift, doubtful=STATE),
    Call(parameter_shift_batched, doubtful=STATE),
    Call(
        adjoint_of_a_product_and_its_factors,
        bugs=(
            Bug(
                "the gradient of a parameter that is also a factor of another gate's is overwritten, not added to",
                ("PB101",),
                partial(first_is_wrong, adjoint_of_a_product_and_its_factors, 0),
            ),
            Bug(
                "where a factor is frozen, the backward raises",
                ("PB113", "PB119"),
                partial(raises_when_frozen, adjoint_of_a_product_and_its_factors, 0, "does not require grad"),
            ),
            *_adjoint(adjoint_of_a_product_and_its_factors),
        ),
        doubtful=STATE,
    ),
    Call(
        adjoint_of_a_product_twice,
        bugs=(
            Bug(
                "the gradient of the second gate with the same product is multiplied by that of the first",
                ("PB101",),
                partial(first_is_wrong, adjoint_of_a_product_twice, 0),
            ),
            *_adjoint(adjoint_of_a_product_twice),
        ),
        doubtful={**STATE, "PB119": "of a batch of parameters, which the forward takes"},
        judged={
            "PB113": (True, "where the weights of the circuit are frozen, it raises, as of a product and its factors")
        },
    ),
    Call(
        parameter_shift_of_a_product,
        bugs=(
            Bug(
                "the backward of a circuit with a product of parameters raises a KeyError",
                ("PB119", "PB101"),
                partial(raises, partial(gradients, parameter_shift_of_a_product), "mul"),
            ),
        ),
        doubtful=STATE,
    ),
    Call(
        adjoint_of_a_weighted_observable,
        bugs=(_silent(adjoint_of_a_weighted_observable), *_adjoint(adjoint_of_a_weighted_observable)),
        doubtful=STATE,
    ),
    Call(
        parameter_shift_of_a_weighted_observable,
        bugs=(_silent(parameter_shift_of_a_weighted_observable),),
        doubtful=STATE,
    ),
)
