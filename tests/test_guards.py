"""The guard: what bypasses a rule meets an error, what only computes does not."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad

from pullback import DerivativeError
from pullback.guards import tripwire

X = torch.tensor([0.5, -1.25, 2.0])
MESSAGE = "the derivative given for op would be lost"


def wired(x):
    return tripwire(x, [x], "op")


def test_the_value_is_a_copy():
    y = wired(X)
    assert torch.equal(y, X)
    assert y.data_ptr() != X.data_ptr()


def test_reverse_mode_is_refused():
    x = X.clone().requires_grad_()
    with pytest.raises(DerivativeError, match=MESSAGE):
        wired(x)
    with torch.no_grad():
        assert torch.equal(wired(x), X)
    assert torch.equal(wired(x.detach()), X)


def test_forward_mode_is_refused_also_under_no_grad():
    with forward_ad.dual_level(), torch.no_grad(), pytest.raises(DerivativeError, match=MESSAGE):
        wired(forward_ad.make_dual(X, X))


def test_what_was_computed_outside_of_pytorch_is_refused_by_its_sources():
    x = X.clone().requires_grad_()
    with pytest.raises(DerivativeError, match=MESSAGE):
        tripwire(torch.from_numpy(2 * x.detach().numpy()), [x], "op")


def test_transforms_that_only_compute_pass():
    assert torch.equal(torch.func.vmap(wired)(X), X)
    with FakeTensorMode() as mode:
        assert wired(mode.from_tensor(X)).shape == X.shape
    assert wired(X.to("meta")).is_meta


def test_torch_library_finds_no_fault_in_the_op():
    torch.library.opcheck(
        torch.ops.pullback.tripwire.default, (X, [X], "op"), test_utils=("test_schema", "test_faketensor")
    )
