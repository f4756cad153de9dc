"""The stable forms of an op's formula: looked up once for each dtype, and called in its place."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.bind.jet import first_order, second_order
from pullback.errors import PullbackError
from pullback.graph.reads import Reads, reads_of
from pullback.numerics import certificate
from pullback.numerics.certificate import Certificate
from pullback.numerics.emit import emit
from pullback.numerics.formula import Formula, Quantity

_DTYPES = {torch.float64: "float64", torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_DEVICE = "cpu"
"""Certificates hold for the kernels that they were measured on."""


@dataclass(frozen=True, slots=True)
class Forms:
    """What is called in place of a formula: its value, and the value with derivatives of one and of two orders."""

    value: Callable[..., Tensor]
    first: Callable[..., Tensor]
    second: Callable[..., Tensor]
    certificate: Certificate


class Stable:
    """The stable forms of one formula.

    Args:
        op: whose formula it is.
        formula: of tensors.
    """

    def __init__(self, op: Any, formula: Callable[..., Any]) -> None:
        self._op, self._formula = op, formula
        self._lock = threading.RLock()
        self._known: dict[torch.dtype, Forms | None] = {}
        self._reads: Reads | None = None

        @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
        def look_up(dtype: torch.dtype) -> bool:
            """Run while Dynamo traces."""
            return self._look_up(dtype)

        self._look_up_compiling = look_up

    def forms(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Forms | None:
        """Return the stable forms for a call, if there are any for tensors like these."""
        if kwargs or not args:
            return None
        if not isinstance(args[0], Tensor):
            return None
        dtype = args[0].dtype
        for a in args:
            if not isinstance(a, Tensor) or a.dtype != dtype or a.device.type != _DEVICE or not _torch.is_plain_kind(a):
                return None
        known = self._look_up_compiling if torch.compiler.is_dynamo_compiling() else self._look_up
        if not known(dtype):
            return None
        forms = self._known[dtype]
        return None if forms is None or len(forms.certificate.variables) != len(args) else forms

    def native_forms(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Forms | None:
        """Return the stable forms where they stand for the formula in transforms and tracers.

        Not for derivatives of third order by transforms, which they do not carry, nor where torch.jit's passes
        would drop what they are made of: there the formula stands as written, and is right.
        """
        if not torch.compiler.is_dynamo_compiling() and (_torch.is_jit_tracing() or _torch.differentiations() > 2):
            return None
        return self.forms(args, kwargs)

    def use(self, found: Certificate) -> None:
        """Use a certificate from now on.

        Raises:
            ValueError: if it does not compute the formula.
        """
        dtype = getattr(torch, found.dtype)
        forms = _forms_of(found, dtype)
        _require_sound(found, dtype, self._formula)
        with self._lock:
            self._renew()
            self._known[dtype] = forms

    def keep(self, found: Certificate) -> None:
        """Write a certificate to the user's cache, where the next program finds it."""
        path = certificate.cached(found.key)
        try:
            certificate.save(path, [found])
        except OSError as error:
            warnings.warn(f"{path}: {error.strerror}; the certificate is used but not kept.", stacklevel=3)

    def certificates(self) -> list[Certificate]:
        """Return those that are in use."""
        return [forms.certificate for forms in self._known.values() if forms is not None]

    def _look_up(self, dtype: torch.dtype) -> bool:
        """Find the certificate for a dtype, once; whether there is one."""
        with self._lock:
            reads = self._renew()
            if dtype in self._known:
                return self._known[dtype] is not None
            self._known[dtype] = None
            if reads.obstacle:  # the formula may mean something else at the next call
                return False
            beside = self.beside()
            if dtype not in _DTYPES or not (certificate.cache().exists() or (beside and beside.exists())):
                return False
            key = self._key(dtype)
            if key is None:
                return False
            return (beside is not None and self._try(beside, key)) or self._try(certificate.cached(key), key)

    def _renew(self) -> Reads:
        """Return what the formula reads; once that has changed, its forms are forgotten."""
        if self._reads is None or not self._reads.unchanged():
            self._known.clear()
            self._reads = reads_of(self._formula)
        return self._reads

    def beside(self) -> Path | None:
        """Return the file of certificates beside the formula's module; `None` if it has no file."""
        try:
            source = inspect.getsourcefile(inspect.unwrap(self._formula))
        except TypeError:
            return None
        return certificate.beside(source) if source and not source.startswith("<") else None

    def _key(self, dtype: torch.dtype) -> tuple[Any, ...] | None:
        try:
            formula = Formula(self._op)
            terms = formula.terms(dtype, 0)
        except PullbackError:  # not pointwise, or not of tensors alone
            return None
        return (str(terms[Quantity(0, ())]), formula.variables, _DTYPES[dtype], _DEVICE) if len(terms) == 1 else None

    def _try(self, path: Path, key: tuple[Any, ...]) -> bool:
        try:
            for found in certificate.load(path):
                if found.key == key:
                    self.use(found)
                    return True
        except (OSError, ValueError) as error:
            warnings.warn(f"stable forms are not used: {error}. Renew {path} with `pullback stabilise`.", stacklevel=2)
        return False


def _forms_of(found: Certificate, dtype: torch.dtype) -> Forms:
    names = found.variables
    value, *others = (
        emit(form.program, names, dtype, f"{found.name}_{'_'.join(('d', *by)) if by else 'value'}".replace(".", "_"))
        for by, form in found.forms.items()
    )
    made = dict(zip(list(found.forms)[1:], others, strict=True))
    slopes = [made[(name,)] for name in names]
    pairs = {
        (i, j): made.get((names[i], names[j])) or made[(names[j], names[i])]
        for i in range(len(names))
        for j in range(i, len(names))
    }
    return Forms(value, first_order(value, slopes), second_order(value, slopes, pairs), found)


def _require_sound(found: Certificate, dtype: torch.dtype, formula: Callable[..., Any]) -> None:
    """Refuse a certificate whose value or slopes are not its formula's, in float64 at ordinary points."""
    random = torch.Generator().manual_seed(0)
    at = [torch.rand(64, generator=random, dtype=torch.float64) * 4 - 2 for _ in found.variables]
    xs = [x.to(dtype).double().requires_grad_() for x in at]
    with torch.enable_grad():
        out = formula(*xs)
        slopes = torch.autograd.grad(out.sum(), xs, allow_unused=True, materialize_grads=True)
    inputs = {name: x.detach().to(dtype) for name, x in zip(found.variables, xs, strict=True)}
    expected: dict[certificate.By, Tensor] = {(): out.detach()}
    expected |= {(name,): g for name, g in zip(found.variables, slopes, strict=True)}
    for by, right in expected.items():
        got = found.forms[by].program.run(inputs).double()
        settled = right.isfinite() & (right.abs() > 1e-3)
        off = ((got - right) / right).abs()[settled]
        if off.numel() and not bool((off < 64 * torch.finfo(dtype).eps + 1e-6).float().mean() > 0.9):
            raise ValueError(f"the form of {certificate.label(by)} of {found.name} does not compute it")
