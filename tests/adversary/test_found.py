"""Regressions found by fuzzing, as minimal programs."""

import pytest

from tests.adversary.agree import agree


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("dtype", ["torch.bfloat16", "torch.float16", "torch.float32"])
def test_amax_of_a_fused_expression(backend, dtype, native):
    agree(f"a = torch.randn(7, 13).to({dtype}).requires_grad_()", "return F.gelu(a * a + a).amax(-1)", backend=backend)


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_masked_fill_with_broadcast_mask(backend, native):
    inputs = "a = torch.randn(64, 16).requires_grad_()\nb = torch.rand(64, 1) + 0.5\nc = torch.rand(64, 1) > 1"
    agree(inputs, "return (a / b).masked_fill(c, 0.0)", backend=backend)


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_norm_over_all_elements(backend, native):
    agree("a = torch.randn(4097, 16).requires_grad_()", "return a.norm()", backend=backend, making="relaxed")


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_unpack_hook_returning_another_dtype(backend, native):
    agree("a = torch.randn(65).requires_grad_()", "return a.sinc(), -a.min()", "packed('wider')", backend=backend)


@pytest.mark.parametrize("how", ["smaller", "recast", "strided"])
@pytest.mark.parametrize("backend", ["native", "eager"])
def test_input_data_replaced_between_forward_and_backward(backend, how, native):
    inputs = "a = torch.randn(6, 5).requires_grad_()\nb = torch.randn(6, 1).requires_grad_()"
    agree(inputs, "return torch.sigmoid(a * b.exp())", f"written('a', {how!r})", backend=backend)


def test_where_on_amin_beside_logsigmoid_with_dynamic_sizes(native):
    agree(
        "a = torch.randn(n).requires_grad_()\nb = torch.randn(n)",
        "e = F.logsigmoid(b)\nf = a.amin(-1)\ng = torch.where(f > 0.5, f, 0.5)\nreturn torch.minimum(g, e)",
        "sizes({'n': 65}, {'n': 3}, {'n': 17}, {'n': 13}, {'n': 4}, {'n': 33}, {'n': 16}, {'n': 67}, {'n': 7})",
        sizes={"n": 65},
    )


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_unpack_hook_returning_a_wider_complex_dtype(backend, native):
    inputs = "a = torch.complex(torch.rand(9, 3), torch.rand(9, 3)).requires_grad_()"
    agree(inputs, "return (a * a).norm()", "packed('wider')", backend=backend)


def test_packed_mask_moved_by_a_saved_tensor_hook(native):
    inputs = "a = torch.randn(300, 5).half().requires_grad_()"
    agree(inputs, "b = F.embedding(a.to(torch.int64).abs() % 2, a)\nreturn b.min() - b", "packed('strided')")


def test_gradient_with_mixed_16_bit_dtypes(native):
    inputs = "a = torch.randn(800).bfloat16()\nb = torch.randn(800).half().requires_grad_()"
    agree(inputs, "return F.smooth_l1_loss(b, a, reduction='none').asinh()")


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_batched_cotangents_of_a_non_contiguous_output(backend, native):
    agree("a = torch.rand(5, 33).requires_grad_()", "return a.mT.sin()", "batched_grad()", backend=backend)


def test_bfloat16_log_softmax_gradient_with_row_sums_in_another_kernel(native):
    agree(
        "a = (torch.randn(16, 64, 7) * 30).to(torch.bfloat16).movedim(0, -1).requires_grad_()",
        "e = a.log_softmax(-1)\nf = F.hardtanh(e)\nreturn (f % 1.5).atan(), e",
        "second()",
        seed=68,
    )


def test_chunks_with_strides_unlike_those_of_the_whole(native):
    agree(
        "a = torch.randn(64, 17).requires_grad_()\nb = torch.randn(81).unfold(0, 17, 1)[:64].requires_grad_()",
        "e = b * a\nf = e * b\nreturn (f * e).flatten().sum()",
        making="chunked",
    )


