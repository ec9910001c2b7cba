"""Which element is the largest or smallest: ties, NaN, zeros, logical order; max, min and aminmax beside torch's."""

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import model
import torch_reduce
from support import COMPLEX, DTYPES, FLOATING, assert_same_bits, data, dtype_of, numpy_of, tensor_of
from table import INDICES

REAL = [name for name in DTYPES if name not in COMPLEX]
BOTH = [(torch_reduce.max, torch.max, np.argmax), (torch_reduce.min, torch.min, np.argmin)]
both = pytest.mark.parametrize(("ours", "theirs", "index"), BOTH, ids=["max", "min"])
arg = pytest.mark.parametrize("op", INDICES, ids=str)


def leaf(x):
    return x.detach().clone().requires_grad_()


def specials(name, device, repeats=1):
    """Rows of numbers at the ends of a dtype, twice each, in several orders; and NaN among floats."""
    info = torch.iinfo(dtype_of(name)) if name not in (*FLOATING, "bool") else None
    ends = [0, 1] if name == "bool" else [info.min, info.max, 0] if info else [-math.inf, math.inf, 0.0, -0.0, 1.0]
    rows = [ends + ends, ends[::-1] + ends, ends[1:] + ends + ends[:1], ends[:1] * (2 * len(ends))]
    if name in FLOATING:
        rows += [[math.nan] * 10, ends + [math.nan] + ends[:3] + [math.nan], [1.0] * 9 + [math.nan]]
    if info:
        stored = np.array(rows, model.STORAGE[name][0])[..., None]
    else:
        stored = model.encode(np.array(rows, np.int64 if name == "bool" else np.float64), name)[..., None]
    return tensor_of(np.tile(stored, (1, repeats, 1)), name, device)


