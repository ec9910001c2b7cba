"""replace_torch_sum: what reaches our kernel, what stays with torch's, and that all is as before when it is off."""

import itertools
import subprocess
import sys
import threading
import typing
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import torch_reduce
from support import assert_same_bits, data, dtype_of, opinfo
from torch_reduce import _replace, _traced, replace_torch_sum

pytestmark = pytest.mark.filterwarnings(
    "ignore:Casting complex values",
    "ignore:ComplexHalf support",
    "ignore:Sparse CSR",
    "ignore:The PyTorch API of nested",
    "ignore:.*torch.jit.script",
)

OPINFO = opinfo()
torch.vmap(torch.neg)(torch.ones(2))  # functorch registers kernels at its first call
KERNELS = ["sum.dim_IntList", "sum.IntList_out", "sum", "sum.out", "mean.dim", "mean.out", "prod", "prod.dim_int"]
KERNELS += ["amax", "amax.out", "amin", "any.dims", "any", "all.dim", "count_nonzero.dim_IntList", "linalg_vector_norm"]
KERNELS += ["argmax", "argmax.out", "max.dim", "min.dim_min", "aminmax"]
KERNELS += ["_embedding_bag", "_embedding_bag_forward_only", "_embedding_bag_dense_backward"]
KERNELS += ["index_reduce", "index_reduce.out", "scatter_reduce.two", "scatter_reduce_.two"]
KERNELS += ["index_add", "index_add_", "scatter_add.out", "_index_put_impl_", "bincount", "embedding_dense_backward"]
KERNELS += ["rms_norm", "_fused_rms_norm", "nll_loss_forward", "nll_loss_forward.output", "nll_loss2d_backward"]
KERNELS = [f"aten::{name}" for name in KERNELS]


def tables():
    """The dispatcher's tables of all that is replaced and of what calls it."""
    return [torch._C._dispatch_dump(name) + torch._C._dispatch_dump_table(name) for name in KERNELS]


@pytest.fixture(autouse=True)
def restored():
    """Whatever a test does, at its end the dispatcher is as it was."""
    before = tables()
    yield
    assert tables() == before


@pytest.fixture
def x(device):
    """Rows whose sums have other bits with torch's own kernel, so that a sum shows which kernel made it."""
    x = data((64, 5000), "float32", device=device)
    assert not torch.equal(torch.sum(x, 1), torch_reduce.sum(x, 1))
    assert not torch.equal(torch.sum(x, 0), torch_reduce.sum(x, 0))
    return x


# --- what takes ours --------------------------------------------------------------------------------------------------


def gradient(function, *shape):
    """The gradient of a ones tensor, of `function`'s result weighted."""

    def call(x):
        leaf = torch.ones(shape, device=x.device, requires_grad=True)
        return torch.autograd.grad(function(leaf, x), leaf, x)[0]

    return call


def each(function):
    """`function` on every row: of many scalars, at least one shows another order."""
    return lambda x: torch.stack([function(row) for row in x])


ROWS = each(torch_reduce.sum)

# name -> (a call on x, the sum that it is to be)
REACHED = {
    "torch.sum": (each(torch.sum), ROWS),
    "torch.sum of a dim": (lambda x: torch.sum(x, 1), lambda x: torch_reduce.sum(x, 1)),
    "Tensor.sum": (each(lambda row: row.sum()), ROWS),
    "Tensor.sum of dims": (
        lambda x: x.view(64, 50, 100).sum((0, 2), True),
        lambda x: torch_reduce.sum(x.view(64, 50, 100), (0, 2), True),
    ),
    "dtype": (
        lambda x: x.bfloat16().sum(1, dtype=torch.float32),
        lambda x: torch_reduce.sum(x.bfloat16(), 1, dtype=torch.float32),
    ),
    "out": (lambda x: torch.sum(x, 1, out=x.new_empty(64)), lambda x: torch_reduce.sum(x, 1)),
    "out of all": (each(lambda row: torch.ops.aten.sum.out(row, out=row.new_empty(()))), ROWS),
    "out in steps": (lambda x: torch.sum(x, 1, out=x.new_empty(128)[::2]), lambda x: torch_reduce.sum(x, 1)),
    "sum_to_size": (lambda x: x.sum_to_size(1, 5000), lambda x: torch_reduce.sum(x, 0, True)),
    "einops-like": (lambda x: x.t().sum(0), lambda x: torch_reduce.sum(x, 1)),
    "numpy's names": (lambda x: x.sum(axis=1, keepdims=True), lambda x: torch_reduce.sum(x, 1, True)),
    "a broadcast row": (gradient(lambda leaf, x: leaf + x, 5000), lambda x: torch_reduce.sum(x, 0)),
    "a broadcast column": (gradient(lambda leaf, x: x - leaf, 64, 1), lambda x: -torch_reduce.sum(x, 1, True)),
    "a broadcast product": (gradient(lambda leaf, x: leaf * x, 64, 1), lambda x: torch_reduce.sum(x * x, 1, True)),
    "expand": (gradient(lambda leaf, x: leaf.expand_as(x), 5000), lambda x: torch_reduce.sum(x, 0)),
    "l1_loss": (
        each(lambda row: F.l1_loss(row, -row, reduction="sum")),
        each(lambda row: torch_reduce.sum(2 * row.abs())),
    ),
    "kl_div": (
        each(lambda row: F.kl_div(row, row.abs(), reduction="sum")),
        each(lambda row: torch_reduce.sum(F.kl_div(row, row.abs(), reduction="none"))),
    ),
    "vmap": (lambda x: torch.vmap(torch.sum)(x), lambda x: torch_reduce.sum(x, 1)),
    "func.grad": (
        lambda x: torch.func.vjp(lambda b: b + x, x.new_ones(5000))[1](x)[0],
        lambda x: torch_reduce.sum(x, 0),
    ),
    "inference mode": (torch.inference_mode()(lambda x: x.sum(1)), lambda x: torch_reduce.sum(x, 1)),
    "TorchScript": (
        lambda x: torch.jit.trace(lambda t: t.sum(1), x, check_trace=False)(x),
        lambda x: torch_reduce.sum(x, 1),
    ),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
@pytest.mark.parametrize("call", list(REACHED))
def test_reached(call, x, device):
    """All that comes to aten's sum has our bits inside, and torch's own before and after."""
    function, ours = REACHED[call]
    before = function(x)
    assert not torch.equal(before, ours(x))
    with replace_torch_sum(device):
        inside = function(x)
    assert inside.stride() == before.stride()
    assert_same_bits(inside, ours(x))
    assert_same_bits(function(x), before)


def test_no_python_in_a_call(x, device):
    """No Python function runs when a sum does."""
    calls = []
    with replace_torch_sum(device):
        x.sum(1)
        sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
        try:
            x.sum(1)
        finally:
            sys.setprofile(None)
    assert not calls


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_autocast(name, x, device):
    """Under autocast the dtype is torch's, and the bits are ours."""
    half = x.to(dtype_of(name))
    with torch.autocast(device, dtype_of(name)):
        before = torch.sum(half, 1)
        with replace_torch_sum(device):
            inside = torch.sum(half, 1)
    assert inside.dtype == before.dtype
    assert_same_bits(inside, torch_reduce.sum(half, 1, dtype=before.dtype))


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_backward_of_a_broadcast_is_batch_invariant(name, device):
    """The gradient of a broadcast addend has the same bits alone and in every batch."""
    upstream = data((512, 3000), name, device=device)
    addend = torch.zeros(512, 1, dtype=dtype_of(name), device=device, requires_grad=True)

    def gradient(rows):
        sums = addend[:rows] + torch.zeros_like(upstream[:rows])
        return torch.autograd.grad(sums, addend, upstream[:rows])[0][:rows]

    with replace_torch_sum(device):
        whole = gradient(512)
        for rows in (1, 2, 7, 64, 511):
            assert_same_bits(gradient(rows), whole[:rows])
    assert_same_bits(whole, torch_reduce.sum(upstream, 1, True))


class Model(torch.nn.Module):
    """A layer with a broadcast bias and scale, hand-written normalization, and pooling: sums forwards and backwards."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(60, 60, generator=generator) / 8)
        self.bias = torch.nn.Parameter(torch.zeros(60))
        self.scale = torch.nn.Parameter(torch.ones(60))

    def forward(self, x):
        x = torch.tanh(x @ self.weight + self.bias) * self.scale
        x = x - x.sum(-1, keepdim=True) / x.shape[-1]
        return (x * x).sum(1)


def train(device, steps=3):
    """Losses, and the parameters after some steps."""
    model = Model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    x = data((40, 70, 60), "float32", seed=3, device=device).clamp(-1, 1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.l1_loss(model(x), torch.zeros(40, 60, device=device), reduction="sum")
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters())]


def test_training(device):
    """An unchanged module trains: near what torch's sums give, with other bits, and the same ones in every run."""
    before = train(device)
    with replace_torch_sum(device):
        inside, again = train(device), train(device)
    assert any(not torch.equal(a, b) for a, b in zip(inside, before, strict=True))
    for a, b, c in zip(inside, before, again, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        assert_same_bits(a, c)


LOSSES = {
    "mse": lambda a, b, r: F.mse_loss(a, b, reduction=r),
    "l1": lambda a, b, r: F.l1_loss(a, b, reduction=r),
    "smooth_l1": lambda a, b, r: F.smooth_l1_loss(a, b, reduction=r),
    "huber": lambda a, b, r: F.huber_loss(a, b, reduction=r),
    "binary_cross_entropy": lambda a, b, r: F.binary_cross_entropy(a.sigmoid(), b.sigmoid(), reduction=r),
    "with logits": lambda a, b, r: F.binary_cross_entropy_with_logits(a, b.sigmoid(), reduction=r),
    "kl_div": lambda a, b, r: F.kl_div(a.log_softmax(1), b.softmax(1), reduction=r),
    "poisson_nll": lambda a, b, r: F.poisson_nll_loss(a, b.abs(), reduction=r),
    "gaussian_nll": lambda a, b, r: F.gaussian_nll_loss(a, b, b.abs() + 1, reduction=r),
    "soft_margin": lambda a, b, r: F.soft_margin_loss(a, b.sign(), reduction=r),
    "hinge_embedding": lambda a, b, r: F.hinge_embedding_loss(a, b.sign(), reduction=r),
    "cosine_embedding": lambda a, b, r: F.cosine_embedding_loss(a, b, b.sign()[:, 0], reduction=r),
    "margin_ranking": lambda a, b, r: F.margin_ranking_loss(a, b, b.sign(), reduction=r),
    "triplet": lambda a, b, r: F.triplet_margin_loss(a, b, a - b, reduction=r),
    "cross_entropy": lambda a, b, r: F.cross_entropy(a, b.softmax(1), reduction=r),
}


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("loss", list(LOSSES))
def test_losses(loss, reduction, device):
    """torch.nn's losses and their gradients stay right."""
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(30, 40, generator=generator, dtype=torch.float64).to(device) for _ in range(2))

    def call(dtype):
        leaf = a.to(dtype).requires_grad_()
        value = LOSSES[loss](leaf, b.to(dtype), reduction)
        return value.detach(), torch.autograd.grad(value, leaf)[0]

    wanted = call(torch.float64)
    with replace_torch_sum(device):
        found = call(torch.float32)
    for ours, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4)


