"""What is the family's alone: products, extrema and counts, each with the model's bits and torch's semantics."""

import contextlib
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
    COMPLEX,
    DTYPES,
    FAMILY,
    INTEGER,
    SHAPES,
    assert_same_bits,
    data,
    dtype_of,
    in_threads,
    instruction_sets,
    kin,
    numpy_of,
    python,
    random_view,
    tensor_of,
    with_nans,
)
from test_layouts import LAYOUTS
from test_meta import opcheck

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")

PROD, AMAX, AMIN, ANY, ALL = kin("prod", "amax", "amin", "any", "all")
COUNT, LOGSUMEXP, NANSUM = kin("count_nonzero", "logsumexp", "nansum")
EXTREMA, COUNTS = [AMAX, AMIN], [ANY, ALL, COUNT]
WITH_GRADIENTS = [op for op in FAMILY if op.has_gradient]
REAL = [name for name in DTYPES if name not in COMPLEX]
NAN = float("nan")

every = pytest.mark.parametrize("op", FAMILY, ids=str)


def taken(*names):
    """Every operation with every dtype of these that it takes."""
    pairs = [(op, name) for op in FAMILY for name in names if op.takes(name)]
    return pytest.mark.parametrize(("op", "name"), pairs, ids=lambda value: str(value))


def elements(shape, name, op, seed, device):
    """Data of which a result shows something: factors near 1, exponents near another, as many zeros as make a count."""
    x = data(shape, name, seed=seed, device=device)
    if op is LOGSUMEXP and name not in INTEGER and "8" not in name.removeprefix("float"):
        return (data(shape, "int16", seed=seed, device=device).double() / 2500).to(dtype_of(name))
    if op is PROD and name not in INTEGER:
        bits = data(shape, "int8", seed=seed, device=device)
        x = (1 + bits.double() / 4096).to(dtype_of(name))  # those of thousands overflow nothing
    if op is NANSUM and name not in INTEGER:
        nan = data(shape, "int8", seed=seed + 1, device=device) > 100
        x = x.double().masked_fill(nan, NAN).to(dtype_of(name))
    if op in COUNTS:
        x = x * (data(shape, "int8", seed=seed + 1, device=device) > 0).to(x.dtype) if name not in unmultiplied() else x
    return x


def unmultiplied():
    """The dtypes that torch does not multiply everywhere."""
    return ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64", "complex32", "bool")


# --- bits -------------------------------------------------------------------------------------------------------------


@taken(*DTYPES)
def test_bits(op, name, device):
    """The model's bits for every dtype, in rows, columns, all, and mixed dims."""
    for shape, dim in SHAPES:
        op.check(elements(shape, name, op, 61, device), dim)


@pytest.mark.parametrize("op", [op for op in FAMILY if op.has_dtype], ids=str)
@pytest.mark.parametrize("name", REAL)
def test_dtypes(name, op, device):
    """Every dtype with every dtype= : converted exactly to the accumulator, rounded once."""
    x = elements((4, 700), name, op, 62, device)
    for target in op.targets(name, *REAL):
        op.check(x, 1, dtype=target)
        op.check(x.t(), 0, True, dtype=target)


@pytest.mark.parametrize("layout", list(LAYOUTS))
@every
def test_layouts(op, layout, device):
    """In every layout, with a dtype of every size; the largest of nothing is refused."""
    for name in ("float32", "bfloat16", "uint8", "int64"):
        view, dims = LAYOUTS[layout](lambda *shape, name=name: elements(shape, name, op, 1, device))
        of_nothing = op in EXTREMA and any(view.shape[d] == 0 for d in dims)
        refused = pytest.raises(IndexError, match=f"{op}.*have non-zero size")
        with refused if of_nothing else contextlib.nullcontext():
            op.check(view, dims or None)


@pytest.mark.parametrize("block", range(12))
def test_random_views(block, device):
    """Any strides, offsets and dims."""
    for seed in range(25 * block, 25 * block + 25):
        rng = random.Random(seed)
        op = rng.choice(FAMILY)
        name = rng.choice([name for name in DTYPES if op.takes(name)])
        x, dim, keepdim = random_view(rng.randint, name, device, budget=6000)
        if op in EXTREMA and 0 in x.shape:
            continue
        dtype = rng.choice(op.targets(name, None, *REAL)) if op.has_dtype else None
        op.check(x, dim, keepdim, dtype=dtype)


