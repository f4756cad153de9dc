"""The stable forms of an op's formula: looked up or made by rules once for each dtype, and called in its place."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback._torch import is_plain_tensor
from pullback.errors import FormulaError, PullbackError
from pullback.graph.captures import Captures, captures_of
from pullback.plan import while_current
from pullback.stable import certificate
from pullback.stable.certificate import Certificate
from pullback.stable.forms import (
    DEVICE,
    DTYPES,
    Forms,
    find_forms,
    forms_of_certificate,
    forms_of_filled_holes,
    forms_of_rules,
    key_of,
)
from pullback.stable.formula import is_as_written
from pullback.stable.meaning import Meaning
from pullback.stable.quick import quick_forms, without_side_effects
from pullback.stable.tower import MAX_ORDER


class StableForms:
    """The stable forms of one formula of tensors."""

    def __init__(self, formula: Callable[..., Any]) -> None:
        self._formula = formula
        self._known: dict[torch.dtype, Forms | None] = {}
        self._captures: Captures | None = None
        self.version = object()
        """Version token; setting a certificate replaces it, which invalidates everything made from the forms."""

        @_torch.assume_constant_result
        def look_up(dtype: torch.dtype) -> bool:
            """Run while Dynamo traces."""
            return self._of(dtype) is not None

        @_torch.assume_constant_result
        def make(dtype: torch.dtype) -> int:
            """Make the composite form while Dynamo traces; return the number of orders it carries, 0 without one."""
            forms = self._of(dtype)
            # a compiled graph is differentiated at most one more time, an exported one any number of times
            order = MAX_ORDER if torch.compiler.is_exporting() else max(2, 1 + _torch.differentiation_depth())
            if forms is None or order > MAX_ORDER:
                return 0
            forms.composite.of(order)
            return order

        self._look_up_compiling, self._make_compiling = look_up, make

    def forms(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Forms | None:
        """Stable forms for a call, if there are any for tensors like these."""
        dtype = None if is_as_written() else _dtype_of(args, kwargs)
        forms = None if dtype is None else self._of(dtype)
        return None if forms is None or forms.arity != len(args) else forms

    def composite(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
        """Composite form for transforms and tracers; `None` where the formula as written stands.

        That is where there are no forms, and for derivatives beyond the orders that composite forms carry.
        """
        forms = self.forms(args, kwargs)
        order = 0 if forms is None else _order(args)
        return forms.composite.of(order) if forms is not None and order else None

    def compiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
        """Composite form where Dynamo traces the call: it guards on the attributes that this reads."""
        dtype = _dtype_of(args, kwargs)
        if dtype is None:
            return None
        self._look_up_compiling(dtype)
        forms = self._known.get(dtype)
        if forms is None or forms.arity != len(args):
            return None
        order = self._make_compiling(dtype)
        return forms.composite.made[order] if order else None

    def use(self, *found: Certificate) -> None:
        """Use a certificate from now on, or those of the formula's parts, all for one dtype.

        Raises:
            FormulaError: if one does not compute the formula or a part, or a read of the formula cannot be guarded.
        """
        dtype, given = getattr(torch, found[0].dtype), {c.key: c for c in found}
        with _torch.tracing():
            captures = self._renewed()
            if captures.obstacle:
                raise FormulaError(f"{found[0].name} may mean something else at the next call: {captures.obstacle}.")

            def find(formula: Callable[..., Any], meaning: Meaning) -> Forms | None:
                certificate = given.get(key_of(meaning, dtype))
                return (
                    None
                    if certificate is None
                    else forms_of_certificate(certificate, meaning, self._written(formula, captures))
                )

            forms = _torch.apart(lambda: find_forms(self._formula, dtype, find))
            if forms is None:
                raise FormulaError(f"{found[0].name} is not what this formula is, nor a part of it.")
            self._known = {**self._known, dtype: forms}
            self.version = object()

    def keep(self, *found: Certificate) -> None:
        """Write certificates to the user's cache, where the next program finds them."""
        for one in found:
            path = certificate.cache_path(one.key)
            try:
                certificate.save(path, [one])
            except OSError as error:
                warnings.warn(f"{path}: {error.strerror}; the certificate is used but not kept.", stacklevel=3)

    def certificates(self) -> list[Certificate]:
        """Certificates that are in use."""
        with _torch.tracing():
            self._renewed()
            return [c for forms in self._known.values() if forms is not None for c in forms.certificates]

    def dtypes(self) -> list[str]:
        """Names of the dtypes for which there are forms, of those that were called so far."""
        with _torch.tracing():
            self._renewed()
            return [str(dtype).removeprefix("torch.") for dtype, forms in self._known.items() if forms is not None]

    def beside(self) -> Path | None:
        """File of certificates beside the formula's module; `None` if it has no file."""
        return certificate.path_beside_function(self._formula)

    def _of(self, dtype: torch.dtype) -> Forms | None:
        captures, known = self._captures, self._known  # in this order: another thread renews the forms first
        if captures is not None and dtype in known and captures.unchanged():
            return known[dtype]
        complaints: list[str] = []
        with _torch.tracing():
            captures = self._renewed()
            if dtype not in self._known:
                # a formula with an obstacle may compute something else at the next call
                forms = None if captures.obstacle or dtype not in DTYPES else self._look_up(dtype, complaints)
                self._known = {**self._known, dtype: forms}
            forms = self._known[dtype]
        for complaint in complaints:
            warnings.warn(complaint, stacklevel=2)
        return forms

    def _renewed(self) -> Captures:
        """Captures of the formula; if they have changed, drop its forms first."""
        if self._captures is None or not self._captures.unchanged():
            self._known = {}
            self._captures = captures_of(self._formula)
        return self._captures

    def _look_up(self, dtype: torch.dtype, complaints: list[str]) -> Forms | None:
        """Find the certificate for a dtype; without one, make forms by rules."""
        try:
            sources = [
                path for path in (self.beside(), certificate.cache_folder()) if path is not None and _holds(path)
            ]
        except (OSError, RuntimeError):  # a folder that we may not enter, no home
            sources = []
        found: Forms | None = _torch.apart(lambda: self._found(dtype, sources, complaints))
        return found

    def _found(self, dtype: torch.dtype, sources: Sequence[Path], complaints: list[str]) -> Forms | None:
        captures = self._renewed()

        def find(formula: Callable[..., Any], meaning: Meaning) -> Forms | None:
            key, written = key_of(meaning, dtype), self._written(formula, captures)
            for source in sources:
                path = certificate.cache_path(key) if source.is_dir() else source
                try:
                    for found in certificate.load(path, key):
                        return forms_of_certificate(found, meaning, written)
                except (ValueError, OSError, PullbackError) as error:  # the file may be anybody's
                    complaints.append(f"stable forms are not used: {error}. Renew {path} with `pullback stabilise`.")
            if formula is not self._formula:  # the parts of a formula are not tried: its first call would wait for each
                return None
            quick = quick_forms(formula, meaning, dtype)
            if quick is None:
                return forms_of_filled_holes(formula, meaning, dtype, written)
            return forms_of_rules(quick, formula, meaning, dtype, written)

        with without_side_effects():
            # a formula is cut into parts, which takes a while, only for certificates of them
            return find_forms(self._formula, dtype, find, parts=bool(sources))

    def _written(self, formula: Callable[..., Any], captures: Captures) -> Callable[..., Tensor]:
        return while_current(formula, captures, getattr(self._formula, "__name__", "the formula"))


