"""pennylane: what is known of its custom functions.

There are two: `ExecuteTapes`, behind every circuit of the torch interface that is not differentiated by PyTorch itself
("backprop"), once for each way to the derivative, and `_TorchFidelity`. Circuits are built anew at each call, as ever.
"""

from __future__ import annotations

import torch

from labels import Bug, Call, Package

PACKAGE = Package(
    "pennylane",
    "0.45.1",
    "quantum computing",
    needs=(
        "rustworkx==0.18.1",
        "autograd==1.8.0",
        "appdirs==1.4.4",
        "autoray==0.8.4",
        "cachetools==8.0.2",
        "pennylane-lightning==0.45.0",
        "diastatic-malt==2.15.3",
        "gast==0.7.0",
        "astunparse==1.6.3",
        "termcolor==3.3.0",
        "networkx==3.6.1",
        "requests==2.34.2",
        "tomlkit==0.15.2",
        "typing_extensions==4.16.0",
        "packaging==26.3",
        "scipy==1.17.1",
    ),
)


def _circuit(diff_method, max_diff=1, **kwargs):
    import pennylane as qp

    @qp.qnode(
        qp.device("default.qubit", wires=2), interface="torch", diff_method=diff_method, max_diff=max_diff, **kwargs
    )
    def circuit(x, y):
        qp.RX(x[0], wires=0)
        qp.RY(x[1], wires=1)
        qp.CNOT(wires=[0, 1])
        qp.Rot(y, x[0], 0.3, wires=1)
        return qp.expval(qp.Z(0) @ qp.X(1)), qp.probs(wires=1)

    return circuit


def _parameters():
    return torch.tensor([0.4, 1.1], dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)


def parameter_shift():
    return _circuit("parameter-shift"), _parameters()


def parameter_shift_twice():
    return _circuit("parameter-shift", 2), _parameters()


def adjoint():
    import pennylane as qp

    @qp.qnode(qp.device("default.qubit", wires=2), interface="torch", diff_method="adjoint")
    def circuit(x, y):
        qp.RX(x[0], wires=0)
        qp.RY(x[1], wires=1)
        qp.CNOT(wires=[0, 1])
        qp.Rot(y, x[0], 0.3, wires=1)
        return qp.expval(qp.Z(0) @ qp.X(1)), qp.expval(qp.Z(1))

    return circuit, _parameters()


def adjoint_vjp():
    import pennylane as qp

    @qp.qnode(qp.device("default.qubit", wires=2), interface="torch", diff_method="adjoint", device_vjp=True)
    def circuit(x, y):
        qp.RX(x[0] ** 2, wires=0)
        qp.RY(x[1], wires=1)
        qp.CNOT(wires=[0, 1])
        qp.Rot(y, x[0], 0.3, wires=1)
        return qp.expval(qp.Z(0) @ qp.X(1)), qp.expval(qp.Z(1))

    return circuit, _parameters()


def finite_differences():
    return _circuit("finite-diff"), _parameters()


def batch_of_tapes():
    import pennylane as qp

    device = qp.device("default.qubit", wires=1)

    def call(x, y):
        tapes = [
            qp.tape.QuantumScript([qp.RX(x, 0), qp.RY(y, 0)], [qp.expval(qp.Z(0))]),
            qp.tape.QuantumScript([qp.RY(x + y, 0)], [qp.expval(qp.X(0)), qp.probs(wires=0)]),
        ]
        first, (second, third) = qp.execute(tapes, device, diff_method=qp.gradients.param_shift, interface="torch")
        return first, second, third

    return call, (torch.tensor(0.4, dtype=torch.float64), torch.tensor(0.9, dtype=torch.float64))


def _density(a):
    rho = a @ a.mH
    return rho / rho.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None].real


def fidelity_mixed():
    import pennylane as qp

    torch.manual_seed(0)
    a, b = torch.randn(2, 3, 4, 4, dtype=torch.complex128)
    return (lambda a, b: qp.math.fidelity(_density(a), _density(b))), (a, b)


def fidelity_pure():
    import pennylane as qp

    torch.manual_seed(0)

    def call(x, y):
        state = torch.stack([torch.cos(x), torch.sin(x) * torch.exp(1j * y)])
        other = torch.tensor([0.6, 0.8j], dtype=torch.complex128)
        return qp.math.fidelity(qp.math.dm_from_state_vector(state), qp.math.dm_from_state_vector(other))

    return call, (torch.tensor(0.3, dtype=torch.float64), torch.tensor(0.9, dtype=torch.float64))


def _sum(outputs):
    return sum(o.sin().sum() for o in (outputs if isinstance(outputs, tuple) else (outputs,)))