@taken("float32", "bfloat16", "int8", "uint8", "int32", "uint64", "float64")
def test_every_length(op, name, device):
    """Rows and columns of every length around a vector's, a lane's and a chunk's end."""
    for length in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 127, 129, 511, 512, 513, 1025, 4095, 4096, 4097):
        x = elements((2, length + 1), name, op, 63, device)[:, 1:]
        op.check(x, 1)
        op.check(x.t().contiguous(), 0)
        op.check(elements((3, length, 16), name, op, 63, device), 1)


@instruction_sets("default", "avx2")
def test_other_instruction_sets(instructions):
    """The CPU's kernels for those instruction sets that the other tests may not have run."""
    file = pathlib.Path(__file__)
    python(
        *("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", "cpu and (test_layouts or test_special)", file),
        ATEN_CPU_CAPABILITY=instructions,
    )


@taken("float32", "float64", "int32", "uint8", "float16")
def test_lazy_views(op, name, device):
    """Negated views are read as they are."""
    x = elements((6, 1301), name, op, 64, device)
    for view in (torch._neg_view(x), torch._neg_view(x)[:, ::3]):
        for dim in (0, 1, None):
            op.check(view, dim)
    if op in COUNTS and name == "float32":
        z = torch.complex(x, x.flip(1)).conj()
        op.check(z, 1)


@taken("float32", "bfloat16", "int16", "float64")
def test_batch_invariance(op, name, device):
    """A row has the same bits alone, in any batch, as a column, strided, at an odd offset and expanded."""
    for length in (1, 9, 513, 4097, 9001):
        x = elements((5, length), name, op, 65, device)
        alone = op(x[3], 0)
        room, shifted = x.new_zeros(2 * length + 1), x.new_zeros(length + 3)
        room[1::2] = x[3]
        shifted[3:] = x[3]
        for got in (
            op(x, 1)[3],
            op(x.t().contiguous(), 0)[3],
            op(room[1::2]),
            op(shifted[3:]),
            op(x[3].expand(4, -1), 1)[2],
            op(x[3][:, None].expand(-1, 6), 0)[5],
        ):
            assert_same_bits(got, alone)


@every
def test_expanded(op, device):
    """One element many times: of a product that is a power, in the order of the tree."""
    for length in (2, 9, 700, 4096, 4097, 30_000):
        for name in ("float32", "int32", "float64"):
            x = elements((5, 1), name, op, 66, device)
            op.check(x.expand(5, length), 1)
            op.check(x.t().expand(length, 5), 0)


@every
def test_any_number_of_threads(op, set_threads):
    """On the CPU any number of threads gives the same bits: few long rows, many rows, and columns."""
    inputs = [((200_001,), 0), ((3, 60_001), 1), ((2000, 129), 1), ((60_001, 3), 0), ((4300, 130), 0)]
    inputs = [(elements(shape, "float32", op, 67, "cpu"), dim) for shape, dim in inputs]
    for threads in (1, 2, 3, 8):
        set_threads(threads)
        for x, dim in inputs:
            op.check(x, dim, what=f"with {threads} threads for {tuple(x.shape)}")


@pytest.mark.parametrize("name", [name for name in REAL if name not in INTEGER])
def test_special_numbers(name, device):
    """NaN wins wherever it stands, infinities count, and 0.0 is above -0.0."""
    base = data((4, 5000), name, seed=68, device=device)
    fp8 = name == "float8_e4m3fn"  # which has no infinity
    specials = [NAN, 0.0, -0.0] + ([] if fp8 else [math.inf, -math.inf])
    for special, at, op in itertools.product(specials, (0, 1, 513, 4999), [*EXTREMA, PROD, COUNT, LOGSUMEXP, NANSUM]):
        x = base.double().clone()
        x[:, at] = special
        x = x.to(dtype_of(name))
        op.check(x, 1)
        op.check(x.t().contiguous(), 0)
    zeros = torch.zeros(3, 700, dtype=torch.float64)
    zeros[0, 5], zeros[1], zeros[1, 5] = -0.0, -0.0, 0.0
    zeros = zeros.to(dtype_of(name)).to(device)
    for op in EXTREMA:
        op.check(zeros, 1)
        op.check(zeros.t().contiguous(), 0)
        op.check(torch._neg_view(zeros), 1)