# --- which one --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REAL)
@arg
def test_ends_of_a_dtype(op, name, device):
    """The lowest and highest numbers, infinities, both zeros and NaN: the first of equal ones, rows and columns."""
    for repeats in (1, 97, 1300):
        x = specials(name, device, repeats)
        op.check(x, 1)
        op.check(x.t().contiguous(), 0)
        op.check(x)
        op.check(x.t())


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 511, 512, 513, 4095, 4096, 4097, 50257])
@arg
def test_every_place(op, length, device):
    """The one element that is the largest or smallest is found wherever it is; of two, the first."""
    largest = str(op) == "argmax"
    places = sorted({0, length // 3, length // 2, length - 1})
    x = torch.full((len(places), length), 1.0 if largest else 3.0, device=device)
    for row, place in enumerate(places):
        x[row, place] = x[row, -1] = 2.0
    for name in ("float32", "bfloat16", "float64", "int32", "uint8", "int64"):
        y = x.to(dtype_of(name))
        assert op(y, 1).tolist() == places
        assert op(y.t().contiguous(), 0).tolist() == places
    y = x.masked_fill(x == 2, math.nan)
    assert op(y, 1).tolist() == places and op(y.double(), 1).tolist() == places


@arg
def test_logical_order(op, device):
    """An index over several dims counts in logical order: of a permuted view, too, whose memory has another order."""
    x = op.elements((5, 6, 7, 9), "float32", 3, device)
    for view in (
        x,
        x.permute(3, 1, 0, 2),
        x.to(memory_format=torch.channels_last),
        x[:, ::2, 1:],
        x[:, :, :1].expand_as(x),
    ):
        assert op(view).item() == op.torch(view.reshape(-1)).item()
        for dims in ((0, 1), (2, 0), (1, 3), (3, 2, 1), (0, 2, 3)):
            op.check(view, dims)
            op.check(view, dims, keepdim=True)
    assert op(x[0, 0].expand(1000, 7, 9)).item() == op(x[0, 0]).item()


@arg
def test_lazily_negated(op, device):
    """A lazily negated view is read as it is."""
    for name in ("float32", "bfloat16", "float64"):
        x = torch._neg_view(with_nans_in(op.elements((9, 700), name, 5, device)))
        for dim in (0, 1, None):
            op.check(x, dim)
        values, index = torch_reduce.max(x, 1)
        wanted, place = torch.max(x.resolve_neg(), 1)
        assert_same_bits(values, wanted)
        assert torch.equal(index, place)


def with_nans_in(x):
    x[0, 5] = x[3, 0] = x[3, 600] = math.nan
    return x


# --- max and min ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REAL)
@both
def test_values(ours, theirs, index, name, device):
    """The value is the element at the index, bit for bit, of every dtype; shapes and strides are torch's."""
    for x in (
        specials(name, device, 7),
        data((6, 5, 40), name, 7, device),
        data((6, 5, 40), name, 7, device).permute(2, 0, 1),
    ):
        for dim in range(x.dim()):
            for keepdim in (False, True):
                found = ours(x, dim, keepdim)
                assert type(found) is getattr(torch.return_types, ours.__name__)
                place = index(model.decode(numpy_of(x)[..., 0], name), dim)[..., None]
                wanted = np.take_along_axis(numpy_of(x)[..., 0], np.expand_dims(place[..., 0], dim), dim)
                wanted = wanted if keepdim else wanted.squeeze(dim)
                assert_same_bits(found.values, wanted[..., None])
                assert torch.equal(found.indices.cpu(), torch.from_numpy(place.reshape(wanted.shape)))
                like = torch.max(torch.empty(x.shape, device=device).as_strided(x.shape, x.stride()), dim, keepdim)
                for mine, other in zip(found, like, strict=True):
                    assert mine.shape == other.shape and mine.stride() == other.stride()


def test_values_of_nothing(device):
    """No elements along another dim: no results; along this one: torch's error."""
    x = torch.empty(3, 0, 4, device=device)
    for ours, theirs, _ in BOTH:
        for keepdim in (False, True):
            for mine, other in zip(ours(x, 0, keepdim), theirs(x, 0, keepdim), strict=True):
                assert mine.shape == other.shape and mine.dtype == other.dtype
    scalar = torch.tensor(3.0, device=device)
    for dim in (0, -1):
        assert [y.item() for y in torch_reduce.max(scalar, dim)] == [3.0, 0]
        assert torch_reduce.argmin(scalar, dim).shape == ()


ERRORS = {
    "a dim of none": lambda R, d: [f(torch.empty(3, 0, device=d), 1) for f in (R.argmax, R.argmin, R.max, R.min)],
    "argmax of nothing": lambda R, d: R.argmax(torch.empty(0, device=d)),
    "argmin of nothing": lambda R, d: R.argmin(torch.empty(0, 3, device=d)),
    "max along nothing": lambda R, d: R.max(torch.empty(3, 0, device=d), -1),
    "min along nothing": lambda R, d: R.min(torch.empty(3, 0, device=d), 1),
    "aminmax of nothing": lambda R, d: R.aminmax(torch.empty(0, device=d)),
    "dim out of range": lambda R, d: R.max(torch.empty(3, 4, device=d), 2),
    "argmax, dim out of range": lambda R, d: R.argmax(torch.empty(3, 4, device=d), -3),
    "aminmax, dim out of range": lambda R, d: R.aminmax(torch.empty(3, 4, device=d), dim=2),
    "out of another dtype": lambda R, d: R.argmax(torch.ones(3, device=d), out=torch.empty(0, device=d)),
    "indices of another dtype": lambda R, d: R.max(
        torch.ones(3, device=d), 0, out=(torch.ones(1, device=d), torch.ones(1, device=d))
    ),
    "values of another dtype": lambda R, d: R.min(
        torch.ones(3, device=d), 0, out=(torch.ones(1, device=d).half(), torch.ones(1, device=d).long())
    ),
    "out with a gradient": lambda R, d: R.max(
        torch.ones(3, device=d, requires_grad=True), 0, out=(torch.ones((), device=d), torch.ones((), device=d).long())
    ),
}


@pytest.mark.parametrize("label", ERRORS)
def test_errors_are_torchs(label, device):
    """The class and the text are torch's, but for the names of dtypes."""
    with pytest.raises(Exception) as theirs:
        ERRORS[label](torch, device)
    with pytest.raises(theirs.type) as ours:
        ERRORS[label](torch_reduce, device)
    first = str(theirs.value).splitlines()[0]
    for name, own in (("long int", "Long"), ("c10::Half", "Half"), ("float", "Float")):
        first = first.replace(name, own)
    assert first.split("(): ")[-1] in str(ours.value), f"{ours.value} is not {first}"


def test_refused(device):
    """Complex numbers have no order; max and min want one dim, and two tensors as out. The text names the function."""
    x = torch.ones(2, 3, device=device)
    functions = torch_reduce.argmax, torch_reduce.argmin, torch_reduce.max, torch_reduce.min, torch_reduce.aminmax
    for function in functions:
        with pytest.raises(NotImplementedError, match=rf"^{function.__name__}\(\): complex numbers have no order"):
            function(x.to(torch.complex64), dim=1)
    for dim in (None, (0, 1), [0], 1.0, True, x):
        for function in (torch_reduce.max, torch_reduce.min):
            with pytest.raises(TypeError, match=rf"^{function.__name__}\(\)"):
                function(x, dim)
    with pytest.raises(TypeError, match=r"^aminmax\(\)"):
        torch_reduce.aminmax(x, dim=(0, 1))
    for out in (x, (x,), (x, None), (x, x, x)):
        with pytest.raises(TypeError, match=r"^max\(\): argument 'out' must be a tuple of two Tensors"):
            torch_reduce.max(x, 1, out=out)


def test_out(device):
    """Results are written, resized, and in any strides; the input may be one of them."""
    x = data((4, 9), "float32", 11, device)
    for ours, theirs, _ in BOTH:
        wanted = theirs(x, 1)
        out = torch.empty(0, device=device), torch.empty(8, dtype=torch.int64, device=device)[::2]
        found = ours(x, 1, out=out)
        assert found.values is out[0] and found.indices is out[1]
        assert torch.equal(out[0], wanted.values) and torch.equal(out[1], wanted.indices)
    place = torch.empty(9, dtype=torch.int64, device=device)
    assert torch_reduce.argmax(x, 0, out=place) is place and torch.equal(place, x.argmax(0))
    low, high = torch_reduce.aminmax(x, dim=0, out=(torch.empty(9, device=device), torch.empty(0, device=device)))
    assert torch.equal(low, x.amin(0)) and torch.equal(high, x.amax(0))
    whole = torch.arange(9, device=device)
    assert torch_reduce.argmin(whole, out=whole[0]).item() == 0
    own = x.clone()
    torch_reduce.min(own, 1, out=(own[:, 0], torch.empty(4, dtype=torch.int64, device=device)))
    assert torch.equal(own[:, 0], x.amin(1)) and torch.equal(own[:, 1:], x[:, 1:])


@pytest.mark.parametrize("keepdim", [False, True])
def test_results_in_the_same_memory_are_refused(keepdim, device):
    """One would overwrite the other. torch says so of other functions; its own max fails here, or writes both."""
    x = data((4, 9), "int64", 12, device)
    one = torch.arange(8, device=device)
    before = one.clone()
    new = lambda: torch.empty(0, dtype=torch.int64, device=device)  # noqa: E731
    placed = lambda at: one[at : at + 4].view((4, 1) if keepdim else (4,))  # noqa: E731
    for function in (torch_reduce.max, torch_reduce.min, torch_reduce.aminmax):
        same, empty = placed(0), new()
        for out in ((same, same), (same, placed(0)), (same, placed(2)), (empty, empty), (empty, empty[:])):
            with pytest.raises(RuntimeError, match="refer to a single memory location"):
                function(x, dim=1, keepdim=keepdim, out=out)
    assert torch.equal(one, before)
    side = one[:4], one[4:]
    torch_reduce.aminmax(x, dim=1, out=side)
    assert torch.equal(side[0], x.amin(1)) and torch.equal(side[1], x.amax(1))
    apart = one[::2], one[1::2]  # interleaved, but no element is in both
    torch_reduce.max(x, 1, out=apart)
    assert torch.equal(apart[0], x.amax(1)) and torch.equal(apart[1], x.argmax(1))


# --- torch's features -------------------------------------------------------------------------------------------------


@both
def test_gradients(ours, theirs, index, device):
    """All of it goes to the element at the index, ties and NaN among them; of second order and forward, too."""
    x = specials("float32", device, 3)
    for dim in (0, 1):
        for keepdim in (False, True):
            one, other = leaf(x), leaf(x)
            grad = torch.linspace(1, 2, ours(x, dim, keepdim)[0].numel(), device=device)
            for function, z in ((ours, one), (theirs, other)):
                values, indices = function(z, dim, keepdim)
                assert values.requires_grad and not indices.requires_grad
                values.backward(grad.view_as(values))
            assert_same_bits(one.grad, other.grad)
    y = data((4, 5), "int8", 13, device).double().add(torch.linspace(0, 0.5, 5, device=device)).requires_grad_()
    assert gradcheck(lambda y: ours(y.square(), 1)[0], y, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(lambda y: ours(y.square(), 1)[0], y)


def test_gradients_of_float8(device):
    """float8 has gradients where amax has them."""
    x = leaf(specials("float8_e5m2", device))
    torch_reduce.max(x, 1).values.float().sum().backward()
    assert x.grad.dtype == x.dtype
    assert x.grad.float().sum(1).tolist() == [1.0] * len(x)
    assert torch.equal(x.grad.float().argmax(1), torch_reduce.argmax(x, 1))


def test_no_gradient_of_an_index(device):
    x = torch.randn(3, 4, device=device, requires_grad=True)
    for function in (torch_reduce.argmax, torch_reduce.argmin):
        assert not function(x, 1).requires_grad
        assert torch.func.jvp(lambda x: function(x, 1), (x,), (x,))[1].eq(0).all()  # noqa: B023
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), torch.ones_like(x))
        assert torch.autograd.forward_ad.unpack_dual(torch_reduce.max(dual, 1).values).tangent.eq(1).all()


def test_gradients_of_aminmax(device):
    """They are those of amin and amax: shared by equal elements. torch has none."""
    x = torch.tensor([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0]], device=device, requires_grad=True)
    for dim in (None, 0, 1):
        low, high = torch_reduce.aminmax(x, dim=dim)
        mine = torch.autograd.grad((low * 2 + high).sum(), x)[0]
        both = (torch.amin(x, dim if dim is not None else ()) * 2 + torch.amax(x, dim if dim is not None else ())).sum()
        assert torch.equal(mine, torch.autograd.grad(both, x)[0])


