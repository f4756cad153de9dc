"""The stable forms of an op's formula: looked up once for each dtype, and called in its place."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.bind.jet import first_order, first_order_within, second_order
from pullback.bind.parts import replaced
from pullback.errors import FormulaError, PullbackError
from pullback.graph.reads import Reads, reads_of
from pullback.numerics import certificate
from pullback.numerics.certificate import Certificate, Key
from pullback.numerics.derive import derivative
from pullback.numerics.emit import emit
from pullback.numerics.evaluate import evaluate
from pullback.numerics.meant import Meaning, meaning_of
from pullback.numerics.parts import Cut
from pullback.numerics.term import parse
from pullback.numerics.written import is_as_written

_DTYPES = {torch.float64: "float64", torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_WIDTHS = (torch.float64, torch.float32)
_DEVICE = "cpu"
"""Certificates hold for the kernels that they were measured on."""


@dataclass(frozen=True, slots=True)
class Forms:
    """What is called in place of a formula: its value, and the value with derivatives of one and of two orders.

    Attributes:
        value, first, second: functions of so many tensors.
        arity: how many.
        certificates: that they are from: one, or those of the formula's pointwise parts.
        within: of a pointwise formula, as `first`, for the middle of another: there its value counts, which that of
            `first` is not where an input or a slope is infinite.
    """

    value: Callable[..., Any]
    first: Callable[..., Any]
    second: Callable[..., Any]
    arity: int
    certificates: tuple[Certificate, ...]
    within: Callable[..., Tensor] | None = None


Find = Callable[[Callable[..., Any], Meaning], Forms | None]
"""Where the forms of a pointwise formula, with its meaning, are looked up."""


class Stable:
    """The stable forms of one formula of tensors."""

    def __init__(self, formula: Callable[..., Any]) -> None:
        self._formula = formula
        self._known: dict[torch.dtype, Forms | None] = {}
        self._reads: Reads | None = None
        self.given = object()
        """Another object whenever a certificate is given: what is made of the forms is made again."""

        @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
        def look_up(dtype: torch.dtype) -> bool:
            """Run while Dynamo traces."""
            return self._of(dtype) is not None

        self._look_up_compiling = look_up

    def forms(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Forms | None:
        """Return the stable forms for a call, if there are any for tensors like these."""
        compiling = torch.compiler.is_dynamo_compiling()
        if kwargs or not args or not isinstance(args[0], Tensor) or (not compiling and is_as_written()):
            return None
        dtype = args[0].dtype
        for a in args:
            if not isinstance(a, Tensor) or a.dtype != dtype or a.device.type != _DEVICE or not _torch.is_plain_kind(a):
                return None
        if dtype.itemsize == 2 and torch.is_autocast_enabled(_DEVICE):  # it widens the results of some ops
            return None
        if compiling:
            self._look_up_compiling(dtype)
            forms = self._known.get(dtype)  # on which Dynamo then guards
        else:
            forms = self._of(dtype)
        return None if forms is None or forms.arity != len(args) else forms

    def native_forms(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Forms | None:
        """Return the stable forms where they stand for the formula in transforms and tracers.

        Not for derivatives of third order by transforms, which they do not carry, nor where torch.jit's passes
        would drop what they are made of: there the formula stands as written, and is right.
        """
        if not torch.compiler.is_dynamo_compiling() and (_torch.is_jit_tracing() or _torch.differentiations() > 2):
            return None
        return self.forms(args, kwargs)

    def use(self, *found: Certificate) -> None:
        """Use a certificate from now on, or those of the formula's parts, all for one dtype.

        Raises:
            FormulaError: if one does not compute the formula or a part, or the formula may change unseen.
        """
        dtype, given = getattr(torch, found[0].dtype), {c.key: c for c in found}

        def find(_: Callable[..., Any], meaning: Meaning) -> Forms | None:
            key = _key(meaning, dtype)
            return _forms_of(given[key]) if key in given else None

        with _torch.tracing():
            reads = self._renewed()
            if reads.obstacle:
                raise FormulaError(f"{found[0].name} may mean something else at the next call: {reads.obstacle}.")
            forms = _torch.apart(lambda: _forms_by(self._formula, dtype, find))
            if forms is None:
                raise FormulaError(f"{found[0].name} is not what this formula is, nor a part of it.")
            self._known = {**self._known, dtype: forms}
            self.given = object()

    def keep(self, *found: Certificate) -> None:
        """Write certificates to the user's cache, where the next program finds them."""
        for one in found:
            path = certificate.cached(one.key)
            try:
                certificate.save(path, [one])
            except OSError as error:
                warnings.warn(f"{path}: {error.strerror}; the certificate is used but not kept.", stacklevel=3)

    def certificates(self) -> list[Certificate]:
        """Return those that are in use."""
        with _torch.tracing():
            self._renewed()
            return [c for forms in self._known.values() if forms is not None for c in forms.certificates]

    def beside(self) -> Path | None:
        """Return the file of certificates beside the formula's module; `None` if it has no file."""
        try:
            source = inspect.getsourcefile(inspect.unwrap(self._formula))
        except TypeError:
            return None
        return certificate.beside(source) if source and not source.startswith("<") else None

    def _of(self, dtype: torch.dtype) -> Forms | None:
        reads, known = self._reads, self._known  # in this order: another thread renews the forms first
        if reads is not None and dtype in known and reads.unchanged():
            return known[dtype]
        complaints: list[str] = []
        with _torch.tracing():
            reads = self._renewed()
            if dtype not in self._known:
                # what cannot be watched may mean something else at the next call
                forms = None if reads.obstacle or dtype not in _DTYPES else self._look_up(dtype, complaints)
                self._known = {**self._known, dtype: forms}
            forms = self._known[dtype]
        for complaint in complaints:
            warnings.warn(complaint, stacklevel=2)
        return forms

    def _renewed(self) -> Reads:
        """Return what the formula reads; once that has changed, its forms are forgotten."""
        if self._reads is None or not self._reads.unchanged():
            self._known = {}
            self._reads = reads_of(self._formula)
        return self._reads

    def _look_up(self, dtype: torch.dtype, complaints: list[str]) -> Forms | None:
        """Find the certificate for a dtype; without any on this machine nothing is traced."""
        try:
            beside, cache = self.beside(), certificate.cache()
            there = [path for path in (beside, cache) if path is not None and path.exists()]
        except (OSError, RuntimeError):  # a folder that we may not enter, no home
            return None
        return _torch.apart(lambda: self._found(dtype, beside, complaints)) if there else None

    def _found(self, dtype: torch.dtype, beside: Path | None, complaints: list[str]) -> Forms | None:
        def find(_: Callable[..., Any], meaning: Meaning) -> Forms | None:
            key = _key(meaning, dtype)
            for path in (beside, certificate.cached(key)):
                try:
                    for found in certificate.load(path, key) if path is not None else ():
                        return _forms_of(found)
                except Exception as error:  # the file may be anybody's, the formula is there without it
                    complaints.append(f"stable forms are not used: {error}. Renew {path} with `pullback stabilise`.")
            return None

        return _forms_by(self._formula, dtype, find)