def test_zero_factor_of_infinite_input_beside_a_stable_form(native):
    inputs = "a = torch.tensor([torch.inf, torch.nan, 1.0]).requires_grad_()\nb = torch.randn(1).requires_grad_()"
    agree(inputs, "return F.mish(torch.addcmul(b, a, a, value=-0.0))")


def test_clamp_keeps_the_sign_of_zero(native):
    inputs = "a = torch.tensor([-0.0, 0.0, 2.0]).requires_grad_()"
    for formula in ("F.relu6(a)", "a.clamp(min=0.0)", "a.clamp(max=0.0)", "a.clamp(-1, 0)"):
        agree(inputs, f"return torch.atan2({formula}, -a.abs() - 1)")


def test_bfloat16_softplus_gradient_of_overlapping_rows(native):
    inputs = "a = torch.full((12,), -90.0).to(torch.bfloat16).unfold(0, 4, 1).requires_grad_()"
    agree(inputs, "return F.softplus(a).logit(), F.logsigmoid(-a).square()")


def test_list_outputs_under_symbolic_trace(native):
    agree("a = torch.randn(5).requires_grad_()", "return [a.sin(), a]", "symbolic()", packing="list")


def test_efficient_zero_tensor_in_a_kernel(native):
    body = """
    e = a.exp().mean(-1, keepdim=True)
    f = e.amax(0)
    return (f.lerp(e, 0.3).abs() + 0.5) ** -0.0, e, f
    """
    agree("a = torch.randn(()).requires_grad_()", body, "third()")


def test_chunked_sum_converted_to_integer():
    inputs = """
    a = torch.randn(33, 5, 7).requires_grad_()
    b = torch.randn(1, 1, 7).requires_grad_()
    """
    body = "return ((F.softmin(a.square().mean(0, keepdim=True), -1).to(torch.int64) * b - 1) ** 2).mean().sqrt()"
    agree(inputs, body, backend="eager", making="chunked")


def test_unused_kernel_output_is_not_a_gradient(on):
    inputs = """
    a = torch.randn(9).requires_grad_()
    b = torch.randn(9).requires_grad_()
    """
    agree(inputs, "return F.relu6(b + 3) * a", "points(-1.0, 0.25, 1.0, order=3)")


def test_cancelling_terms_of_a_bfloat16_third_derivative(native):
    body = """
    e = F.relu(a).square()
    return (e - e.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)
    """
    inputs = "a = (torch.rand((31, 1, 18)) + 0.5).to(torch.bfloat16).requires_grad_()"
    agree(inputs, body, "points(-1.0, 0.0, 1.0, order=3)", making="written", seed=49)


def test_aliased_outputs_of_a_ruled_op(native):
    inputs = "a = torch.randn(4).requires_grad_()\nb = torch.randn(4).requires_grad_()"
    body = """
    e = a * b
    f = e.positive()
    return f * e, f, e, e[:2], e.view(2, 2)
    """
    for context in ("dual()", "jvp()", "backward()", "second()", "func_grad()", "vmap_backward()", "compiled()"):
        agree(inputs, body, context, making="ruled")


def test_derivative_at_infinity_where_the_formula_gives_nan(native):
    inputs = "a = torch.tensor([torch.inf, torch.nan, 1.0]).requires_grad_()"
    agree(inputs, "return torch.sigmoid(a) * torch.rsqrt(1 + torch.exp(a))", "points(-1.0, 1.0)")
    agree(inputs, "return torch.log(1 - torch.sigmoid(a)).trunc()", "third()")


def test_sum_that_absorbs_a_term_in_float64_too(native):
    for dtype in ("bfloat16", "float32"):
        inputs = f"a = (torch.randn(65) * 30).to(torch.{dtype}).requires_grad_()"
        agree(inputs, "return torch.log(1 + torch.exp(a)), torch.log(1 - torch.sigmoid(a))", "points(-1.0, 1.0)")