FUNCTIONS = {
    "argmax": lambda x: torch_reduce.argmax(x, 1),
    "argmin of all": lambda x: torch_reduce.argmin(x),
    "argmax of two dims": lambda x: torch_reduce.argmax(x, (0, 1), True),
    "max": lambda x: torch_reduce.max(x, 1),
    "min": lambda x: torch_reduce.min(x, -1, True),
    "aminmax": lambda x: torch_reduce.aminmax(x, dim=0),
    "aminmax of all": lambda x: torch_reduce.aminmax(x),
}


@pytest.mark.parametrize("label", FUNCTIONS)
def test_vmap_and_compile(label, device):
    """A batch is a loop; a compiled graph has the same results, dynamic shapes too; meta tensors have the shapes."""
    function, x = FUNCTIONS[label], data((3, 6, 50), "float32", 17, device)
    flat = lambda result: list(result) if isinstance(result, tuple) else [result]  # noqa: E731
    each = [flat(function(one)) for one in x]
    for view, dim in ((x, 0), (x.movedim(0, 2), 2)):
        batch = flat(torch.vmap(function, dim)(view))
        for k, found in enumerate(batch):
            assert_same_bits(found, torch.stack([one[k] for one in each]))
    for dynamic in (False, True):
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        for size in (6, 4):
            for found, wanted in zip(flat(compiled(x[0, :size])), flat(function(x[0, :size])), strict=True):
                assert_same_bits(found, wanted)
    for found, wanted in zip(flat(function(x[0].to("meta"))), each[0], strict=True):
        assert found.shape == wanted.shape and found.dtype == wanted.dtype and found.stride() == wanted.stride()


