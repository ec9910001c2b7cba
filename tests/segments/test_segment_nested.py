"""Segments of nested tensors of the layout torch.jagged, whose rows are packed as segments are."""

import pytest
import torch

import torch_reduce
from support import assert_same_bits, data

pytestmark = pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype", "ignore:.*is_fx_tracing")

FUNCTIONS = {name: getattr(torch_reduce, f"segment_{name}") for name in ("sum", "mean", "prod", "amax", "amin")}
FUNCTIONS |= {"logsumexp": torch_reduce.segment_logsumexp, "softmax": torch_reduce.segment_softmax}
OFFSETS = [0, 3, 3, 90, 97]
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def nested(device, name="float32", offsets=OFFSETS):
    values = data((offsets[-1], 4), name, device=device)
    return torch.nested.nested_tensor_from_jagged(values, torch.tensor(offsets, device=device))


def plain(x):
    """A result without its nesting."""
    return x.values() if x.is_nested else x


@every_function
def test_rows(name, device):
    """The bits of the packed values' segments; torch's shapes; also where the ragged dim is the last one."""
    function = FUNCTIONS[name]
    for dtype in ("float32", "bfloat16", "float64"):
        x = nested(device, dtype)
        wanted = function(x.values(), x.offsets())
        for call in (lambda x: function(x), lambda x: function(x, dim=1), lambda x: function(x, dim=-2)):
            found = call(x)
            assert found.is_nested == (name == "softmax")
            assert found.shape == (x.shape if name == "softmax" else (4, 4))
            assert_same_bits(plain(found), wanted)
        turned = function(x.transpose(1, 2))
        if name == "softmax":
            assert turned.shape == x.transpose(1, 2).shape
            turned = turned.transpose(1, 2)
        assert_same_bits(plain(turned).contiguous(), wanted)
    assert (torch_reduce.segment_softmax(x) * x).shape == x.shape  # one ragged dim


@pytest.mark.parametrize("name", ["sum", "mean", "softmax"])
def test_as_torch(name, device):
    """The shapes and values of torch's own functions of nested tensors, which pad."""
    x = nested(device, "float64", [0, 3, 5, 90, 97])
    wanted = {"sum": lambda: x.sum(1), "mean": lambda: x.mean(1), "softmax": lambda: torch.softmax(x, 1)}[name]()
    torch.testing.assert_close(plain(FUNCTIONS[name](x)), plain(wanted))


@every_function
def test_gradients(name, device):
    """Gradients are nested, and have the bits of the packed values' gradients; compiled code has eager's."""
    function, x = FUNCTIONS[name], nested(device).requires_grad_()
    values = x.values().detach().requires_grad_()
    (found,) = torch.autograd.grad(plain(function(x)).nan_to_num(0, 0, 0).square().sum(), x)
    (wanted,) = torch.autograd.grad(function(values, x.offsets()).nan_to_num(0, 0, 0).square().sum(), values)
    assert found.is_nested and found.shape == x.shape
    assert_same_bits(found.values(), wanted)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: function(x * 2), fullgraph=True, backend="aot_eager")
    assert_same_bits(plain(compiled(x)).detach(), plain(function(x * 2)).detach())


def test_options(device):
    """dtype= and exact=True; offsets of int32 and views of them."""
    x = nested(device, "bfloat16")
    found = torch_reduce.segment_sum(x, dtype=torch.float64)
    assert_same_bits(found, torch_reduce.segment_sum(x.values(), x.offsets(), dtype=torch.float64))
    exact = torch_reduce.segment_sum(x, exact=True)
    assert_same_bits(exact, torch_reduce.segment_sum(x.values(), x.offsets(), exact=True))
    lengths = torch.tensor([[0, 9], [3, 9], [3, 9], [90, 9], [97, 9]], dtype=torch.int32, device=device)[:, 0]
    assert_same_bits(torch_reduce.segment_sum(x.values(), lengths), torch_reduce.segment_sum(x))


def test_refused(device):
    """In words that name the argument."""
    x, call = nested(device), torch_reduce.segment_sum
    gaps = torch.nested.nested_tensor_from_jagged(x.values(), x.offsets(), torch.tensor([2, 0, 5, 7], device=device))
    other = torch.nested.nested_tensor([torch.ones(2, 3, device=device)])
    for error, words, work in (
        (TypeError, "'offsets' must be left out", lambda: call(x, x.offsets())),
        (TypeError, "'out' must be left out", lambda: call(x, out=torch.empty(4, 4, device=device))),
        (TypeError, "'dim' must be int", lambda: call(x, dim="1")),
        (RuntimeError, "dim: expected 1, the ragged one", lambda: call(x, dim=2)),
        (NotImplementedError, "gaps", lambda: call(gaps)),
        (TypeError, "'offsets' must be Tensor", lambda: call(x.values())),
        (NotImplementedError, "nested tensors", lambda: call(other, x.offsets())),
    ):
        with pytest.raises(error, match=rf"segment_sum\(\): .*{words}"):
            work()
