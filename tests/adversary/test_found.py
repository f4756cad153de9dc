"""Regressions found by fuzzing, shortened to what matters."""

import pytest

from tests.adversary.agree import agree


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("dtype", ["torch.bfloat16", "torch.float16", "torch.float32"])
def test_an_extreme_of_computed_values(backend, dtype, native):
    agree(f"a = torch.randn(7, 13).to({dtype}).requires_grad_()", "return F.gelu(a * a + a).amax(-1)", backend=backend)


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_a_choice_by_a_broadcast_mask(backend, native):
    inputs = "a = torch.randn(64, 16).requires_grad_()\nb = torch.rand(64, 1) + 0.5\nc = torch.rand(64, 1) > 1"
    agree(inputs, "return (a / b).masked_fill(c, 0.0)", backend=backend)


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_a_norm_of_everything(backend, native):
    agree("a = torch.randn(4097, 16).requires_grad_()", "return a.norm()", backend=backend, making="relaxed")


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_an_unpack_hook_that_returns_another_dtype(backend, native):
    agree("a = torch.randn(65).requires_grad_()", "return a.sinc(), -a.min()", "packed('wider')", backend=backend)


@pytest.mark.parametrize("how", ["smaller", "recast", "strided"])
@pytest.mark.parametrize("backend", ["native", "eager"])
def test_other_data_between_forward_and_backward(backend, how, native):
    inputs = "a = torch.randn(6, 5).requires_grad_()\nb = torch.randn(6, 1).requires_grad_()"
    agree(inputs, "return torch.sigmoid(a * b.exp())", f"written('a', {how!r})", backend=backend)


def test_a_choice_by_an_extreme_beside_a_function_for_many_sizes(native):
    agree(
        "a = torch.randn(n).requires_grad_()\nb = torch.randn(n)",
        "e = F.logsigmoid(b)\nf = a.amin(-1)\ng = torch.where(f > 0.5, f, 0.5)\nreturn torch.minimum(g, e)",
        "sizes({'n': 65}, {'n': 3}, {'n': 17}, {'n': 13}, {'n': 4}, {'n': 33}, {'n': 16}, {'n': 67}, {'n': 7})",
        sizes={"n": 65},
    )


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_an_unpack_hook_that_returns_a_wider_complex_dtype(backend, native):
    inputs = "a = torch.complex(torch.rand(9, 3), torch.rand(9, 3)).requires_grad_()"
    agree(inputs, "return (a * a).norm()", "packed('wider')", backend=backend)


def test_bits_of_a_mask_that_a_hook_puts_elsewhere(native):
    inputs = "a = torch.randn(300, 5).half().requires_grad_()"
    agree(inputs, "b = F.embedding(a.to(torch.int64).abs() % 2, a)\nreturn b.min() - b", "packed('strided')")


def test_a_gradient_in_the_dtype_of_another(native):
    inputs = "a = torch.randn(800).bfloat16()\nb = torch.randn(800).half().requires_grad_()"
    agree(inputs, "return F.smooth_l1_loss(b, a, reduction='none').asinh()")


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_a_batch_of_cotangents_of_an_output_that_is_not_contiguous(backend, native):
    agree("a = torch.rand(5, 33).requires_grad_()", "return a.mT.sin()", "batched_grad()", backend=backend)


def test_a_log_softmax_of_16_bits_of_whose_slope_another_kernel_sums_the_rows(native):
    agree(
        "a = (torch.randn(16, 64, 7) * 30).to(torch.bfloat16).movedim(0, -1).requires_grad_()",
        "e = a.log_softmax(-1)\nf = F.hardtanh(e)\nreturn (f % 1.5).atan(), e",
        "second()",
        seed=68,
    )


def test_chunks_whose_rows_lie_as_those_of_the_whole_do_not(native):
    agree(
        "a = torch.randn(64, 17).requires_grad_()\nb = torch.randn(81).unfold(0, 17, 1)[:64].requires_grad_()",
        "e = b * a\nf = e * b\nreturn (f * e).flatten().sum()",
        making="chunked",
    )