# --- torch's own tests of its sum -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", sorted(OPINFO.dtypes | OPINFO.dtypesIfCUDA, key=str), ids=str)
def test_opinfo_samples(dtype, device):
    """On OpInfo's sample and reference inputs: the original's dtype, shape and strides, and NumPy's values."""
    if dtype not in OPINFO.supported_dtypes(device):
        pytest.skip(f"torch.sum has no {dtype} on {device}")
    samples = [
        *OPINFO.sample_inputs(device, dtype, requires_grad=False),
        *OPINFO.reference_inputs(device, dtype, requires_grad=False),
    ]
    assert len(samples) >= 20
    for sample in samples:
        original = OPINFO(sample.input, *sample.args, **sample.kwargs)
        with replace_torch_sum(device):
            ours = OPINFO(sample.input, *sample.args, **sample.kwargs)
        assert (ours.dtype, ours.shape, ours.stride()) == (original.dtype, original.shape, original.stride()), sample
        wide = {torch.bfloat16: torch.float32, torch.complex32: torch.complex64}.get(dtype, dtype)
        numpy = sample.transform(lambda t, wide=wide: t.to(wide) if isinstance(t, torch.Tensor) else t).numpy()
        exact = torch.from_numpy(np.asarray(OPINFO.ref(numpy.input, *numpy.args, **numpy.kwargs)))
        # (NumPy's sum has a fixed order as well, and a float16 one no wide accumulator)
        tolerance = dict(rtol=0.02, atol=0.02) if dtype.itemsize // (1 + dtype.is_complex) == 2 else {}
        torch.testing.assert_close(ours.cpu().to(exact.dtype), exact, equal_nan=True, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_opinfo_gradients(dtype, device):
    """gradcheck and gradgradcheck on OpInfo's samples, forward mode and batched gradients too."""
    samples = [s for s in OPINFO.sample_inputs(device, dtype, requires_grad=True) if s.input.numel()]
    with replace_torch_sum(device):
        for sample in samples[:12]:

            def function(x, sample=sample):
                return OPINFO(x, *sample.args, **sample.kwargs)

            assert torch.autograd.gradcheck(function, sample.input, check_forward_ad=True, check_batched_grad=True)
            assert torch.autograd.gradgradcheck(function, sample.input)


# --- what stays with torch's ------------------------------------------------------------------------------------------


def nested(device):
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], device=device)


KEPT = {
    "sparse": lambda d: torch.eye(3, device=d).to_sparse().sum(),
    "sparse rows": lambda d: torch.sparse.sum(torch.eye(3, device=d).to_sparse(), 1).to_dense(),
    "csr": lambda d: torch.eye(3, device=d).to_sparse_csr().sum(),
    "nested": lambda d: nested(d).sum(-1).to_padded_tensor(0.0),
    "jagged": lambda d: torch.nested.nested_tensor([torch.ones(2), torch.ones(4)], layout=torch.jagged, device=d).sum(
        1
    ),
    "quantized": lambda d: torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.quint8).to(d).sum(),
    "float8": lambda d: torch.ones(3, device=d).to(torch.float8_e5m2).sum(),
    "to float8": lambda d: torch.ones(3, device=d).sum(dtype=torch.float8_e5m2),
    "to uint16": lambda d: torch.ones(3, device=d).sum(dtype=torch.uint16),
    "out of uint64": lambda d: torch.sum(torch.ones(3, device=d), 0, out=torch.ones((), dtype=torch.uint64, device=d)),
    "of uint32": lambda d: torch.ones(3, dtype=torch.uint32, device=d).sum(),
    "complex32": lambda d: torch.ones(3, dtype=torch.complex32, device=d).sum(),
    "bits": lambda d: torch.empty(3, dtype=torch.bits8, device=d).sum(),
    "meta": lambda d: torch.ones(3, 4, device="meta").sum(1).shape,
    "zero tensor": lambda d: torch._efficientzerotensor(3, 4, device=d).sum(1),
    "out of another dtype": lambda d: torch.sum(
        torch.ones(3, device=d), 0, dtype=torch.float64, out=torch.ones((), device=d)
    ),
    "out elsewhere": lambda d: torch.sum(torch.ones(3, device=d), 0, out=torch.ones((), device="meta")),
    "sparse out": lambda d: torch.sum(torch.ones(3, 3, device=d), 0, out=torch.zeros(3, device=d).to_sparse()),
    "out that overlaps": lambda d: torch.sum(torch.ones(3, 4, device=d), 0, out=torch.ones(1, device=d).expand(4)),
    "wrong dim": lambda d: torch.ones(3, 4, device=d).sum(2),
    "dim twice": lambda d: torch.ones(3, 4, device=d).sum((0, -2)),
    "an empty dim": lambda d: torch.ones(3, 0, device=d).sum(1),
    "no dims": lambda d: torch.ones((), device=d).sum(0),
    "65 dims": lambda d: torch.ones([1] * 65, device=d).sum(),
    "a dim of 65": lambda d: torch.ones([1] * 65, device=d).sum(3),
    "65 dims into out": lambda d: torch.sum(torch.ones([1] * 65, device=d), 0, out=torch.ones((), device=d)),
    "64 dims": lambda d: torch.ones([1] * 64, device=d).sum((0, 63), keepdim=True),
    "conjugated": lambda d: torch.full((3, 4), 1 + 2j, device=d).conj().sum(1),
}


def outcome(call, *given):
    """What a call gives, or the class and the message of what it raises."""
    try:
        return call(*given)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("call", list(KEPT))
def test_kept(call, device):
    """Calls that ours does not take, and all errors, are as without us: class, message and result."""

    def described():
        found = outcome(lambda: str(KEPT[call](device)))
        if isinstance(found, str):
            return found
        return found[0], found[1].split("This could be because")[0]  # what follows lists all kernels, ours too

    before = described()
    with replace_torch_sum(device):
        inside = described()
    if isinstance(before, tuple):
        assert inside[0] is before[0] and before[1] in inside[1]
    else:
        assert inside == before


