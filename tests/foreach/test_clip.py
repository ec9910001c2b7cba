"""Sums of powers of many tensors at once, the norm of all their elements, and clipping by it."""

import inspect
import math

import numpy as np
import pytest
import torch
from torch import nn

import torch_reduce
from support import assert_same_bits, data, dtype_of

OPS = torch.ops.gpureduce
FLOATS = ["float16", "bfloat16", "float32", "float64"]
ORDS = [0.0, 1.0, 2.0, 3.0]
ALL_ORDS = [*ORDS, math.inf, -math.inf]
LENGTHS = [1, 2, 31, 128, 511, 512, 513, 1023, 4095, 4096, 4097, 4100, 8191, 8192, 12_289, 40_000, 70_001, 300_007]


def arrays(name, device):
    """Tensors of many lengths, at all addresses, and of no element; transposed, permuted, expanded, with gaps."""
    some = [data((n,), name, seed=n, device=device) for n in LENGTHS]
    storage = data((9000,), name, seed=5, device=device)
    some += [storage[offset : offset + n] for offset in range(1, 9) for n in (3, 600, 4096, 4099, 8200)]
    box = data((40, 30, 20), name, seed=6, device=device)
    some += [box.permute(2, 1, 0), box.permute(1, 0, 2), box[:, ::2], box[3:, 2:, 1:], box[:1].expand(7, 30, 20)]
    return [*some, torch.empty(0, 3, dtype=dtype_of(name), device=device), data((), name, device=device)]


