"""Packages that `in_the_wild.py` audits: pure Python, with custom functions that run on a CPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    """A published package.

    Attributes:
        name: name on PyPI.
        version: the audited one.
        field: field of application.
        targets: its modules with custom functions.
        needs: further imported packages, besides PyTorch and NumPy.
    """

    name: str
    version: str
    field: str
    targets: tuple[str, ...]
    needs: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        """Requirement specifier for pip."""
        return f"{self.name}=={self.version}"


GAUSSIAN = ("linear-operator==0.6.1", "jaxtyping", "wadler-lindig", "scipy", "scikit-learn", "joblib", "threadpoolctl")
PACKAGES = (
    Package("entmax", "1.3", "sparse attention", ("entmax",)),
    Package("snntorch", "1.0.0", "spiking networks", ("snntorch",)),
    Package("spikingjelly", "2.0.0", "spiking networks", ("spikingjelly._ops.surrogate",), ("tqdm",)),
    Package("pytorch-tabnet", "4.1.0", "tabular data", ("pytorch_tabnet.sparsemax",), ("scipy",)),
    Package("gpytorch", "1.15.2", "Gaussian processes", ("gpytorch.functions",), GAUSSIAN),
    Package("pyro-ppl", "1.9.2", "probabilistic programs", ("pyro.distributions",), ("opt-einsum", "pyro-api", "tqdm")),
    Package("e3nn", "0.6.0", "equivariant networks", ("e3nn.math",), ("opt-einsum-fx", "opt-einsum", "scipy")),
    Package("pytorch-wavelets", "1.3.0", "signals", ("pytorch_wavelets",), ("PyWavelets", "setuptools<81")),
    Package("torch-struct", "0.5", "structured prediction", ("torch_struct",)),
    Package("diffsort", "0.2.0", "sorting", ("diffsort",)),
    Package("torchdiffeq", "0.2.5", "differential equations", ("torchdiffeq",), ("scipy",)),
    Package("efficientnet-pytorch", "0.7.1", "vision", ("efficientnet_pytorch.utils",)),
    Package("brevitas", "0.13.4", "quantisation", ("brevitas.ops",), ("dependencies", "unfoldNd", "packaging")),
)