@pytest.mark.skipif(not hasattr(torch.Tensor, "names"), reason="this torch has no named tensors")
@pytest.mark.filterwarnings("ignore:Named tensors")
def test_names_are_kept(device):
    """Named tensors keep their names."""
    x = torch.ones(3, 4, names=("N", "C"), device=device)
    with replace_torch_sum(device):
        assert x.sum("C").names == ("N",)
        assert x.sum(0).tolist() == [3.0] * 4


def test_out_is_resized(device):
    """out= keeps its strides where it fits, and is resized with torch's warning where it does not."""
    x = data((3, 400), "float32", device=device)
    with replace_torch_sum(device), warnings.catch_warnings():
        warnings.simplefilter("error")
        for shape in ((0,), (3,)):
            out = torch.zeros(shape, device=device)
            assert torch.sum(x, 1, out=out) is out
            assert_same_bits(out, torch_reduce.sum(x, 1))
        with pytest.raises(UserWarning, match="was resized"):
            torch.sum(x, 1, out=torch.zeros(7, device=device))


def test_warnings(device):
    """Warnings of our kernel reach Python's filters as torch's do: once, and as an error if the filter says so."""
    x = torch.full((3, 4), 1 + 2j, device=device)
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with replace_torch_sum(device):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert torch.sum(x, 1, dtype=torch.float32).tolist() == [4.0] * 3
            assert [w.filename for w in caught] == [__file__] and "imaginary" in str(caught[0].message)
            with warnings.catch_warnings(), pytest.raises(UserWarning, match="imaginary"):
                warnings.filterwarnings("error", "Casting complex values")
                torch.sum(x, 1, dtype=torch.float32)
    finally:
        torch.set_warn_always(before)


def test_writes_of_out_are_counted(device):
    """As one change, as without us; a refused call as none."""
    x, out = torch.ones(3, 4, device=device), torch.zeros(4, device=device)
    with replace_torch_sum(device):
        assert torch.sum(x, 0, out=out)._version == 1
        for dim, error in ((9, IndexError), ((0, 0), RuntimeError)):
            with pytest.raises(error):
                torch.sum(x, dim, out=out)
    assert out._version == 1


def test_tensors_on_two_devices_are_left_to_torch(cuda):
    """A call with tensors on a GPU and on the CPU ends as without us, with torch's error."""
    x, rows = torch.ones(4), torch.ones(2, 4)
    index = torch.tensor([0, 1, 0, 1])
    calls = [
        lambda a, b: torch.dot(a(x), b(x)),
        lambda a, b: torch.sum(a(rows), 1, out=b(torch.empty(2))),
        lambda a, b: F.layer_norm(a(rows), (4,), b(x)),
        lambda a, b: F.nll_loss(a(rows), b(index[:2])),
        lambda a, b: a(torch.zeros(2)).index_add_(0, b(index), b(x)),
        lambda a, b: torch.bincount(a(index), b(x)),
    ]

    def errors():
        places = lambda t: t.to(cuda), lambda t: t.cpu()
        found = [outcome(call, *given) for call in calls for given in (places, places[::-1])]
        return [(each[0], each[1].splitlines()[0]) if isinstance(each, tuple) else None for each in found]

    wanted = errors()
    assert len(wanted) - wanted.count(None) >= len(calls)
    with torch_reduce.replace(devices=["cpu", "cuda"]):
        assert errors() == wanted


# --- on and off -------------------------------------------------------------------------------------------------------


def is_on(device):
    """Whether torch.sum has our bits."""
    x = data((64, 5000), "float32", device=device)
    return torch.equal(torch.sum(x, 1), torch_reduce.sum(x, 1))


def test_nesting(device):
    """It is off when every on has its off, in whatever order."""
    first, second = replace_torch_sum(device), replace_torch_sum(device)
    with first, second, first:
        assert is_on(device)
    assert not is_on(device)
    first.on()
    second.on()
    first.off()
    assert is_on(device)
    second.off()
    assert not is_on(device)


def test_exceptions(device):
    """An exception leaves it off, in a block and in a decorated function; it goes through."""

    @replace_torch_sum(device)
    def function():
        assert is_on(device)
        raise KeyError("mine")

    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            function()
        assert not is_on(device)
    with pytest.raises(KeyError), replace_torch_sum(device):
        raise KeyError
    assert not is_on(device)


def test_misuse(device):
    """Unknown devices, devices named twice, and an off without an on are refused, and nothing is switched."""
    with pytest.raises(ValueError, match=r"replace_torch_sum.*'cuda' and 'cpu', not 'tpu'"):
        replace_torch_sum(["cpu", "tpu"])
    with pytest.raises(ValueError, match=r"replace_torch_sum: devices: 'cpu' is named twice"):
        replace_torch_sum(["cpu", "cpu"])
    with pytest.raises(RuntimeError, match=r"off\(\) without on\(\), on device '" + device):
        replace_torch_sum(device).off()
    assert not is_on(device)


def test_without_cuda():
    """A library without CUDA says so, and does not pretend."""
    if '"cuda": true' in torch.ops.gpureduce._build_info():
        pytest.skip("built with CUDA")
    with pytest.raises(RuntimeError, match="built without CUDA"):
        replace_torch_sum().on()


def test_devices(cuda):
    """By default the GPU's sum alone; others as named."""
    with replace_torch_sum():
        assert is_on("cuda") and not is_on("cpu")
    with replace_torch_sum(("cpu", "cuda")):
        assert is_on("cuda") and is_on("cpu")
    with replace_torch_sum("cpu"), replace_torch_sum("cuda"):
        assert is_on("cuda") and is_on("cpu")
    assert not is_on("cuda") and not is_on("cpu")


def test_threads(x, device):
    """While threads switch it on and off, every sum of the others is either torch's or ours, and at the end torch's."""
    torchs, ours = torch.sum(x, 1), torch_reduce.sum(x, 1)
    problems, done = [], threading.Event()

    def switch():
        try:
            for _ in range(300):
                with replace_torch_sum(device):
                    assert torch.equal(torch.sum(x, 1), ours)
        except Exception as error:
            problems.append(error)

    def add():
        while not done.is_set():
            result = torch.sum(x, 1)
            if not (torch.equal(result, ours) or torch.equal(result, torchs)):
                problems.append(result)

    switching, adding = (
        [threading.Thread(target=switch) for _ in range(3)],
        [threading.Thread(target=add) for _ in range(2)],
    )
    for thread in switching + adding:
        thread.start()
    for thread in switching:
        thread.join()
    done.set()
    for thread in adding:
        thread.join()
    assert not problems, problems[0]
    assert torch.equal(torch.sum(x, 1), torchs)


def test_says_nothing():
    """torch warns where a kernel covers another; here it does not, in a process that has not warned before."""
    code = 'import torch, torch_reduce\nwith torch_reduce.replace_torch_sum("cpu"):\n    print(torch.ones(3).sum())'
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert result.stdout == "tensor(3.)\n"
    assert "verrid" not in result.stderr


# --- compiled and captured --------------------------------------------------------------------------------------------


def test_compile(x, device):
    """Compiled code that calls aten's sum has our bits, forwards and backwards."""
    torch._dynamo.reset()
    bias = torch.zeros(5000, device=device, requires_grad=True)
    weight = data((64,), "float32", seed=5, device=device)
    compiled = torch.compile(lambda x: (x + bias).sum(1), backend="aot_eager", fullgraph=True)
    with replace_torch_sum(device):
        result = compiled(x)
        (gradient,) = torch.autograd.grad(result, bias, weight)
    assert_same_bits(result, torch_reduce.sum(x, 1))
    assert_same_bits(gradient, torch_reduce.sum(weight[:, None].expand(64, 5000), 0))


def test_graph(cuda):
    """A CUDA graph that was captured under it keeps our kernels."""
    x = data((64, 5000), "float32", device=cuda)
    with replace_torch_sum():
        x.sum(1)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = x.sum(1)
    x.copy_(data((64, 5000), "float32", seed=9))
    graph.replay()
    torch.cuda.synchronize()
    assert_same_bits(result, torch_reduce.sum(x, 1))


# --- the other functions ----------------------------------------------------------------------------------------------