@pytest.mark.parametrize("name", INTEGER)
def test_ends_of_integers(name, device):
    """The largest and the smallest numbers of every integer type, as the extremum and beside it."""
    if name == "bool":
        rows = [[True, False], [True, True], [False, False]]
    else:
        ends = np.iinfo(model.STORAGE[name][0])
        rows = [[ends.min, ends.max], [ends.max, ends.max - 1], [ends.min, ends.min + 1]]
    stored = np.array(rows, model.STORAGE[name][0]).repeat(300, 1)[..., None]
    x = tensor_of(stored, name, device)
    for op in EXTREMA:
        op.check(x, 1)
        op.check(x.t().contiguous(), 0)


def test_bytes_of_bools(device):
    """Any byte that is not zero is true."""
    x = torch.tensor([0, 1, 2, 128, 255] * 200, dtype=torch.uint8, device=device).view(torch.bool)
    for op in (ANY, ALL, COUNT, AMAX, AMIN, PROD, NANSUM):
        op.check(x)
        op.check(x[1:5])
        op.check(x.view(200, 5), 0)


def test_logarithms_are_accurate(device):
    """Near the numbers of double precision, also where exponents are large, and of one element itself."""
    for shift in (0.0, 80.0, -1000.0, 1e30):
        x = (data((7, 3001), "int16", seed=79, device=device).double() / 4000 + shift).float()
        wanted = torch.logsumexp(x.double(), 1)
        torch.testing.assert_close(LOGSUMEXP(x, 1).double(), wanted, rtol=2e-7, atol=2e-7)
        assert_same_bits(LOGSUMEXP(x[:, :1], 1), x[:, 0])
    exact = torch.logsumexp(x.double(), 1)
    torch.testing.assert_close(LOGSUMEXP(x.double(), 1), exact, rtol=1e-15, atol=1e-15)


