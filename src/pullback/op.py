"""`pullback.function`: an op from a formula, a formula and its relaxation, or a formula and a rule."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import fx

from pullback import _torch, dispatch, introspect, settings
from pullback.call import Call
from pullback.derived import Derived
from pullback.errors import OptionError
from pullback.kernels.backend import Backend, checked, compiled, is_compiled
from pullback.plan import ChunkPlan, InlinePlan, Save
from pullback.plans import Plans
from pullback.relaxed import Relaxed, require_compatible_arguments
from pullback.ruled.functions import Ruled
from pullback.ruled.rule import DerivativeRule
from pullback.stable.lookup import StableForms

if TYPE_CHECKING:
    from pullback.stable.certificate import Certificate
    from pullback.stable.search.search import Wide


class Op:
    """A differentiable function made by `pullback.function`.

    It is called like the function it was made from. In plain eager mode it runs graphs of its value and
    gradient inside one autograd node. Under every transform, tracer and mode it is PyTorch's ops: those of the
    formula, or of its stable forms. An op with a rule keeps its rule, or raises.
    """

    _is_pullback_op = True

    def __init__(
        self,
        formula: Callable[..., Any],
        relaxation: Callable[..., Any] | None = None,
        residuals: bool = False,
        stable: bool = True,
        backend: Backend | None = None,
        chunk: int | Literal["auto"] | None = None,
        save: Save | None = None,
        name: str = "",
    ) -> None:
        functools.update_wrapper(self, formula)
        self.__name__: str = name or getattr(formula, "__name__", type(formula).__name__)
        self.__qualname__: str = getattr(formula, "__qualname__", self.__name__)
        self._formula, self._relaxation = formula, relaxation
        self._residuals, self._backend, self._chunk, self._save = residuals, backend, chunk, save
        self._wants_stable = stable
        self._signatures: tuple[Any, inspect.Signature] = (_defaults_of(formula), _signature_of(formula))
        self._method: Any = plain_method(self)
        self._handler: Derived | Ruled
        if residuals:
            self._handler = Ruled(self._new_rule(), self._bind)
        elif relaxation is not None:
            self._handler = Relaxed(self.__name__, formula, relaxation, backend, save, exact_gradient=not stable)
        else:
            self._handler = Derived(self.__name__, formula, stable, backend, chunk, save)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the formula."""
        return dispatch.call(self, self._handler, args, kwargs)

    @property
    def kind(self) -> str:
        """The source of its derivative: "derived", "relaxed" or "ruled"."""
        if isinstance(self._handler, Ruled):
            return "ruled"
        return "derived" if self._relaxation is None else "relaxed"

    @property
    def _rule(self) -> DerivativeRule | None:
        """The rule of its derivative, if one was given."""
        handler = self._handler
        return handler.rule if isinstance(handler, Ruled) and handler.rule.is_given else None

    @property
    def _plans(self) -> Plans | None:
        """The plans of its calls; `None` with a rule."""
        return None if isinstance(self._handler, Ruled) else self._handler.plans

    @property
    def _stable(self) -> StableForms | None:
        """The stable forms of its formula; `None` where its calls have none."""
        return None if isinstance(self._handler, Ruled) else self._handler.stable

    @property
    def _signature(self) -> inspect.Signature:
        """The formula's signature; its defaults may be replaced."""
        defaults = _defaults_of(self._formula)
        if self._signatures[0] is not defaults:
            self._signatures = (defaults, _signature_of(self._formula))
        return self._signatures[1]

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        """Assign the arguments of a call to parameters, defaults included."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound

    @property
    def relaxation(self) -> Callable[..., Any] | None:
        """The function whose derivatives are a relaxed op's; `None` for other ops."""
        return self._relaxation

    @property
    def linear(self) -> bool | None:
        """Whether the vjp of a ruled op is linear in the cotangent; `None` if the user did not declare it."""
        rule = self._rule
        return None if rule is None else rule.linear

    @overload
    def vjp(self, rule: Callable[..., Any], /) -> Op: ...

    @overload
    def vjp(self, rule: None = None, /, *, linear: bool | None = None) -> Callable[[Callable[..., Any]], Op]: ...

    def vjp(self, rule: Callable[..., Any] | None = None, /, *, linear: bool | None = None) -> Any:
        """Give the derivative as a vjp: `(g, out, *inputs)` to the gradients of the inputs.

        `g` has the structure of `out`; the rule returns one gradient for each input, `None` for those that have none.
        With `residuals=True` it takes `(g, out, saved, *inputs)`. A keyword-only parameter `needs` receives which
        inputs need a gradient. A vjp that was given before is replaced.

        Forward mode follows by transposition if the rule is linear in `g`. That is read from its graph, and tried in
        numbers. With `linear=True` it is taken for granted; what autograd does not see of the rule is still refused.

        Raises:
            OptionError: if the rule takes other arguments, or `linear` is not True, False or None.
        """
        if linear is not None and not isinstance(linear, bool):
            raise OptionError(f"linear is True, False or None, not {linear!r}.")
        if rule is None:
            return functools.partial(self.vjp, linear=linear)
        self._handler = Ruled(self._rule_to_extend().with_vjp(rule, linear), self._bind)
        return self

    @overload
    def jvp(self, rule: Callable[..., Any], /) -> Op: ...

    @overload
    def jvp(self, rule: None = None, /, *, linear: bool | None = None) -> Callable[[Callable[..., Any]], Op]: ...

    def jvp(self, rule: Callable[..., Any] | None = None, /, *, linear: bool | None = None) -> Any:
        """Give the derivative as a jvp: `(tangents, out, *inputs)` to the tangent of `out`.

        `tangents` holds one for each input: `None` for a number, zeros or `None` for a tensor that does not move. With
        `residuals=True` the rule takes `(tangents, out, saved, *inputs)`. A jvp that was given before is replaced.

        Reverse mode follows by transposition if the rule is linear in the tangents: read from its graph and tried in
        numbers, or taken for granted with `linear=True`.

        Raises:
            OptionError: if the rule takes other arguments, or `linear` is neither `True` nor `None`.
        """
        if linear is not None and linear is not True:
            raise OptionError(f"linear is True or None, not {linear!r}: a derivative is linear in its tangents.")
        if rule is None:
            return functools.partial(self.jvp, linear=linear)
        self._handler = Ruled(self._rule_to_extend().with_jvp(rule, linear), self._bind)
        return self

    def graph(self, *args: Any, order: int = 0, **kwargs: Any) -> fx.GraphModule:
        """Return the graph of ATen ops of the value (order 0), of the vjp (1), of the vjp of that (2), and so on.

        Order n takes the tensors of order n − 1 and one cotangent for each of its results, and returns a gradient
        for each of its tensors. The arguments are an example; without any, those of the first call.

        Raises:
            OptionError: if there is no example, or the op has a rule and `order` is not 0.
        """
        args, kwargs = self._example(args, kwargs)
        if order and self.kind == "ruled":
            raise OptionError(f"the derivative of {self.__name__} is a rule; it has a graph for its value alone.")
        if order < 0:
            raise OptionError(f"an order is 0 or more, not {order}.")
        return introspect.trace(self._formula if order == 0 else self._relaxation or self._formula, args, kwargs, order)

    def stabilise(
        self,
        dtype: torch.dtype = torch.float32,
        wide: Wide = "where-needed",
        domain: Mapping[str, tuple[float, float]] | None = None,
    ) -> list[Certificate]:
        """Search for forms of the value, gradient and second derivatives that are accurate over the whole range.

        They are used from then on, and kept in the user's cache. It takes seconds to a minute. A formula that is not
        pointwise is cut at its reductions, matrix products and views, and forms are searched for its pointwise parts.

        Args:
            dtype: dtype of the inputs: float32, bfloat16 or float16.
            wide: whether a form may compute in float64: "never", "where-needed" or "always".
            domain: bounds of inputs by name; all finite numbers where the formula has a value, without.

        Returns:
            The certificates, one or one for each part that has better forms: these, and their measured errors.

        Raises:
            FormulaError: if nothing was found: no form is better, the ops are not known, or the formula is not
                pointwise and has no parts that can be separated (it writes in place, decides by shapes, …).
            OptionError: if the op is not derived, was made with `stable=False`, or does not have a variable of the
                domain.
            RunnerError: if python-flint is not installed.
        """
        from pullback.stable.oracle.balls import ball_type

        ball_type()  # python-flint is an extra
        from pullback.stable.search.certify import certify_parts

        plans, stable = self._plans, self._stable
        if plans is None or stable is None:
            given = {"ruled": "a rule", "relaxed": "derivative_of="}.get(self.kind)
            why = "it was made with stable=False" if given is None else f"its derivative is given, by {given}"
            raise OptionError(f"{self.__name__} has no stable forms: {why}. They are for formulas alone.")
        found, _ = certify_parts(self, dtype, wide, domain)
        stable.use(*found)
        stable.keep(*found)
        plans.forget()
        return found

    def _lowering(self) -> Callable[..., Any] | None:
        """Return the function that lowers for this op's kernels; `None` if these are PyTorch's."""
        backend = self._backend or settings.backend()
        return functools.partial(compiled, name=backend) if is_compiled(backend) else None

    def compile(self, *args: Any, **kwargs: Any) -> Op:
        """Make the kernels for calls like this one ahead of time, with and without a gradient.

        The arguments are an example; their values are not read. Kernels are kept on disk, so that a later process
        loads them.

        Returns:
            The op itself.

        Raises:
            OptionError: if there is no example, or calls like it run without graphs; the message says why.
            RunnerError: if the backend is "native" and cannot compile.
        """
        args, kwargs = self._example(args, kwargs)
        plans = self._plans
        if plans is None:
            raise OptionError(f"{self.__name__} has a rule: it runs as it is written, there is nothing to compile.")
        live = Call(args, kwargs, grad=True).requiring_grad()
        plan = plans.of(live, True)
        if isinstance(plan, InlinePlan) and any(x.requires_grad for x in live.tensors):
            raise OptionError(f"{self.__name__} runs op by op, since {plan.why}.")
        plans.of(Call(args, kwargs, grad=False), False)
        plans.wait_for_node(plan)
        return self

    @property
    def is_stable(self) -> bool:
        """Whether it uses stable forms where its formula has some."""
        return self._stable is not None

    @property
    def certificates(self) -> list[Certificate]:
        """The certificates in use, one for each dtype that has one."""
        stable = self._stable
        return [] if stable is None else stable.certificates()

    def saved(self, *args: Any, **kwargs: Any) -> list[introspect.Saved]:
        """Return the tensors that a call saves for its backward, and which of them the caller holds anyway."""
        args, kwargs = self._example(args, kwargs)
        return introspect.saved_by(self, args, kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Return one page: formula, derivative, what is saved, kinks, domain, and how a call like this runs."""
        args, kwargs = self._example(args, kwargs)
        plans, stable = self._plans, self._stable
        how = "with its rule" if plans is None else _how(plans, args, kwargs)
        forms = None if stable is None else stable.forms(args, kwargs)
        return introspect.page(self, args, kwargs, how, forms)

    def _example(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args or kwargs:
            return args, kwargs
        plans = self._plans
        if plans is None or plans.example is None:
            raise OptionError(f"{self.__name__} has not been called yet: give example inputs.")
        return plans.example()

    def _rule_to_extend(self) -> DerivativeRule:
        if self._relaxation is not None:
            raise OptionError(f"{self.__name__} has its derivative from derivative_of; it cannot have a rule as well.")
        if self._chunk is not None:
            raise OptionError(f"{self.__name__} has chunk=, which is for the derivative of its formula, not for rules.")
        return self._handler.rule if isinstance(self._handler, Ruled) else self._new_rule()

    def _new_rule(self) -> DerivativeRule:
        return DerivativeRule(self.__name__, self._formula, tuple(self._signature.parameters), self._residuals)

    def __set_name__(self, owner: type, name: str) -> None:
        if name == "forward" and issubclass(owner, torch.nn.Module):  # of a module's class torch.fx takes nothing else
            setattr(owner, name, self._method)

    @_torch.skip_in_dynamo
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        return MethodType(self._method, instance) if dispatch.world().is_compiling else BoundOp(self, instance)

    def __repr__(self) -> str:
        chunks = "" if self._chunk is None else f", chunk={self._chunk!r}"
        return f"<pullback.function {self.__qualname__}{self._signature}: {self.kind}{chunks}>"

    def _repr_html_(self) -> str:
        rule, stable = self._rule, self._stable
        rules = [] if rule is None else [name for name in ("vjp", "jvp") if getattr(rule, name) is not None]
        relaxation = getattr(self._relaxation, "__qualname__", type(self._relaxation).__name__)
        dtypes = None if stable is None else stable.dtypes()
        title = f"{self.__qualname__}{self._signature}"
        return introspect.card(title, self.kind, self._backend or settings.backend(), rules, relaxation, dtypes)

    def __reduce__(self) -> str:
        return self.__qualname__  # a global, like a function: pickled and copied by name

    def __deepcopy__(self, memo: Any) -> Op:
        return self

    def by_value(self) -> tuple[Callable[..., Op], tuple[Any, ...]]:
        """Return a callable and its arguments that make this op again, where no import leads to it."""
        rule, backend = self._rule, self._backend or settings.backend()
        options = self._relaxation, self._residuals, self._wants_stable, backend, self._chunk, self._save, self.__name__
        rules = None if rule is None else (rule.vjp, rule.linear, rule.jvp, rule.jvp_linear)
        return _remade, (self._formula, options, rules)


def _remade(formula: Callable[..., Any], options: tuple[Any, ...], rules: tuple[Any, ...] | None) -> Op:
    """Make an op from the fields of `Op.by_value`."""
    op = Op(formula, *options)
    vjp, linear, jvp, jvp_linear = rules or (None,) * 4
    if vjp is not None:
        op.vjp(vjp, linear=linear)
    if jvp is not None:
        op.jvp(jvp, linear=jvp_linear)
    return op


def _defaults_of(formula: Callable[..., Any]) -> Any:
    return getattr(formula, "__defaults__", None)


def _signature_of(formula: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(formula)
    except ValueError:  # a built-in function such as `torch.exp` has no signature
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return inspect.Signature([inspect.Parameter(n, k) for n, k in zip(("args", "kwargs"), kinds, strict=True)])


def _how(plans: Plans, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return how a call like this runs, in words."""
    plan = plans.of(Call(args, kwargs, grad=True).requiring_grad(), True)
    if isinstance(plan, ChunkPlan):
        return f"by chunks of {plan.size} of {plan.rows} rows, the gradient with the value, inside one autograd node"
    if isinstance(plan, InlinePlan):
        return f"op by op, since {plan.why}"
    return "as graphs of its value and gradient, inside one autograd node"


_INTROSPECTION = ("explain", "saved", "graph")


class BoundOp:
    """An op with the object whose method it is."""

    def __init__(self, op: Op, instance: Any) -> None:
        self.__self__, self.__func__, self.__wrapped__ = instance, op, op._formula
        self.__name__, self.__qualname__, self.__doc__ = op.__name__, op.__qualname__, op.__doc__

    @property
    def __signature__(self) -> inspect.Signature:
        signature = self.__func__._signature
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the formula."""
        return self.__func__(self.__self__, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the op; introspection methods get the object as their first argument."""
        if name.startswith("__"):  # `__deepcopy__` of the op does not copy the method
            raise AttributeError(name)
        value = getattr(self.__func__, name)
        return functools.partial(value, self.__self__) if name in _INTROSPECTION else value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BoundOp):
            return NotImplemented
        return self.__self__ is other.__self__ and self.__func__ is other.__func__

    def __hash__(self) -> int:
        return hash((id(self.__self__), id(self.__func__)))

    def __reduce__(self) -> Any:
        return getattr, (self.__self__, self.__name__)

    def __repr__(self) -> str:
        return f"<bound {self.__func__!r} of {type(self.__self__).__name__}>"