# name: calls of torch's on x, each with what ours gives
OTHERS = {
    "mean": [(lambda x: x.mean(1), lambda x: torch_reduce.mean(x, 1))],
    "prod": [
        (lambda x: torch.prod(x, 1), lambda x: torch_reduce.prod(x, 1)),
        (lambda x: (x / 4).exp2().prod(), lambda x: torch_reduce.prod((x / 4).exp2())),
        (lambda x: torch.prod(x, 0, True, out=x.new_empty(1, 5000)), lambda x: torch_reduce.prod(x, 0, True)),
    ],
    "nansum": [
        (lambda x: x.log().nansum(1), lambda x: torch_reduce.nansum(x.log(), 1)),
        (lambda x: x.log().nansum(), lambda x: torch_reduce.nansum(x.log())),
        (lambda x: torch.nansum(x, 0, out=x.new_empty(5000)), lambda x: torch_reduce.nansum(x, 0)),
    ],
    "amax": [(lambda x: x.amax((0, 1)), torch_reduce.amax), (lambda x: x.amax(1), lambda x: torch_reduce.amax(x, 1))],
    "amin": [(lambda x: torch.amin(x, 1, out=x.new_empty(64)), lambda x: torch_reduce.amin(x, 1))],
    "argmax": [
        (lambda x: x.argmax(), torch_reduce.argmax),
        (lambda x: torch.argmax(x, 1, out=x.new_empty(64, dtype=torch.int64)), lambda x: torch_reduce.argmax(x, 1)),
    ],
    "argmin": [(lambda x: x.argmin(0, True), lambda x: torch_reduce.argmin(x, 0, True))],
    "max": [(lambda x, k=k: x.max(1)[k], lambda x, k=k: torch_reduce.max(x, 1)[k]) for k in range(2)],
    "min": [
        (
            lambda x: torch.min(x, 0, out=(x.new_empty(5000), x.new_empty(5000, dtype=torch.int64)))[0],
            lambda x: torch_reduce.min(x, 0)[0],
        )
    ],
    "aminmax": [
        (lambda x: torch.aminmax(x)[0], lambda x: torch_reduce.aminmax(x)[0]),
        (lambda x: torch.aminmax(x, dim=1)[1], lambda x: torch_reduce.amax(x, 1)),
        (
            lambda x: torch.aminmax(x, dim=0, out=(x.new_empty(5000), x.new_empty(5000)))[0],
            lambda x: torch_reduce.amin(x, 0),
        ),
    ],
    "any": [
        (lambda x: (x > 40).any(), lambda x: torch_reduce.any(x > 40)),
        (lambda x: (x > 40).any(1), lambda x: torch_reduce.any(x > 40, 1)),
        (lambda x: (x > 40).any((0, 1), True), lambda x: torch_reduce.any(x > 40, keepdim=True)),
    ],
    "all": [(lambda x: (x < 40).all(1), lambda x: torch_reduce.all(x < 40, 1)), (lambda x: x.all(), torch_reduce.all)],
    "count_nonzero": [
        (lambda x: torch.count_nonzero(x > 1, 1), lambda x: torch_reduce.count_nonzero(x > 1, 1)),
        (lambda x: torch.count_nonzero(x > 1), lambda x: torch_reduce.count_nonzero(x > 1)),
    ],
    "vector_norm": [
        (lambda x, ord=ord: torch.linalg.vector_norm(x, ord, 1), lambda x, ord=ord: torch_reduce.vector_norm(x, ord, 1))
        for ord in (0, 1, 2, 3, float("inf"), -float("inf"))
    ],
    "logsumexp": [
        (lambda x: (x / 4096).logsumexp(1), lambda x: torch_reduce.logsumexp(x / 4096, 1)),
        (lambda x: torch.logsumexp(x.double(), (0, 1), True), lambda x: torch_reduce.logsumexp(x.double(), None, True)),
    ],
    "var": [
        (lambda x: x.var(1), lambda x: torch_reduce.var(x, 1)),
        (lambda x: x.var(unbiased=False), lambda x: torch_reduce.var(x, correction=0)),
        (lambda x: torch.var(x, 0, out=x.new_empty(5000)), lambda x: torch_reduce.var(x, 0)),
        (lambda x: x.half().var(1, correction=2.5), lambda x: torch_reduce.var(x.half(), 1, correction=2.5)),
    ],
    "std": [
        (lambda x: x.std(1), lambda x: torch_reduce.std(x, 1)),
        (lambda x: torch.std(x, 0, out=x.new_empty(0)), lambda x: torch_reduce.std(x, 0)),
    ],
    "var_mean": [(lambda x: torch.cat(torch.var_mean(x, 1)), lambda x: torch.cat(torch_reduce.var_mean(x, 1)))],
    "std_mean": [
        (
            lambda x: torch.cat(torch.std_mean(x, 1)),
            lambda x: torch.cat([torch_reduce.std(x, 1), torch_reduce.var_mean(x, 1)[1]]),
        )
    ],
    "dot": [(lambda x, k=k: x[k].dot(x[1]), lambda x, k=k: torch_reduce.dot(x[k], x[1])) for k in range(9)],
    "softmax": [
        (lambda x: (x / 4096).softmax(1), lambda x: torch_reduce.softmax(x / 4096, 1)),
        (lambda x: (x / 4096).half().softmax(0), lambda x: torch_reduce.softmax((x / 4096).half(), 0)),
        (
            lambda x: torch.softmax(x.bfloat16(), 1, dtype=torch.float32),
            lambda x: torch_reduce.softmax(x.bfloat16(), 1, dtype=torch.float32),
        ),
        (lambda x: torch.softmax(x, 1, out=x.new_empty(64, 5000)), lambda x: torch_reduce.softmax(x, 1)),
    ],
    "log_softmax": [
        (lambda x: (x / 4096).log_softmax(1), lambda x: torch_reduce.log_softmax(x / 4096, 1)),
        (lambda x: F.log_softmax(x.double(), 0), lambda x: torch_reduce.log_softmax(x.double(), 0)),
    ],
    "layer_norm": [
        (lambda x: F.layer_norm(x, (5000,)), lambda x: torch_reduce.layer_norm(x, 5000)),
        (lambda x: F.layer_norm(x, (5000,), x[0], x[1]), lambda x: torch_reduce.layer_norm(x, 5000, x[0], x[1])),
    ],
    "rms_norm": [
        (lambda x: F.rms_norm(x, (5000,), x[0]), lambda x: torch_reduce.rms_norm(x, 5000, x[0])),
        (lambda x: F.rms_norm(x.bfloat16(), (64, 5000)), lambda x: torch_reduce.rms_norm(x.bfloat16(), (64, 5000))),
    ],
    "nll_loss": [
        (lambda x: F.nll_loss(x, classes(x)), lambda x: loss_of(x, classes(x))),
        (lambda x: F.nll_loss(x, classes(x, 7), ignore_index=7), lambda x: loss_of(x, classes(x, 7), None, "mean", 7)),
        (lambda x: F.nll_loss(x, classes(x), x[1]), lambda x: loss_of(x, classes(x), x[1])),
        (
            lambda x: F.nll_loss(x.t(), classes(x.t(), 3), x[:, 1], ignore_index=3, reduction="sum"),
            lambda x: loss_of(x.t(), classes(x.t(), 3), x[:, 1], "sum", 3),
        ),
        (
            lambda x: F.nll_loss(x.view(20, 50, 320), classes(x.view(20, 50, 320)), x[0, :50]),
            lambda x: loss_of(x.view(20, 50, 320), classes(x.view(20, 50, 320)), x[0, :50]),
        ),
        (
            lambda x: F.nll_loss(x.view(20, 50, 20, 16), classes(x.view(20, 50, 20, 16), 9), ignore_index=9),
            lambda x: loss_of(x.view(20, 50, 20, 16), classes(x.view(20, 50, 20, 16), 9), None, "mean", 9),
        ),
        (
            lambda x: F.nll_loss(x.bfloat16(), classes(x), reduction="none"),
            lambda x: loss_of(x.bfloat16(), classes(x), None, "none"),
        ),
        (lambda x: F.nll_loss(x[0], classes(x)[0], x[1]), lambda x: loss_of(x[0], classes(x)[0], x[1])),
    ],
    # test_replace_indexed.py has more of these
    "index_add": [(lambda x: rows_of(x).index_add(0, bins(x), x.t()), lambda x: in_bins(x))],
    "scatter_add": [
        (lambda x: rows_of(x).scatter_add(0, bins(x)[:, None].expand(5000, 64), x.t()), lambda x: in_bins(x)),
        (lambda x: rows_of(x).scatter_add_(0, bins(x)[:, None].expand(5000, 64).clone(), x.t()), lambda x: in_bins(x)),
    ],
    "index_reduce": [
        (
            lambda x: rows_of(x).index_reduce(0, bins(x), x.t(), "mean", include_self=False),
            lambda x: in_bins(x, "mean"),
        ),
        (
            lambda x: rows_of(x).index_reduce_(0, bins(x), x.t(), "mean", include_self=False),
            lambda x: in_bins(x, "mean"),
        ),
    ],
    "scatter_reduce": [
        (lambda x: rows_of(x).scatter_reduce(0, bins(x)[:, None].expand(5000, 64), x.t(), "sum"), lambda x: in_bins(x)),
        (
            lambda x: rows_of(x).scatter_reduce_(
                0, bins(x)[:, None].expand(5000, 64).clone(), x.t(), "mean", include_self=False
            ),
            lambda x: in_bins(x, "mean"),
        ),
    ],
    "index_put": [
        (lambda x: rows_of(x).index_put((bins(x),), x.t(), accumulate=True), lambda x: in_bins(x)),
        (lambda x: torch.ops.aten.index_put(rows_of(x).t(), [None, bins(x)], x, True).t(), lambda x: in_bins(x)),
    ],
    "embedding": [
        (lambda x: torch.ops.aten.embedding_dense_backward(x.t(), bins(x), 7, -1, False), lambda x: in_bins(x)),
    ],
    "embedding_bag": [
        (lambda x: F.embedding_bag(of_bags(x), x.t(), mode="sum"), lambda x: in_bags(x, torch_reduce.sum)),
        (lambda x: F.embedding_bag(of_bags(x), x.t(), mode="mean"), lambda x: in_bags(x, torch_reduce.mean)),
    ],
    "bincount": [(lambda x: torch.bincount(bins(x), x[0]), lambda x: in_bins(x)[:, 0].contiguous())],
}


