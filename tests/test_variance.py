"""var_mean, var and std: the model's bits, torch's semantics, and accuracy wherever the mean is."""

import functools
import hashlib
import itertools
import json
import math
import pathlib
import random

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.autograd import gradcheck, gradgradcheck

import model
import torch_reduce
from support import (
    FLOATING,
    SHAPES,
    assert_same_bits,
    bytes_of,
    data,
    dtype_of,
    name_of,
    numpy_of,
    random_view,
    reduced_dims,
    tensor_of,
)
from test_layouts import LAYOUTS

OPS = torch.ops.gpureduce
CORRECTIONS = (1, 0, 2.5)
every_float = pytest.mark.parametrize("name", FLOATING)


def wanted(x, what, dim, correction=1, keepdim=False):
    """The model's result, as stored elements."""
    name, shape = name_of(x.dtype), tuple(x.shape)
    return model.reduce(
        *(bytes_of(x), name, shape, x.stride(), x.storage_offset(), reduced_dims(x.dim(), dim)),
        keepdim=keepdim,
        negate=x.is_neg(),
        kind=(what, correction),
    )


def check(x, dim=None, correction=1, keepdim=False):
    """All three functions have the model's bits."""
    what = f"for {tuple(x.shape)} {x.stride()} {x.dtype} dim={dim} correction={correction}"
    variance, mean = OPS.var_mean(x, dim, correction=correction, keepdim=keepdim)
    assert_same_bits(variance, wanted(x, "var", dim, correction, keepdim), what)
    assert_same_bits(mean, wanted(x, "mean", dim, correction, keepdim), what)
    assert_same_bits(OPS.var(x, dim, correction=correction, keepdim=keepdim), variance)
    root = OPS.std(x, dim, correction=correction, keepdim=keepdim)
    assert_same_bits(root, wanted(x, "std", dim, correction, keepdim), what)


@every_float
def test_bits(name, device):
    for shape, dim in [*SHAPES, ((5, 1), 1)]:
        check(data(shape, name, seed=81, device=device), dim)


@every_float
def test_corrections(name, device):
    x = data((6, 333), name, seed=82, device=device)
    for correction, keepdim in itertools.product((*CORRECTIONS, 333, 400, -3), (False, True)):
        check(x, 1, correction, keepdim)
        check(x, 0, correction, keepdim)


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts(layout, device):
    for name in ("float32", "bfloat16", "float64", "float8_e4m3fn"):
        view, dims = LAYOUTS[layout](lambda *shape, name=name: data(shape, name, seed=1, device=device))
        check(view, dims or None)


@pytest.mark.parametrize("block", range(6))
def test_random_views(block, device):
    for seed in range(25 * block, 25 * block + 25):
        rng = random.Random(seed)
        x, dim, keepdim = random_view(rng.randint, rng.choice(FLOATING), device, budget=6000)
        check(x, dim, rng.choice(CORRECTIONS), keepdim)


LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 127, 129)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
def test_every_length(name, device):
    for length in (*LENGTHS, 511, 512, 513, 516, 640, 1000, 1023, 1024, 1025, 4095, 4096, 4097):
        x = data((2, length + 1), name, seed=83, device=device)[:, 1:]
        check(x, 1)
        check(x.t().contiguous(), 0)
        check(data((3, (length + 15) // 16 * 16), name, seed=84, device=device)[:, :length], 1)  # at aligned addresses
        check(data((3, length, 16), name, seed=84, device=device), 1)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_many_rows(name, cuda):
    """So many that a warp takes some, one after the other: the CPU's bits."""
    for length in (2, 3, 9, 33, 100, 300, 520, 771, 1024, 1500, 4096):
        rows = 70_003 if length < 100 else 40_001 if length < 1500 else 4_001
        x = data((rows, length), name, seed=85, device=cuda)
        for ours, cpus in zip(OPS.var_mean(x, [1]), OPS.var_mean(x.cpu(), [1]), strict=True):
            assert_same_bits(ours.cpu(), cpus, f"{rows} rows of {length}")


def test_lazy_and_expanded_views(device):
    x = data((6, 1301), "float32", seed=85, device=device)
    for view in (torch._neg_view(x), torch._neg_view(x)[:, ::3], x[:, :1].expand(6, 700), x[None].expand(5, 6, 1301)):
        for dim in (0, 1, None):
            check(view, dim)


def test_special_numbers(device):
    """NaN and infinity make both results NaN, wherever they stand; what does not vary has no variance."""
    for special, at in itertools.product((math.nan, math.inf, -math.inf), (0, 1, 513, 4999)):
        x = data((2, 5000), "float32", seed=86, device=device)
        x[:, at] = special
        check(x, 1)
        assert OPS.var(x, [1]).isnan().all()
    same = torch.full((3, 9001), 0.1, device=device)
    variance, mean = OPS.var_mean(same, [1])
    assert (variance == 0).all() and (mean == same[:, 0]).all()


@pytest.mark.parametrize("mean", [0.0, 1e3, 1e6, -3e7])
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_accuracy(mean, name, device):
    """The error is not above torch's, for deviations of 1 around any mean; an outlier in front costs little."""
    generator = torch.Generator().manual_seed(1)
    x = (torch.randn(4, 100_000, generator=generator, dtype=torch.float64) + mean).to(dtype_of(name)).to(device)
    for front in (None, 1e8):
        if front is not None:
            x[:, 0] = front
        values = x.cpu().numpy().astype(np.longdouble)
        exact = np.var(values, axis=1, ddof=1)
        ours = np.abs(OPS.var(x, [1]).cpu().numpy() - exact) / exact
        theirs = np.abs(torch.var(x, 1).cpu().numpy() - exact) / exact
        room = 1e-7 if name == "float32" else 1e-13  # a rounding or so
        if front is not None and name == "float64":
            room = 8 * 100_000 * 2.0**-53  # what an outlier in front may cost, which docs/order.md says
        assert ours.max() <= max(theirs.max(), room)


def test_batch_invariance(device):
    for name, length in itertools.product(("float32", "bfloat16", "float64"), (1, 9, 513, 4097, 9001)):
        x = data((5, length), name, seed=87, device=device)
        alone = OPS.var_mean(x[3])
        room = x.new_zeros(2 * length + 1)
        room[1::2] = x[3]
        rows, columns = OPS.var_mean(x, [1]), OPS.var_mean(x.t().contiguous(), [0])
        for which in (0, 1):
            assert_same_bits(rows[which][3], alone[which])
            assert_same_bits(columns[which][3], alone[which])
            assert_same_bits(OPS.var_mean(room[1::2])[which], alone[which])


def test_any_number_of_threads(set_threads):
    for threads in (1, 2, 3, 8):
        set_threads(threads)
        for shape, dim in (((200_001,), 0), ((3, 60_001), 1), ((2000, 129), 1), ((60_001, 3), 0), ((4300, 130), 0)):
            check(data(shape, "float32", seed=88), dim)


# --- semantics --------------------------------------------------------------------------------------------------------


def test_agrees_with_torch(device):
    x = data((3, 4, 5), "float32", seed=89, device=device)
    for dim, keepdim, correction in itertools.product((None, (), 0, -1, (0, 2), [1]), (False, True), (0, 1, 5, None)):
        ours = torch_reduce.var_mean(x, dim, correction=correction, keepdim=keepdim)
        theirs = torch.var_mean(x, dim, correction=correction, keepdim=keepdim)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)
        for ours, theirs in ((torch_reduce.var, torch.var), (torch_reduce.std, torch.std)):
            a = ours(x, dim, correction=correction, keepdim=keepdim)
            torch.testing.assert_close(a, theirs(x, dim, correction=correction, keepdim=keepdim), equal_nan=True)


def test_no_degrees_of_freedom(capfd, device):
    """torch's warning, as operators of torch print it."""
    x = torch.ones(3, 2, device=device)
    for name in ("var", "std"):
        for call in (getattr(OPS, name), getattr(torch.ops.aten, name).correction):
            call(x, [1], correction=2)
            assert f"{name}(): degrees of freedom is <= 0. Correction should be" in capfd.readouterr().err
        getattr(torch_reduce, name)(x, 1, correction=1.5)
        getattr(torch_reduce, name)(x[:0], 0, correction=-1)
        assert "degrees" not in capfd.readouterr().err


def test_empty(device):
    x = torch.ones(3, 0, 2, device=device)
    for dim, shape in ((None, ()), (1, (3, 2)), (0, (0, 2))):
        for result in OPS.var_mean(x, dim if dim is None else [dim]):
            assert result.shape == shape and result.isnan().all()
            assert OPS.var(x.to("meta"), dim if dim is None else [dim]).shape == shape


def test_refused(device):
    x = torch.ones(3, device=device)
    for function in (torch_reduce.var, torch_reduce.std, torch_reduce.var_mean):
        with pytest.raises(RuntimeError, match="only support floating point"):
            function(x.int())
        with pytest.raises(NotImplementedError, match="complex"):
            function(x.to(torch.complex64))
        with pytest.raises(IndexError):
            function(x, 1)
        with pytest.raises(TypeError):
            function(x, 0, nothing=1)
    for wrong in (torch.int64, torch.complex64, torch.float8_e5m2):
        with pytest.raises(RuntimeError, match="Expected out tensor to have a floating dtype"):
            torch_reduce.var(x, out=torch.empty(1, dtype=wrong, device=device))
    with pytest.raises(RuntimeError, match="Expected out tensor to have device"):
        torch_reduce.std(x, out=torch.empty((), device="meta"))
    with pytest.raises(RuntimeError, match="correction: expected a real number"):
        torch_reduce.var(x, correction=1j)
    with pytest.raises(RuntimeError, match="out="):
        torch_reduce.var(x.clone().requires_grad_(), out=torch.empty((), device=device))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_out_of_other_dtypes(name, device):
    """A result has the digits of its out, and is rounded once."""
    x = torch.tensor([1.0, 2.0, 4.0], dtype=dtype_of(name), device=device)
    for function, wanted in ((torch_reduce.var, 7 / 3), (torch_reduce.std, math.sqrt(7 / 3))):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            out = torch.empty((), dtype=dtype, device=device)
            assert function(x, out=out) is out
            assert float(out) == float(torch.tensor(wanted, dtype=torch.float64).to(dtype)), dtype


FORMS = [
    ((0,), {}),
    ((0, False), {}),
    ((0, True, True), {}),
    ((False,), {}),
    ((), {"unbiased": False}),
    ((), {"unbiased": True, "dim": 1, "keepdim": True}),
    (([0, 1], False), {"keepdim": True}),
    ((), {"axis": 1, "correction": 0, "keepdims": True}),
    ((1,), {"unbiased": False, "correction": 1}),
    ((False,), {"correction": 1}),
    ((False,), {"unbiased": False}),
    ((0, 1.5), {}),
    ((0, "no"), {}),
    ((0, False, False, 1), {}),
]


@pytest.mark.parametrize(("args", "kwargs"), FORMS, ids=str)
@pytest.mark.parametrize("name", ["var", "std", "var_mean"])
def test_forms(name, args, kwargs, device):
    """torch's forms, the older ones among them, are taken; what torch refuses is refused by its class."""
    x = data((6, 70), "float32", seed=95, device=device)
    ours, theirs = getattr(torch_reduce, name), getattr(torch, name)
    try:
        wanted = theirs(x, *args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError):
            ours(x, *args, **kwargs)
        return
    torch.testing.assert_close(ours(x, *args, **kwargs), wanted)


def test_out(device):
    x = data((6, 700), "float32", seed=90, device=device)
    for function, operator in ((torch_reduce.var, OPS.var), (torch_reduce.std, OPS.std)):
        out = torch.empty(6, device=device)
        assert function(x, 1, out=out) is out
        assert_same_bits(out, operator(x, [1]))
        assert_same_bits(operator(x, [1], out=torch.empty(12, device=device)[::2]), operator(x, [1]))
        again = x.clone()
        assert_same_bits(operator(again, [1], out=again[:, 3]), operator(x, [1]))


# --- torch's features -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["var", "std", "var_mean"])
def test_gradients(function, device):
    generator = torch.Generator().manual_seed(91)
    operator = getattr(OPS, function)
    for shape, dim, keepdim, correction in (
        ((5,), None, False, 1),
        ((2, 3), [1], True, 0),
        ((2, 3, 2), [0, 2], False, 1.5),
    ):
        x = torch.rand(shape, generator=generator, dtype=torch.float64).to(device).requires_grad_()
        call = functools.partial(operator, dim=dim, correction=correction, keepdim=keepdim)
        assert gradcheck(call, (x,), check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(call, (x,))


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn"])
def test_gradients_of_float8(name, device):
    """Those of the same numbers in float32, rounded."""
    small = data((3, 50), name, seed=96, device=device).requires_grad_()
    wide = small.detach().float().requires_grad_()
    for function in (torch_reduce.var, torch_reduce.std):
        (grad,), (wanted,) = (torch.autograd.grad(function(x, 1).sum(), x) for x in (small, wide))
        assert_same_bits(grad, wanted.to(dtype_of(name)))


def test_vmap_of_scalars(device):
    """A batch of scalars has a batch of results, with and without keepdim."""
    x = data((5,), "float32", seed=97, device=device)
    for keepdim in (False, True):
        for result in torch.vmap(lambda x, k=keepdim: torch_reduce.var_mean(x, correction=0, keepdim=k))(x):
            assert result.shape == (5,)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_gradients_are_torchs(name, device):
    """Those that torch has in float64, rounded."""
    for function, theirs in ((torch_reduce.var, torch.var), (torch_reduce.std, torch.std)):
        x = data((3, 50), "float32", seed=92, device=device).to(dtype_of(name))
        x[1] = 2.0  # of no deviation
        a, b = x.clone().requires_grad_(), x.double().requires_grad_()
        function(a, 1).sum().backward()
        theirs(b, 1).sum().backward()
        torch.testing.assert_close(a.grad, b.grad.to(a.dtype))


def test_tangents(device):
    x = torch.rand(3, 5, dtype=torch.float64, device=device)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x).cumsum(1))
        for ours, theirs in ((torch_reduce.std, torch.std), (torch_reduce.var, torch.var)):
            a, b = (forward_ad.unpack_dual(function(dual, 1)).tangent for function in (ours, theirs))
            torch.testing.assert_close(a, b)


def test_vmap(device):
    x = data((4, 6, 130), "float32", seed=93, device=device)
    for in_dim, dim in ((0, 0), (0, 1), (1, -1), (2, None)):
        variance, mean = torch.vmap(lambda x, dim=dim: torch_reduce.var_mean(x, dim), in_dims=in_dim)(x)
        single = [torch_reduce.var_mean(one, dim) for one in x.unbind(in_dim)]
        assert_same_bits(variance, torch.stack([v for v, _ in single]))
        assert_same_bits(mean, torch.stack([m for _, m in single]))


@pytest.mark.parametrize("function", ["var", "std", "var_mean"])
def test_compiled(function, device):
    torch._dynamo.reset()
    ours = getattr(torch_reduce, function)
    x = data((6, 130), "float32", seed=94, device=device)
    compiled = torch.compile(lambda x: ours(x, 1, correction=0), backend="aot_eager", fullgraph=True, dynamic=True)
    for part in (x, x[:3, :77]):
        found, direct = compiled(part), ours(part, 1, correction=0)
        for a, b in zip(*((r,) if torch.is_tensor(r) else r for r in (found, direct)), strict=True):
            assert_same_bits(a, b)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    sum(
        r.sum() for r in ([ours(a, 1, correction=0)] if function != "var_mean" else ours(a, 1, correction=0))
    ).backward()
    sum(r.sum() for r in ([compiled(b)] if function != "var_mean" else compiled(b))).backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_opcheck(device):
    x = data((4, 30), "float32", seed=95, device=device)
    opcheck = torch.library.opcheck
    opcheck(OPS._var_mean.default, (x.clone().requires_grad_(), [1], 1.0, False, True), {})
    opcheck(OPS._var_mean.default, (x.clone().requires_grad_(), None, 0.0, True, False), {})
    opcheck(OPS.var_mean.default, (x, [1]), {"correction": 0})
    opcheck(OPS.var.out, (x, [1]), {"out": torch.empty(4, device=device)})


def test_graphs(cuda):
    x = data((300, 5000), "float32", seed=96, device="cuda")
    OPS.var_mean(x, [1])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows, columns = OPS.var_mean(x, [1]), OPS.var_mean(x, [0])
    x.copy_(data((300, 5000), "float32", seed=97, device="cuda"))
    graph.replay()
    for which in (0, 1):
        assert_same_bits(rows[which], OPS.var_mean(x, [1])[which])
        assert_same_bits(columns[which], OPS.var_mean(x, [0])[which])


# --- pinned results ---------------------------------------------------------------------------------------------------

PINNED = pathlib.Path(__file__).parent / "data" / "variance.json"
SHA = "4ccef7492a02bf16b7de42e2a14375632d919e9718ef3042d5df86b8d76a85ab"


def pinned_cases():
    for name in FLOATING:
        yield from ((name, shape, dim) for shape, dim in (((3, 1300), 1), ((700, 3), 0), ((4999,), 0)))


def pinned_tensor(name, shape):
    stored = model.value(np.arange(math.prod(shape)), name)
    return tensor_of(stored.reshape(*shape, 1), name)


def pinned_bits(stored):
    return [format(int(v), "x") for v in np.ascontiguousarray(stored).reshape(-1).view(f"u{stored.dtype.itemsize}")]


def write_pinned():
    """Writes the file, by the model alone."""
    cases = []
    for name, shape, dim in pinned_cases():
        x = pinned_tensor(name, shape)
        bits = {what: pinned_bits(wanted(x, what, dim)) for what in ("var", "mean", "std")}
        cases.append({"dtype": name, "shape": shape, "dim": dim} | bits)
    PINNED.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


def test_pinned_file_is_unchanged():
    """The pinned results never change."""
    assert hashlib.sha256(PINNED.read_bytes()).hexdigest() == SHA


def test_pinned_results(device):
    cases = {(c["dtype"], tuple(c["shape"])): c for c in json.loads(PINNED.read_text())}
    for name, shape, dim in pinned_cases():
        x, case = pinned_tensor(name, shape).to(device), cases[name, shape]
        variance, mean = OPS.var_mean(x, [dim])
        assert pinned_bits(numpy_of(variance)) == case["var"] and pinned_bits(numpy_of(mean)) == case["mean"]
        assert pinned_bits(numpy_of(OPS.std(x, [dim]))) == case["std"]