def pairwise(values):
    """Up to 512 numbers, added as lanes of a chunk are: nearest neighbours first."""
    values = list(values)
    assert len(values) <= 512
    while len(values) > 1:
        pairs = [a + b for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(values) // 2 * 2 :]
    return values[0]


@pytest.mark.parametrize("name", FLOATS)
def test_each_as_alone(name, device):
    """Every result has the bits of its own linalg_powsum, whatever is beside it, for every dtype of the result."""
    tensors = arrays(name, device)
    for dtype in (None, torch.float32, torch.float64):
        if dtype is torch.float32 and name == "float64":
            continue
        results = OPS._foreach_powsum(tensors, dtype=dtype)
        assert len(results) == len(tensors)
        for x, result in zip(tensors, results, strict=True):
            assert result.shape == ()
            assert_same_bits(
                result, OPS.linalg_powsum(x, dtype=dtype), f"{tuple(x.shape)} {x.storage_offset()} {dtype}"
            )


@pytest.mark.parametrize("ord", ORDS)
def test_mixed(ord, device):
    """Several dtypes and powers in one list, and devices beside each other."""
    names = [*FLOATS, "complex64", "complex128", "float8_e5m2"]
    tensors = [data((n, 33), name, seed=n, device=device) for n in (1, 40, 200) for name in names]
    tensors += [data((77,), "float32", device="cpu")]
    for x, result in zip(tensors, OPS._foreach_powsum(tensors, ord), strict=True):
        assert result.device == x.device
        assert_same_bits(result, OPS.linalg_powsum(x, ord))


def test_many(device):
    """More tensors than one launch takes, and more in one tensor than one block."""
    counts = 2500 if device == "cuda" else 300
    storage = data((counts * 8,), "bfloat16", device=device)
    tensors = [storage[i * 3 : i * 3 + 1 + i % 17] for i in range(counts)]
    large = data((1 << 21,), "bfloat16", device=device)
    tensors.insert(7, large.repeat(32 if device == "cuda" else 1))
    for x, result in zip(tensors, OPS._foreach_powsum(tensors, 2, dtype=torch.float32), strict=True):
        assert_same_bits(result, OPS.linalg_powsum(x, 2, dtype=torch.float32))


LISTS = [["float32", "float64"], ["bfloat16", "float32"], ["float16", "bfloat16", "float64"]]
LISTS += [["complex64", "float32"], ["float32", "complex128"], ["bfloat16", "complex64", "float64", "complex128"]]


@pytest.mark.parametrize("names", LISTS, ids="-".join)
def test_clip_of_several_dtypes(names, device):
    """The norm is near the one in float64. Each gradient is multiplied in float32, or float64 if it is of that, by the
    factor that the documentation gives, and rounded once to its own dtype, whatever the first one's is."""
    parameters = []
    for k, name in enumerate([*names, *names]):
        parameters.append(nn.Parameter(torch.zeros(70 + k, dtype=dtype_of(name), device=device)))
        numbers = np.random.default_rng(k).standard_normal((70 + k, 2)) * 0.3
        numbers = numbers @ (1, 1j) if "complex" in name else numbers[:, 0]
        parameters[-1].grad = torch.from_numpy(numbers).to(device, dtype_of(name))
    before = [p.grad.cpu().clone() for p in parameters]
    exact = math.sqrt(math.fsum(float(e) for g in before for e in (g.abs().double() ** 2)))
    norm = torch_reduce.clip_grad_norm_(parameters, 0.37)
    double = any(name in ("float64", "complex128") for name in names)
    assert norm.dtype == (torch.float64 if double else torch.float32)
    assert norm.item() == pytest.approx(exact, rel=2e-7)
    factor = min(1.0, 0.37 / (norm.item() + 1e-6))
    assert factor < 0.5
    for p, g in zip(parameters, before, strict=True):
        parts = torch.view_as_real(g) if g.is_complex() else g
        kind = np.float64 if parts.dtype == torch.float64 else np.float32
        scaled = torch.from_numpy(parts.to(torch.float64).numpy().astype(kind) * kind(factor)).to(parts.dtype)
        got = torch.view_as_real(p.grad) if g.is_complex() else p.grad
        assert_same_bits(got.cpu(), scaled, f"{g.dtype} in {names}")


def test_no_tensors():
    """An empty list gives an empty list, and a norm of 0, as torch's."""
    assert OPS._foreach_powsum([]) == []
    assert torch_reduce.get_total_norm([]).tolist() == 0.0
    assert torch_reduce.clip_grad_norm_([], 1.0).tolist() == 0.0
    assert torch_reduce.clip_grad_norm_([nn.Parameter(torch.ones(2))], 1.0).tolist() == 0.0


def test_results_are_tensors_of_their_own(device):
    """Each may be written to, and no other changes."""
    tensors = [torch.full((n,), 1.0, device=device) for n in (1, 2, 3)]
    results = OPS._foreach_powsum(tensors)
    results[1].zero_()
    assert [float(r) for r in results] == [1.0, 0.0, 3.0]
    assert [r.storage_offset() for r in torch.stack(results).unbind()] == [0, 1, 2]


def test_gradients(device):
    """Where a tensor needs a gradient, the list is as differentiable as each call."""
    tensors = [data((40,), "float64", seed=k, device=device).requires_grad_() for k in range(3)]
    sum(OPS._foreach_powsum(tensors)).backward()
    for x in tensors:
        assert torch.allclose(x.grad, 2 * x.detach())


def test_compiled(device):
    """A graph of each call's operation."""
    tensors = [data((n,), "float32", seed=n, device=device) for n in (5, 5000)]
    compiled = torch.compile(lambda t: OPS._foreach_powsum(t), backend="aot_eager", fullgraph=True)
    for a, b in zip(compiled(tensors), OPS._foreach_powsum(tensors), strict=True):
        assert_same_bits(a, b)


def test_errors(device):
    """torch's errors, of the first tensor that is refused."""
    with pytest.raises(NotImplementedError, match="ord must be 0, 1, 2 or 3, but is 4"):
        OPS._foreach_powsum([torch.ones(3, device=device)], 4)
    with pytest.raises(RuntimeError, match="floating point or complex tensor as input. Got Int"):
        OPS._foreach_powsum([torch.ones(3, device=device), torch.ones(3, dtype=torch.int32, device=device)])
    with pytest.raises(RuntimeError, match="should be convertible without narrowing"):
        OPS._foreach_powsum([torch.ones(3, device=device)], 2, dtype=torch.float16)


@pytest.mark.parametrize("ord", ALL_ORDS)
@pytest.mark.parametrize("name", FLOATS)
def test_total_norm(name, ord, device):
    """The powers' sums added in the order of the list, then the root: the same as written out, and near torch's."""
    tensors = [t for t in arrays(name, device) if t.numel()][:61]  # a tree that is another one from the other end
    total = torch_reduce.get_total_norm(tensors, ord)
    accumulator = torch.float64 if name == "float64" else torch.float32
    assert total.dtype == accumulator
    assert total.shape == ()
    if math.isinf(ord):
        each = [OPS.linalg_vector_norm(t, ord, dtype=accumulator) for t in tensors]
        expected = (max if ord > 0 else min)(float(n) for n in each)
    else:
        powers = [OPS.linalg_powsum(t, ord, dtype=accumulator).cpu().numpy()[()] for t in tensors]
        expected = pairwise(powers)
        if ord == 2:
            expected = np.sqrt(expected)
        if ord == 3:  # the model of roots is in test_norms.py
            expected = OPS._norm_3(torch.tensor([np.cbrt(expected)], dtype=accumulator)).item()
    assert float(total) == pytest.approx(float(expected), rel=0 if ord != 3 else 1e-6)
    flat = torch.cat([t.double().flatten() for t in tensors])
    assert float(total) == pytest.approx(float(torch.linalg.vector_norm(flat, ord)), rel=1e-5)


def test_total_norm_of_mixed_dtypes(device):
    """float64 if one is of double precision; complex tensors count as their magnitudes."""
    tensors = [data((100,), name, seed=3, device=device) for name in ("bfloat16", "complex64", "float32")]
    assert torch_reduce.get_total_norm(tensors).dtype == torch.float32
    tensors.append(data((9,), "float64", device=device))
    total = torch_reduce.get_total_norm(tensors)
    assert total.dtype == torch.float64
    flat = torch.cat([t.abs().double() for t in tensors])
    assert float(total) == pytest.approx(float(flat.norm()), rel=1e-6)
    assert_same_bits(torch_reduce.get_total_norm(tensors[0]), torch_reduce.get_total_norm([tensors[0]]))


def test_layouts_change_no_bit(device):
    """The same elements in another layout of the same memory order, or on another device."""
    x = data((300, 200), "float32", device=device)
    padded = torch.zeros(301, 208, device=device)[:300, :200].copy_(x)
    expected = torch_reduce.get_total_norm([x, x])
    assert_same_bits(torch_reduce.get_total_norm([padded, x]), expected)
    assert_same_bits(torch_reduce.get_total_norm([x.cpu(), padded.cpu()]), expected.cpu())


def model_of(device, seed=1):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(40, 70), nn.ReLU(), nn.Linear(70, 3)).to(device)
    model(torch.randn(9, 40).to(device)).square().sum().backward()
    return model


