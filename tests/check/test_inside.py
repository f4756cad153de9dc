"""What a callable calls: the Functions inside of it give intent, and get the rules that are for Functions alone."""

import torch
from torch.autograd import Function

from pullback.check.audit import audit
from pullback.check.case import make_case
from pullback.check.find.discover import subject_of
from pullback.check.package_calls import functions_inside
from pullback.check.subject import Options

from .making import Silent, audit_of, function, normal

Round = function(torch.round, lambda g, x: g)
Negate = function(torch.clone, lambda g, x: -g)
Slip = function(lambda x: x**3, lambda g, x: 2 * g * x**2)
Cube = function(lambda x: x**3, lambda g, x: 3 * g * x**2)


class Behind(Function):
    """Saves its input where autograd does not look at its version."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.data)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]


class GradientReversal(Function):
    """Reverses the gradient."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return -g


def told(call, *args, select=("PB101", "PB209")):
    events = Silent()
    audit(subject_of(call), Options(select=select), [(args, {})], events)
    return [(f.rule, f.severity, f.verdict) for f in events.findings], events.findings


def test_functions_are_found_with_what_they_were_given():
    w = normal(3)
    subject = subject_of(lambda x, y: Round.apply(2 * x) @ Cube.apply(y + w))
    found = functions_inside(subject, make_case((normal(4, 3), normal(3)), {}, ("x", "y")))
    assert [(inner.target, [tuple(t.shape) for t in case.tensors]) for inner, case in found] == [
        (Round, [(4, 3)]),
        (Cube, [(3,)]),
    ]
    assert torch.equal(found[0][1].tensors[0], 2 * normal(4, 3))


def test_nothing_is_inside_of_a_function_or_of_what_calls_none():
    assert functions_inside(subject_of(Round), make_case((normal(3),), {}, ("x",))) == []
    assert functions_inside(subject_of(torch.sin), make_case((normal(3),), {}, ("x",))) == []


def test_a_structure_inside_excuses():
    found, findings = told(lambda x: Negate.apply(x) * normal(3), normal(3))
    assert found == [("PB101", "info", "intended")]
    assert "its forward returns an input unchanged (Custom, which it calls)" in findings[0].message


def test_words_inside_are_a_warning():
    assert told(lambda x: GradientReversal.apply(x).sin(), normal(3))[0] == [("PB101", "warning", "intended")]


def test_intent_of_one_function_excuses_no_slip_in_another():
    assert told(lambda x: Slip.apply(Negate.apply(x)), normal(3))[0] == [("PB101", "error", "wrong")]
    found, findings = told(lambda x: Slip.apply(Round.apply(x)) * normal(3), normal(3))
    assert found == [("PB101", "info", "intended"), ("PB101", "error", "wrong")]
    assert findings[1].message.startswith("in Custom: the gradient of x")


def test_rules_for_functions_alone_are_run_on_them():
    found, findings = told(lambda x: Behind.apply(x) * 3.0, normal(3))
    assert found == [("PB209", "error", "wrong")]
    assert findings[0].message.startswith("in Behind: after an in-place change of x")
    assert told(lambda x: Cube.apply(x) * 3.0, normal(3))[0] == []


def test_an_audit_of_a_small_example_keeps_the_intent():
    state = audit_of(lambda x: Negate.apply(x) * 2.0, normal(3))
    assert state.on(make_case((normal(1),), {}, ("x",))).intent is state.intent is not None


class Own(torch.Tensor):
    """A tensor that refuses most ops."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.isfinite:
            raise NotImplementedError("isfinite is not supported")
        return super().__torch_function__(func, types, args, kwargs or {})


class Wraps(Function):
    """Gives a tensor of a class of its own."""

    @staticmethod
    def forward(ctx, x):
        return (2 * x).as_subclass(Own)

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def test_functions_of_tensors_of_another_class_are_left_alone():
    found = functions_inside(
        subject_of(lambda x: Cube.apply(Wraps.apply(x).as_subclass(torch.Tensor))), make_case((normal(3),), {}, ("x",))
    )
    assert [inner.target for inner, _ in found] == [Cube]


class Handle:
    """Something that serves one call, as a factorisation that is released after its backward does."""

    def __init__(self):
        self.uses = 0

    def use(self):
        self.uses += 1
        if self.uses > 3:
            raise RuntimeError("it was released")


class ByHandle(Function):
    @staticmethod
    def forward(ctx, x, handle):
        handle.use()
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2, None


def test_a_function_whose_arguments_serve_once_is_left_alone():
    found, _ = told(lambda x: ByHandle.apply(x, Handle()), normal(3))
    assert found == []