def test_infinite_exponents(device):
    """-inf alone gives -inf, inf gives inf, and beside numbers -inf counts for nothing."""
    inf = math.inf
    for row, wanted in (([-inf] * 3, -inf), ([inf, 1.0, -inf], inf), ([inf, inf, 0.0], inf), ([2.0, -inf, -inf], 2.0)):
        for length in (3, 600, 5000):
            x = torch.tensor(row, device=device).repeat(length // 3 + 1)[:length]
            found = LOGSUMEXP(x)
            count = 1 if math.isinf(wanted) else (length + 2) // 3  # of twos
            assert found.item() == pytest.approx(wanted + math.log(count))


@pytest.mark.parametrize("name", [name for name in REAL if LOGSUMEXP.takes(name)])
def test_pairs(name, device):
    """What ranks exchange: the pair of some chunks, joined with a neighbour's, is that of both; and it has the bits."""
    ops = torch.ops.gpureduce
    x = elements((5, 8192 + 700), name, LOGSUMEXP, 83, device)
    x[3, 5:9] = -math.inf if name not in INTEGER and not name.endswith("fn") else 0
    wide = name == "float64" or name in INTEGER
    parts = [ops._logsum(part, 1) for part in x.split(4096, 1)]
    assert all(part.dtype == (torch.complex128 if wide else torch.complex64) for part in parts)
    pair = ops._join_logsums(ops._join_logsums(parts[0], parts[1]), parts[2])
    assert_same_bits(torch.view_as_real(pair), torch.view_as_real(ops._logsum(x, [1])))
    assert_same_bits(pair.real, ops._amax(x, 1).to(pair.real.dtype))
    found = ops._finish(pair, "_logsumexp", 1, torch.float64)
    assert found.dtype == torch.float64
    wanted = LOGSUMEXP.expected(x.cpu(), 1)
    assert_same_bits(torch_reduce.sum(found[None], 0, dtype=LOGSUMEXP(x, 1).dtype), wanted)
    assert ops._logsum(x[:, :0], 1).tolist() == [complex(-math.inf, 0)] * 5


def test_pairs_are_refused(device):
    """Of complex numbers, of unlike pairs; and they have no gradient."""
    ops, pair = torch.ops.gpureduce, torch.zeros(3, dtype=torch.complex64, device=device)
    with pytest.raises(NotImplementedError, match="complex numbers are not supported"):
        ops._logsum(pair, 0)
    for other in (pair.to(torch.complex128), pair[:2]):
        with pytest.raises(RuntimeError, match="must be alike"):
            ops._join_logsums(pair, other)
    with pytest.raises(RuntimeError, match="pairs are complex64 or complex128, not Float"):
        ops._join_logsums(pair.real, pair.real)
    x = torch.ones(3, device=device, requires_grad=True)
    with pytest.raises(NotImplementedError, match="pairs have no derivative"):
        ops._logsum(x, 0).real.backward()
    meta = torch.empty(4, 3, device="meta", dtype=torch.bfloat16)
    found = ops._join_logsums(ops._logsum(meta, 1), ops._logsum(meta, 1))
    assert found.is_meta and found.dtype == torch.complex64 and found.shape == (4,)


# --- pinned results ---------------------------------------------------------------------------------------------------

PINNED = pathlib.Path(__file__).parent / "data" / "family.json"
SHA = "ff048e8e03ff89f0debf7fac44bc56a9160c8bb6330e83f94a00703e7b946f2b"


def pinned_cases():
    """Every operation and dtype, as rows, columns and all; their elements are the pinned sums', or for a product 1 and
    a little of them.
    """
    for op, name in itertools.product(FAMILY, DTYPES):
        if op.takes(name):
            yield from ((op, name, shape, dim) for shape, dim in (((3, 1300), 1), ((700, 3), 0), ((4999,), 0)))


def pinned_elements(op, name, size):
    parts = model.STORAGE[name][1]
    x = model.value(np.arange(size * parts), model.PART.get(name, name))
    if op is PROD and name not in INTEGER:
        x = model.encode((1 + model.decode(x, name).astype(np.float64) / 64).astype(np.float32), name)
    x = x.reshape(size, parts)
    return with_nans(x, name, np.arange(size) % 7 == 3) if op is NANSUM else x


def pinned_bits(stored):
    return [format(int(v), "x") for v in np.ascontiguousarray(stored).reshape(-1).view(f"u{stored.dtype.itemsize}")]


def write_pinned():
    """Writes the file, by the model alone; returns its SHA-256."""
    cases = []
    for op, name, shape, dim in pinned_cases():
        stored = pinned_elements(op, name, math.prod(shape))
        strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
        found = model.reduce(stored.view(np.uint8).reshape(-1), name, shape, strides, 0, [dim], kind=str(op))
        cases.append({"op": str(op), "dtype": name, "shape": shape, "dim": dim, "bits": pinned_bits(found)})
    PINNED.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    return hashlib.sha256(PINNED.read_bytes()).hexdigest()


def test_pinned_file_is_unchanged():
    """The pinned results never change."""
    assert hashlib.sha256(PINNED.read_bytes()).hexdigest() == SHA


@every
def test_pinned_results(op, device):
    cases = {(c["op"], c["dtype"], tuple(c["shape"])): c for c in json.loads(PINNED.read_text())}
    for other, name, shape, dim in pinned_cases():
        if other is op:
            x = tensor_of(pinned_elements(op, name, math.prod(shape)), name, device).view(shape)
            assert pinned_bits(numpy_of(op(x, dim))) == cases[str(op), name, shape]["bits"], (name, shape)


# --- semantics --------------------------------------------------------------------------------------------------------


@taken("float32", "bfloat16", "int32", "uint8", "bool", "float64", "int64")
def test_agrees_with_torch(op, name, device):
    """torch's results, dtypes and shapes, with dims negative, several, none, and kept."""
    x = elements((3, 4, 5), name, op, 69, device)
    for dim, keepdim in itertools.product((None, (), 0, -1, (0, 2), [1], (-1, 0)), (False, True)):
        dims = list(range(3)) if dim in (None, ()) else [dim] if isinstance(dim, int) else list(dim)
        wanted = op.torch(x, () if dim == () and op.name in ("any", "all") else dims, keepdim)
        for form in op.forms:
            got = form(x, dim, keepdim)
            assert got.dtype == wanted.dtype and got.shape == wanted.shape
            torch.testing.assert_close(got, wanted, rtol=2e-2 if name == "bfloat16" else 1e-5, atol=0)


@every
def test_empty(op, device):
    """Of no elements: 1, 0, False and True; no extremum, with torch's errors."""
    x = torch.ones(3, 0, 2, device=device)
    if op.empty is None:
        for dim in (None, (), 1, (0, 1)):
            error = IndexError if dim else RuntimeError
            with pytest.raises(error, match=f"{op}.*Expected reduction dim") as raised:
                op(x, dim)
            assert raised.type is error
        assert op(x, 0).shape == (0, 2)
        return
    for dim, shape in ((None, ()), ((), ()), (1, (3, 2)), (0, (0, 2)), ((0, 1), (2,))):
        if dim == () and op.name in ("any", "all"):
            shape = x.shape
        result = op(x, dim)
        assert result.shape == shape and (result == op.empty).all()
        assert_same_bits(op(x.to("meta"), dim).new_empty(0, device="cpu"), result.new_empty(0, device="cpu"))


@every
def test_scalars(op, device):
    """Tensors without dims, whose only element is the result."""
    x = torch.tensor(3.0, device=device)
    for dim in (None, 0, -1, ()):
        op.check(x, dim)
    with pytest.raises(IndexError):
        op(x, 1)


def test_out_of_other_dtypes(device):
    """A logarithm is rounded once to its out, whose dtype does not change how it is added; a truth is a bool or uint8,
    in a graph, too."""
    for name, wide in (("bfloat16", torch.float32), ("float32", torch.float64), ("float8_e5m2", torch.float64)):
        x = data((5, 700), name, device=device)
        for form in LOGSUMEXP.forms:
            found = form(x, 1, out=torch.empty(5, dtype=wide, device=device))
            small = torch.float32 if name == "float8_e5m2" else x.dtype
            assert_same_bits(torch_reduce.sum(found[:, None], 1, dtype=small), form(x, 1))
            torch.testing.assert_close(found, form(x.double(), 1).to(wide), rtol=1e-6, atol=0)
    x = torch.tensor([[0.0, 2.0], [0.0, 0.0]], device=device)
    for op, wanted in ((ANY, [1, 0]), (ALL, [0, 0])):
        for dtype in (torch.bool, torch.uint8):
            for call in (op.operator, torch.compile(op.operator, backend="aot_eager", fullgraph=True)):
                out = torch.empty(2, dtype=dtype, device=device)
                assert call(x, [1], out=out).tolist() == wanted and out.dtype == dtype
        out = torch.empty(2, 2, dtype=torch.uint8, device=device)
        assert op.function(x, (), out=out).tolist() == [[0, 1], [0, 0]]
        assert torch.vmap(lambda row: op.function(row, ()))(x).tolist() == [[0, 1], [0, 0]]  # noqa: B023
        with pytest.raises(RuntimeError, match="Expected out tensor to have dtype"):
            op.function(x, 1, out=torch.empty(2, device=device))


def test_refused(device):
    """Complex numbers have no order, and no product here: NotImplementedError, in words."""
    z = torch.ones(3, dtype=torch.complex64, device=device)
    for op in (*EXTREMA, PROD, LOGSUMEXP, NANSUM):
        with pytest.raises(NotImplementedError, match=f"{op}.*complex"):
            op(z)
    with pytest.raises(NotImplementedError, match="complex"):
        torch_reduce.prod(z.real, dtype=torch.complex64)
    for dtype, what in ((torch.complex64, "complex"), (torch.int64, "floating"), (torch.bool, "floating")):
        with pytest.raises(NotImplementedError, match=f"nansum.*{what}"):
            NANSUM(z.real, dtype=dtype)


@every
def test_arguments(op, device):
    """torch's errors for dims and out, and NumPy's names."""
    x = torch.ones(2, 3, device=device)
    for form in op.forms:
        with pytest.raises(IndexError):
            form(x, 2)
        with pytest.raises(RuntimeError, match="multiple times"):
            form(x, (0, -2))
    assert_same_bits(op.function(x, axis=1, keepdims=True), op(x, 1, True))
    with pytest.raises(TypeError):
        op.function(x, 0, 0)
    with pytest.raises(TypeError):
        op.function(x, nothing=1)
    if not op.has_dtype:
        with pytest.raises(TypeError):
            op.function(x, dtype=torch.float32)
    wrong = torch.empty(2, dtype=torch.complex64, device=device)
    before = wrong.clone()
    for form in op.forms:
        with pytest.raises(RuntimeError):
            form(x, 1, out=wrong)
    assert torch.equal(torch.view_as_real(wrong).view(torch.int32), torch.view_as_real(before).view(torch.int32))


@every
def test_out(op, device):
    """out= is written, resized, and may be what is read."""
    x = elements((6, 700), "float32", op, 70, device)
    wanted = op(x, 1)
    out = torch.empty(6, dtype=wanted.dtype, device=device)
    for form in op.forms:
        assert form(x, 1, out=out) is out
        assert_same_bits(out, wanted)
    grown = torch.empty(0, dtype=wanted.dtype, device=device)
    assert_same_bits(op(x, 1, out=grown), wanted)
    strided = torch.empty(12, dtype=wanted.dtype, device=device)[::2]
    assert_same_bits(op(x, 1, out=strided), wanted)
    if wanted.dtype == x.dtype:
        again = x.clone()
        assert_same_bits(op(again, 1, out=again[:, 3]), wanted)


# --- torch's features -------------------------------------------------------------------------------------------------


def leaf(*shape, device, seed=71):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64).add(0.5).to(device).requires_grad_()