def test_a_factor_0_of_an_infinite_input_beside_a_stable_form(native):
    inputs = "a = torch.tensor([torch.inf, torch.nan, 1.0]).requires_grad_()\nb = torch.randn(1).requires_grad_()"
    agree(inputs, "return F.mish(torch.addcmul(b, a, a, value=-0.0))")


def test_the_sign_of_a_zero_that_a_clamp_keeps(native):
    inputs = "a = torch.tensor([-0.0, 0.0, 2.0]).requires_grad_()"
    for formula in ("F.relu6(a)", "a.clamp(min=0.0)", "a.clamp(max=0.0)", "a.clamp(-1, 0)"):
        agree(inputs, f"return torch.atan2({formula}, -a.abs() - 1)")


def test_a_slope_of_softplus_that_a_kernel_is_not_made_for(native):
    inputs = "a = torch.full((12,), -90.0).to(torch.bfloat16).unfold(0, 4, 1).requires_grad_()"
    agree(inputs, "return F.softplus(a).logit(), F.logsigmoid(-a).square()")


def test_lists_of_what_torch_fx_traces(native):
    agree("a = torch.randn(5).requires_grad_()", "return [a.sin(), a]", "symbolic()", packing="list")


def test_zeros_without_memory_in_a_kernel(native):
    body = """
    e = a.exp().mean(-1, keepdim=True)
    f = e.amax(0)
    return (f.lerp(e, 0.3).abs() + 0.5) ** -0.0, e, f
    """
    agree("a = torch.randn(()).requires_grad_()", body, "third()")


def test_chunks_of_a_sum_that_becomes_an_integer():
    inputs = """
    a = torch.randn(33, 5, 7).requires_grad_()
    b = torch.randn(1, 1, 7).requires_grad_()
    """
    body = "return ((F.softmin(a.square().mean(0, keepdim=True), -1).to(torch.int64) * b - 1) ** 2).mean().sqrt()"
    agree(inputs, body, backend="eager", making="chunked")


def test_what_a_kernel_writes_for_nobody_is_no_gradient(on):
    inputs = """
    a = torch.randn(9).requires_grad_()
    b = torch.randn(9).requires_grad_()
    """
    agree(inputs, "return F.relu6(b + 3) * a", "points(-1.0, 0.25, 1.0, order=3)")


def test_terms_of_a_third_derivative_that_cancel_in_16_bits(native):
    body = """
    e = F.relu(a).square()
    return (e - e.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)
    """
    inputs = "a = (torch.rand((31, 1, 18)) + 0.5).to(torch.bfloat16).requires_grad_()"
    agree(inputs, body, "points(-1.0, 0.0, 1.0, order=3)", making="written", seed=49)


def test_two_outputs_of_a_rule_that_are_one_tensor(native):
    inputs = "a = torch.randn(4).requires_grad_()\nb = torch.randn(4).requires_grad_()"
    body = """
    e = a * b
    f = e.positive()
    return f * e, f, e, e[:2], e.view(2, 2)
    """
    for context in ("dual()", "jvp()", "backward()", "second()", "func_grad()", "vmap_backward()", "compiled()"):
        agree(inputs, body, context, making="ruled")


def test_a_slope_at_infinity_where_the_formula_has_nan(native):
    inputs = "a = torch.tensor([torch.inf, torch.nan, 1.0]).requires_grad_()"
    agree(inputs, "return torch.sigmoid(a) * torch.rsqrt(1 + torch.exp(a))", "points(-1.0, 1.0)")
    agree(inputs, "return torch.log(1 - torch.sigmoid(a)).trunc()", "third()")


def test_what_a_sum_loses_in_float64_too(native):
    for dtype in ("bfloat16", "float32"):
        inputs = f"a = (torch.randn(65) * 30).to(torch.{dtype}).requires_grad_()"
        agree(inputs, "return torch.log(1 + torch.exp(a)), torch.log(1 - torch.sigmoid(a))", "points(-1.0, 1.0)")


def test_a_square_that_overflows_in_32_bits_too(native):
    inputs = "a = torch.randn(65).to(torch.float16).requires_grad_()"
    agree(inputs, "return torch.log1p(torch.exp(a))", "points(-1.0, 1.0, order=3)", making="written")


