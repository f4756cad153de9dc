"""Static rules about a backward."""

import pytest

from ..written import found, op


@pytest.mark.parametrize(
    ("backward", "count"),
    [
        ("(x,) = ctx.saved_tensors; return g * x.item()", 1),
        ("return g * float(g)", 1),
        ("return kernel(g.detach())", 1),
        ("\n    with torch.no_grad():\n        return kernel(g)", 1),
        ("return kernel(ctx.scale.item() * g)", 0),
        ("return kernel(g)", 0),
    ],
)
def test_808_values_that_leave_the_graph_are_reported(tmp_path, backward, count):
    body = op(backward=backward)
    assert len(found("PB808", body, tmp_path)) == count
    once = body.replace("@staticmethod\ndef backward", "@staticmethod\n@once_differentiable\ndef backward")
    assert found("PB808", once, tmp_path) == []


@pytest.mark.parametrize(
    ("backward", "count"),
    [
        ("return g * ctx.saved_tensors[0] * ctx.saved_tensors[1]", 1),
        ("\n    for k in range(2):\n        x = ctx.saved_tensors[k]\n    return x", 1),
        (
            "\n    if ctx.a:\n        x = ctx.saved_tensors\n    else:\n        x, y = ctx.saved_tensors\n    return x",
            0,
        ),
        ("\n    if ctx.a:\n        return ctx.saved_tensors[0]\n    return ctx.saved_tensors[1]", 0),
        ("\n    if ctx.a:\n        y = ctx.saved_tensors[0]\n    return ctx.saved_tensors[1]", 1),
        ("\n    if ctx.a:\n        y = ctx.saved_tensors[0]\n        return y * ctx.saved_tensors[0]\n    return g", 1),
    ],
)
def test_809_reads_are_counted_along_one_path(tmp_path, backward, count):
    assert len(found("PB809", op(backward=backward), tmp_path)) == count


@pytest.mark.parametrize(
    ("forward", "backward", "what"),
    [
        ("Op.k = 2; return kernel(x)", "return g * Op.k", "Op.k"),
        ("global scale; scale = x.max(); return kernel(x)", "return g * scale", "scale"),
        ("Op.calls = 2; return kernel(x)", "return g", None),
        ("k = Op.k; return kernel(x)", "return g * Op.k", None),
        ("scale = x.max(); return kernel(x)", "return g * scale", None),
    ],
)
def test_810_state_shared_by_calls_is_reported(tmp_path, forward, backward, what):
    messages = [message for _, message in found("PB810", op(forward, backward), tmp_path)]
    expected = f"the forward assigns {what}, which every call shares, and the backward reads it"
    assert messages == ([] if what is None else [expected])


@pytest.mark.parametrize(
    ("backward", "count"),
    [
        ("return g * torch.rand_like(g)", 1),
        ("return F.dropout(g)", 1),
        ("return g * torch.rand(3, generator=ctx.generator)", 0),
        ("torch.manual_seed(ctx.seed); return g * torch.rand(3)", 0),
        ("return torch.randomize(g)", 0),
    ],
)
def test_811_random_draws_are_reported(tmp_path, backward, count):
    assert len(found("PB811", op(backward=backward), tmp_path)) == count


@pytest.mark.parametrize(
    ("backward", "count"),
    [
        ("(index,) = ctx.saved_tensors; gx = zeros(); gx[index] += g; return gx", 1),
        ("(index,) = ctx.saved_tensors; gx = zeros(); gx.index_put_((index,), g); return gx", 1),
        ("(index,) = ctx.saved_tensors; gx = zeros(); gx.index_put_((index,), g, accumulate=True); return gx", 0),
        ("(index,) = ctx.saved_tensors; gx = zeros(); gx[~index] += 1; gx[index] += g; return gx", 0),
        ("(mask,) = ctx.saved_tensors; gx = zeros(); gx[mask] += g; return gx", 0),
        ("gx = zeros(); gx[0] += g; return gx", 0),
    ],
)
def test_812_accumulation_that_loses_terms_is_reported(tmp_path, backward, count):
    assert len(found("PB812", op(backward=backward), tmp_path)) == count


@pytest.mark.parametrize(
    ("backward", "count"),
    [
        ("return g + torch.zeros(3)", 1),
        ("return g + torch.full((3,), 2.0, dtype=g.dtype)", 1),
        ("return g + torch.zeros(3, device=g.device)", 0),
        ("return g + torch.zeros(3).to(g)", 0),
        ("return g + torch.zeros(3, **like)", 0),
        ("return g + torch.zeros_like(g)", 0),
        ("return g + torch.zeros(())", 0),
    ],
)
def test_813_tensors_on_the_default_device_are_reported(tmp_path, backward, count):
    assert len(found("PB813", op(backward=backward), tmp_path)) == count


@pytest.mark.parametrize(
    ("line", "backward", "count"),
    [
        ("ctx.set_materialize_grads(False)", "return a + b", 1),
        ("ctx.set_materialize_grads(False)", "return a + b if a is not None and b is not None else None", 0),
        ("ctx.set_materialize_grads(False)", "return kernel(a, b)", 0),
        ("ctx.set_materialize_grads(True)", "return a + b", 0),
        ("pass", "return a + b", 0),
    ],
)
def test_814_unchecked_undefined_cotangent_is_reported(tmp_path, line, backward, count):
    body = op(f"{line}; return x, x", backward).replace("ctx, g)", "ctx, a, b)")
    assert len(found("PB814", body, tmp_path)) == count


@pytest.mark.parametrize(
    ("backward", "count"),
    [
        ("return torch.autograd.grad(ctx.out, ctx.x, g, retain_graph=True)[0]", 1),
        ("ctx.out.backward(g, retain_graph=True); return ctx.x.grad", 1),
        ("return torch.autograd.grad(ctx.out, ctx.x, g)[0]", 0),
        ("return torch.autograd.grad(ctx.out, ctx.x, g, retain_graph=False)[0]", 0),
    ],
)
def test_815_retained_graphs_are_reported(tmp_path, backward, count):
    assert len(found("PB815", op(backward=backward), tmp_path)) == count


@pytest.mark.parametrize(
    ("backward", "count"),
    [
        ("return g, g, 2 * g", 1),
        ("return g, g, None", 0),
        ("return g, g, g", 0),
        ("return g, g", 0),
        ("return g", 0),
        ("return (g,)", 1),
    ],
)
def test_103_returned_gradients_are_counted_in_the_source(tmp_path, backward, count):
    assert len(found("PB103", op(backward=backward, arguments="x, y"), tmp_path)) == count
