"""memcnn: what is known of its custom functions.

All nine are covered, more than eight, as they come in families of four. They are called as the package calls them: the
eight of `additive.py` and `affine.py` by the couplings (`implementation_fwd` and `implementation_bwd` 0 and 1), the one
of `revop.py` by `InvertibleModuleWrapper`. The callables take x alone; the weights are those of the coupling.

Truth: implementation -1 of the package, which is plain autograd (itself checked by float64 central differences, 1e-8),
and float64 central differences of x and of every weight; second derivatives by central differences of the first-order
gradient of a non-linear function of the output.
"""

import gc
import warnings
import weakref

import torch
from torch import nn

from labels import Bug, Call, Package

PACKAGE = Package("memcnn", "1.5.2", "reversible networks")


def convolution(dropout=0.0):
    return nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Tanh(), nn.Dropout(dropout))


def coupling(kind, implementation, dtype=torch.float32, dropout=0.0):
    from memcnn import AdditiveCoupling, AffineAdapterNaive, AffineCoupling

    torch.manual_seed(0)
    options = {"implementation_fwd": implementation, "implementation_bwd": implementation}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those other than -1 are deprecated
        if kind == "additive":
            made = AdditiveCoupling(convolution(dropout), convolution(dropout), **options)
        else:
            made = AffineCoupling(convolution(dropout), convolution(dropout), adapter=AffineAdapterNaive, **options)
    return made.to(dtype)


def wrapper(kind="additive", dtype=torch.float32, dropout=0.0, **options):
    from memcnn import InvertibleModuleWrapper

    return InvertibleModuleWrapper(coupling(kind, -1, dtype, dropout), **options)


def images(dtype=torch.float32, size=2):
    torch.manual_seed(1)
    return torch.randn(size, 4, 5, 5, dtype=dtype)


def differ(found, expected):
    return bool((found - expected).norm() > 1e-3 * expected.norm())


# --- the calls


def additive_0():
    # Implementation -1 and central differences, x and weights.
    return coupling("additive", 0), (images(),)


def additive_0_with_dropout():
    # Implementation -1 with the same seed.
    return coupling("additive", 0, dropout=0.3), (images(),)


def additive_1():
    # Implementation -1 and central differences, x and weights.
    return coupling("additive", 1), (images(),)


def additive_inverse_0():
    # Implementation -1 and central differences: the weights' gradients are right, that of y is not.
    return coupling("additive", 0).inverse, (images(),)


def additive_inverse_1():
    # Implementation -1 and central differences, x and weights.
    return coupling("additive", 1).inverse, (images(),)


def affine_0():
    # Implementation -1 and central differences, x and weights.
    return coupling("affine", 0), (images(),)


def affine_1():
    # Implementation -1 and central differences: the weights' gradients are right, that of x is not.
    return coupling("affine", 1), (images(),)


def affine_inverse_0():
    # Implementation -1 and central differences: the weights' gradients are right, that of y is not.
    return coupling("affine", 0).inverse, (images(),)


def affine_inverse_1():
    # Implementation -1 and central differences: the weights' gradients are right, that of y is not.
    return coupling("affine", 1).inverse, (images(),)


def wrapped():
    # Implementation -1 and central differences, by .backward(): right for the weights and for an x that is no leaf.
    return wrapper(), (images(),)


def wrapped_affine_inverse():
    # Implementation -1 and central differences, by .backward(): right for the weights and for a y that is no leaf.
    return wrapper("affine").inverse, (images(),)


def wrapped_keeping_input():
    # Implementation -1 and central differences, by .backward(): right for the weights and for an x that is no leaf.
    return wrapper(keep_input=True, keep_input_inverse=True), (images(),)


def wrapped_with_dropout():
    # Implementation -1 with the same seed.
    return wrapper(dropout=0.3, preserve_rng_state=True), (images(),)


# --- the proofs; a callable is made by `make(implementation, dtype)`


def forward_of(kind, **options):
    return lambda implementation, dtype: coupling(kind, implementation, dtype, **options)


def inverse_of(kind, **options):
    return lambda implementation, dtype: coupling(kind, implementation, dtype, **options).inverse


def gradient(call, x, seed=2):
    """The gradient of x of a fixed linear function of what `call` returns, by backward()."""
    leaf = x.clone().requires_grad_()
    torch.manual_seed(seed)
    y = call(leaf * 1)
    torch.manual_seed(7)
    y.backward(torch.randn_like(y))
    return leaf.grad