@pytest.mark.parametrize("op", WITH_GRADIENTS, ids=str)
def test_gradients(op, device):
    """First and second derivatives, in both modes, with dims of all kinds."""
    for shape, dim, keepdim in (((5,), None, False), ((2, 3), 1, True), ((2, 3, 2), (0, 2), False), ((), None, False)):
        x = leaf(*shape, device=device)
        call = functools.partial(op, dim=dim, keepdim=keepdim)
        assert gradcheck(call, (x,), check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(call, (x,))


@pytest.mark.parametrize("op", WITH_GRADIENTS, ids=str)
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
def test_gradients_are_torchs(op, name, device):
    """With ties, zeros and NaN: what torch's function has in float64, rounded; a product's of NaN is NaN everywhere."""
    rows = [
        [1.0, 2.0, 2.0, -1.0],
        [0.0, 3.0, 4.0, 5.0],
        [0.0, 3.0, 0.0, 5.0],
        [0.0, -0.0, 0.0, 0.0],
        [1.0, NAN, 2.0, 3.0],
    ]
    for seed in rows:
        x = torch.tensor([seed, seed[::-1]], dtype=dtype_of(name), device=device)
        ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
        op(ours, 1).backward(torch.tensor([2.0, 3.0], dtype=x.dtype, device=device))
        op.torch(theirs, (1,), False).backward(torch.tensor([2.0, 3.0], dtype=torch.float64, device=device))
        few = {"float32": 2.0**-22, "bfloat16": 2.0**-8, "float64": 2.0**-50}[name]  # a rounding, or of float32 a few
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=few, atol=0, equal_nan=True)


