"""check_batch_invariance: it names the first operation whose rows change with the batch."""

import types

import pytest
import torch
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode

import torch_reduce
from support import assert_same_bits
from torch_reduce import check_batch_invariance


class Products(TorchDispatchMode):
    """Makes each row of a matrix product, and each matrix of a batch, by itself: it is batch-invariant then.

    Those with `uneven` columns have other bits where they have one row.
    """

    def __init__(self, uneven=None):
        super().__init__()
        self.uneven = uneven

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.bmm.default:
            return torch.stack([self.product(x, y) for x, y in zip(*args, strict=True)])
        if func not in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            return func(*args, **(kwargs or {}))
        x, y = args[-2:]
        z = self.product(x, y)
        z = z + args[0] if len(args) == 3 else z
        return z * (1 + 2**-20) if z.shape[1] == self.uneven and len(x) == 1 else z

    def product(self, x, y):
        x, columns = x.contiguous(), y.t().contiguous()
        return torch.stack([(row * columns).sum(1) for row in x]) if len(x) else x @ y


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
    """Other operations in another batch are blamed only where the results differ, and nothing else is to blame."""
    found = check_batch_invariance(lambda x: x.sin() if len(x) > 20 else x.cos(), x, sizes=[30, 3])
    assert not found and found.rows == 3 and "aten.sin.default (in the part: aten.cos.default)" in str(found)
    assert found.shapes == ((40, 300), (3, 300))
    found = check_batch_invariance(lambda x: x.sin() if len(x) > 20 else x.sin().cos(), x, sizes=[3])
    assert found.operation == "no operation (in the part: aten.cos.default)"
    assert check_batch_invariance(lambda x: x.neg() if len(x) > 20 else x.abs().neg().where(x > 0, -x), x)
    found = check_batch_invariance(lambda x: uneven(x.relu() if len(x) > 20 else x.clamp(min=0)), x)
    assert found.operation == "aten.mul.Tensor" or "relu" in found.operation


def test_dims_and_other_inputs(x):
    """The batch is any dim, also where it is merged with others; other values are passed as they are."""
    weight = torch.ones((), device=x.device)
    assert check_batch_invariance(lambda x, w, k: (x * w + k).mT.reshape(-1), x, weight, 3, dim=1, sizes=(7,))
    flat = check_batch_invariance(lambda x: uneven(x.reshape(-1)), x)
    assert flat.shapes == ((12000,), (300,))


def test_copies_in_one_run_alone(x):
    """At batch 1 a reshape is a view, and what is permuted is contiguous."""
    y = x.view(40, 3, 4, 25)
    assert check_batch_invariance(lambda q: q.transpose(0, 1).contiguous(), y)
    assert check_batch_invariance(lambda q: q.transpose(0, 1).reshape(3, -1, 25).sin(), y)


def test_values_are_compared_as_they_were_made(x):
    """What is changed in place later was another result; and what comes after the first difference is not blamed."""
    found = check_batch_invariance(lambda x: (x + x.shape[0]).zero_(), x)
    assert found.operation == "aten.add.Tensor" and found.call == 0
    found = check_batch_invariance(lambda x: x.sin().mul_(len(x)).add_(1), x)
    assert found.operation == "aten.mul_.Tensor" and found.call == 1
    assert check_batch_invariance(lambda x: x.sin().mul_(2).zero_(), x)


def test_inputs_are_not_changed(x):
    before, number = x.clone(), torch.ones((), device=x.device)
    assert check_batch_invariance(lambda q, n: q.mul_(2).add_(n.add_(1)), x, number)
    assert_same_bits(x, before)
    assert number == 1


def test_memory_without_values(x):
    """What `empty` gives is compared with nothing before it is written, nor where it is never written."""

    def written(x):
        y = torch.empty_like(x)
        torch.full_like(y, 7).sin()  # so that the memory that is given next has other values
        y[:, ::2] = x[:, ::2].sin()
        return y.cos(), x.new_empty(x.shape), torch.add(x, 1, out=torch.empty(0, device=x.device))

    assert check_batch_invariance(written, x)
    found = check_batch_invariance(lambda x: written(uneven(x)), x)
    assert found.operation == "aten.mul.Tensor" and found.call == 0


def test_results_that_nobody_reads(x):
    def dead(x):
        (x + len(x)).sin()
        return x.cos()

    assert check_batch_invariance(lambda x: (x + len(x), x)[1].cos(), x)
    assert check_batch_invariance(dead, x).operation == "aten.add.Tensor"  # sin reads it


def attention(x, weights):
    """What models do eagerly: heads are split and permuted, a matrix product a head, and joined by a reshape."""
    q, k, v = (linear(x, w).view(*x.shape[:2], 4, -1).transpose(1, 2) for w in weights[:3])
    scores = (q @ k.mT).softmax(-1)
    return linear((scores @ v).transpose(1, 2).reshape(x.shape), weights[3], x[0, 0] * 0)


def experts(x, router, weights):
    """A mixture of experts: those that have tokens take theirs, one after the other, and add what they make."""
    x = x.flatten(0, 1)
    share, chosen = linear(x, router).softmax(-1).topk(2, -1)
    result = torch.zeros_like(x)
    mask = torch.nn.functional.one_hot(chosen, len(weights)).permute(2, 1, 0)
    for expert in mask.sum((-1, -2)).nonzero():
        at, token = mask[expert[0]].nonzero(as_tuple=True)
        made = linear(linear(x[token], weights[expert[0]]).relu(), weights[expert[0]].mT) * share[token, at, None]
        result.index_add_(0, token, made)
    return result