def rows_of(x):
    return x.new_zeros(7, x.shape[0])


def bins(x):
    """Which of 7 outputs each column of x goes to."""
    return torch.arange(x.shape[1], device=x.device) // 3 % 7


def of_bags(x):
    """The columns of x, in bags of a thousand columns."""
    return torch.arange(5000, device=x.device).view(5, 1000)


def in_bags(x, function):
    return torch.stack([function(x[:, columns], 1) for columns in of_bags(x)])


def in_bins(x, kind="sum"):
    """The sums or means of the columns of each bin."""
    return torch.stack([getattr(torch_reduce, kind)(x[:, bins(x) == k], 1) for k in range(7)])


def classes(x, ignored=None):
    """A target of each row of (N, C) or (N, C, ...); every third one is to be ignored."""
    shape = x.shape[:1] + x.shape[2:]
    target = (torch.arange(shape.numel(), device=x.device) * 7919 % min(x.shape[1], 256)).view(shape)
    if ignored is not None:
        target.view(-1)[::3] = ignored
    return target


def loss_of(x, target, weight=None, reduction="mean", ignored=-100):
    """The loss of given logarithms as the contract says it: products in float32, ordered sums, one quotient."""
    dim = 0 if x.dim() == 1 else 1
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    skip = target == ignored
    index = target.masked_fill(skip, 0)
    counts = torch.ones_like(index, dtype=wide.dtype) if weight is None else weight.to(wide.dtype)[index]
    counts = counts.masked_fill(skip, 0)
    losses = (-wide.gather(dim, index.unsqueeze(dim)).squeeze(dim) * counts).masked_fill(skip, 0)
    if reduction != "none":
        losses = torch_reduce.sum(losses) / (torch_reduce.sum(counts) if reduction == "mean" else 1)
    return losses.to(x.dtype)


BY_INDEX = {"index_add", "scatter_add", "index_reduce", "scatter_reduce", "index_put", "embedding", "bincount"}
BY_INDEX |= {"embedding_bag"}
ATOMIC = {"nll_loss", *BY_INDEX}


@pytest.mark.parametrize("name", OTHERS)
def test_others(name, device):
    """Every other function, under its name alone and together with all: ours inside, torch's own after."""
    x = data((64, 5000), "float32", device=device)
    x = 1 + x / x.abs().max() / 64 if name == "prod" else x
    before = [torchs(x) for torchs, _ in OTHERS[name]]
    for names in (name, [*OTHERS, "sum"], None):
        with torch_reduce.replace(names, device):
            for torchs, ours in OTHERS[name]:
                assert_same_bits(torchs(x), ours(x))
    for old, (torchs, _) in zip(before, OTHERS[name], strict=True):
        if name in ATOMIC and device != "cpu":  # torch's own adds in another order each time
            torch.testing.assert_close(torchs(x), old, rtol=1e-4, atol=1)
        else:
            assert_same_bits(torchs(x), old)


@pytest.mark.parametrize(
    "name", ["mean", "prod", "vector_norm", "logsumexp", "var", "std", "var_mean", "dot", "nll_loss", "rms_norm"]
)
def test_others_show(name, device):
    """The replacement is seen: torch's own bits are others."""
    x = data((64, 5000), "float32", device=device)
    x = 1 + x / x.abs().max() / 64 if name == "prod" else x
    if name in ("var", "std", "var_mean"):
        x = x.double()  # of float32, both have the nearest number
    differ = [not torch.equal(torchs(x), ours(x)) for torchs, ours in OTHERS[name]]
    assert any(differ)


def test_others_keep_gradients(device):
    """Autograd stays torch's, on our results."""
    x = data((8, 300), "float32", device=device).requires_grad_()
    with torch_reduce.replace(["amax", "mean", "vector_norm", "logsumexp", "std", "var_mean", "dot"], device):
        result = x.amax(1).sum() + x.mean(1).sum() + torch.linalg.vector_norm(x, 2, 1).sum()
        result += x.logsumexp(1).sum() + x.std(1).sum() + torch.var_mean(x)[0] + x[0].dot(x[1])
    (gradient,) = torch.autograd.grad(result, x)
    assert gradient.shape == x.shape and gradient.isfinite().all()


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm", "rms_norm"])
def test_rows_have_gradients(name, device):
    """The backward passes of functions that keep their shape are ours, too, with the weights' gradients."""
    x, grad = data((64, 300), "float32", device=device) / 4096, data((64, 300), "float32", seed=2, device=device)
    weight, bias = (data((300,), "float32", seed=seed, device=device) / 4096 for seed in (3, 4))
    calls = {
        "softmax": (lambda x: x.softmax(1), lambda x: torch_reduce.softmax(x, 1)),
        "log_softmax": (lambda x: x.log_softmax(1), lambda x: torch_reduce.log_softmax(x, 1)),
        "layer_norm": tuple(lambda *x, f=f: f(x[0], (300,), *x[1:]) for f in (F.layer_norm, torch_reduce.layer_norm)),
        "rms_norm": tuple(lambda x, w, f=f: f(x, (300,), w, 1e-5) for f in (F.rms_norm, torch_reduce.rms_norm)),
    }
    inputs = [x, *{"layer_norm": [weight, bias], "rms_norm": [weight]}.get(name, [])]
    inputs = [each.requires_grad_() for each in inputs]
    theirs, ours = calls[name]
    with torch_reduce.replace(name, device):
        replaced = torch.autograd.grad(theirs(*inputs), inputs, grad)
    for a, b in zip(replaced, torch.autograd.grad(ours(*inputs), inputs, grad), strict=True):
        assert_same_bits(a, b)


def test_masked_rows(device):
    """The softmax of attention, which gives 0 where all elements of a row are masked, has our bits and our gradient."""
    x, grad = data((64, 300), "float32", device=device) / 4096, data((64, 300), "float32", seed=2, device=device)
    there = torch.arange(64, device=device)[:, None] % 3 > 0
    x = torch.where(there, x, -torch.inf).requires_grad_()
    with torch_reduce.replace("softmax", device):
        y = torch.ops.aten._safe_softmax(x, 1)
        (found,) = torch.autograd.grad(y, x, grad)
    assert_same_bits(y.detach(), torch.where(there, torch_reduce.softmax(x, 1), 0.0).detach())
    own = x.detach()[there[:, 0]].requires_grad_()
    (wanted,) = torch.autograd.grad(torch_reduce.softmax(own, 1), own, grad[there[:, 0]])
    assert_same_bits(found[there[:, 0]], wanted)
    assert not found[~there[:, 0]].any()


