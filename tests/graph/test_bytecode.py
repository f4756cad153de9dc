"""Names that the bytecode of a function reads, imports and assigns."""

from pullback.graph.bytecode import attributes_in, catches, imports_in, names_in, operators_in, writes_in

scale = 2.0
count = 0


def test_names_in_lists_globals_and_closures_with_attributes():
    bias = [1.0]

    def formula(x):
        return x * scale + bias[0] + scale.real.imag

    assert list(names_in(formula.__code__)) == [["scale"], ["bias"], ["scale", "real", "imag"]]


def test_local_names_are_not_captures():
    def formula(x):
        half = x / 2
        return [(lambda y: y * half * scale)(v) for v in x]

    assert {tuple(chain) for chain in names_in(formula.__code__)} == {("scale",)}


def test_imports_in_includes_inner_functions():
    def formula(x):
        import math

        def inner():
            from json import dumps

            return dumps

        return math, inner, x

    assert list(imports_in(formula.__code__)) == ["math", "json"]


def test_writes_in_lists_global_and_nonlocal_assignments():
    calls = 0

    def counts(x):
        global count
        nonlocal calls
        count, calls = count + 1, calls + 1
        own = 0

        def inner():
            nonlocal own
            own = 1

        inner()
        return x + own

    assert sorted(writes_in(counts.__code__)) == ["calls", "count"]


def test_attributes_in_lists_attributes_of_values_only():
    def formula(x):
        y = x.sum().clamp()
        return [lambda: y.flag, scale.real, (lambda t: t.mT)(x)]

    assert sorted(attributes_in(formula.__code__)) == ["clamp", "flag", "mT", "sum"]


def test_operators_in_lists_the_methods_of_operators():
    assert set(operators_in((lambda x: -x / x).__code__)) == {"__neg__", "__truediv__", "__rtruediv__", "__itruediv__"}
    assert "__getitem__" in operators_in((lambda x: x[0]).__code__)
    assert "__lt__" in operators_in((lambda x: [y < 1 for y in x]).__code__)


def test_with_statement_is_not_an_exception_handler():
    def managed(x):
        with x:
            return x

    def caught(x):
        with x:
            try:
                return x
            except ValueError:
                return None

    assert not catches(managed.__code__)
    assert catches(caught.__code__)