def test_operators(device):
    """torch's own checks of an operator."""
    ops, x = torch.ops.gpureduce, data((5, 60), "float32", 19, device)
    for operator, args in ((ops.argmax, ([1],)), (ops.argmin, (None, True)), (ops.max, (0,)), (ops.min, (1, True))):
        torch.library.opcheck(operator.default, (x, *args))
        torch.library.opcheck(operator.default, (x.clone().requires_grad_(), *args))
    torch.library.opcheck(ops.aminmax.default, (x,), dict(dim=1))
    torch.library.opcheck(ops.argmax.out, (x, [1]), dict(out=torch.empty(5, dtype=torch.int64, device=device)))


def test_shards():
    """What does not reach over ranks is of a Shard alone; aminmax does. Other calls are refused in words."""
    shard = torch_reduce.distributed.Shard(data((4, 6), "float32", 23), 0)
    assert_same_bits(torch_reduce.argmax(shard, 1), torch_reduce.argmax(shard.x, 1))
    for mine, other in zip(torch_reduce.min(shard, 1), torch_reduce.min(shard.x, 1), strict=True):
        assert_same_bits(mine, other)
    for call in (
        lambda: torch_reduce.argmax(shard),
        lambda: torch_reduce.argmin(shard, (1, 0)),
        lambda: torch_reduce.max(shard, -2),
    ):
        with pytest.raises(TypeError, match="'input' is a Shard that is cut along dim 0"):
            call()
