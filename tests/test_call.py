"""One call of an op, taken apart."""

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
def test_calls_that_need_other_graphs_have_other_keys(one, other):
    x = torch.zeros(2)
    assert key(x, one) != key(x, other)
    assert key(x, k=one) != key(x, k=other)


def test_nan_is_itself():
    assert key(NAN) == key(float("nan"))


def test_who_requires_grad_matters_only_where_autograd_records():
    x, w = torch.zeros(2), torch.zeros(2, requires_grad=True)
    assert key(x, grad=False) == key(w, grad=False)


def test_a_keyword_is_not_a_position():
    assert key(torch.zeros(2), 1) != key(torch.zeros(2), dim=1)


def test_a_parameter_is_a_tensor():
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
def test_what_cannot_be_compared_has_no_key_and_says_why(leaf):
    call = Call((torch.zeros(2), leaf), {}, True)
    assert call.key is None
    assert call.obstacle
    assert key_of((leaf,), True) is None


def test_flat_puts_other_tensors_in_the_place_of_those_of_the_call():
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
def test_a_nested_tensor_has_no_key_and_the_formula_runs_as_it_stands(layout):
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
def test_a_formula_that_changes_a_container_of_the_callers_is_refused(formula, container):
    with pytest.raises(FormulaError, match=f"{formula.__name__} changes a list or dict"):
        pullback.function(formula)(torch.ones(2, requires_grad=True), container)
    assert container in ([], [1.0, 2.0], {})


def test_an_iterator_gives_each_item_once():
    op = pullback.function(lambda x, numbers: x * next(numbers))
    numbers = iter([1.0, 2.0, 3.0])
    assert [op(torch.ones(()), numbers).item() for _ in range(3)] == [1.0, 2.0, 3.0]


def test_a_counter_of_an_object_counts_once():
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


def test_whether_a_tensor_requires_grad_is_known_where_autograd_is_off(native):
    def formula(x):
        return x.sin() if x.requires_grad else x.cos()

    op, x = pullback.function(formula), torch.ones(3)
    with torch.no_grad():
        for _ in range(2):
            for y in (x, torch.nn.Parameter(x)):
                assert torch.equal(op(y), formula(y))


def test_whether_a_tensor_requires_grad_is_known_after_a_call_in_which_it_does_not(native):
    def formula(x):
        return x.sin() if x.requires_grad else x.cos()

    x = torch.ones(3)
    for off in (torch.no_grad, torch.inference_mode):
        op = pullback.function(formula)
        assert torch.equal(op(x), x.cos())
        with off():
            assert torch.equal(op(torch.nn.Parameter(x)), x.sin())
            assert torch.equal(op(x), x.cos())


def test_a_list_of_the_users_gets_no_tensor_without_values():
    seen = []

    @pullback.function
    def logged(x):
        seen.append(x.sum())
        return x * 2

    for i in range(3):
        logged(torch.ones(2, requires_grad=True))
        assert [s.item() for s in seen] == [2.0] * (i + 1)


def test_a_list_of_the_formulas_own_is_part_of_its_graph():
    @pullback.function
    def powers(x):
        made = [x]
        for _ in range(2):
            made.append(made[-1] * x)
        return sum(made)

    x = torch.ones(2, requires_grad=True)
    powers(x)
    assert "as graphs" in powers.explain(x)