FORMS = {
    "rows": ((700, 130), {}),
    "ignored": ((700, 130), dict(ignore_index=7)),
    "a weight": ((700, 130), dict(weight=True, ignore_index=7)),
    "one by one": ((700, 130), dict(weight=True, reduction="none")),
    "their sum": ((700, 130), dict(reduction="sum")),
    "sequences": ((30, 130, 50), dict(weight=True)),
    "images": ((5, 130, 20, 30), dict(ignore_index=7)),
    "volumes": ((3, 13, 4, 5, 6), dict(weight=True)),
    "one row": ((130,), dict(weight=True)),
    "bytes": ((700, 130), dict(dtype=torch.uint8)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_cross_entropy(form, dtype, device):
    """torch's loss of indices, in all its forms, has the bits of ours; so have its gradients."""
    shape, options = FORMS[form]
    x = (data(shape, "float32", device=device) / 4096).to(dtype).requires_grad_()
    target = classes(x, options.get("ignore_index")) if x.dim() > 1 else torch.tensor(5, device=device)
    options = dict(options)
    target = target.to(options.pop("dtype", torch.int64))
    if options.get("weight"):
        generator = torch.Generator().manual_seed(3)
        weight = torch.rand(x.shape[min(1, x.dim() - 1)], generator=generator, dtype=dtype).to(device)
        options["weight"] = weight

    def run(function):
        loss = function(x, target, **options)
        grad = torch.linspace(1, 2, loss.numel(), device=device, dtype=dtype).view(loss.shape)
        return [loss.detach(), torch.autograd.grad(loss, x, grad)[0]]

    ours, before = run(torch_reduce.cross_entropy), run(F.cross_entropy)
    with torch_reduce.replace(["log_softmax", "nll_loss"], device):
        inside = run(F.cross_entropy)
    for name, found, wanted, torchs in zip(("loss", "gradient"), inside, ours, before, strict=True):
        assert_same_bits(found + 0.0, wanted + 0.0, name)  # where nothing counts, the sign of 0 is open
        assert found.stride() == torchs.stride()
        torch.testing.assert_close(found, torchs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "float16"])
def test_parts_of_nll_loss(name, device):
    """aten's functions with all their results: the divisor as torch has it, also into out=, and the gradient."""
    aten = torch.ops.aten
    x = (data((200, 30), "float32", device=device) / 4096).to(dtype_of(name))
    images = x.view(20, 30, 5, 2)
    for reduction, ignored, weighted in itertools.product((0, 1, 2), (-100, 7, "all"), (False, True)):
        for given, form in ((x, "nll_loss"), (x[0], "nll_loss"), (images, "nll_loss2d")):
            target = classes(given, 7) if given.dim() > 1 else torch.tensor(7, device=device)
            target = target.fill_(3) if ignored == "all" else target
            weight = x[1, : given.shape[min(1, given.dim() - 1)]].abs() if weighted else None
            rest = (target, weight, reduction, 3 if ignored == "all" else ignored)
            forward, backward = getattr(aten, form + "_forward"), getattr(aten, form + "_backward")
            # torch's own on the CPU: on a GPU it has 0 for one target that is ignored, and no divisor for "none".
            wide = (target.cpu(), None if weight is None else weight.double().cpu(), *rest[2:])
            there = given.double().cpu()
            exact = forward(there, *wide)
            grad = torch.ones_like(exact[0]) / 4
            gradient = backward(grad, there, *wide, exact[1])
            grad = grad.to(given)
            with torch_reduce.replace("nll_loss", device):
                inside = forward(given, *rest)
                out = forward.output(given, *rest, output=given.new_empty(0), total_weight=given.new_empty(0))
                ours = backward(grad, given, *rest, inside[1])
                into = backward.grad_input(grad, given, *rest, inside[1], grad_input=given.new_empty(0))
            for a, b, c in zip(inside, out, exact, strict=True):
                assert_same_bits(a, b)
                torch.testing.assert_close(a, c.to(a), equal_nan=True)
            assert_same_bits(ours, into)
            torch.testing.assert_close(ours, gradient.to(ours), equal_nan=True)
            assert ours.stride() == gradient.stride()


def test_gradients_after_it(device):
    """A gradient that is asked for when the replacement is off again exists, and is right."""
    x = (data((30, 40), "float32", device=device) / 4096).requires_grad_()
    weight = torch.ones(40, device=device, requires_grad=True)

    def loss():
        return F.cross_entropy(F.rms_norm(x, (40,), weight), classes(x))

    with torch_reduce.replace(devices=device):
        inside = loss()
    for a, b in zip(*(torch.autograd.grad(each, (x, weight)) for each in (inside, loss())), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_rms_norm_in_every_mode(mode, device):
    """torch composes it above autograd on the CPU: ours is there with and without autograd, and in what is compiled."""
    torch._dynamo.reset()
    x, weight = (data(shape, "float32", seed=5, device=device) / 4096 for shape in ((64, 5000), (5000,)))
    ours = torch_reduce.rms_norm(x, 5000, weight)

    def function(x):
        return F.rms_norm(x, (5000,), weight)

    calls = [function, torch.compile(function, backend="aot_eager", fullgraph=True)]
    with mode():
        before = [call(x) for call in calls]
        with torch_reduce.replace("rms_norm", device):
            for call in calls:
                assert_same_bits(call(x), ours)
                assert_same_bits(call(x.clone()), ours)
        for call, old in zip(calls, before, strict=True):
            assert_same_bits(call(x), old)
            assert device != "cpu" or not torch.equal(old, ours)


def test_derivatives_of_rows(device):
    """Of the second order, and forward, where torch's own functions have them."""
    x, weight = torch.randn(4, 5, dtype=torch.float64, device=device), torch.rand(5, dtype=torch.float64, device=device)
    target = torch.tensor([1, 0, 4, 2], device=device)
    x, weight = x.requires_grad_(), weight.requires_grad_()
    with torch_reduce.replace(devices=device):
        for function in (
            lambda x, w: F.cross_entropy(x * w, target),
            lambda x, w: F.cross_entropy(
                x * w, target, 1 / torch.arange(1, 6, device=device).to(x), label_smoothing=0.1
            ),
            lambda x, w: F.rms_norm(x, (5,), w, 1e-5),
        ):
            assert torch.autograd.gradcheck(function, (x, weight), check_forward_ad=True)
            assert torch.autograd.gradgradcheck(function, (x, weight))


def test_losses_under_vmap(device):
    """Losses of a batch, and gradients per example, are those of the single calls."""
    x, target = data((6, 20, 30), "float32", device=device) / 4096, classes(data((20, 30), "float32", device=device))

    def loss(x):
        return F.cross_entropy(x, target)

    with torch_reduce.replace(devices=device):
        for function in (loss, torch.func.grad(loss)):
            for found, row in zip(torch.vmap(function)(x), x, strict=True):
                torch.testing.assert_close(found, function(row))


def test_targets_out_of_bounds(device):
    """torch's error on the CPU; on a GPU it is an assertion of the device, which tests/rows/test_losses.py has."""
    if device != "cpu":
        pytest.skip("an assertion of a GPU ends the process")
    x, images = torch.zeros(3, 4), torch.zeros(3, 4, 2, 2)
    for bad, reduction in itertools.product((-1, 4), ("none", "mean", "sum")):
        calls = [
            lambda bad=bad, r=reduction: F.nll_loss(x, torch.tensor([0, bad, 1]), reduction=r),
            lambda bad=bad, r=reduction: F.cross_entropy(images, torch.full((3, 2, 2), bad), reduction=r),
        ]
        for call in calls:
            with (
                torch_reduce.replace(devices=device),
                pytest.raises(IndexError, match=f"Target {bad} is out of bounds"),
            ):
                call()


def refused_by_torch(device):
    """Calls that ours could compute."""
    x, images = torch.ones(3, 4, device=device), torch.ones(2, 3, 4, 5, device=device)
    target, aten = torch.zeros(2, 4, 5, dtype=torch.long, device=device), torch.ops.aten
    calls = [
        lambda: F.nll_loss(images, target.byte()),
        lambda: F.cross_entropy(images, target.byte()),
        lambda: aten._softmax(x.bfloat16(), 0, True),
        lambda: aten._log_softmax(x, 0, True),
        lambda: aten._softmax_backward_data(x, x, 0, torch.bfloat16),
        lambda: aten._log_softmax_backward_data(x.half(), x, 0, torch.half),
        lambda: F.layer_norm(x, (4,), x[0].double()),
        lambda: F.layer_norm(x, (4,), x[0], x[0].half()),
        lambda: F.layer_norm(x.double(), (4,), x[0]),
        lambda: F.layer_norm(x.half(), (4,), x[0].bfloat16()),
        *[lambda d=d: torch.count_nonzero(x.to(d)) for d in (torch.uint16, torch.uint32, torch.uint64)],
        *[
            lambda d=d, name=name: getattr(x.to(d), name)(1)
            for d in (torch.uint16, torch.uint32, torch.uint64)
            for name in ("any", "all", "prod", "amax", "amin", "nansum")
        ],
    ]
    return calls + [lambda: aten._softmax(x.half(), 0, True)] * (device == "cpu")


def test_others_leave(device):
    """What ours do not take is torch's: its results and its errors."""
    z = torch.ones(3, 4, dtype=torch.complex64, device=device)
    empty = torch.ones(3, 0, device=device)
    calls = [
        lambda: z.prod(1),
        lambda: z.amax(1),
        lambda: empty.amax(1),
        lambda: torch.linalg.vector_norm(z.real, 2.5, 1),
        lambda: torch.ones(3, dtype=torch.int32, device=device).mean(),
        lambda: torch.linalg.vector_norm(z.real, 2, 1, dtype=torch.complex64),
        lambda: torch.all(z, ()),
        lambda: torch.any(z.real, (), True),
        lambda: torch.all(z.real, (), out=torch.empty(0, dtype=torch.bool, device=device)),
        lambda: torch.logsumexp(z, 1),
        lambda: torch.logsumexp(z.real.int(), 1),
        lambda: torch.logsumexp(z.real, ()),
        lambda: torch.logsumexp(empty, 1),
        lambda: z.var(1),
        lambda: torch.std(z.real.int(), 1),
        lambda: torch.var(z.real, 2),
        lambda: torch.var(z.real, 1, out=torch.empty(3, dtype=torch.float64, device=device)),
        lambda: z[0].dot(z[1]),
        lambda: z.real[0].dot(z.real[:, 0]),
        lambda: z.real[0].dot(z.real[1].double()),
        lambda: z.real[0].int().dot(z.real[1].int()),
        lambda: F.nll_loss(z.real, torch.zeros(2, dtype=torch.int64, device=device)),
        lambda: F.nll_loss(z.real, torch.zeros(3, dtype=torch.int32, device=device)),
        lambda: F.nll_loss(z.real, torch.zeros(3, dtype=torch.int64, device=device), z.real[:, 0]),
        lambda: F.nll_loss(z.real, torch.zeros(3, dtype=torch.int64, device=device), z.real[0].double()),
        lambda: F.nll_loss(z.real.int(), torch.zeros(3, dtype=torch.int64, device=device)),
        lambda: F.nll_loss(z.real[:0], torch.zeros(0, dtype=torch.int64, device=device)),
        lambda: F.rms_norm(empty, (0,)),
        lambda: F.rms_norm(z, (4,)),
        lambda: F.rms_norm(z.real, (3,)),
        lambda: F.rms_norm(z.real.int(), (4,)),
        *refused_by_torch(device),
    ]

    before = [outcome(call) for call in calls]
    with torch_reduce.replace([*OTHERS, "sum"], device):
        after = [outcome(call) for call in calls]
    for old, new in zip(before, after, strict=True):
        if isinstance(old, torch.Tensor):
            assert_same_bits(new, old)
        else:
            assert old == new


def test_variances_of_too_few_warn(device):
    """torch's warning, where nothing is left to divide by."""
    x = torch.ones(3, 4, device=device)
    with torch_reduce.replace(["var", "std", "var_mean", "std_mean"], device):
        for call in (torch.var, torch.std, torch.var_mean, torch.std_mean):
            with pytest.warns(UserWarning, match="degrees of freedom is <= 0"):
                call(x, 1, correction=4)


def test_names(device):
    """The names in the type are those of csrc/replace/torch.cpp; "all" is torch.all and not all functions."""
    with pytest.raises(ValueError, match="functions are 'all', 'amax'") as refused:
        torch_reduce.replace("median", device)
    assert all(f"'{name}'" in str(refused.value) for name in typing.get_args(_replace._Name))
    assert str(refused.value).count("', '") + 1 == len(typing.get_args(_replace._Name)) == len(OTHERS) + 1
    with torch_reduce.replace("all", device):
        assert not is_on(device)
    with torch_reduce.replace(devices=device):
        assert is_on(device)


def test_repr(device):
    """It says what is replaced, where, and whether it is on now."""
    everything, two = torch_reduce.replace(devices=device), torch_reduce.replace(["sum", "amax"], device)
    assert repr(two) == f"<replace: sum, amax on {device}, off>"
    assert repr(everything) == f"<replace: everything on {device}, off>"
    with replace_torch_sum(device) as one:
        assert repr(one) == f"<replace_torch_sum: sum on {device}, on>"
        assert repr(two) == f"<replace: sum, amax on {device}, on in part>"
    assert repr(one) == f"<replace_torch_sum: sum on {device}, off>"


def test_others_misuse(device):
    """What is wrong is refused by the call itself, in one sentence, before anything is switched."""
    with pytest.raises(ValueError, match="^replace: functions are .*'amax'.*, not 'summ'"):
        torch_reduce.replace(["amax", "summ"], device)
    with pytest.raises(ValueError, match="^replace: names: 'amax' is named twice"):
        torch_reduce.replace(["amax", "amax"], device)
    with pytest.raises(ValueError, match="^replace: devices are 'cuda' and 'cpu', not 'gpu'"):
        torch_reduce.replace("sum", "gpu")
    for given in (torch.sum, [torch.sum], 3):
        with pytest.raises(TypeError, match="^replace: names: expected a string or several, but got .+$"):
            torch_reduce.replace(given, device)
    with pytest.raises(TypeError, match="^replace: devices: expected a string or several, but got device"):
        torch_reduce.replace("sum", torch.device("cpu"))
    with pytest.raises(RuntimeError, match="off\\(\\) without on"):
        torch_reduce.replace("amax", device).off()


# --- what torch.compile compiles --------------------------------------------------------------------------------------

# More of torch's calls, by the function whose replacement makes them ours.
MORE = {
    "sum": [
        lambda x: torch.sum(x),
        lambda x: x.sum(axis=1, keepdims=True),
        lambda x: x.bfloat16().sum((0, 1), dtype=torch.float64),
        lambda x: x.sum_to_size(1, 5000),
        lambda x: torch.sum(x, 1, out=x.new_empty(64)),
        lambda x: F.l1_loss(x, -x, reduction="sum"),
        lambda x: F.mse_loss(x, x / 2, reduction="sum"),
        lambda x: torch.vmap(torch.sum)(x),
    ],
    "mean": [lambda x: torch.mean(x), lambda x: F.mse_loss(x, x / 2), lambda x: F.soft_margin_loss(x, x.sign())],
    "any": [lambda x: torch.any(x > 40, 0, True)],
    "vector_norm": [
        lambda x: torch.norm(x),
        lambda x: x.norm(dim=1),
        lambda x: torch.linalg.norm(x[0]),
        lambda x: torch.ops.aten.norm.Scalar(x, 3),
        lambda x: torch.dist(x[0], x[1]),
        lambda x: torch.linalg.matrix_norm(x),
    ],
    "std": [lambda x: torch.std(x, 1, False)],
}
CALLS = {
    name: [torchs for torchs, _ in OTHERS.get(name, [])] + MORE.get(name, [])
    for name in ["sum", *OTHERS]
    if name not in BY_INDEX
}
del CALLS["std"][1]  # it resizes out=, which Dynamo refuses


@pytest.fixture
def decomposing():
    """A backend with Inductor's decompositions and no code of its own, which notes the operators of each graph."""
    torch._dynamo.reset()
    seen = []

    def backend(module, inputs):
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd
        from torch._inductor.decomposition import select_decomp_table

        def note(graph, _):
            seen.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
            return make_boxed_func(graph.forward)

        return aot_autograd(fw_compiler=note, decompositions=select_decomp_table())(module, inputs)

    backend.seen = seen
    return backend


def ours_in(graph):
    """Our operators. The three that log_softmax is made of where Inductor fuses its rows are one."""
    ours = []
    for operator in graph:
        if operator == "gpureduce._finish_rows.default":
            assert ours[-2:] == ["gpureduce._amax.default", "gpureduce._exponent_sum.default"], graph
            ours[-2:] = ["gpureduce.log_softmax.default"]
        elif operator.startswith("gpureduce."):
            ours.append(operator)
    return ours


@pytest.mark.parametrize("name", CALLS)
def test_compiled(name, decomposing, device):
    """Each function in each of its forms, under Inductor's decompositions: ours inside, torch's before and after."""
    x = data((64, 5000), "float32", device=device)
    x = 1 + x / x.abs().max() / 64 if name == "prod" else x

    def function(x):
        return [call(x) for call in CALLS[name]]

    compiled = torch.compile(function, fullgraph=True, backend=decomposing)
    before = compiled(x)
    with torch_reduce.replace(name, device):
        wanted, inside = function(x), compiled(x)
    after = compiled(x)
    first, second = decomposing.seen
    assert not ours_in(first) and len(ours_in(second)) == len(CALLS[name]), second
    for ours, eager in zip(inside, wanted, strict=True):
        assert_same_bits(ours, eager)
        assert ours.stride() == eager.stride()
    for new, old in zip(after, before, strict=True):
        assert_same_bits(new, old)


def test_compiled_gradients(decomposing, device):
    """The sums that autograd makes of broadcasts are ours too."""
    x, bias = data((64, 300), "float32", device=device), torch.zeros(300, device=device, requires_grad=True)
    weights = data((64, 300), "float32", seed=2, device=device)

    def function(x, bias):
        return (x + bias) * weights + (x / 4096).softmax(1), (x * bias).std(1), torch.var_mean(x + bias)[1]

    def gradient(function):
        results = function(x, bias)
        return torch.autograd.grad(results, bias, [torch.ones_like(each) for each in results])[0]

    compiled = torch.compile(function, fullgraph=True, backend=decomposing)
    before = gradient(compiled)
    with torch_reduce.replace(devices=device):
        assert_same_bits(gradient(compiled), gradient(function))
    assert_same_bits(gradient(compiled), before)
    forward, backward = decomposing.seen[2:]
    assert sorted(ours_in(forward)) == ["gpureduce._var_mean.default"] * 2 + ["gpureduce.softmax.default"]
    assert backward.count("gpureduce.sum.default") >= 2 and "aten.sum.dim_IntList" not in backward


def test_compiled_rows_have_gradients(decomposing, device):
    """A model's rows and its loss: compiled, they have the bits of eager mode, and all of them are ours."""
    x = (data((64, 300), "float32", device=device) / 4096).requires_grad_()
    weight = torch.ones(300, device=device, requires_grad=True)

    def function(x, weight):
        rows = F.layer_norm(F.rms_norm(x, (300,), weight), (300,)).softmax(1)
        image = (rows.view(16, 30, 20, 2) * 100).requires_grad_()
        return F.cross_entropy(rows * 100, classes(rows, 7), weight.detach(), ignore_index=7), F.cross_entropy(
            image, classes(image)
        )

    def run(function):
        losses = function(x, weight)
        return [*losses, *torch.autograd.grad(losses, (x, weight))]

    compiled = torch.compile(function, fullgraph=True, backend=decomposing)
    before = run(compiled)
    with torch_reduce.replace(devices=device):
        for ours, eager in zip(run(compiled), run(function), strict=True):
            assert_same_bits(ours.detach(), eager.detach())
    for new, old in zip(run(compiled), before, strict=True):
        assert_same_bits(new.detach(), old.detach())
    forward, backward = (sorted(each.split(".")[1] for each in ours_in(graph)) for graph in decomposing.seen[2:])
    wanted = {"_nll_loss": 2, "_rms_norm": 1, "_layer_norm": 1, "softmax": 1, "log_softmax": 2}
    assert {name: forward.count(name) for name in wanted} == wanted, forward
    for name, count in wanted.items():
        assert backward.count(f"_{name.removeprefix('_')}_backward") == count, backward


def test_compiled_leaves(decomposing, device):
    """What ours do not take is torch's, as in test_others_leave."""
    x = torch.ones(3, 4, device=device)
    z = x.to(torch.complex64)
    calls = [
        lambda: z.prod(1),
        lambda: torch.linalg.vector_norm(x, 2.5, 1),
        lambda: torch.all(x, ()),
        lambda: torch.logsumexp(x.int(), 1),
        lambda: torch.logsumexp(x[:, :0], 1),
        lambda: z.var(1),
        lambda: x.std(1, correction=4),
        lambda: x[0].int().dot(x[1].int()),
    ]
    compiled = torch.compile(lambda: [call() for call in calls], fullgraph=True, backend=decomposing)
    called = {"amax", "sum"}  # by torch's logsumexp, in eager mode too
    with torch_reduce.replace(CALLS.keys() - called, device):
        compiled()
    assert len(decomposing.seen) == 1 and not ours_in(decomposing.seen[0])


def test_compiled_elsewhere(decomposing, monkeypatch):
    """What is replaced on another device is torch's."""
    with torch_reduce.replace("sum", "cpu"):  # the compiler is told at the first replacement
        pass
    monkeypatch.setattr(_traced, "now", frozenset({"sum cuda", "amax cpu"}))
    torch.compile(lambda x: (x.sum(), x.amax()), fullgraph=True, backend=decomposing)(torch.ones(3))
    assert ours_in(decomposing.seen[0]) == ["gpureduce._amax.default"]


def test_compiled_sizes(decomposing, device):
    """One graph for all sizes, and for sizes that only the data decide."""

    def function(x):
        v = x[x > 0]
        return x.sum(1), x.amax(1), x.std(0), x.logsumexp(0), v.amax(), v.var(), v.dot(v)

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=decomposing)
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, error_on_recompile=True),
        torch_reduce.replace(devices=device),
    ):
        for shape in ((20, 30), (7, 400)):
            x = data(shape, "float32", device=device)
            for ours, eager in zip(compiled(x), function(x), strict=True):
                assert_same_bits(ours, eager)
    assert len(ours_in(decomposing.seen[0])) == 7