def test_float16_square_that_overflows_in_float32_too(native):
    inputs = "a = torch.randn(65).to(torch.float16).requires_grad_()"
    agree(inputs, "return torch.log1p(torch.exp(a))", "points(-1.0, 1.0, order=3)", making="written")


def test_infinite_derivative_of_a_broadcast_input(native):
    inputs = "b = torch.full((1,), torch.inf).requires_grad_()\nc = torch.randn(6, 1, 3).requires_grad_()"
    for context in ("backward()", "func_grad()", "compiled()", "points(-1.0, 0.0, 1.0)"):
        agree(inputs, "return c * c - b * b", context)
        agree(inputs.replace(").req", ").half().req"), "return c * c - b * b", context)


def test_call_that_dynamo_runs_but_does_not_trace(native):
    inputs = "b = torch.randn(4, 1)\nc = torch.randn(1, 5).requires_grad_()"
    body = """
    e = (c * b).sum(-1, keepdim=True)
    e.t_()
    return e.sum(-2), torch.sqrt(1 + c * c), e
    """
    agree(inputs, body, "compiled()", making="relaxed")


def test_derivative_at_infinity_under_vmap(native):
    inputs = "a = torch.tensor([torch.inf, -torch.inf, torch.nan, 1.0]).unsqueeze(-1).requires_grad_()"
    for context in ("vmap()", "vmap_backward()", "vmap_of_grad()"):
        agree(inputs, "return torch.log(a + torch.sqrt(a * a + 1))", context)


@pytest.mark.parametrize("backend", ["eager", pytest.param("native", marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", ["()", "(1,)", "(2, 1)", "(0, 1)"])
def test_second_derivatives_of_stable_forms_with_broadcasting(backend, shape, native):
    for formula in ("a * a - b * b", "torch.log(1 + torch.exp(a)) * b", "a / (1 + torch.exp(b))"):
        for needs in ("ab", "b"):
            size = "(0, 3)" if shape.startswith("(0") else "3"
            inputs = [f"a = torch.randn({size})", f"b = torch.randn({shape})"]
            inputs = [line + ".requires_grad_()" * (line[0] in needs) for line in inputs]
            for context in ("second()", "third()"):
                agree("\n".join(inputs), f"return {formula}", context, backend)


def test_second_derivative_of_a_broadcast_input_whose_slope_depends_on_it_alone(native):
    inputs = "a = torch.randn(3)\nb = torch.randn((1,)).requires_grad_()"
    agree(inputs, "return a * a - b * b", "second()")


def test_sign_of_an_infinite_derivative(native):
    inputs = "a = torch.tensor([100.0, 0.5, -100.0]).requires_grad_()"
    for context in ("compiled()", "vmap_backward()"):
        agree(inputs, "return torch.exp(a) - 1", context)


def test_float16_quotient_with_overflowing_denominator(native):
    inputs = "a = torch.rand((n + m,)).to(torch.float16).unfold(0, m, 1)[:n].requires_grad_()"
    body = "return torch.addcdiv(a - a.amax(-1, keepdim=True), (a - a.mean(0)) * a, a * a + 1)"
    agree(inputs, body, "points(-1.0, 0.0, 1.0)", sizes={"n": 100, "m": 32}, seed=22)


def test_efficient_zero_tensor_in_a_relaxed_op(native):
    inputs = "a = torch.randn(7, 3).requires_grad_()\nb = torch.rand(3)"
    agree(inputs, "return torch.addcmul(b, a, b, value=3)", "jvp_of_grad()", making="relaxed")


def test_zeros_like_of_a_loop_result_in_the_region_that_feeds_the_loop(native):
    agree(
        "a = torch.rand(300).requires_grad_()\nb = torch.randn(300)",
        "e = (b * a).sum(0, keepdim=True)\nf = e.cummax(-1)[0]\nreturn F.relu(f), f, e",
        "points(-1.0, order=3)",
        making="min",
    )


def test_cancelling_float16_terms_of_which_one_was_stored(native):
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