def sorted_experts(x, router, weights):
    """The same with the tokens sorted by expert, and put back."""
    x = x.flatten(0, 1)
    share, chosen = linear(x, router).softmax(-1).topk(2, -1)
    order = chosen.flatten().sort(stable=True).indices
    parts = x[order // 2].split(chosen.flatten().bincount(minlength=len(weights)).tolist())
    made = torch.cat([linear(linear(p, w).relu(), w.mT) for p, w in zip(parts, weights, strict=True)])
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=x.device)
    return (made[back].view(*share.shape, -1) * share[..., None]).sum(1)


@pytest.fixture
def tokens(device):
    generator = torch.Generator().manual_seed(2)
    made = [
        torch.randn(shape, generator=generator).to(device) for shape in ((12, 5, 16), (4, 16, 16), (5, 16), (5, 24, 16))
    ]
    return types.SimpleNamespace(x=made[0], attention=made[1], router=made[2], experts=made[3])


@pytest.mark.parametrize("model", [experts, sorted_experts])
def test_mixtures_of_experts(model, tokens):
    """Tokens in another order are not other bits: only a matrix product that changes them is blamed."""
    fn = lambda x: model(x, tokens.router, tokens.experts)  # noqa: E731
    x = tokens.x[:, :1]  # so that an expert has one token in a small batch
    with Products():
        assert check_batch_invariance(fn, tokens.x, sizes=(1, 3)) and check_batch_invariance(fn, x, sizes=(1, 3))
    with Products(uneven=24):
        found = check_batch_invariance(fn, x, sizes=(1, 3))
    assert found.operation == "aten.mm.default" and found.rows == 1 and found.shapes[1] == (1, 24)
    assert f"call {found.call}, gives other bits in a batch of 1: the rows of (1, 24) are not" in str(found)


def test_attention(tokens):
    """Of a function whose first four products are even, the one is blamed that has one row at batch 1."""
    fn = lambda x: linear(attention(x, tokens.attention)[:, 0], tokens.experts[0], tokens.experts[0, :, 0])  # noqa: E731
    with Products():
        assert check_batch_invariance(fn, tokens.x, sizes=(1, 3))
    with Products(uneven=24):
        found = check_batch_invariance(fn, tokens.x, sizes=(3, 1))
    assert found.operation == "aten.addmm.default" and found.rows == 1 and found.shapes == ((12, 24), (1, 24))


def test_transformers():
    transformers = pytest.importorskip("transformers")
    small = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=50)
    torch.manual_seed(1)
    for config in (
        transformers.BertConfig(**small),
        transformers.LlamaConfig(**small),
        transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50),
        transformers.MixtralConfig(**small, num_key_value_heads=2, num_local_experts=4),
    ):
        model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
        with Products():
            found = check_batch_invariance(model, torch.arange(35).view(5, 7), sizes=(1, 2))
        assert found.operation in (None, "aten._grouped_mm.default"), config  # which may well change


def test_what_takes_the_batch_as_one(x):
    """It is named where the results differ: an operation over the batch, or one that moves its rows."""
    assert check_batch_invariance(lambda x: x - x.mean(0), x).operation == "aten.mean.dim"
    assert check_batch_invariance(lambda x: x.flip(0).sin(), x).operation == "aten.flip.default"
    assert check_batch_invariance(lambda x: x.flip(0).sin().flip(0), x)
    assert check_batch_invariance(lambda x: x.softmax(0), x).operation == "aten._softmax.default"
    assert check_batch_invariance(lambda x: x[torch.arange(len(x), device=x.device) * 2 // 2], x)


def test_indices_that_depend_on_the_batch(x):
    """What makes the index is named, and not what uses it. An index that names the same rows is as good as another."""
    table = torch.arange(77, device=x.device).sin().view(7, 11)
    at = torch.arange(40, device=x.device)
    found = check_batch_invariance(lambda x, at: table[(at + len(x)) % 7] + x[:, :11], x, at)
    assert found.operation == "aten.add.Tensor" and found.call == 0
    assert check_batch_invariance(lambda x, at: table[(at + len(x) * 7) % 7] + x[:, :11], x, at)


def test_results_in_mappings_and_data_classes(x):
    for made in (lambda y: {"y": [y]}, lambda y: types.MappingProxyType({"y": y}), lambda y: torch_reduce.replace):
        assert check_batch_invariance(lambda x, made=made: made(x.sin()), x)
    found = check_batch_invariance(lambda x: types.MappingProxyType({"y": x.sin() if len(x) > 1 else x.cos()}), x)
    assert "aten.cos" in found.operation


def test_misuse(x):
    with pytest.raises(ValueError, match="one size along dim 0, but got \\[39, 40\\]"):
        check_batch_invariance(torch.add, x, x[1:])
    with pytest.raises(ValueError, match="none is below the batch's size, which is 1"):
        check_batch_invariance(torch.sin, x[:1])
    with pytest.raises(ValueError, match="expected tensors of one size"):
        check_batch_invariance(lambda x: x, 3)
    for sizes, given in ((5, "5"), ([1, 2.5], "\\(1, 2.5\\)"), ("12", "\\('1', '2'\\)")):
        with pytest.raises(TypeError, match=f"sizes: expected ints in a list or tuple, such as .*, but got {given}$"):
            check_batch_invariance(torch.sin, x, sizes=sizes)
    for dim in (2, -3):
        with pytest.raises(IndexError, match=f"dim: expected -2 to 1 for a tensor of 2 dims, but got {dim}$"):
            check_batch_invariance(torch.sin, x, dim=dim)
    with pytest.raises(TypeError, match="dim: expected an int, but got str$"):
        check_batch_invariance(torch.sin, x, dim="a")
    with pytest.raises(TypeError, match="fn: expected a function, but got Tensor$"):
        check_batch_invariance(x, x)
