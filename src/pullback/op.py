"""`pullback.function`: an op from a formula, a formula and its relaxation, or a formula and a rule."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor, fx

from pullback import _torch, introspect
from pullback import derived as eager
from pullback.bind.tree import apart
from pullback.call import Call, key_of
from pullback.card import card
from pullback.chunked import call as chunked
from pullback.errors import DerivativeError, OptionError
from pullback.graph.identity import ATOMS
from pullback.kernels.backend import Backend, checked, compiled, is_compiled
from pullback.method import BoundOp, plain_method
from pullback.node import calls as node
from pullback.plan import Functions, Save
from pullback.plans import Plans
from pullback.relaxed import differentiated, relaxed
from pullback.ruled.dynamo import compilable
from pullback.ruled.functions import run
from pullback.ruled.rule import Rule
from pullback.signature import require_same_arguments, require_signature, takes, unread
from pullback.stable.lookup import Stable

if TYPE_CHECKING:
    from pullback.stable.certificate import Certificate
    from pullback.stable.search import Wide


class Op:
    """A differentiable function made by `pullback.function`.

    It is called like the function it was made from. In plain eager mode it runs graphs of its value and
    gradient inside one autograd node; under every transform, tracer and mode it is native ops, those of the formula or
    of its stable forms. An op with a rule keeps its rule, or raises.
    """

    _is_pullback_op = True

    def __init__(
        self,
        formula: Callable[..., Any],
        soft: Callable[..., Any] | None = None,
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
        self._formula = formula
        self._soft = soft
        self._stable = Stable(formula) if stable and soft is None and not residuals else None
        self._native = formula if soft is None else relaxed(formula, soft, self.__name__)
        self._exact = (soft is not None or not stable, not stable)
        self._plans = Plans(self.__name__, self._functions, (formula, soft), backend, chunk=chunk)
        self._signatures: tuple[Any, inspect.Signature] = (_defaults_of(formula), _signature_of(formula))
        self._method: Any = plain_method(self)
        self._rule: Rule | None = None
        self._residuals = residuals
        self._chunk, self._save = chunk, save

    @property
    def kind(self) -> str:
        """How its derivative is given: "derived", "relaxed" or "ruled"."""
        if self._rule is not None or self._residuals:
            return "ruled"
        return "derived" if self._soft is None else "relaxed"

    @property
    def _signature(self) -> inspect.Signature:
        """The formula's signature; its defaults may be replaced."""
        defaults = _defaults_of(self._formula)
        if self._signatures[0] is not defaults:
            self._signatures = (defaults, _signature_of(self._formula))
        return self._signatures[1]

    @property
    def relaxation(self) -> Callable[..., Any] | None:
        """The function whose derivatives are a relaxed op's; `None` for other ops."""
        return self._soft

    @property
    def linear(self) -> bool | None:
        """Whether the vjp of a ruled op is linear in the cotangent; `None` if the user did not declare it."""
        return None if self._rule is None else self._rule.linear

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the formula."""
        if torch.compiler.is_compiling():
            return self._inline(args, kwargs) if self._rule is None else self._call_ruled(args, kwargs)
        if self._rule is not None or self._residuals:
            return self._call_ruled(args, kwargs)
        table = self._plans.table
        if table is not None and not kwargs:
            result = table.call(args)  # it looks at all that is looked at below
            if result is not NotImplemented:
                return result
        return self._call_derived(args, kwargs)

    @_torch.left_alone_by_dynamo  # it calls this where it has met an op that it does not trace
    def _call_derived(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not _torch.is_plain_eager():
            return self._inline(args, kwargs)
        grad = torch.is_grad_enabled()
        key = None if kwargs else key_of(args, grad)
        plan = self._plans.known(key)
        if plan is not None:
            tensors = args if plan.n_tensors == len(args) else _tensors(args)
        else:
            if (proxy := _proxy(args, kwargs)) is not None:
                return self._recorded(proxy.tracer, args, kwargs)
            call = Call(args, kwargs, grad)
            plan, tensors = self._plans.of(call, grad), call.tensors
        if plan.kernels is not None:
            return eager.run(plan.kernels, tensors)
        if plan.value is not None:
            return self._apart(plan.value(tensors), args, kwargs)
        if plan.chunks is not None:
            return chunked.run(plan.chunks, tensors)
        if grad and _require_grad(_torch.tree_leaves((args, kwargs))[0] if kwargs else args):
            return self._inline(args, kwargs)
        return self._apart(self._value(args, kwargs), args, kwargs)

    def _apart(self, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a value that is not differentiated; a relaxed op's outputs get separate memory, as all others have."""
        if self._soft is None:
            return value
        if isinstance(value, Tensor) and not kwargs and _PLAIN.issuperset(map(type, args)):
            return apart([value], _tensors(args))[0]
        leaves, spec = _torch.tree_leaves(value)
        own = iter(apart(_tensors(leaves), _tensors(_torch.tree_leaves((args, kwargs))[0])))
        return _torch.tree_unflatten([next(own) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)

    def _inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the formula in native ops, which every transform differentiates."""
        native = self._stable.native(args, kwargs) if self._stable is not None else None
        if native is None:
            return self._native(*args, **kwargs)
        if torch.compiler.is_dynamo_compiling():
            self._formula(*args)  # for its guards on reads; the result is dropped
        return native(*args)

    def _value(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the formula where nothing is differentiated."""
        forms = self._stable.forms(args, kwargs) if self._stable is not None else None
        return self._formula(*args, **kwargs) if forms is None else forms.value(*args)

    def _functions(self, call: Call) -> Functions:
        forms = self._stable.forms(*call.arguments()) if self._stable is not None else None
        if forms is not None:
            return Functions(forms.value, forms.first, forms.recorded, gradients=forms.gradients, save=self._save)
        if self._soft is None:
            return Functions(self._formula, self._formula, self._formula, self._exact, save=self._save)
        derivative = differentiated(self._formula, self._soft, self.__name__)
        return Functions(self._formula, derivative, derivative, self._exact, save=self._save)

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
        made = self._ruled()
        require_signature(made, "vjp", rule)
        made.vjp, made.linear, made.wants_needs, made.idle = rule, linear, takes(rule, "needs"), unread(rule)
        made.proven = {}  # of the rule before
        self._rule = made
        self._compilable = compilable(made)
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
        made = self._ruled()
        require_signature(made, "jvp", rule)
        made.jvp, made.jvp_linear = rule, linear
        made.proven = {}
        self._rule = made
        if made.vjp is None:
            made.idle = unread(rule)
            self._compilable = compilable(made)
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
        return introspect.trace(self._formula if order == 0 else self._soft or self._formula, args, kwargs, order)

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
            dtype: of the inputs: float32, bfloat16 or float16.
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
        from pullback.stable.precision import ball_type

        ball_type()  # python-flint is an extra
        from pullback.stable.stabilise import certify_parts

        if self._stable is None or not self.is_stable:
            given = {"ruled": "a rule", "relaxed": "derivative_of="}.get(self.kind)
            why = "it was made with stable=False" if given is None else f"its derivative is given, by {given}"
            raise OptionError(f"{self.__name__} has no stable forms: {why}. They are for formulas alone.")
        found, _ = certify_parts(self, dtype, wide, domain)
        self._stable.use(*found)
        self._stable.keep(*found)
        self._plans.forget()
        return found

    def _lowering(self) -> Callable[..., Any] | None:
        """Return the function that lowers for this op's kernels; `None` if these are PyTorch's."""
        backend = self._plans.backend
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
        if self.kind == "ruled":
            raise OptionError(f"{self.__name__} has a rule: it runs as it is written, there is nothing to compile.")
        live = Call(args, kwargs, grad=True).requiring_grad()
        plan = self._plans.of(live, True)
        if plan.kernels is None and plan.chunks is None and any(x.requires_grad for x in live.tensors):
            raise OptionError(f"{self.__name__} runs as it stands, since {plan.why_inline}.")
        self._plans.of(Call(args, kwargs, grad=False), False)
        if node.is_served(plan.kernels):
            node.wait()
        return self

    @property
    def is_stable(self) -> bool:
        """Whether it uses stable forms where its formula has some."""
        return self._stable is not None and self.kind == "derived"

    @property
    def certificates(self) -> list[Certificate]:
        """The certificates in use, one for each dtype that has one."""
        return [] if self._stable is None else self._stable.certificates()

    def saved(self, *args: Any, **kwargs: Any) -> list[introspect.Saved]:
        """Return the tensors that a call saves for its backward, and which of them the caller holds anyway."""
        args, kwargs = self._example(args, kwargs)
        return introspect.saved_by(self, args, kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Return one page: formula, derivative, what is saved, kinks, domain, and how a call like this runs."""
        args, kwargs = self._example(args, kwargs)
        how = "with its rule" if self.kind == "ruled" else self._how(args, kwargs)
        forms = self._stable.forms(args, kwargs) if self._stable is not None else None
        return introspect.page(self, args, kwargs, how, forms)

    def _how(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        call = Call(args, kwargs, grad=True).requiring_grad()
        plan = self._plans.of(call, True)
        if plan.chunks is not None:
            rows, size = plan.chunks.split.rows, plan.chunks.size
            return f"by chunks of {size} of {rows} rows, the gradient with the value, inside one autograd node"
        why = plan.why_inline
        return f"as it stands, since {why}" if why else "as graphs of its value and gradient, inside one autograd node"

    def _example(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args or kwargs:
            return args, kwargs
        if self._plans.example is None:
            raise OptionError(f"{self.__name__} has not been called yet: give example inputs.")
        return self._plans.example()

    def _ruled(self) -> Rule:
        if self._soft is not None:
            raise OptionError(f"{self.__name__} has its derivative from derivative_of; it cannot have a rule as well.")
        if self._chunk is not None:
            raise OptionError(f"{self.__name__} has chunk=, which is for the derivative of its formula, not for rules.")
        return self._rule or Rule(self.__name__, self._formula, tuple(self._signature.parameters), self._residuals)

    def _call_ruled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rule = self._rule
        if rule is None:
            raise DerivativeError(
                f"{self.__name__} has residuals=True, which is for rules: give one by `op.vjp(rule)`, or leave it out."
            )
        if kwargs or len(args) != len(rule.parameters):
            bound = self._signature.bind(*args, **kwargs)
            bound.apply_defaults()
            if bound.kwargs:
                raise DerivativeError(
                    f"{self.__name__} is called with {', '.join(bound.kwargs)} by keyword alone: a rule takes its "
                    "inputs by position. Name them in the signature, without `**`."
                )
            args = bound.args
        if torch.compiler.is_dynamo_compiling():
            return self._compilable(args)
        if (proxy := _proxy(args, {})) is not None:
            return self._recorded(proxy.tracer, args, {})
        return run(rule, args)

    def _recorded(self, tracer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Become a node of the graph that `torch.fx.symbolic_trace` makes; a graph cannot name its own root."""
        if all(a is not tracer.root for a in args):
            return tracer.create_proxy("call_function", self, args, kwargs)
        if self.kind == "derived":
            return self._formula(*args, **kwargs)
        raise DerivativeError(
            f"the derivative given for {self.__name__} would be lost: torch.fx.symbolic_trace cannot record a method "
            "of the module that it traces. To keep it, decorate a function of tensors, or trace a module around this."
        )

    def __set_name__(self, owner: type, name: str) -> None:
        if name == "forward" and issubclass(owner, torch.nn.Module):  # of a module's class torch.fx takes nothing else
            setattr(owner, name, self._method)

    @_torch.left_alone_by_dynamo
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        return MethodType(self._method, instance) if torch.compiler.is_compiling() else BoundOp(self, instance)

    def __repr__(self) -> str:
        chunks = "" if self._chunk is None else f", chunk={self._chunk!r}"
        return f"<pullback.function {self.__qualname__}{self._signature}: {self.kind}{chunks}>"

    def _repr_html_(self) -> str:
        rule, stable = self._rule, self._stable
        rules = [] if rule is None else [name for name in ("vjp", "jvp") if getattr(rule, name) is not None]
        return card(self, self._plans.backend, rules, [] if stable is None else stable.dtypes())

    def __reduce__(self) -> str:
        return self.__qualname__  # a global, like a function: pickled and copied by name

    def __deepcopy__(self, memo: Any) -> Op:
        return self

    def by_value(self) -> tuple[Callable[..., Op], tuple[Any, ...]]:
        """Return a callable and its arguments that make this op again, where no import leads to it."""
        stable, rule = self._stable is not None, self._rule
        options = self._soft, self._residuals, stable, self._plans.backend, self._chunk, self._save, self.__name__
        rules = None if rule is None else (rule.vjp, rule.linear, rule.jvp, rule.jvp_linear)
        return _again, (self._formula, options, rules)


def _again(formula: Callable[..., Any], options: tuple[Any, ...], rules: tuple[Any, ...] | None) -> Op:
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


def _proxy(args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Proxy | None:
    """Return an argument that `torch.fx.symbolic_trace` records by: the op is then a node of its graph."""
    if not kwargs and _PLAIN.issuperset(map(type, args)):  # without opening containers: it runs at each call
        return None
    return next((a for a in _torch.tree_leaves((args, kwargs))[0] if isinstance(a, fx.Proxy)), None)


_PLAIN = ATOMS | {Tensor, torch.nn.Parameter}


def _require_grad(leaves: Sequence[Any]) -> bool:
    """Whether a tensor among some arguments requires grad; containers may hold one."""
    return any(a.requires_grad if isinstance(a, Tensor) else isinstance(a, list | tuple | dict) for a in leaves)


def _tensors(args: Sequence[Any]) -> Sequence[Tensor]:
    return [a for a in args if isinstance(a, Tensor)]


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
        stable: a derived op uses the certificate of its formula, if there is one (`Op.stabilise`), else what a few
            sure rules give, if that is better; `False` gives the formula as written, bit for bit.
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
            require_same_arguments(target, derivative_of)
        return Op(target, derivative_of, residuals, stable, None if backend is None else checked(backend), chunk, save)

    return make if formula is None else make(formula)