def test_gradients_of_infinite_logarithms(device):
    """0 where all elements are -inf, where torch's is NaN; and NaN for infinities if one is +inf, as torch's is."""
    inf = math.inf
    rows = [[-inf, -inf, -inf], [-inf, 1.0, 2.0], [inf, 1.0, -inf], [inf, inf, 0.0]]
    ours, theirs = (torch.tensor(rows, device=device, requires_grad=True) for _ in range(2))
    torch_reduce.logsumexp(ours, 1).sum().backward()
    torch.logsumexp(theirs, 1).sum().backward()
    assert theirs.grad[0].isnan().all() and (ours.grad[0] == 0).all()
    torch.testing.assert_close(ours.grad[1:], theirs.grad[1:], equal_nan=True)


def test_gradients_of_half_products(device):
    """The products of the other elements are taken in float64: half of them may be beyond float16."""
    x = torch.tensor([300.0, 400.0, 2.0**-10, 3.0], dtype=torch.float16, device=device).requires_grad_()
    wide = x.detach().float().requires_grad_()
    (grad,), (wanted,) = (torch.autograd.grad(torch_reduce.prod(each), each) for each in (x, wide))
    torch.testing.assert_close(grad[2:], wanted[2:].half())
    assert grad.isfinite().tolist() == wanted.half().isfinite().tolist()