def test_infinite_slopes_of_what_is_broadcast(native):
    inputs = "b = torch.full((1,), torch.inf).requires_grad_()\nc = torch.randn(6, 1, 3).requires_grad_()"
    for context in ("backward()", "func_grad()", "compiled()", "points(-1.0, 0.0, 1.0)"):
        agree(inputs, "return c * c - b * b", context)
        agree(inputs.replace(").req", ").half().req"), "return c * c - b * b", context)


def test_a_call_that_dynamo_runs_but_does_not_trace(native):
    inputs = "b = torch.randn(4, 1)\nc = torch.randn(1, 5).requires_grad_()"
    body = """
    e = (c * b).sum(-1, keepdim=True)
    e.t_()
    return e.sum(-2), torch.sqrt(1 + c * c), e
    """
    agree(inputs, body, "compiled()", making="relaxed")


def test_a_slope_at_infinity_of_single_samples(native):
    inputs = "a = torch.tensor([torch.inf, -torch.inf, torch.nan, 1.0]).unsqueeze(-1).requires_grad_()"
    for context in ("vmap()", "vmap_backward()", "vmap_of_grad()"):
        agree(inputs, "return torch.log(a + torch.sqrt(a * a + 1))", context)


@pytest.mark.parametrize("backend", ["eager", pytest.param("native", marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", ["()", "(1,)", "(2, 1)", "(0, 1)"])
def test_second_derivatives_of_stable_forms_of_what_is_broadcast(backend, shape, native):
    for formula in ("a * a - b * b", "torch.log(1 + torch.exp(a)) * b", "a / (1 + torch.exp(b))"):
        for needs in ("ab", "b"):
            size = "(0, 3)" if shape.startswith("(0") else "3"
            inputs = [f"a = torch.randn({size})", f"b = torch.randn({shape})"]
            inputs = [line + ".requires_grad_()" * (line[0] in needs) for line in inputs]
            for context in ("second()", "third()"):
                agree("\n".join(inputs), f"return {formula}", context, backend)


def test_the_sign_of_an_infinite_slope(native):
    inputs = "a = torch.tensor([100.0, 0.5, -100.0]).requires_grad_()"
    for context in ("compiled()", "vmap_backward()"):
        agree(inputs, "return torch.exp(a) - 1", context)


def test_a_quotient_whose_denominator_overflows_in_16_bits(native):
    inputs = "a = torch.rand((n + m,)).to(torch.float16).unfold(0, m, 1)[:n].requires_grad_()"
    body = "return torch.addcdiv(a - a.amax(-1, keepdim=True), (a - a.mean(0)) * a, a * a + 1)"
    agree(inputs, body, "points(-1.0, 0.0, 1.0)", sizes={"n": 100, "m": 32}, seed=22)


def test_zeros_without_memory_in_a_relaxed_op(native):
    inputs = "a = torch.randn(7, 3).requires_grad_()\nb = torch.rand(3)"
    agree(inputs, "return torch.addcmul(b, a, b, value=3)", "jvp_of_grad()", making="relaxed")


def test_zeros_like_what_comes_after_a_loop_in_a_region_that_the_loop_reads(native):
    agree(
        "a = torch.rand(300).requires_grad_()\nb = torch.randn(300)",
        "e = (b * a).sum(0, keepdim=True)\nf = e.cummax(-1)[0]\nreturn F.relu(f), f, e",
        "points(-1.0, order=3)",
        making="min",
    )


def test_terms_of_16_bits_that_cancel_where_one_was_stored(native):
    agree(
        "a = (-torch.rand((n, 1)) - 0.5).to(torch.float16).requires_grad_()",
        """
        e = a - a.amax(-1, keepdim=True)
        f = F.logsigmoid(e)
        g = (f * f + 0.1).rsqrt()
        h = F.binary_cross_entropy_with_logits(a, g.sigmoid())
        return [h, g, f, e]
        """,
        "backward('sliced')",
        making="written",
        seed=64,
        sizes={"n": 65537},
    )
