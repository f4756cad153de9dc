"""Ops with the value of one formula and every derivative of another: straight-through estimators and surrogates.

In plain eager mode the value and the derivative have kernels of their own. The composite form is one expression: with
`s = soft(x)` and `d = stop_gradient(s) - s`, which is +0 (or NaN where `s` is not finite),
`hard - where(isnan(d), 0, d)` has the value of `hard` bit for bit and the derivative of `s`, in PyTorch's ops alone, so
every transform supports it.
(`hard + (soft - soft.detach())`, the textbook form, turns −0 into +0, and ±∞ into NaN.)
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from pullback import _torch, dispatch
from pullback.call import Call, described, parameters_of, unaliased
from pullback.derived import Derived
from pullback.dispatch import World
from pullback.dtypes import has_derivative
from pullback.errors import DerivativeError, FormulaError, OptionError
from pullback.guards import stop_gradient
from pullback.nesting import replacing
from pullback.plan import Functions, Save
from pullback.settings import Backend


class Relaxed(Derived):
    """The calls of an op with the value of `hard` and every derivative of `soft`; arguments as of `Derived`."""

    def __init__(
        self,
        name: str,
        hard: Callable[..., Any],
        soft: Callable[..., Any],
        backend: Backend | None,
        save: Save | None = None,
        exact_gradient: bool = False,
    ) -> None:
        super().__init__(name, hard, False, backend, save=save, sources=(hard, soft))
        self._native = relaxed(hard, soft, name)
        self._derivative = _derivative(hard, soft, name)
        self._exact = (True, exact_gradient)

    def transformable(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the composite form."""
        with replacing():
            return self._native(*args, **kwargs)

    compiled = transformable

    def recorded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Refuse: the derivative of the recorded ops would be that of `hard`."""
        raise dispatch.lost_in_symbolic_trace(self.name)

    def owned(self, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return outputs with memory of their own: a write to an input must not reach the value."""
        if isinstance(value, Tensor) and not kwargs and dispatch.PLAIN.issuperset(map(type, args)):
            return unaliased([value], [a for a in args if isinstance(a, Tensor)])[0]
        leaves, spec = _torch.tree_leaves(value)
        inputs = [a for a in _torch.tree_leaves((args, kwargs))[0] if isinstance(a, Tensor)]
        own = iter(unaliased([leaf for leaf in leaves if isinstance(leaf, Tensor)], inputs))
        return _torch.tree_unflatten([next(own) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)

    def functions(self, call: Call) -> Functions:
        """Return the functions that a plan of a call is made of."""
        return Functions(self.formula, self._derivative, self._derivative, self._exact, save=self.save)


def relaxed(hard: Callable[..., Any], soft: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return the function with the value of `hard` and every derivative of `soft`.

    Where the value of `soft` is not finite, its derivative is taken as 0. Integer and bool outputs of `hard`
    have no derivative.

    If both draw random numbers, `soft` gets the draws of `hard`. The generators end in the state after `hard`, as in a
    call without a gradient; one that `hard` does not use, in the state after `soft`.

    Raises:
        DerivativeError: when called, if both draw and the call is traced: a graph cannot replay a generator.
        FormulaError: when called, if the two return different structures, shapes or dtypes.
    """
    return _combined(hard, soft, name, _with_derivative_of)


def _derivative(hard: Callable[..., Any], soft: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a shorter function with the derivatives of `relaxed`, where the value is computed apart."""
    # s − s is NaN exactly where s is not finite, and `masked_fill` has derivative 0 there.
    return _combined(hard, soft, name, lambda h, s: s.masked_fill(torch.isnan(s - s), 0.0))


def _combined(
    hard: Callable[..., Any], soft: Callable[..., Any], name: str, combine: Callable[[Tensor, Tensor], Tensor]
) -> Callable[..., Any]:
    refuse_two_draws = refusal(soft, hard, name)
    names = _keywords(hard, soft)

    @functools.wraps(hard)
    def composite(*args: Any, **kwargs: Any) -> Any:
        by_name = {names.get(key, key): value for key, value in kwargs.items()}
        world = dispatch.world()
        if world is World.SCRIPT:
            raise DerivativeError(
                f"the derivative given for {name} would be lost: torch.jit's passes drop it. To keep it, use "
                "torch.export."
            )
        if world is World.DYNAMO:
            refuse_two_draws()
            relaxation, value = soft(*args, **by_name), _without_grad(hard, args, kwargs)
        else:
            relaxation, value = with_one_draw(
                lambda: soft(*args, **by_name), lambda: _without_grad(hard, args, kwargs), name
            )
        values, spec = _torch.tree_leaves(value)
        relaxations, soft_spec = _torch.tree_leaves(relaxation)
        if spec != soft_spec:
            raise FormulaError(
                f"{name} returns {described(value)} and its relaxation {described(relaxation)}: they must be alike."
            )
        pairs = zip(values, relaxations, strict=True)
        return _torch.tree_unflatten([_value_of(h, s, i, name, combine) for i, (h, s) in enumerate(pairs)], spec)

    return composite


def _without_grad(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch.no_grad():
        return function(*args, **kwargs)


def _value_of(hard: Any, soft: Any, i: int, name: str, combine: Callable[[Tensor, Tensor], Tensor]) -> Any:
    if not isinstance(hard, Tensor):
        return hard
    if hard.is_nested and hard.layout is torch.strided:  # it has no shape to compare
        raise FormulaError(f"{name} was given a nested tensor of strided layout: make it with layout=torch.jagged.")
    if not isinstance(soft, Tensor) or hard.shape != soft.shape or hard.dtype != soft.dtype:
        raise FormulaError(
            f"output {i} of {name} is {_shown(hard)}, that of its relaxation {_shown(soft)}: a relaxation returns what "
            "the function returns, with other derivatives."
        )
    if not has_derivative(hard):
        return hard
    if hard.is_nested:
        return _torch.map_jagged_values(combine, hard, soft)
    if hard.is_complex():
        parts = (torch.view_as_real(t.resolve_conj()) for t in (hard, soft))
        return torch.view_as_complex(combine(*parts))
    return combine(hard, soft)


def _with_derivative_of(hard: Tensor, soft: Tensor) -> Tensor:
    # For finite s, s − s = +0, and h − (+0) = h to the bit: −0 − (+0) = −0, where −0 + (+0) = +0. For s = ±∞ or NaN, d
    # is NaN, and `where` puts a constant there, of derivative 0. Elsewhere d = s₀ − s with s₀ constant: the result is s
    # plus a constant to autograd, and has the derivatives of s of every order.
    d = stop_gradient(soft) - soft
    return stop_gradient(hard) - torch.where(torch.isnan(d), 0.0, d)


def _shown(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"


def require_compatible_arguments(formula: Callable[..., Any], soft: Callable[..., Any]) -> None:
    """Raise an `OptionError` if a relaxation cannot be called as its op may be.

    Where the signature of one is not known, or it takes any number of arguments, anything goes.
    """
    try:
        given, taken = inspect.signature(formula), inspect.signature(soft)
    except ValueError:
        return
    parameters = list(given.parameters.values())
    if any(p.kind in {p.VAR_POSITIONAL, p.VAR_KEYWORD} for p in parameters):
        return
    required = [p for p in parameters if p.default is p.empty]
    for some in (parameters, required):
        try:
            taken.bind(
                *[p.name for p in some if p.kind is not p.KEYWORD_ONLY],
                **{p.name: p.name for p in some if p.kind is p.KEYWORD_ONLY},
            )
        except TypeError as error:
            name = getattr(formula, "__name__", "the formula")
            raise OptionError(
                f"{name} takes {given} and its relaxation {taken}: {error}. A relaxation takes the same arguments."
            ) from None


def _keywords(formula: Callable[..., Any], soft: Callable[..., Any]) -> dict[str, str]:
    """Map the names of an op's parameters to those of its relaxation where these differ."""
    pairs = zip(parameters_of(formula), parameters_of(soft), strict=False)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD,) * 2
    return {a.name: b.name for a, b in pairs if (a.kind, b.kind) == kinds and a.name != b.name}


_NAMES = """
    alpha_dropout bernoulli binomial cauchy dropout dropout1d dropout2d dropout3d exponential
    feature_alpha_dropout feature_dropout fractional_max_pool2d fractional_max_pool2d_with_indices
    fractional_max_pool3d fractional_max_pool3d_with_indices geometric gru gumbel_softmax log_normal lstm
    miopen_rnn multi_head_attention_forward multinomial native_dropout normal pca_lowrank poisson rand rand_like
    randint randint_like randn randn_like random randperm rnn_relu rnn_tanh rrelu rrelu_with_noise
    scaled_dot_product_attention svd_lowrank uniform
"""
RANDOM = frozenset(_NAMES.split())
"""Functions of `torch`, `torch.nn.functional` and tensors that may draw; those in place end in an underscore."""
_RANDOM = RANDOM | {f"{name}_" for name in RANDOM}


def with_one_draw(first: Callable[[], Any], second: Callable[[], Any], name: str) -> tuple[Any, Any]:
    """Call two functions with the same random numbers: the second replays the draws of the first.

    Each generator ends in the state after one evaluation, the second's. A generator that the second does not use keeps
    the state after the first, so that the next call draws other numbers.

    Raises:
        DerivativeError: if both draw and a tracer records them, or the device has no known generator.
    """
    # A relaxation of hard(x, ε) is soft(x, ε) with the same noise ε. With noise of its own, the slope would belong to
    # another sample than the value.
    with _Draws(name) as draws:
        one = first()
    if not draws.states:
        return one, second()
    if _torch.in_proxy_tracing():
        with _Draws(name) as second_draws:
            other = second()
        if second_draws.states:
            raise _recorded(name)
        return one, other
    after = {g: g.get_state() for g in draws.states}
    for g, state in draws.states.items():
        g.set_state(state)
    other = second()
    for g, state in draws.states.items():
        if _same(g.get_state(), state):
            g.set_state(after[g])
    return one, other


def refusal(first: Callable[..., Any], second: Callable[..., Any], name: str) -> Callable[[], None]:
    """Return a check for Dynamo: it raises DerivativeError if two formulas may both draw.

    Dynamo traces no dispatch mode, so the names in the code of the formulas decide. An exception of the traced code
    itself would be a graph break.
    """

    @_torch.assume_constant_result
    def refuse() -> None:
        if may_draw(first) and may_draw(second):
            raise _recorded(name)

    return refuse


def may_draw(function: Any) -> bool:
    """Whether a formula, or a function or module that it reads, names a function that draws."""
    stack, seen = [function], set()
    while stack:
        at = stack.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        if getattr(at, "__name__", "") in _RANDOM:
            return True
        if isinstance(at, torch.nn.Module):
            stack += [type(module).forward for module in at.modules()]
        elif isinstance(at, functools.partial):
            stack += [at.func, *at.args, *at.keywords.values()]
        elif (python := _python_function(at)) is not None:
            names = {name for code in _codes(python.__code__) for name in code.co_names}
            if not _RANDOM.isdisjoint(names):
                return True
            stack += _called(python, names)
    return False


def _python_function(at: Any) -> types.FunctionType | None:
    """Return the function behind a method or a wrapper, if it is written in Python."""
    at = inspect.unwrap(getattr(at, "__func__", at)) if callable(at) else at
    return at if isinstance(at, types.FunctionType) else None


def _called(function: types.FunctionType, names: Iterable[str]) -> list[Any]:
    """Return the functions and modules among a function's globals and closure variables, except PyTorch's own.

    `names` are those of globals, among others.
    """
    read = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    read += [function.__globals__[name] for name in names if name in function.__globals__]
    read += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [x for x in read if isinstance(x, torch.nn.Module) or (callable(x) and not _is_of_torch(x))]


def _is_of_torch(function: Callable[..., Any]) -> bool:
    return (getattr(function, "__module__", "") or "").startswith("torch")


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _recorded(name: str) -> DerivativeError:
    return DerivativeError(
        f"{name} and its relaxation both draw random numbers. In a graph these would differ, since torch.compile, "
        "torch.export and make_fx record no generator's state: the derivative would be that of another draw. Draw "
        "outside and pass the random numbers as an argument, or call the op outside of what is traced."
    )


def _same(state: Tensor, other: Tensor) -> bool:
    with _torch.without_modes():
        return torch.equal(state, other)


def _of_cuda(device: torch.device) -> torch.Generator:
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


_DEFAULT: dict[str, Callable[[torch.device], torch.Generator]] = {
    "cpu": lambda device: torch.default_generator,
    "cuda": _of_cuda,
}
"""Generators of ops that are given none, by the type of device."""


class _Draws(_torch.DispatchMode):
    """Saves the state of each generator before its first draw.

    Attributes:
        states: state of each generator.
    """

    def __init__(self, name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.states: dict[torch.Generator, Tensor] = {}
        self._name = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            generator = kwargs.get("generator")
            if generator is None:
                generator = self._default(_device_of(args, kwargs))
            if generator is not None and generator not in self.states:
                self.states[generator] = generator.get_state()
        return func(*args, **kwargs)

    def _default(self, device: torch.device) -> torch.Generator | None:
        if device.type == "meta":
            return None
        if device.type in _DEFAULT:
            return _DEFAULT[device.type](device)
        raise DerivativeError(
            f"{self._name} draws random numbers on {device}, whose generator cannot be replayed for its relaxation: "
            "draw outside and pass the random numbers as an argument."
        )


def _device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    tensors = [a for a in _torch.tree_leaves((args, kwargs))[0] if isinstance(a, Tensor)]
    return tensors[0].device if tensors else torch.device(kwargs.get("device") or "cpu")