def test_compiled_states(x, decomposing, device):
    """Each set of replaced functions has code of its own, in all threads, which is not compiled again."""
    compiled = torch.compile(
        lambda x: (x.sum(1), torch.linalg.vector_norm(x, 3, 1)), fullgraph=True, backend=decomposing
    )
    sums, norms = torch_reduce.replace("sum", device), torch_reduce.replace(["vector_norm"], device)

    def is_ours():
        here, found = compiled(x), []  # without a GPU, torch 2.11 crashes where two threads compile
        thread = threading.Thread(target=lambda: found.extend(compiled(x)))
        thread.start()
        thread.join()
        for ours, threads in zip(here, found, strict=True):
            assert_same_bits(threads, ours)
        return torch.equal(found[0], torch_reduce.sum(x, 1)), torch.equal(found[1], torch_reduce.vector_norm(x, 3, 1))

    for _ in range(2):
        assert is_ours() == (False, False)
        with sums:
            assert is_ours() == (True, False)
            norms.on()
            with sums:
                assert is_ours() == (True, True)
            sums.off()
            assert is_ours() == (False, True)
            sums.on()
            norms.off()
        assert len(decomposing.seen) == 4
    with pytest.raises(KeyError), sums:
        raise KeyError
    assert is_ours() == (False, False)


