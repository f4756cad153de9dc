"""The tripwire raises if a derivative bypasses a rule, and passes values through."""

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


def test_tripwire_copies_the_value():
    y = wired(X)
    assert torch.equal(y, X)
    assert y.data_ptr() != X.data_ptr()


def test_tripwire_raises_in_reverse_mode():
    x = X.clone().requires_grad_()
    with pytest.raises(DerivativeError, match=MESSAGE):
        wired(x)
    with torch.no_grad():
        assert torch.equal(wired(x), X)
    assert torch.equal(wired(x.detach()), X)


def test_tripwire_raises_in_forward_mode_under_no_grad():
    with forward_ad.dual_level(), torch.no_grad(), pytest.raises(DerivativeError, match=MESSAGE):
        wired(forward_ad.make_dual(X, X))


def test_tripwire_raises_for_numpy_results_by_their_sources():
    x = X.clone().requires_grad_()
    with pytest.raises(DerivativeError, match=MESSAGE):
        tripwire(torch.from_numpy(2 * x.detach().numpy()), [x], "op")


def test_tripwire_passes_vmap_fake_and_meta_tensors():
    assert torch.equal(torch.func.vmap(wired)(X), X)
    with FakeTensorMode() as mode:
        assert wired(mode.from_tensor(X)).shape == X.shape
    assert wired(X.to("meta")).is_meta


def test_tripwire_passes_opcheck():
    torch.library.opcheck(
        torch.ops.pullback.tripwire.default, (X, [X], "op"), test_utils=("test_schema", "test_faketensor")
    )