@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("ord", [1.0, 2.0, math.inf])
def test_clip(ord, foreach, device):
    """As torch's: the norm before is returned, gradients are scaled, and small ones are not."""
    ours, torchs = model_of(device), model_of(device)
    total = torch_reduce.clip_grad_norm_(ours.parameters(), 0.5, ord, foreach=foreach)
    expected = nn.utils.clip_grad_norm_(torchs.parameters(), 0.5, ord)
    torch.testing.assert_close(total, expected)
    for a, b in zip(ours.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    before = [p.grad.clone() for p in ours.parameters()]
    torch_reduce.clip_grad_norm_(ours.parameters(), 1e9, ord)
    for p, grad in zip(ours.parameters(), before, strict=True):
        assert_same_bits(p.grad, grad)


@pytest.mark.parametrize("foreach", [None, False, True])
def test_clipped_bits(foreach, device):
    """Each gradient times a factor of float32 or float64, rounded once, in any layout: the same bits everywhere."""
    for name in [*FLOATS, "complex64", "complex32"]:
        tensors = [t for t in arrays(name, device) if not (t.numel() and 0 in t.stride())]
        parameters = [nn.Parameter(torch.empty_like(t)) for t in tensors]
        for p, t in zip(parameters, tensors, strict=True):
            p.grad = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device).copy_(t)
        total = torch_reduce.clip_grad_norm_(parameters, 0.37, foreach=foreach)
        wide = torch.promote_types(dtype_of(name), torch.float32)
        factor = (0.37 / (total.cpu().double() + 1e-6)).to(wide.to_real())
        assert factor < 1
        for p, t in zip(parameters, tensors, strict=True):
            parts = [torch.view_as_real(x) if x.is_complex() else x for x in (p.grad.cpu(), t.cpu())]
            expected = (parts[1].to(wide.to_real()) * factor).to(parts[1].dtype)
            assert_same_bits(parts[0], expected, f"{name} {tuple(t.shape)}")


@pytest.mark.parametrize("name", ["float16", "bfloat16", "complex32"])
def test_norm_after_clipping(name, device):
    """A factor below the smallest number of the gradients' dtype clips all the same."""
    parameter = nn.Parameter(torch.empty(10**6, dtype=dtype_of(name), device=device))
    parameter.grad = torch.full_like(parameter, 30000.0)
    torch_reduce.clip_grad_norm_([parameter], 1.0)
    assert float(torch_reduce.get_total_norm([parameter.grad])) == pytest.approx(1, rel=2e-3)


class Subclass(torch.Tensor):
    """A tensor that no call for many tensors takes as it is."""


@pytest.mark.parametrize("name", FLOATS)
def test_clipped_subclasses(name, device):
    """Other tensors one by one, and conjugated views, with the same bits as plain ones."""
    results = []
    for kind in (torch.Tensor, Subclass):
        parameter = nn.Parameter(data((700,), name, device=device))
        parameter.grad = parameter.detach().clone().as_subclass(kind)
        torch_reduce.clip_grad_norm_([parameter], 0.37)
        results.append(parameter.grad.as_subclass(torch.Tensor))
    assert_same_bits(*results)