def _dtype_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    """Dtype of a call's arguments, if all are tensors that stable forms are made for."""
    if kwargs or not args or not isinstance(args[0], Tensor):
        return None
    dtype = args[0].dtype
    for a in args:
        if not isinstance(a, Tensor) or a.dtype != dtype or a.device.type != DEVICE or not is_plain_tensor(a):
            return None
    if dtype.itemsize == 2 and torch.is_autocast_enabled(DEVICE):  # it widens the results of some ops
        return None
    return dtype


def _order(args: Sequence[Tensor]) -> int:
    """Number of derivative orders to carry in a call; 0 for the formula as written, which has all.

    A graph may be differentiated any number of times. So may a call that autograd records below transforms, where each
    order makes every call slower: two are carried.
    """
    known, is_recorded = _torch.differentiation_depth(), _torch.in_proxy_tracing()
    if not is_recorded and not any(_torch.unwrapped(x).requires_grad for x in args):
        return max(1, known) if known <= MAX_ORDER else 0
    if known > MAX_ORDER - 2:
        return 0
    return known + 2 if known and not is_recorded else MAX_ORDER


def _holds(source: Path) -> bool:
    """Whether there is a file of certificates, or a folder with some."""
    try:
        return any(source.iterdir()) if source.is_dir() else source.exists()
    except PermissionError:  # the folder is not listable, but its files may be readable
        return True
