"""One draw of random numbers for two formulas: the second meets the states of the generators that the first met.

A generator's state cannot be saved and replayed inside a graph. Where both formulas draw and a tracer records them, the
call is an error.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.errors import DerivativeError

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
    with _Draws(name) as draws:
        one = first()
    if not draws.states:
        return one, second()
    if _torch.is_recorded():
        with _Draws(name) as again:
            other = second()
        if again.states:
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

    @_torch.constant_while_compiling
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
    with _torch.outside_modes():
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
        states: by generator.
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
