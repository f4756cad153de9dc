"""Rules about lifetime and aliasing of saved tensors."""

import gc

import pytest
import torch

import pullback

from ..making import normal


def found(rule, target, *inputs):
    return [(f.severity, f.message) for f in pullback.check(target, *(inputs or (normal(4),)), select=rule).findings]


def square(save, load=lambda ctx: ctx.saved_tensors[0]):
    """Return a Function x² that saves x by `save(ctx, x)` and reads it by `load(ctx)`."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            save(ctx, x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g * load(ctx)

    return Square


def test_204_tensors_of_the_last_call_may_stay():
    last = []

    def save(ctx, x):
        ctx.save_for_backward(x)
        last[:] = [x]

    assert found("PB204", square(save)) == []


def test_204_leak_is_an_error():
    every = []

    def save(ctx, x):
        ctx.save_for_backward(x)
        every.append(x)

    ((severity, message),) = found("PB204", square(save))
    assert severity == "error"
    assert message.endswith("what the call held stays for good: 32 bytes a call")


def test_204_cycle_made_in_the_backward_is_a_warning():
    def load(ctx):
        ctx.again = [ctx]
        return ctx.saved_tensors[0]

    ((severity, message),) = found("PB204", square(lambda ctx, x: ctx.save_for_backward(x), load))
    assert severity == "warning"
    assert message.startswith("after forward and backward")
    assert gc.isenabled()


def test_205_tensor_used_only_by_the_second_derivative_is_used():
    class Slope(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, slope):
            ctx.save_for_backward(x)
            return slope.clone()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return -g * x.sin(), None

    class Sin(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, x.cos())
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            x, slope = ctx.saved_tensors
            return g * Slope.apply(x, slope)

    assert found("PB205", Sin) == []


def test_205_tensor_used_only_in_a_comparison_is_used():
    class Threshold(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, x > -50, x + 1)
            return x.clamp(min=-50)

        @staticmethod
        def backward(ctx, g):
            x, above, _ = ctx.saved_tensors
            return torch.where(x < -900, 0, g * above)

    ((severity, message),) = found("PB205", Threshold)
    assert (severity, "tensor 2 (computed), of 32 bytes" in message) == ("warning", True)


@pytest.mark.parametrize(("is_weighed", "severity"), [(True, "warning"), (False, "info")])
def test_205_several_unused_tensors_are_one_finding(is_weighed, severity):
    class Weighed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(w, x.sin(), x.exp())
            return x * w

        @staticmethod
        def backward(ctx, g):
            w, _, _ = ctx.saved_tensors
            return g * w, None

    w = normal(4).requires_grad_(is_weighed)
    ((told, message),) = found("PB205", Weighed, normal(4).requires_grad_(), w)
    assert (told, "2 tensors (computed), of 64 bytes" in message) == (severity, True)


def test_206_state_popped_by_the_backward_is_a_warning():
    def save(ctx, x):
        ctx.kept = [x]

    ((severity, message),) = found("PB206", square(save, lambda ctx: ctx.kept.pop()))
    assert severity == "warning"
    assert "pop from empty list" in message


def test_206_nondeterministic_backward_is_undecided():
    calls = []

    def load(ctx):
        calls.append(1)
        return ctx.saved_tensors[0] * len(calls)

    undecided = "could not be decided: two runs from the same random state differ"
    assert found("PB206", square(lambda ctx, x: ctx.save_for_backward(x), load)) == [("warning", undecided)]


def test_207_alias_that_autograd_tracks_is_an_info():
    class Columns(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.mT

        @staticmethod
        def backward(ctx, g):
            return g.mT

    assert [severity for severity, _ in found("PB207", Columns, normal(2, 3))] == ["info"]


def test_207_alias_marked_non_differentiable_is_a_warning():
    class WithInput(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            same = x.detach()
            ctx.mark_non_differentiable(same)
            ctx.save_for_backward(x)
            return x * x, same

        @staticmethod
        def backward(ctx, g, _):
            (x,) = ctx.saved_tensors
            return 2 * g * x

    ((severity, message),) = found("PB207", WithInput)
    assert severity == "warning"
    assert message.startswith("output 1 is in the memory of x")


def test_208_single_flat_output_is_not_reported():
    class Sign(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sign()

        @staticmethod
        def backward(ctx, g):
            return torch.ones_like(g)

    assert found("PB208", Sign) == []


def test_209_integer_input_is_a_warning():
    class Pick(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, index):
            ctx.index, ctx.shape = index, x.shape
            return x[index]

        @staticmethod
        def backward(ctx, g):
            return g.new_zeros(ctx.shape).index_put((ctx.index,), g, accumulate=True), None

    ((severity, message),) = found("PB209", Pick, normal(4).requires_grad_(), torch.tensor([3, 1, 1]))
    assert severity == "warning"
    assert message.startswith("after an in-place change of index")


def test_209_error_precedes_a_warning():
    class Pick(torch.autograd.Function):
        @staticmethod
        def forward(ctx, index, x):
            ctx.index, ctx.x = index, x
            return x[index] ** 2

        @staticmethod
        def backward(ctx, g):
            g = 2 * g * ctx.x[ctx.index]
            return None, torch.zeros_like(ctx.x).index_put((ctx.index,), g, accumulate=True)

    ((severity, message),) = found("PB209", Pick, torch.tensor([3, 1, 1]), normal(4).requires_grad_())
    assert severity == "error"
    assert message.startswith("after an in-place change of x")


def test_209_sparse_input_is_an_error():
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, x):
            ctx.a = a
            return a @ x

        @staticmethod
        def backward(ctx, g):
            return None, ctx.a.t() @ g

    a = torch.eye(3, dtype=torch.float64).to_sparse()
    ((severity, message),) = found("PB209", Product, a, normal(3, 2).requires_grad_())
    assert severity == "error"
    assert message.startswith("after an in-place change of a")


def test_209_copy_may_be_saved():
    assert found("PB209", square(lambda ctx, x: ctx.save_for_backward(x.clone()))) == []


class Rated(torch.autograd.Function):
    """Keeps its rate, which it takes for a tensor without a gradient."""

    @staticmethod
    def forward(ctx, x, rate):
        ctx.rate = rate
        return x * rate.clamp(min=0.5)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.rate.clamp(min=0.5), None


def test_209_guessed_input_without_gradient_is_a_warning():
    ((severity, _),) = found("PB209", Rated, normal(4).requires_grad_(), normal(4, seed=1))
    assert severity == "error"
    guessed = pullback.check(Rated, select="PB209").findings
    assert [f.severity for f in guessed] == ["warning"]


def test_210_leaf_made_in_the_backward_may_be_used():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            leaf = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                (leaf * leaf).backward(g)
            return leaf.grad

    assert found("PB210", Square) == []


class RunsAgain(torch.autograd.Function):
    """A module's call whose backward runs it again, as a checkpoint does."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.save_for_backward(x)
        ctx.module = module
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(ctx.module(x), x, g)[0], None


def test_209_weights_read_again_by_the_backward_are_a_warning():
    module = torch.nn.Linear(3, 3).double()
    before = module.weight.detach().clone()
    for call in ((RunsAgain, normal(2, 3), module), (lambda x: RunsAgain.apply(x, module), normal(2, 3))):
        ((severity, message),) = found("PB209", *call)
        assert severity == "warning"
        assert "weight, as by a step of an optimiser, which raises nothing, the gradient of x" in message
    assert torch.equal(module.weight, before)
    assert found("PB209", module, normal(2, 3)) == []


def numpys(ctx):
    return torch.from_numpy(ctx.saved_tensors[0].numpy())


def refuses_twice(ctx):
    if torch.is_grad_enabled():
        raise RuntimeError("only once")
    return ctx.saved_tensors[0]


def stumbles_twice(ctx):
    return [ctx.saved_tensors[0]][int(torch.is_grad_enabled())]


@pytest.mark.parametrize(
    ("load", "severity"), [(numpys, "warning"), (stumbles_twice, "warning"), (refuses_twice, "info")]
)
def test_403_only_an_explicit_refusal_is_an_info(load, severity):
    ((told, _),) = found("PB403", square(lambda ctx, x: ctx.save_for_backward(x), load))
    assert told == severity
