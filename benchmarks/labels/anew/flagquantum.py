"""flagquantum: what is known of its custom functions.

Two of its fourteen are covered, for the others need a GPU or more than one process: the expectation by parameter
shifts, with two circuits, and the sum over processes, in a group of one. Truth: central differences. Strided inputs
and cotangents, frozen arguments, two backwards, checkpoints, changes in place.
"""

import torch

from labels import Call, Package
from labels.anew import NO_FUNC
from labels.beyond import alone

PACKAGE = Package("flagquantum", "0.3.1", "quantum circuits")

DOUBTFUL = {
    **dict.fromkeys(("PB401", "PB402", "PB403", "PB404", "PB604"), "a second derivative is refused: it says so"),
    **dict.fromkeys(("PB405", "PB406", "PB407", "PB408"), NO_FUNC),
    **dict.fromkeys(("PB101", "PB105", "PB113", "PB119", "PB303"), "angles are float32, and all of them are trained"),
    **dict.fromkeys(("PB413", "PB503", "PB504", "PB505"), "an angle is one float32 number"),
}


def _expectation(circuit, names):
    from flagquantum.algorithms import Hamiltonian, pauli_term
    from flagquantum.runtime.executors.statevector.split_real_imag_autograd import (
        _P5BridgeConfig,
        _P5ParameterShiftExpectation,
    )

    torch.manual_seed(0)
    config = _P5BridgeConfig(
        circuit_or_ir=circuit,
        observable=Hamiltonian(
            (pauli_term(0.7, "Z", (0,)), pauli_term(-0.4, "XX", (0, 1)), pauli_term(0.2, "Y", (1,)))
        ),
        parameter_order=names,
        device=torch.device("cpu"),
        precision_plan=None,
        accuracy_requirement=None,
        preflight=False,
        renormalize_every=16,
    )
    return _P5ParameterShiftExpectation, (config, *torch.rand(len(names)).unbind())


# Right: differences.
def two_angles():
    from flagquantum import Circuit, Parameter

    return _expectation(Circuit(2).ry(0, Parameter("a")).cx(0, 1).rx(1, Parameter("b")), ("a", "b"))


# Right: differences.
def shared_angle():
    from flagquantum import Circuit, Parameter

    return _expectation(Circuit(2).ry(0, Parameter("a")).cx(0, 1).rx(1, Parameter("a")), ("a",))


# Right, twice: differences.
def summed():
    from flagquantum.runtime.executors.tensor_network.execution import _DistributedAllReduceSum

    alone()
    torch.manual_seed(0)
    return _DistributedAllReduceSum, (torch.randn(2, 3, dtype=torch.float64),)


CALLS = (*(Call(make, doubtful=DOUBTFUL) for make in (two_angles, shared_angle)), Call(summed))