def test_gradients_of_products_with_zeros(device):
    """Second derivatives where factors are zero: those of the product of all others."""
    x = leaf(2, 4, device=device).detach()
    x[0, 1] = x[1, 0] = x[1, 2] = 0
    x.requires_grad_()
    assert gradcheck(lambda x: PROD(x, 1), (x,))
    assert gradgradcheck(lambda x: PROD(x, 1), (x,))


@pytest.mark.parametrize("op", COUNTS, ids=str)
def test_counts_have_no_gradient(op, device):
    assert not op(leaf(3, device=device)).requires_grad


@pytest.mark.parametrize("op", WITH_GRADIENTS, ids=str)
def test_tangents(op, device):
    """Forward mode is backward mode, transposed."""
    x, v = leaf(3, 5, device=device), torch.ones(3, 5, dtype=torch.float64, device=device)
    with forward_ad.dual_level():
        change = forward_ad.unpack_dual(op(forward_ad.make_dual(x.detach(), v), 1)).tangent
    (gradient,) = torch.autograd.grad(op(x, 1).sum(), x)
    torch.testing.assert_close(change, (gradient * v).sum(1))


@every
def test_vmap(op, device):
    """A batch is one call, with the bits of single ones."""
    x = elements((4, 6, 130), "float32", op, 72, device)
    for in_dim, dim in ((0, 0), (0, 1), (1, -1), (2, None)):
        got = torch.vmap(lambda x, dim=dim: op(x, dim), in_dims=in_dim)(x)
        wanted = torch.stack([op(one, dim) for one in x.unbind(in_dim)])
        assert_same_bits(got, wanted)


@every
def test_compiled(op, device):
    """Whole graphs, the same bits, and gradients through them."""
    torch._dynamo.reset()  # all operations share the compiled function's code
    x = elements((6, 130), "float32", op, 73, device)
    compiled = torch.compile(lambda x: op.function(x, 1), backend="aot_eager", fullgraph=True, dynamic=True)
    assert_same_bits(compiled(x), op(x, 1))
    assert_same_bits(compiled(x[:3, :77]), op(x[:3, :77], 1))
    if op in WITH_GRADIENTS:
        ours, traced = x.clone().requires_grad_(), x.clone().requires_grad_()
        op(ours, 1).sum().backward()
        compiled(traced).sum().backward()
        torch.testing.assert_close(ours.grad, traced.grad)


@every
def test_opcheck(op, device):
    x = elements((4, 30), "float32", op, 74, device)
    opcheck(op.operator.default, (x, [1]), {})
    row = getattr(torch.ops.gpureduce, op.name if op.has_dtype else f"_{op}")
    opcheck(row.default, (x.clone().requires_grad_(op in WITH_GRADIENTS), [0], True), {})
    out = torch.empty(4, dtype=op(x, 1).dtype, device=device)
    opcheck(op.operator.out, (x, [1]), {"out": out})


@every
def test_autocast(op, device):
    """As torch's policy has it: products of smaller floats are float32, and so are logarithms on CUDA."""
    x = elements((4, 300), "bfloat16", op, 75, device)
    with torch.autocast(device, torch.bfloat16):
        result = op(x, 1)
    wide = op is PROD or (op is LOGSUMEXP and device == "cuda")
    assert result.dtype == (torch.float32 if wide else op(x, 1).dtype)
    if op is PROD:
        assert_same_bits(result, op(x, 1, dtype=torch.float32))
    else:
        assert_same_bits(result.to(op(x, 1).dtype), op(x, 1))


@every
def test_graphs(op, cuda):
    """A captured call reads its input anew at every replay."""
    x = elements((300, 5000), "float32", op, 76, "cuda")
    op(x, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows, columns = op(x, 1), op(x, 0)
    x.copy_(elements((300, 5000), "float32", op, 77, "cuda"))
    graph.replay()
    assert_same_bits(rows, op(x, 1))
    assert_same_bits(columns, op(x, 0))


@every
def test_threads(op, device):
    """Calls of several threads at once."""
    x = elements((50, 700), "float32", op, 78, device)
    wanted = [op(x, 0), op(x, 1), op(x)]

    def work(dim):
        for _ in range(20):
            assert_same_bits(op(x, dim), wanted[2 if dim is None else dim])

    in_threads(work, [0, 1, None] * 2)


if __name__ == "__main__":
    print(write_pinned())