def test_clipped_conjugates(device):
    """A gradient that is a conjugated view is scaled in place."""
    parameter = nn.Parameter(data((700,), "complex64", device=device))
    parameter.grad = parameter.detach().clone().conj()
    before = parameter.grad.resolve_conj().clone()
    total = torch_reduce.clip_grad_norm_([parameter], 0.37)
    torch.testing.assert_close(parameter.grad.resolve_conj(), before * (0.37 / total))


@pytest.mark.parametrize("value", [1.0, math.inf, math.nan])
def test_infinite_max_norm(value, device):
    """It scales nothing, whatever the norm is; another one makes the rest 0 where an element is infinite, as torch."""
    parameter = nn.Parameter(torch.ones(3, device=device))
    parameter.grad = torch.tensor([1.0, value, 2.0], device=device)
    before = parameter.grad.clone()
    torch_reduce.clip_grad_norm_([parameter], math.inf)
    assert_same_bits(parameter.grad, before)
    parameter.grad[1] = math.inf
    torch_reduce.clip_grad_norm_([parameter], 1.0)
    assert_same_bits(parameter.grad, torch.tensor([0.0, math.nan, 0.0], device=device))


@pytest.mark.parametrize("ord, alone", [(math.inf, 0.0), (-math.inf, math.inf), (2.0, 0.0), (0.0, 0.0)])
def test_tensors_without_elements(ord, alone, device):
    """They count for nothing, wherever they stand in the list."""
    nothing, some = torch.empty(0, 2, device=device), torch.tensor([3.0, -2.0], device=device)
    for tensors in ([nothing, some], [some, nothing], [nothing, some, nothing]):
        assert_same_bits(torch_reduce.get_total_norm(tensors, ord), torch_reduce.get_total_norm([some], ord))
    assert float(torch_reduce.get_total_norm([nothing], ord)) == alone
    parameters = [nn.Parameter(t) for t in (nothing, some)]
    for p in parameters:
        p.grad = p.detach().clone()
    torch_reduce.clip_grad_norm_(parameters, 0.5, ord)
    assert float(parameters[1].grad.abs().max()) < 3
    with pytest.raises(RuntimeError, match="floating point or complex tensor as input. Got Int"):
        torch_reduce.get_total_norm([nothing.int()], ord)


def test_arguments():
    """torch's arguments, in torch's order; a generator, and one tensor alone; foreach on other devices."""
    ours, theirs = (
        inspect.signature(f).parameters.values() for f in (torch_reduce.clip_grad_norm_, nn.utils.clip_grad_norm_)
    )
    assert [(p.name, p.kind, p.default) for p in ours][: len(theirs)] == [(p.name, p.kind, p.default) for p in theirs]
    model = model_of("cpu")
    total = torch_reduce.get_total_norm([p.grad for p in model.parameters()])
    assert_same_bits(torch_reduce.clip_grad_norm_(model.parameters(), 0.5), total)
    weight = model[0].weight
    assert_same_bits(torch_reduce.clip_grad_norm_(weight, 1e9), torch_reduce.vector_norm(weight.grad))
    meta = nn.Parameter(torch.empty(3, device="meta"))
    meta.grad = torch.empty(3, device="meta")
    for clip in (torch_reduce.clip_grad_norm_, nn.utils.clip_grad_norm_):
        with pytest.raises(RuntimeError, match="foreach=True was passed, but can't use the foreach API on meta"):
            clip([meta], 1.0, foreach=True)
        with pytest.warns(UserWarning, match="is an empty generator, no gradient clipping will occur") as warned:
            assert float(clip((p for p in []), 1.0)) == 0
        assert [w.filename for w in warned] == [__file__]


def test_nonfinite(device):
    """An error only where it is asked for, and then nothing is scaled."""
    model = model_of(device)
    model[0].bias.grad[3] = math.nan
    before = [p.grad.clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match="non-finite, so it cannot be clipped"):
        torch_reduce.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    for p, grad in zip(model.parameters(), before, strict=True):
        assert_same_bits(p.grad, grad)
    assert torch_reduce.clip_grad_norm_(model.parameters(), 1.0).isnan()


def test_no_wait(cuda):
    """Nothing waits for the GPU, and a CUDA graph holds all of it."""
    tensors = [data((n,), "bfloat16", seed=n, device=cuda) for n in LENGTHS]
    expected = torch_reduce.get_total_norm(tensors)
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch_reduce.get_total_norm(tensors)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = torch_reduce.get_total_norm(tensors)
    for factor in (1, 2):
        for t in tensors:
            t.mul_(factor)
        graph.replay()
        assert_same_bits(total, expected * factor)