def plain_method(op: Op) -> Callable[..., Any]:
    """Return a plain function that calls an op, for those who look into methods: Dynamo, export, torch.fx."""

    def method(instance: Any, *args: Any, **kwargs: Any) -> Any:
        return op(instance, *args, **kwargs)

    functools.update_wrapper(method, op._formula)
    for name in ("vjp", "jvp", *_INTROSPECTION):
        setattr(method, name, getattr(op, name))
    return method


@overload
def function(formula: Callable[..., Any], /) -> Op: ...


@overload
def function(
    *,
    derivative_of: Callable[..., Any] | None = None,
    residuals: bool = False,
    stable: bool = True,
    backend: Backend | None = None,
    chunk: int | Literal["auto"] | None = None,
    save: Save | None = None,
) -> Callable[[Callable[..., Any]], Op]: ...


def function(
    formula: Callable[..., Any] | None = None,
    /,
    *,
    derivative_of: Callable[..., Any] | None = None,
    residuals: bool = False,
    stable: bool = True,
    backend: Backend | None = None,
    chunk: int | Literal["auto"] | None = None,
    save: Save | None = None,
) -> Any:
    """Make a differentiable op of a formula in torch ops.

    Args:
        formula: takes tensors, plain values and containers of tensors; returns a tensor or a tuple, list or
            dict of tensors. A method works too. It must not write to its inputs nor decide by their values.
        derivative_of: a relaxation: the op has the value of `formula` and every derivative of this function,
            which takes the same arguments and returns the same structure, shapes and dtypes.
        residuals: the formula returns `(out, saved)`, and the rules given with `@op.vjp` and `@op.jvp` receive `saved`.
        stable: a derived op uses the certificate of its formula, if there is one (`Op.stabilise`), otherwise a
            few safe rewrite rules, if they improve it; `False` gives the formula as written, bit for bit.
        backend: whose kernels run it in plain eager mode; by default what `pullback.set_backend` says. The value of a
            relaxed op, and everything of an op with `stable=False`, is PyTorch's bit for bit, except with "native".
        chunk: of a loss that is a sum or mean over rows (the first dimension of its first tensor), how many of them are
            computed at a time, with their gradient, in plain eager mode; "auto" lets no value of a chunk take more than
            16 MiB. A formula that mixes rows is a `FormulaError` at the first call.
        save: what a derived or relaxed op keeps for its backward in plain eager mode: "min" as few bytes as cheap ops
            can compute the rest from, "fast" all that the backward would compute again. By default "min" with compiled
            kernels, which compute the rest on the way, and "fast" with PyTorch's.

    Returns:
        An `Op`, called like the formula.

    Raises:
        OptionError: if what is decorated or `derivative_of` is not callable, there is no such backend, the two do
            not take the same number of arguments, `derivative_of` is given with `residuals`, `chunk` is given with
            either, or `save`, `residuals` or `stable` has no such value.
    """
    if chunk is not None and (derivative_of is not None or residuals):
        raise OptionError("chunk is for losses whose derivative is that of the formula.")
    if chunk is not None and chunk != "auto" and (type(chunk) is not int or chunk < 1):
        raise OptionError(f'chunk is a number of rows, 1 or more, or "auto", not {chunk!r}.')
    if save not in (None, "min", "fast"):
        raise OptionError(f'save is "min" or "fast", not {save!r}.')
    for name, flag in (("residuals", residuals), ("stable", stable)):
        if not isinstance(flag, bool):
            raise OptionError(f"{name} is True or False, not {flag!r}.")
    if derivative_of is not None and residuals:
        raise OptionError("residuals=True is for ops with a rule; derivative_of gives the derivative already.")
    if derivative_of is not None and not callable(derivative_of):
        raise OptionError(f"derivative_of is {derivative_of!r}: it has to be a function of the op's arguments.")

    def make(target: Callable[..., Any]) -> Op:
        if isinstance(target, staticmethod | classmethod):
            kind = type(target).__name__
            raise OptionError(f"@{kind} stands above @pullback.function, not below it.")
        if isinstance(target, type | torch.nn.Module) or not callable(target):
            what = (
                f"the class {target.__name__}"
                if isinstance(target, type)
                else f"an object of class {type(target).__name__}"
            )
            raise OptionError(
                f"pullback.function takes a function, not {what}. For a class with forward and backward there is "
                "pullback.AutogradFunction as its base; of a module decorate the method."
            )
        if derivative_of is not None:
            require_compatible_arguments(target, derivative_of)
        return Op(target, derivative_of, residuals, stable, None if backend is None else checked(backend), chunk, save)

    return make if formula is None else make(formula)