def _forms_by(formula: Callable[..., Any], dtype: torch.dtype, find: Find) -> Forms | None:
    """Return the forms of a formula, or the formula with the forms of its parts, if there are certificates."""
    try:
        meaning = meaning_of(formula, dtype)
    except PullbackError:
        return _forms_by_parts(formula, dtype, find)
    return find(formula, meaning)


def _forms_by_parts(formula: Callable[..., Any], dtype: torch.dtype, find: Find) -> Forms | None:
    try:
        cut = Cut(formula)
    except PullbackError:
        return None
    found = {part: forms for part in cut.parts(dtype) if (forms := find(part.function, part.meaning)) is not None}
    if not found or not cut.is_meant():
        return None
    value, first, second = (
        replaced(cut, {part: getattr(forms, order) for part, forms in found.items()}, dtype)
        for order in ("value", "within", "second")
    )
    certificates = {c.key: c for forms in found.values() for c in forms.certificates}
    return Forms(value, first, second, cut.arity, tuple(certificates.values()))


def _key(meaning: Meaning, dtype: torch.dtype) -> Key:
    return (str(meaning.term), meaning.variables, _DTYPES[dtype], _DEVICE)


def _forms_of(found: Certificate) -> Forms:
    names, dtype = found.variables, getattr(torch, found.dtype)
    made = {by: emit(form.program, names, dtype, " ".join((found.name, *by))) for by, form in found.forms.items()}
    _require_sound(found, dtype, made)
    slopes = [made[(name,)] for name in names]
    curvatures = {(i, j): made[names[i], names[j]] for i in range(len(names)) for j in range(i, len(names))}
    value = made[()]
    first, second = first_order(value, slopes), second_order(value, slopes, curvatures)
    return Forms(value, first, second, len(names), (found,), within=first_order_within(value, slopes))


_REACH = (2.0, 40.0)
"""How far points go: the ordinary ones, and those of the tails."""
_PART = 0.9
"""Of the points, at which a form has to agree: where a formula cancels it is wrong in float64 too."""


def _require_sound(found: Certificate, dtype: torch.dtype, made: dict[certificate.By, Callable[..., Tensor]]) -> None:
    """Refuse a certificate whose forms do not compute its formula, where float64 and float32 agree on that."""
    random = torch.Generator("cpu").manual_seed(0)
    formula = parse(found.formula, found.variables)
    for reach in _REACH:
        draws = [torch.rand(128, generator=random, dtype=torch.float64, device="cpu") for _ in found.variables]
        at = [((u * 2 - 1) * reach).to(dtype) for u in draws]
        wide, narrow = ({n: x.to(d) for n, x in zip(found.variables, at, strict=True)} for d in _WIDTHS)
        for by, form in made.items():
            target = formula
            for name in by:
                target = derivative(target, name)
            right, rough, got = evaluate(target, wide), evaluate(target, narrow).double(), form(*at).double()
            size = right.abs().clamp_min(1e-3)
            settled = right.isfinite() & (size < torch.finfo(dtype).max) & ((rough - right).abs() < 1e-3 * size)
            close = ((got - right).abs() <= size * (16 * torch.finfo(dtype).eps + 1e-6))[settled]
            if close.numel() and not bool(close.double().mean() >= _PART):
                raise FormulaError(f"the form of {certificate.label(by)} of {found.name} does not compute it")