def first_is_wrong(make, implementation):
    x = images(torch.float64)
    found = gradient(make(implementation, torch.float64), x)
    return differ(found, gradient(make(-1, torch.float64), x))


def second(call):
    z = images(torch.float64).requires_grad_()
    torch.tanh(call(z**2)).sum().backward(create_graph=True)
    return torch.autograd.grad(z.grad.square().sum(), z)[0]


def second_is_wrong(make, implementation):
    return differ(second(make(implementation, torch.float64)), second(make(-1, torch.float64)))


def raises_when_frozen(make, implementation):
    call = make(implementation, torch.float64)
    owner = call if isinstance(call, nn.Module) else call.__self__
    for p in owner.Fm.parameters():
        p.requires_grad_(False)
    try:
        gradient(call, images(torch.float64))
    except RuntimeError as error:
        return "does not require grad" in str(error)
    return False


def raises_with_one_image(make, implementation):
    leaf = images(torch.float64, size=1).requires_grad_()
    torch.tanh(make(-1, torch.float64)(leaf.sigmoid())).sum().backward()
    y = make(implementation, torch.float64)(leaf.sigmoid())
    try:
        torch.tanh(y).sum().backward()
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)
    return False


def inverse_reads_changed_input():
    call = coupling("additive", 0, torch.float64).inverse
    leaf = images(torch.float64).requires_grad_()
    weight = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    expected = torch.autograd.grad(call(leaf * 1), leaf, weight)[0]
    y = leaf * 1
    x = call(y)
    y.mul_(2)
    return differ(torch.autograd.grad(x, leaf, weight)[0], expected)


def redrawn(call_of):
    x = images(torch.float64)
    return differ(gradient(call_of(True), x), gradient(call_of(False), x))


def dropout_is_redrawn():
    return redrawn(lambda custom: coupling("additive", 0 if custom else -1, torch.float64, dropout=0.3))


def dropout_is_redrawn_in_wrapper():
    def call_of(custom):
        return wrapper(dtype=torch.float64, dropout=0.3, preserve_rng_state=True, disable=not custom)

    return redrawn(call_of)


def leaf_is_doubled(make):
    x = images(torch.float64).requires_grad_()
    weight = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    values = x.detach().clone()
    make(disable=False)(x).backward(weight)
    twin = values.requires_grad_()
    make(disable=True)(twin).backward(weight)
    return bool(torch.allclose(x.grad, 2 * twin.grad) and twin.grad.norm() > 0)


def earlier_gradient_is_lost(make):
    x = images(torch.float64).requires_grad_()
    x.grad = torch.full_like(x, 100.0)
    make(disable=False)(x).sum().backward()
    return bool(x.grad.abs().max() < 50)


def relu_before_raises(make):
    leaf = images(torch.float64).requires_grad_()
    make(disable=True)(leaf.relu()).sum().backward()
    y = make(disable=False)(leaf.relu())
    try:
        y.sum().backward()
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)
    return False


def base_loses_its_data(make):
    base = torch.randn(1, 8, 5, 5, dtype=torch.float64).requires_grad_() * 1
    half, _ = base.chunk(2, dim=1)
    make(disable=False)(half)
    return base.untyped_storage().nbytes() == 0 and base.numel() == 200


def change_of_output_is_unnoticed(make):
    def gradient_of(change):
        leaf = images(torch.float64).requires_grad_()
        y = make(disable=False)(leaf * 1)
        if change:
            y.mul_(2)
        y.backward(torch.ones_like(y))
        return leaf.grad / (2 if change else 1)

    return differ(gradient_of(True), gradient_of(False))


def change_of_input_is_unnoticed():
    def gradient_of(change):
        leaf = images(torch.float64).requires_grad_()
        x = leaf * 1
        y = wrapper(dtype=torch.float64, keep_input=True)(x)
        if change:
            x.mul_(2)
        y.square().sum().backward()
        return leaf.grad

    return differ(gradient_of(True), gradient_of(False))


def output_is_in_a_cycle(make):
    call = make(disable=False)
    gc.collect()
    gc.disable()
    try:
        alive = weakref.ref(call(images(torch.float64).requires_grad_() * 1))
        return alive() is not None
    finally:
        gc.enable()
        gc.collect()


