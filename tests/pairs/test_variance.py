"""What is the variances' alone: corrections, accuracy wherever the mean is, and the forms of arguments of torch's."""

import itertools
import math

import numpy as np
import pytest
import torch

import torch_reduce
from support import FLOATING, assert_same_bits, data, dtype_of, walked
from table import VARIANCES

OPS = torch.ops.gpureduce
CORRECTIONS = (1, 0, 2.5)
every_float = pytest.mark.parametrize("name", FLOATING)


@every_float
def test_corrections(name, device):
    x = data((6, 333), name, seed=82, device=device)
    for correction, keepdim in itertools.product((*CORRECTIONS, 333, 400, -3), (False, True)):
        for op, dim in itertools.product(VARIANCES, (0, 1)):
            op.check(x, dim, keepdim, correction=correction)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_many_rows(name, cuda):
    """So many that a warp takes some, one after the other: the CPU's bits."""
    for length in (2, 3, 9, 33, 100, 300, 520, 771, 1024, 1500, 4096):
        rows = 70_003 if length < 100 else 40_001 if length < 1500 else 4_001
        x = data((rows, length), name, seed=85, device=cuda)
        for ours, cpus in zip(OPS.var_mean(x, [1]), OPS.var_mean(x.cpu(), [1]), strict=True):
            assert_same_bits(ours.cpu(), cpus, f"{rows} rows of {length}")


def test_special_numbers(device):
    """NaN and infinity make both results NaN, wherever they stand; what does not vary has no variance."""
    for special, at in itertools.product((math.nan, math.inf, -math.inf), (0, 1, 513, 4999)):
        x = data((2, 5000), "float32", seed=86, device=device)
        x[:, at] = special
        assert OPS.var(x, [1]).isnan().all()
    same = torch.full((3, 9001), 0.1, device=device)
    variance, mean = OPS.var_mean(same, [1])
    assert (variance == 0).all() and (mean == same[:, 0]).all()


@walked("mean", [0.0, 1e3, 1e6, -3e7])
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


# --- semantics --------------------------------------------------------------------------------------------------------


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


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_tangents_of_nothing(device):
    """Of a deviation they are NaN, of a variance 0, as in torch."""
    x = torch.zeros(3, 0, dtype=torch.float64, device=device)
    for ours, theirs in ((torch_reduce.std, torch.std), (torch_reduce.var, torch.var)):
        found, wanted = (torch.func.jvp(lambda y, f=f: f(y, dim=1), (x,), (x,))[1] for f in (ours, theirs))
        assert torch.equal(found.isnan(), wanted.isnan())
        assert found.shape == (3,)


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


@walked("args, kwargs", FORMS)
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


# --- torch's features -------------------------------------------------------------------------------------------------


def test_opcheck(device):
    x = data((4, 30), "float32", seed=95, device=device)
    opcheck = torch.library.opcheck
    opcheck(OPS._var_mean.default, (x.clone().requires_grad_(), [1], 1.0, False, True), {})
    opcheck(OPS._var_mean.default, (x.clone().requires_grad_(), None, 0.0, True, False), {})


# --- plans on a GPU ---------------------------------------------------------------------------------------------------

VIEWS = {
    "all": lambda make: (make(300_007), [0]),
    "rows": lambda make: (make(60, 5000), [1]),
    "rows at odd addresses": lambda make: (make(60, 5001)[:, 1:], [1]),
    "rows of 1500": lambda make: (make(61, 1500), [1]),
    "rows of 300": lambda make: (make(700, 300), [1]),
    "rows of 7": lambda make: (make(9000, 7), [1]),
    "rows of 2": lambda make: (make(9000, 2), [1]),
    "rows with gaps": lambda make: (make(300, 400)[:, ::2], [1]),
    "few columns": lambda make: (make(5000, 6), [0]),
    "columns": lambda make: (make(3000, 128), [0]),
    "columns of 5": lambda make: (make(5, 9000), [0]),
    "inside": lambda make: (make(5, 700, 48), [1]),
    "nested": lambda make: (make(4, 40, 6, 64)[:, :, ::2], [1, 3]),
    "image": lambda make: (make(4, 12, 14, 14), [0, 2, 3]),
    "one element": lambda make: (make(1, 64).expand(3000, 64), [0]),
}


@walked("name", ["float16", "bfloat16", "float32", "float64", "float8_e5m2"])
@pytest.mark.parametrize("view", list(VIEWS))
def test_forced_plans(view, name, cuda):
    """No plan changes a bit of a variance or a mean: each that is proposed, other grids, and other GPUs' sizes."""
    x, dims = VIEWS[view](lambda *shape: data(shape, name, 5))
    y, _ = VIEWS[view](lambda *shape: data(shape, name, 5, cuda))
    wanted, count = OPS._var_mean(x, dims, 1, False, False), 0
    for tuning in ("", "grid=2", "multiprocessors=1", *(f"candidate={k}" for k in range(99))):
        try:
            got = OPS._var_mean_tuned(y, dims, 1, False, False, tuning=tuning)
        except ValueError as error:
            assert "there are only" in str(error)
            break
        for one, other in zip(got, wanted, strict=True):
            assert_same_bits(one, other, f"under {tuning!r}")
        count += 1
    assert count > 3
