"""The arguments of a call and its cache key."""

import pytest
import torch

import pullback
from pullback.call import Call, key_of
from pullback.errors import FormulaError

NAN = float("nan")


def key(*args, grad=True, **kwargs):
    return Call(args, kwargs, grad).key


def test_equal_calls_have_equal_keys():
    x, y = torch.zeros(2, 3), torch.ones(2, 3)
    assert key(x, 2.0, "mean", None, [x, 1]) == key(y, 2.0, "mean", None, [y, 1])
    assert hash(key(x, dim=1)) == hash(key(y, dim=1))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (1, 1.0),
        (1, True),
        ("1", 1),
        (None, 0),
        (torch.float32, torch.float64),
        ((1, 2), [1, 2]),
        ({"a": 1}, {"b": 1}),
        ([1, 2], [1, [2]]),
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2).t()),
        (torch.zeros(2), torch.zeros(1).expand(2)),
        (torch.zeros(2), torch.zeros(4)[::2]),
        (torch.zeros(2), torch.zeros(2, requires_grad=True)),
        (torch.zeros(2), torch.zeros(2, device="meta")),
        (torch.zeros(2), 0.0),
    ],
    ids=str,
)
def test_calls_that_need_different_graphs_have_different_keys(one, other):
    x = torch.zeros(2)
    assert key(x, one) != key(x, other)
    assert key(x, k=one) != key(x, k=other)


def test_nan_equals_itself_in_a_key():
    assert key(NAN) == key(float("nan"))


def test_requires_grad_is_in_the_key_only_if_grad_is_enabled():
    x, w = torch.zeros(2), torch.zeros(2, requires_grad=True)
    assert key(x, grad=False) == key(w, grad=False)


def test_keyword_and_positional_arguments_differ():
    assert key(torch.zeros(2), 1) != key(torch.zeros(2), dim=1)


def test_parameter_has_the_key_of_a_tensor():
    assert key(torch.nn.Parameter(torch.zeros(2))) == key(torch.zeros(2, requires_grad=True))


class Sub(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "leaf",
    [
        object(),
        {1, 2},
        torch.zeros(2).as_subclass(Sub),
        torch.zeros(2, 2).to_sparse(),
        torch.zeros(2, dtype=torch.complex64).conj(),
        torch.zeros(2, dtype=torch.complex64).conj().imag,
    ],
    ids=["object", "set", "subclass", "sparse", "conjugate", "negative"],
)
def test_unhashable_argument_has_no_key_but_an_obstacle(leaf):
    call = Call((torch.zeros(2), leaf), {}, True)
    assert call.key is None
    assert call.obstacle
    assert key_of((leaf,), True) is None


def test_flat_replaces_the_tensors_of_the_call():
    x, y = torch.zeros(2), torch.ones(2)
    call = Call((x, [y, 3.0]), {"scale": 2}, True)
    structure = []
    flat = call.flat(lambda a, pair, scale: {"r": (a + pair[0] * pair[1]) * scale, "n": scale}, structure)
    assert [t is u for t, u in zip(call.tensors, [x, y], strict=True)] == [True, True]
    result, n = flat(torch.ones(2), 2 * torch.ones(2))
    assert result.tolist() == [14.0, 14.0]
    assert n == 2
    assert torch.utils._pytree.tree_unflatten([result, n], structure[0]).keys() == {"r", "n"}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensor_has_no_key_and_runs_inline(layout):
    x = torch.nested.nested_tensor([torch.ones(1, 2), torch.ones(2, 2)], layout=layout, requires_grad=True)
    call = Call((x,), {}, grad=True)
    assert call.key is None
    assert "NestedTensor" in call.obstacle or "nested tensor" in call.obstacle
    op = pullback.function(lambda t: t * 3)
    (g,) = torch.autograd.grad(sum(part.sum() for part in op(x).unbind()), x)
    assert all((part == 3).all() for part in g.unbind())


def appended(x, xs):
    xs.append(x)
    return x * 2


def popped(x, xs):
    return x * xs.pop()


def cached(x, cache):
    cache["x"] = x
    return x * 2


@pytest.mark.parametrize(("formula", "container"), [(appended, []), (popped, [1.0, 2.0]), (cached, {})])
def test_formula_that_mutates_an_argument_container_raises(formula, container):
    with pytest.raises(FormulaError, match=f"{formula.__name__} changes a list or dict"):
        pullback.function(formula)(torch.ones(2, requires_grad=True), container)
    assert container in ([], [1.0, 2.0], {})


def test_iterator_argument_is_advanced_once_per_call():
    op = pullback.function(lambda x, numbers: x * next(numbers))
    numbers = iter([1.0, 2.0, 3.0])
    assert [op(torch.ones(()), numbers).item() for _ in range(3)] == [1.0, 2.0, 3.0]


def test_attribute_counter_of_self_counts_once_per_call():
    class Counting:
        n = 0

        @pullback.function
        def double(self, x):
            self.n += 1
            return x * 2

    counting = Counting()
    for i in range(3):
        counting.double(torch.ones(2))
        assert counting.n == i + 1


def test_requires_grad_can_be_read_under_no_grad(native):
    def formula(x):
        return x.sin() if x.requires_grad else x.cos()

    op, x = pullback.function(formula), torch.ones(3)
    with torch.no_grad():
        for _ in range(2):
            for y in (x, torch.nn.Parameter(x)):
                assert torch.equal(op(y), formula(y))


def test_requires_grad_can_be_read_after_a_call_without_it(native):
    def formula(x):
        return x.sin() if x.requires_grad else x.cos()

    x = torch.ones(3)
    for off in (torch.no_grad, torch.inference_mode):
        op = pullback.function(formula)
        assert torch.equal(op(x), x.cos())
        with off():
            assert torch.equal(op(torch.nn.Parameter(x)), x.sin())
            assert torch.equal(op(x), x.cos())


def test_captured_list_receives_no_fake_tensors():
    seen = []

    @pullback.function
    def logged(x):
        seen.append(x.sum())
        return x * 2

    for i in range(3):
        logged(torch.ones(2, requires_grad=True))
        assert [s.item() for s in seen] == [2.0] * (i + 1)


def test_local_list_is_traced():
    @pullback.function
    def powers(x):
        made = [x]
        for _ in range(2):
            made.append(made[-1] * x)
        return sum(made)

    x = torch.ones(2, requires_grad=True)
    powers(x)
    assert "as graphs" in powers.explain(x)
