"""check_batch_invariance names the first operation whose rows change with the batch; drift compares two functions."""

import dataclasses
import types

import pytest
import torch
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode

import torch_reduce
from support import assert_same_bits
from torch_reduce import check_batch_invariance, drift


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
    assert check_batch_invariance(lambda q: torch.empty(0).to(q).resize_(q.shape).copy_(q), y)
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


# --- drift ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def net(device):
    torch.manual_seed(3)
    parts = [torch.nn.Linear(300, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Linear(64, 10)]
    return torch.nn.Sequential(*parts).to(device)


def off(x, by=1e-3):
    """Other bits, by an operator that stays the same."""
    return x * (1 + by)


def test_the_same_twice(net, x):
    found = drift(net, net, x)
    assert found and found.operation is None and found.calls == 4
    assert str(found) == "no drift: the results have the same bits (operations: 4)"
    assert drift(lambda x: x, lambda x: x, x)


def test_eager_and_replaced(net, x):
    """It names the operation that is ours in one function alone: it is given the same, and makes other bits."""

    def replaced(x):
        with torch_reduce.replace("layer_norm", x.device.type):
            return net(x)

    found = drift(net, replaced, x)
    assert not found and found.operation == "aten.native_layer_norm.default" and found.call == 1
    assert found.agreed == ("aten.addmm.default", 0) and found.shapes == ((40, 64), (40, 64))
    assert found.dtypes == (torch.float32, torch.float32) and found.of == "its results" and found.result == "result"
    norms = net[1](net[0](x)), torch_reduce.layer_norm(net[0](x), (64,), net[1].weight, net[1].bias)
    assert found.elements == (norms[0] != norms[1]).sum() and found.difference == (norms[0] - norms[1]).abs().max()
    assert str(found) == (
        "drift: aten.native_layer_norm.default, call 1, gives other bits: "
        f"{found.elements} of 2560 elements of its results differ, by up to {found.difference:.3g}; "
        "aten.addmm.default, call 0, before it agrees"
    )


def test_a_product_in_another_order(x):
    w, b = torch.randn(300, 64, device=x.device), torch.randn(64, device=x.device)

    def halves(x):
        return torch.addmm(torch.addmm(b, x[:, 150:], w[150:]), x[:, :150], w[:150]).relu()

    found = drift(lambda x: torch.addmm(b, x.sin(), w).relu(), lambda x: halves(x.sin()), x)
    assert found.operation == "aten.addmm.default (in fn_b: aten.addmm.default, aten.addmm.default)"
    assert found.call == 1 and found.agreed == ("aten.sin.default", 0) and found.of == "result"
    assert 0 < found.elements < 2560 and 0 < found.difference < 1e-4


def test_results_decide(x):
    """Other operations, and other bits inside, are no drift; nor are operations in place or with out=."""
    assert drift(lambda x: x.relu(), lambda x: x.clamp(min=0), x)
    assert drift(lambda x: (x * 3).sign(), lambda x: (x * 2).sign(), x)
    assert drift(lambda x: x.sin().mul_(2), lambda x: torch.mul(x.sin(), 2, out=torch.empty_like(x)), x).calls == 2
    found = drift(lambda x: x.relu().sin().exp(), lambda x: off(x.clamp(min=0).sin()).exp(), x)
    assert found.operation == "no operation (in fn_b: aten.mul.Tensor)" and found.call == 2
    assert found.agreed == ("aten.sin.default", 1)


def test_in_place_and_other_arguments(x):
    """An operation is named with the argument that differs; it is the same operation in place and with out=."""
    found = drift(lambda x: x.sin().mul_(2), lambda x: x.sin().mul(3), x)
    assert found.operation == "aten.mul_.Tensor (in fn_b: aten.mul.Tensor)" and found.call == 1
    assert found.reason == "it is given 2, in fn_b 3" and f"({found.reason}): 12000 of 12000 elements" in str(found)
    norm = torch.nn.functional.layer_norm
    found = drift(lambda x: norm(x, (300,)), lambda x: norm(x, (300,), eps=1e-6), x)
    assert found.reason == "it is given 1e-05, in fn_b 1e-06"


def test_what_the_functions_leave_in_their_inputs(x):
    """They need not return what they write; and the caller's tensors are left alone, inside of lists and dicts, too."""
    before = x.clone()
    assert drift(lambda x: x["a"][0].mul_(2).sum(), lambda x: x["a"][0].add_(x["a"][0]).sum(), {"a": [x]})
    found = drift(lambda x: (x["a"][0].mul_(2).zero_(), 3)[1], lambda x: (x["a"][0].mul_(2), 3)[1], {"a": [x]})
    assert found.result == "inputs[0]['a'][0]" and "zero_" in found.operation
    found = drift(lambda x: (x.mul_(2), None)[1], lambda x: (x.mul_(3), None)[1], x)
    assert found.result == "inputs[0]" and found.operation == "aten.mul_.Tensor"
    assert_same_bits(x, before)


def test_nan_and_the_sign_of_zero(x):
    """All NaNs count as equal; 0.0 and -0.0 do not, and the report says so."""
    bits = torch.tensor([0x7FC00000, 0x7FC00001, 0x7F800000], dtype=torch.int32, device=x.device)
    other = torch.tensor([0x7FC00001, -0x00400000, 0x7F800000], dtype=torch.int32, device=x.device)
    assert drift(lambda x: bits.view(torch.float32) * 1, lambda x: other.view(torch.float32) * 1, x)
    found = drift(lambda x: x * 0.0, lambda x: (x * 0.0).abs(), x)
    assert found.difference == 0 and found.elements == (x < 0).sum()
    assert "elements of result differ, by the sign of 0.0 alone" in str(found)
    found = drift(lambda x: x.sin(), lambda x: x.sin().masked_fill(x > 2, torch.nan), x)
    assert found.difference != found.difference and "differ, some by NaN in one function alone" in str(found)
    assert drift(lambda x: 0.0, lambda x: -0.0, x).difference == 0
    assert drift(lambda x: torch.nan, lambda x: -torch.nan, x)


def test_other_dtypes_shapes_and_numbers_of_results(x):
    found = drift(lambda x: x.sin(), lambda x: x.sin().double(), x)
    assert found.dtypes == (torch.float32, torch.float64) and found.elements is found.difference is None
    assert found.operation == "no operation (in fn_b: aten._to_copy.default)"
    assert "of result float32 of (40, 300) is not float64 of (40, 300); aten.sin.default, call 0," in str(found)
    found = drift(lambda x: x, lambda x: x[1:], x)
    assert found.operation == "the result" and found.call is None and found.shapes == ((40, 300), (39, 300))
    found = drift(lambda x: (x, x.sin()), lambda x: [x], x)
    assert found.result == "result[1]" and "result[1] is not in both" in str(found)
    assert drift(lambda x: [x], lambda x: (x, 1.0), x).result == "result[1]"


@dataclasses.dataclass
class Output:
    loss: float
    logits: torch.Tensor


def test_nested_results(x):
    """What has one name belongs together, in any order; or what stands at one place."""
    fn = lambda x: {"a": (x, [x.sin(), 3]), "b": x.cos()}  # noqa: E731
    assert drift(fn, lambda x: {"b": x.cos(), "a": [x, (x.sin(), 3)]}, x)
    assert drift(fn, lambda x: (x, types.MappingProxyType({"y": x.sin()}), 3, x.cos()), x)
    found = drift(fn, lambda x: {"a": (x, [off(x.sin()), 3]), "b": x.cos()}, x)
    assert found.result == found.of == "result['a'][1][0]"
    assert found.operation == "no operation (in fn_b: aten.mul.Tensor)"
    found = drift(lambda x: Output(x.sum().item(), x), lambda x: Output(x.sum().item() + 1, x), x)
    assert found.result == "result.loss" and found.difference == 1 and found.dtypes == (torch.float64, torch.float64)
    assert not drift(lambda x: 1 + 0j, lambda x: 1 + 1j, x) and not drift(lambda x: True, lambda x: False, x)
    assert drift(lambda x: 1, lambda x: 1, x) and drift(lambda x: 1, lambda x: 3, x).difference == 2


def test_differences_of_every_dtype(x):
    one = torch.tensor([-(2**63), 5], device=x.device)
    assert drift(lambda t: t, lambda t: ~t, one).difference == 2.0**64
    assert drift(lambda t: t, lambda t: t + 1, one + 2**61).difference == 1
    assert drift(lambda t: t, lambda t: ~t, one > 0).difference == 1
    small = torch.float8_e4m3fn
    assert drift(lambda t: t.to(small), lambda t: (2 * t).to(small), torch.full_like(x, 3.0)).difference == 3
    found = drift(lambda t: t, lambda t: t * 1j, x[0].to(torch.complex64))
    assert found.elements == 300 and abs(found.difference - 2**0.5 * float(x[0].abs().max())) < 1e-5


def test_an_error_passes(net, x):
    """It is the function's own; generators and the model's tensors are as before."""

    def fails(x):
        torch.rand(3, device=x.device)
        net[0].weight.data.zero_()
        raise KeyError("gone")

    weight = net[0].weight.detach().clone()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    for fns in ((net, fails), (fails, net)):
        with pytest.raises(KeyError, match="gone"):
            drift(*fns, x)
    assert torch.equal(torch.get_rng_state(), state)
    assert_same_bits(net[0].weight.detach(), weight)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_both_runs_begin_alike(x):
    """With the same random numbers, and the same values in a model's own tensors, which are there again afterwards."""
    dropout = lambda x: torch.dropout(x, 0.5, True) + torch.rand_like(x)  # noqa: E731
    norm = torch.nn.BatchNorm1d(300).to(x.device)
    cache = torch.zeros(41, 300, device=x.device)

    def cached(x):
        cache[:-1].add_(x)
        return cache.sum(1)

    before = torch.get_rng_state()
    assert drift(dropout, dropout, x) and drift(cached, cached, x)
    assert drift(lambda x: (norm(x), norm.running_mean * 1), lambda x: (norm(x), norm.running_mean * 1), x)
    assert torch.equal(torch.get_rng_state(), before)
    assert not cache.any() and not norm.running_mean.any() and norm.num_batches_tracked == 0


def test_other_weights(x):
    """A tensor that was there before and differs explains what is made of it."""
    w = torch.randn(300, 64, device=x.device)
    v = off(w)
    found = drift(lambda x: (x.sin() @ w).relu(), lambda x: (x.sin() @ v).relu(), x)
    assert found.operation == "aten.mm.default" and found.reason == "no operation made its input 1, which differs"
    assert found.agreed == ("aten.sin.default", 0)
    assert drift(lambda x: (x.sin() @ w).relu(), lambda x: (x.sin() @ w.clone()).relu(), x)


def test_who_made_what_differs(x):
    """Of several operations that one function alone calls, those are named that made what differs, also for a clone."""

    def made(x, wrong, harmless):
        y, z = wrong(x).clone(), harmless(x.neg())
        return y.exp(), z

    found = drift(lambda x: made(x, torch.sin, torch.relu), lambda x: made(x, torch.cos, lambda x: x.clamp(min=0)), x)
    assert found.operation == "aten.sin.default (in fn_b: aten.cos.default)" and found.call == 0
    harmless = (lambda x: x.sum() + x.relu().sum(), lambda x: x.sum() + x.clamp(min=0).sum())
    found = drift(
        *(lambda x, f=f, g=g: (g(x.neg()), f(x)) for f, g in zip(harmless, (torch.sin, torch.cos), strict=True)), x
    )
    assert found.operation == "aten.sin.default (in fn_b: aten.cos.default)" and found.result == "result[0]"
    found = drift(lambda x: x.neg().exp(), lambda x: torch.from_numpy(x.neg().numpy() * 2).exp(), x.cpu())
    assert found.operation == "aten.exp.default" and found.reason == "no operation made its input 0, which differs"


def test_gradients(net, x):
    def step(model):
        return lambda x: torch.autograd.grad(model(x).log_softmax(1)[:, 0].sum(), list(net.parameters()))

    assert drift(step(net), step(net), x)
    found = drift(step(net), step(lambda x: net[3](off(net[:3](x)))), x)
    assert found.result == "result[0]" and "aten.mul.Tensor" in found.operation


def test_compiled_code_runs_as_it_is(net, x):
    """It is not run in eager mode: what the compiler makes is compared."""
    ran = []

    def backend(graph, _):
        return lambda *inputs: ran.append(1) or [off(y) for y in graph(*inputs)]

    found = drift(lambda x: x.sin().cos(), torch.compile(lambda x: x.sin().cos(), backend=backend), x)
    assert ran and found.operation == "no operation (in fn_b: aten.mul.Tensor)"
    assert found.agreed == ("aten.cos.default", 1)
    assert drift(net, torch.compile(net, backend="aot_eager"), x).calls == 4


def test_compiled_gradients(device):
    """Of whole numbers: on a GPU products of transposed matrices have other bits."""
    net = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.ReLU(), torch.nn.Linear(20, 10)).to(device)
    with torch.no_grad():
        for w in net.parameters():
            w.copy_(torch.arange(w.numel(), device=device).view(w.shape) % 7 - 3)
    compiled, x = torch.compile(net, backend="aot_eager"), torch.ones(40, 30, device=device)
    step = lambda model: lambda x: torch.autograd.grad(model(x).sum(), list(net.parameters()))  # noqa: E731
    assert drift(step(net), step(compiled), x)
    assert not drift(step(net), step(lambda x: compiled(off(x))), x)