def _second_differs(make):
    """Whether the second derivative of the sum of the sines of the outputs is not that of the first's differences."""
    f, args = make()
    torch.manual_seed(2)
    along = [torch.randn_like(a) for a in args]

    def gradient(args, create_graph=False):
        args = [a.detach().clone().requires_grad_() for a in args]
        grads = torch.autograd.grad(_sum(f(*args)), args, create_graph=create_graph)
        return args, sum((g * v).sum() for g, v in zip(grads, along, strict=True))

    inputs, slope = gradient(args, create_graph=True)
    second = torch.autograd.grad(slope, inputs, allow_unused=True)
    found = sum((h * v).sum().item() for h, v in zip(second, along, strict=True) if h is not None)
    up, down = ([a + sign * 1e-5 * v for a, v in zip(args, along, strict=True)] for sign in (1, -1))
    expected = (gradient(up)[1] - gradient(down)[1]).item() / 2e-5
    return abs(found - expected) > 1e-3 * abs(expected)


def _change_is_unnoticed(make):
    """Whether a change of the last argument before the backward silently changes the gradients."""
    f, args = make()
    leaves = [a.detach().requires_grad_() for a in args]
    inputs = [a * 1 for a in leaves]
    loss = _sum(f(*inputs))
    expected = torch.autograd.grad(loss, leaves, retain_graph=True)
    with torch.no_grad():
        inputs[-1].mul_(2)
    found = torch.autograd.grad(loss, leaves)
    return any((a - b).abs().max().item() > 0.01 for a, b in zip(found, expected, strict=True))


def _second(make):
    return Bug(
        "the second derivative is silently wrong: the Jacobian is a constant in the backward",
        ("PB401", "PB404"),
        lambda: _second_differs(make),
    )


def _change(make):
    return Bug(
        "the parameters are kept on ctx, in the tapes: a change in place before the backward silently alters them",
        ("PB209", "PB201"),
        lambda: _change_is_unnoticed(make),
    )


_LAST = {
    "PB204": "the circuit keeps its last tape, and with it the parameters of the last call, but of no other",
    "PB408": "a vectorised backward raises: the tapes are run in NumPy",
}
_KEPT = "the parameters are kept on ctx, in the tapes, but what the backward needs of them is computed before"

# All: against autograd through the same circuit with diff_method="backprop", and central differences, with random
# cotangents, for each output alone, frozen arguments, several tapes, parameters used twice, gates with four shifts,
# trainable observables, variances; strides, changes in place, a second backward, leaks, checkpoint, hooks, autocast.
_FORWARD_MODE = {
    "PB102": (True, "a dual tensor goes in and none comes out, without an error: the tape does not carry it")
}

CALLS = (
    Call(
        parameter_shift, bugs=(_second(parameter_shift), _change(parameter_shift)), doubtful=_LAST, judged=_FORWARD_MODE
    ),
    # With max_diff=2 the second derivative is right.
    Call(parameter_shift_twice, bugs=(_change(parameter_shift_twice),), doubtful=_LAST, judged=_FORWARD_MODE),
    # The Jacobian is computed in the forward.
    Call(adjoint, bugs=(_second(adjoint),), doubtful={**_LAST, "PB201": _KEPT}, judged=_FORWARD_MODE),
    Call(adjoint_vjp, bugs=(_second(adjoint_vjp), _change(adjoint_vjp)), doubtful=_LAST, judged=_FORWARD_MODE),
    Call(
        finite_differences,
        bugs=(_second(finite_differences), _change(finite_differences)),
        doubtful={
            **_LAST,
            "PB101": "a forward difference with a step of 1e-7, by its name: half of the digits are right",
            "PB303": "a forward difference with a step of 1e-7, by its name: half of the digits are right",
        },
        judged=_FORWARD_MODE,
    ),
    Call(batch_of_tapes, bugs=(_second(batch_of_tapes), _change(batch_of_tapes)), doubtful=_LAST, judged=_FORWARD_MODE),
    # Also at the maximally mixed state, for equal states; the second derivative is right, too.
    Call(
        fidelity_mixed,
        doubtful={"PB704": "both gradients are computed, also that of a frozen state; that costs time only"},
    ),
    # Against the modulus of the inner product, squared, whose first and second derivatives agree to 1e-7.
    Call(
        fidelity_pure,
        doubtful={
            **dict.fromkeys(
                ("PB101", "PB303", "PB401", "PB404"),
                "eigenvalues are cut off at 1e-15, on purpose, which leaves a relative error of 3e-8 / sqrt(F), and a "
                "factor of 2 where the states are orthogonal",
            ),
            "PB704": "both gradients are computed, also that of a frozen state; that costs time only",
        },
    ),
)