def wrapped_second_is_wrong(make):
    def call(disable):
        made = make(disable=disable)
        return lambda x: made(x * 1)

    return differ(second(call(False)), second(call(True)))


def raises_with_unused_weight():
    from memcnn import InvertibleModuleWrapper

    class Shift(nn.Module):
        """Like IdentityInverse of the package's tests: a weight that one of the two directions does not use."""

        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.ones(1))
            self.unused = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return x + self.shift

        def inverse(self, y):
            return y - self.shift

    def run(disable):
        InvertibleModuleWrapper(Shift(), disable=disable)(images().requires_grad_() * 1).sum().backward()

    run(True)
    try:
        run(False)
    except RuntimeError as error:
        return "not have been used in the graph" in str(error)
    return False


def named(name, function, *args):
    """`function` with `args`, as a proof of its own name."""

    def proof():
        return function(*args)

    proof.__name__ = name
    return proof


# --- the labels


def common(make, implementation, name):
    return (
        Bug(
            "the gradient comes without a graph under create_graph: what it adds to a second derivative is lost",
            ("PB401", "PB404", "PB403", "PB604"),
            named(f"{name}_second_is_wrong", second_is_wrong, make, implementation),
        ),
        Bug(
            "where a weight is frozen, the backward raises",
            ("PB113", "PB119"),
            named(f"{name}_raises_when_frozen", raises_when_frozen, make, implementation),
        ),
        Bug(
            "with one image the halves are views of x, and emptying them (`set_`) counts as a change of x: backward "
            "through what made x raises",
            ("PB202", "PB119", "PB504", "PB503"),
            named(f"{name}_raises_with_one_image", raises_with_one_image, make, implementation),
        ),
    )


def wrong(what, rules, make, implementation, name):
    return Bug(what, rules, named(f"{name}_first_is_wrong", first_is_wrong, make, implementation))


WEIGHTS = "as with torch.utils.checkpoint, weights changed between forward and backward are taken as they are then"
SAVED = "x and the output are both saved, and the backward needs one of them: memory, no wrong number"
NOTED = {"PB209": WEIGHTS, "PB205": SAVED, "PB701": SAVED}
SWAPPED = "the gradients of the two halves of y are put together in the wrong order"
UNSCALED = "the direct part of a half's gradient is not multiplied by the scale of the coupling"


def wrapper_bugs(make, name, keeps_input):
    bugs = [
        Bug(
            "the backward writes the gradient to x.grad, and autograd adds it again: that of a leaf is twice too large",
            ("PB210", "PB101", "PB206", "PB203"),
            named(f"{name}_leaf_is_doubled", leaf_is_doubled, make),
        ),
        Bug(
            "the backward overwrites what x.grad holds from before",
            ("PB210", "PB101", "PB206", "PB203"),
            named(f"{name}_earlier_gradient_is_lost", earlier_gradient_is_lost, make),
        ),
        Bug(
            "the outputs are kept on ctx: they are in a reference cycle until the backward has run",
            ("PB201", "PB204"),
            named(f"{name}_output_is_in_a_cycle", output_is_in_a_cycle, make),
        ),
        Bug(
            "after backward(create_graph=True) the gradient has no graph: what it adds to a second derivative is lost",
            ("PB401", "PB404", "PB403", "PB604"),
            named(f"{name}_second_is_wrong", wrapped_second_is_wrong, make),
        ),
        Bug(
            "where the module has a weight that the direction does not use, the backward raises",
            ("PB119", "PB113"),
            raises_with_unused_weight,
        ),
    ]
    if keeps_input:
        bugs.append(
            Bug(
                "the input is kept on ctx: an in-place change of it silently changes the gradient",
                ("PB201", "PB209"),
                change_of_input_is_unnoticed,
            )
        )
    else:
        bugs += [
            Bug(
                "the input is emptied, and refilled in the backward, without a word to autograd: where it comes from a "
                "ReLU, the backward raises",
                ("PB202", "PB203", "PB002", "PB119"),
                named(f"{name}_relu_before_raises", relu_before_raises, make),
            ),
            Bug(
                "the whole storage of the input is emptied: another tensor that shares it, such as the one that it is "
                "a half of, loses its data, and reading it kills the process",
                ("PB202", "PB002", "PB203", "PB209"),
                named(f"{name}_base_loses_its_data", base_loses_its_data, make),
            ),
            Bug(
                "the outputs are kept on ctx, detached: an in-place change of them silently changes the gradient",
                ("PB201", "PB209"),
                named(f"{name}_change_of_output_is_unnoticed", change_of_output_is_unnoticed, make),
            ),
        ]
    return tuple(bugs)