def test_what_inductor_times(x):
    """While Inductor chooses among kernels, it calls operators that the function does not."""
    from torch._inductor.runtime.benchmarking import Benchmarker

    def timed(x):
        Benchmarker().benchmark_cpu(lambda: torch.zeros(3).cos(), warmup=1, rep=1)
        return x.sin()

    assert drift(torch.sin, timed, x).calls == 1
    assert check_batch_invariance(timed, x).calls == 1


def test_inductor(x):
    """What it fused shows no operation; the last one before it is named, though none but its own kernel reads it."""
    w = torch.randn(300, 64, device=x.device)
    found = drift(lambda x: (x @ w).sin().sum(1), torch.compile(lambda x: off((x @ w).sin()).sum(1)), x)
    assert found.operation == "aten.sin.default, aten.sum.dim_IntList (in fn_b: none)" and found.call == 1
    assert found.agreed == ("aten.mm.default", 0)


def test_cpu_and_gpu(cuda):
    x = torch.randn(40, 300)
    fn = lambda x: torch_reduce.softmax(x, 1)  # noqa: E731
    assert drift(fn, lambda x: fn(x.to(cuda)), x) and drift(lambda x: fn(x.to(cuda)), fn, x)


def test_what_is_not_compared(x):
    fn = lambda x: x.sin()  # noqa: E731
    for made, reason in (
        (torch.Tensor.to_sparse, "sparse tensors are not supported"),
        (lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged), "nested tensors are not supported"),
        (lambda x: torch_reduce.distributed.Shard(x), "a Shard is not supported"),
        (lambda x: torch.quantize_per_tensor(x.cpu(), 1.0, 0, torch.qint8), "quantized tensors are not supported"),
        (lambda x: x.to("meta"), "it has no values"),
    ):
        with pytest.raises(NotImplementedError, match=f"drift\\(\\): result\\[0\\]: {reason}"):
            drift(fn, lambda x, made=made: [made(x)], x)
    assert drift(lambda x: x.to_sparse().to_dense(), lambda x: x.to_sparse().to_dense(), x)
    for name, fns in (("fn_a", (x, fn)), ("fn_b", (fn, x))):
        with pytest.raises(TypeError, match=f"^drift\\(\\): {name}: expected a function, but got Tensor$"):
            drift(*fns, x)
    with pytest.raises(ValueError, match="return no tensor and no number, and change no input"):
        drift(lambda x: None, lambda x: [x.sin().tolist, "sin"], x)