def test_switched_in_a_compiled_call(x, decomposing, device):
    """The switch breaks the graph; what is compiled behind it is ours. A full graph cannot hold it."""

    def function(x):
        with replace_torch_sum(device):
            inside = rows(x)
        return inside, x.sum(1)

    def rows(x):
        return x.sum(1) + 0

    wanted = torch_reduce.sum(x, 1)
    inside, after = torch.compile(function, backend=decomposing)(x)
    assert torch.equal(inside, wanted) and not torch.equal(after, wanted)
    assert [len(ours_in(graph)) for graph in decomposing.seen] == [1]
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(function, backend=decomposing, fullgraph=True)(x)
    assert not is_on(device)


def test_inductor(x, device):
    """Inductor's code has our bits forwards and backwards while it is on, and no cache takes one for the other."""
    bias = torch.zeros(5000, device=device, requires_grad=True)

    def function(x):
        return ((x + bias) * x).sum(1), torch.linalg.vector_norm(x, 3, 1)

    def run(function):
        results = function(x)
        return [*results, *torch.autograd.grad(results[0], bias, torch.linspace(1, 2, 64, device=device))]

    eager = run(function)
    compiled = torch.compile(function, fullgraph=True)
    for forget in (False, False, True):
        if forget:
            torch._dynamo.reset()
        outside = run(compiled)
        if forget:
            torch._dynamo.reset()
        with torch_reduce.replace(devices=device):
            for ours, wanted in zip(run(compiled), run(function), strict=True):
                assert_same_bits(ours, wanted)
            assert not any(torch.equal(ours, torchs) for ours, torchs in zip(run(compiled), outside, strict=True))
    for new, old, torchs in zip(run(compiled), outside, eager, strict=True):
        assert_same_bits(new, old)
        torch.testing.assert_close(new, torchs, rtol=1e-4, atol=1e-3)


def test_packages_are_not_replaced(device):
    """AOTInductor's are torch's, and a warning says so once."""
    from torch._inductor.compile_fx import compile_fx_aot

    _traced._warned.clear()
    with torch_reduce.replace(["dot", "sum"], device):
        with pytest.warns(UserWarning, match="replace of dot, sum: AOTInductor"), pytest.raises(AssertionError):
            torch._inductor.compile_fx.compile_fx_aot(None, [])
        with warnings.catch_warnings(), pytest.raises(AssertionError):
            warnings.simplefilter("error")
            torch._inductor.compile_fx.compile_fx_aot(None, [])
    with warnings.catch_warnings(), pytest.raises(AssertionError):
        warnings.simplefilter("error")
        compile_fx_aot(None, [])


def test_a_torch_that_cannot_be_told(monkeypatch, device):
    """Where Dynamo has changed, a warning names the functions, once."""
    import torch._dynamo.eval_frame

    monkeypatch.delattr(torch._dynamo.eval_frame, "_callback_from_stance")
    monkeypatch.setattr(_traced, "_hook_packages", lambda: None)
    monkeypatch.setattr(_traced, "_hooked", False)
    monkeypatch.setattr(_traced, "_running", None)
    _traced._warned.clear()
    with pytest.warns(UserWarning, match="replace of amax, sum: torch.compile"):
        torch_reduce.replace(["sum", "amax"], device).on()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch_reduce.replace(["sum", "amax"], device).on().off()
    torch_reduce.replace(["sum", "amax"], device).off()


def test_names_that_are_not_replaced():
    """One sentence that names the function."""
    with pytest.raises(ValueError, match=r"^_traced\(\): name: no function 'summ' is replaced"):
        torch.ops.gpureduce._traced("summ")
    assert torch.ops.gpureduce._traced("sum")