def plain(disable):
    return wrapper(dtype=torch.float64, disable=disable)


def affine_inverse(disable):
    return wrapper("affine", dtype=torch.float64, disable=disable).inverse


def keeping(disable):
    return wrapper(dtype=torch.float64, keep_input=True, keep_input_inverse=True, disable=disable)


NO_GRAD = "torch.autograd.grad is refused with a clear message: documented, like activation checkpointing with reentry"
ONCE = "a second backward is refused with a clear message, unless num_bwd_passes is raised: documented"
RESTRICTED = {
    "PB119": NO_GRAD,
    "PB206": ONCE,
    "PB408": ONCE,
    "PB001": NO_GRAD,
    "PB209": WEIGHTS,
    "PB202": "that the input itself is emptied (and refilled in the backward) is documented: see `keep_input`",
}

CALLS = (
    Call(additive_0, bugs=common(forward_of("additive"), 0, "additive_0"), doubtful=NOTED),
    Call(
        additive_0_with_dropout,
        bugs=(
            Bug(
                "the backward runs the modules again with other dropout masks",
                ("PB602", "PB101", "PB601"),
                dropout_is_redrawn,
            ),
            *common(forward_of("additive"), 0, "additive_0"),
        ),
        doubtful=NOTED,
    ),
    Call(additive_1, bugs=common(forward_of("additive"), 1, "additive_1"), doubtful=NOTED),
    Call(
        additive_inverse_0,
        bugs=(
            wrong(SWAPPED, ("PB101", "PB106"), inverse_of("additive"), 0, "additive_inverse_0"),
            Bug(
                "y is saved as y.data: an in-place change of it silently changes the gradient",
                ("PB209", "PB807", "PB201"),
                inverse_reads_changed_input,
            ),
            *common(inverse_of("additive"), 0, "additive_inverse_0"),
        ),
        doubtful=NOTED,
    ),
    Call(additive_inverse_1, bugs=common(inverse_of("additive"), 1, "additive_inverse_1"), doubtful=NOTED),
    Call(affine_0, bugs=common(forward_of("affine"), 0, "affine_0"), doubtful=NOTED),
    Call(
        affine_1,
        bugs=(
            wrong(UNSCALED, ("PB101",), forward_of("affine"), 1, "affine_1"),
            *common(forward_of("affine"), 1, "affine_1"),
        ),
        doubtful=NOTED,
    ),
    Call(
        affine_inverse_0,
        bugs=(
            wrong(SWAPPED, ("PB101", "PB106"), inverse_of("affine"), 0, "affine_inverse_0"),
            *common(inverse_of("affine"), 0, "affine_inverse_0"),
        ),
        doubtful=NOTED,
    ),
    Call(
        affine_inverse_1,
        bugs=(
            wrong(UNSCALED, ("PB101",), inverse_of("affine"), 1, "affine_inverse_1"),
            *common(inverse_of("affine"), 1, "affine_inverse_1"),
        ),
        doubtful=NOTED,
    ),
    Call(wrapped, bugs=wrapper_bugs(plain, "wrapped", False), doubtful=RESTRICTED),
    Call(
        wrapped_affine_inverse,
        bugs=wrapper_bugs(affine_inverse, "wrapped_affine_inverse", False),
        doubtful=RESTRICTED,
    ),
    Call(
        wrapped_keeping_input,
        bugs=wrapper_bugs(keeping, "wrapped_keeping_input", True),
        doubtful=RESTRICTED,
    ),
    Call(
        wrapped_with_dropout,
        bugs=(
            Bug(
                "even with preserve_rng_state the backward runs the module again with other dropout masks (the state "
                "is restored for the inverse alone)",
                ("PB602", "PB101", "PB601"),
                dropout_is_redrawn_in_wrapper,
            ),
            *wrapper_bugs(plain, "wrapped", False),
        ),
        doubtful=RESTRICTED,
    ),
)
