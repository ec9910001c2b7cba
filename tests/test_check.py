"""check_batch_invariance: it names the first operation whose rows change with the batch."""

import pytest
import torch

import torch_reduce
from torch_reduce import check_batch_invariance


def uneven(x):
    """Its rows depend on the batch: by the number of rows."""
    return x * (1 + len(x) / 1024)


@pytest.fixture
def x(device):
    return torch.randn(40, 300, generator=torch.Generator().manual_seed(1)).to(device)


def test_ours_are_invariant(x):
    def step(x):
        x = x.detach().requires_grad_()
        y = torch_reduce.log_softmax(torch_reduce.rms_norm(torch_reduce.layer_norm(x, 300), 300), 1)
        return torch.autograd.grad(torch_reduce.sum(y, 1).sum(), x)

    found = check_batch_invariance(step, x)
    assert found and found.calls > 5 and found.operation is None
    assert str(found).startswith("batch-invariant: each row has the same bits in every batch")


def test_names_the_first(x):
    found = check_batch_invariance(lambda x: torch_reduce.softmax(uneven(x.sin()).cos(), 1), x)
    assert not found and found.operation == "aten.mul.Tensor" and found.call == 1
    assert found.rows == 1 and found.shapes == ((40, 300), (1, 300))
    assert "aten.mul.Tensor, call 1, gives other bits in a batch of 1" in str(found)


def test_gradients_are_seen(x):
    def step(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad((x * 2).sum(), x, torch.tensor(1 + len(x) / 1024, device=x.device))

    assert check_batch_invariance(step, x).operation is not None


def test_other_operations(x):
    """A function that does something else in another batch is no batch-invariant one."""
    found = check_batch_invariance(lambda x: x.sin() if len(x) > 20 else x.cos(), x, sizes=[30, 3])
    assert not found and found.rows == 3 and "aten.sin.default (in the part: aten.cos.default)" in str(found)
    assert not check_batch_invariance(lambda x: x.sin() if len(x) > 20 else x.sin().cos(), x, sizes=[3])


def test_dims_and_other_inputs(x):
    """The batch is any dim, also where it is merged with others; other values are passed as they are."""
    weight = torch.ones((), device=x.device)
    assert check_batch_invariance(lambda x, w, k: (x * w + k).mT.reshape(-1), x, weight, 3, dim=1, sizes=(7,))
    flat = check_batch_invariance(lambda x: uneven(x.reshape(-1)), x)
    assert flat.shapes == ((12000,), (300,))


def test_misuse(x):
    with pytest.raises(ValueError, match="one size along dim 0, but got \\[39, 40\\]"):
        check_batch_invariance(torch.add, x, x[1:])
    with pytest.raises(ValueError, match="none is below the batch's size, which is 1"):
        check_batch_invariance(torch.sin, x[:1])
    with pytest.raises(ValueError, match="expected tensors of one size"):
        check_batch_invariance(lambda x: x, 3)
