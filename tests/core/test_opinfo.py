"""torch's own samples (OpInfo) of every covered function: ours gives what torch gives, in all that torch asks of an op.

What differs is listed in DIFFERENCES with its reason; what is listed and does not differ fails, too.
"""

import functools
import pathlib
import subprocess
import sys

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._pytree import tree_leaves, tree_map

import torch_reduce
from support import invalid_argument, opinfo, walked

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        torch.__version__ < "2.11" or torch.__version__ >= "2.12", reason="the samples are torch 2.11's"
    ),
]

# torch's name and variant, and ours. (torch.std_mean has none.)
FUNCTIONS = {
    "sum": torch_reduce.sum,
    "mean": torch_reduce.mean,
    "nansum": torch_reduce.nansum,
    "prod": torch_reduce.prod,
    "amax": torch_reduce.amax,
    "amin": torch_reduce.amin,
    "argmax": torch_reduce.argmax,
    "argmin": torch_reduce.argmin,
    "max reduction_with_dim": torch_reduce.max,
    "min reduction_with_dim": torch_reduce.min,
    "aminmax": torch_reduce.aminmax,
    "any": torch_reduce.any,
    "all": torch_reduce.all,
    "count_nonzero": torch_reduce.count_nonzero,
    "var": torch_reduce.var,
    "var unbiased": torch_reduce.var,
    "std": torch_reduce.std,
    "std unbiased": torch_reduce.std,
    "var_mean": torch_reduce.var_mean,
    "var_mean unbiased": torch_reduce.var_mean,
    "logsumexp": torch_reduce.logsumexp,
    "linalg.vector_norm": torch_reduce.vector_norm,
    "dot": torch_reduce.dot,
}
NO_GRADIENTS = ["argmax", "argmin", "aminmax", "any", "all", "count_nonzero"]  # torch says so of these
DTYPES = [torch.float32, torch.float64, torch.int64, torch.complex64]

# Samples that are refused, in every test: of which functions, which samples, and why.
REFUSED = [
    (["prod"], lambda x: is_complex(x), "products of complex numbers have no documented order yet"),
    (["logsumexp"], lambda x: is_complex(x), "complex numbers have no largest one, from which the others differ"),
    (
        ["var", "var unbiased", "std", "std unbiased", "var_mean", "var_mean unbiased"],
        lambda x: is_complex(x),
        "variances of complex numbers have no documented order yet",
    ),
    (["dot"], lambda x: is_complex(x), "weighted sums of complex numbers have no documented order yet"),
    (
        ["linalg.vector_norm"],
        lambda x: x.kwargs.get("ord", 2) not in (0, 1, 2, 3, float("inf"), float("-inf")),
        "powers that no multiplication gives would have other bits on other devices",
    ),
]

# (function, test, dtype): how many samples differ, and why.
MANY_DIMS = "65 dims of size 1 are taken"
DIFFERENCES = {("amax", "errors"): (2, MANY_DIMS), ("amin", "errors"): (2, MANY_DIMS)}


def is_complex(sample):
    return sample.input.is_complex()


def is_refused(name, sample):
    return any(name in names and applies(sample) for names, applies, _ in REFUSED)


@functools.cache
def info(name):
    """torch's OpInfo of a function."""
    opinfo()  # brings what the module needs
    from torch.testing._internal.common_methods_invocations import op_db

    op, _, variant = name.partition(" ")
    return next(each for each in op_db if (each.name, each.variant_test_name) == (op, variant))


@functools.cache
def samples(name, device, dtype):
    return list(info(name).sample_inputs(device, dtype))


def tried(function):
    """The result, or the error."""
    try:
        return function()
    except Exception as error:
        return error


def call(function, sample, *inputs):
    """The function of a sample, or of other tensors in place of its own."""
    tensors = iter(inputs or tensors_of(sample))
    put = lambda x: next(tensors) if isinstance(x, torch.Tensor) else x  # noqa: E731
    return function(put(sample.input), *tree_map(put, sample.args), **tree_map(put, sample.kwargs))


def tensors_of(sample):
    return [x for x in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(x, torch.Tensor)]


def words(sample):
    """A sample in short."""
    shapes = [tuple(x.shape) for x in tensors_of(sample)]
    return f"{shapes} {sample.args if len(shapes) == 1 else ''} {sample.kwargs}"


def dtypes_of(name, differentiable=False):
    op = info(name)
    taken = op.supported_backward_dtypes("cpu") if differentiable else op.supported_dtypes("cpu")
    return [dtype for dtype in DTYPES if dtype in taken]


def check(kind, name, dtype, device, differs):
    """Fails unless those samples of which differs(sample) raises are the listed ones."""
    if dtype not in info(name).supported_dtypes(device):
        return
    found = []
    for sample in samples(name, device, dtype):
        if is_refused(name, sample):
            continue
        error = tried(lambda sample=sample: differs(sample))
        if isinstance(error, Exception):
            found.append(f"{words(sample)}: {type(error).__name__}: {str(error).strip().splitlines()[0][:200]}")
    settle((name, kind, str(dtype).removeprefix("torch.")), found)


def settle(key, found):
    """Fails unless as many differences were found as are listed."""
    count, reason = DIFFERENCES.get(key, (0, None))
    listed = f"{key}: {count} samples are listed as differing ({reason}), but {len(found)} differ"
    assert len(found) == count, "\n".join([listed, *found])


def cases(differentiable=False):
    names = [name for name in FUNCTIONS if not differentiable or name not in NO_GRADIENTS]
    dtypes = walked("dtype", [torch.float64] if differentiable else lambda name, **_: dtypes_of(name))
    return lambda test: pytest.mark.parametrize("name", names)(dtypes(test))


def same(ours, theirs, **options):
    """Equal within torch's tolerances, with the same dtypes and shapes."""
    assert type(ours) is type(theirs), f"{type(ours)} is not {type(theirs)}: {ours}"
    torch.testing.assert_close(ours, theirs, equal_nan=True, **options)


@cases()
def test_values(name, dtype, device):
    """torch's results, dtypes, shapes and strides; and an error where torch has one."""
    ours, theirs = FUNCTIONS[name], info(name).op

    def differs(sample):
        wanted, found = tried(lambda: call(theirs, sample)), tried(lambda: call(ours, sample))
        if isinstance(wanted, Exception):
            assert isinstance(found, type(wanted)), f"{found!r} for {wanted!r}"
        elif isinstance(found, Exception):
            raise found
        else:
            same(
                tuple(found) if isinstance(wanted, tuple) else found,
                tuple(wanted) if isinstance(wanted, tuple) else wanted,
                check_stride=True,
            )

    check("values", name, dtype, device, differs)


@cases()
def test_meta(name, dtype, device):
    """On meta tensors a result has the dtype, the shape and the strides that it has on the device."""

    def differs(sample):
        wanted = call(FUNCTIONS[name], sample)
        found = call(FUNCTIONS[name], sample, *[x.to("meta") for x in tensors_of(sample)])
        for one, other in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
            assert one.device.type == "meta"
            assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())

    check("meta", name, dtype, device, differs)


@cases()
def test_out(name, dtype, device):
    """out= takes a tensor of the result's dtype and shape, one of no elements, and one in steps."""
    function = FUNCTIONS[name]
    if name.startswith("var_mean"):
        pytest.skip("var_mean has no out=, as in torch")

    def differs(sample):
        wanted = call(function, sample)
        rooms = torch.empty_like, lambda x: x.new_empty(0), lambda x: x.new_empty((*x.shape, 2))[..., 0]
        for room in rooms:
            out = tuple(map(room, wanted)) if isinstance(wanted, tuple) else room(wanted)
            found = call(functools.partial(function, out=out), sample)
            for one, given, own in zip(*map(tree_leaves, (found, out, wanted)), strict=True):
                assert one is given
                same(one, own)

    check("out", name, dtype, device, differs)


@cases()
def test_vmap(name, dtype, device):
    """Of a batch, what the samples give one by one."""

    def differs(sample):
        batches = [torch.stack([x, x.flip(0) if x.dim() else x, x]) for x in tensors_of(sample)]
        found = torch.vmap(lambda *inputs: call(FUNCTIONS[name], sample, *inputs))(*batches)
        each = [call(FUNCTIONS[name], sample, *[batch[i] for batch in batches]) for i in range(3)]
        for i, one in enumerate(tree_leaves(found)):
            same(one, torch.stack([tree_leaves(results)[i] for results in each]))

    check("vmap", name, dtype, device, differs)


def test_which_have_gradients():
    """The samples are read late, as their module takes seconds to import."""
    assert [name for name in FUNCTIONS if not info(name).supports_autograd] == NO_GRADIENTS


def leaves(sample):
    return [x.detach().clone().requires_grad_() for x in tensors_of(sample)]


@cases(differentiable=True)
def test_gradients(name, dtype, device):
    """First derivatives, backward and forward, against finite differences; and those of torch."""
    ours, theirs = FUNCTIONS[name], info(name).op

    def differs(sample):
        inputs = leaves(sample)
        if tree_leaves(call(ours, sample, *inputs))[0].numel() > 0:
            check_all = dict(check_forward_ad=True, check_batched_grad=False, fast_mode=True)
            gradcheck(lambda *x: call(ours, sample, *x), inputs, **check_all)

        def gradients(function):
            results = [r.sum() for r in tree_leaves(call(function, sample, *inputs)) if r.dtype != torch.int64]
            return torch.autograd.grad(results, inputs, allow_unused=True)  # of the norm of order 0 there is none

        for found, wanted in zip(gradients(ours), gradients(theirs), strict=True):
            assert (found is None) == (wanted is None)
            if found is not None:
                same(found, wanted)

    check("gradients", name, dtype, device, differs)


@cases(differentiable=True)
def test_second_gradients(name, dtype, device):
    """Second derivatives against finite differences."""

    def differs(sample):
        inputs = leaves(sample)
        if tree_leaves(call(FUNCTIONS[name], sample, *inputs))[0].numel() > 0:
            gradgradcheck(lambda *x: call(FUNCTIONS[name], sample, *x), inputs, fast_mode=True)

    check("second gradients", name, dtype, device, differs)


@pytest.mark.parametrize(("names", "applies", "reason"), REFUSED, ids=[names[0] for names, *_ in REFUSED])
def test_refused(names, applies, reason, device):
    """What is listed as refused is, with NotImplementedError, and torch takes it."""
    for name in names:
        chosen = [x for dtype in dtypes_of(name) for x in samples(name, device, dtype) if applies(x)]
        assert chosen, f"no sample of {name} is refused"
        for sample in chosen:
            with pytest.raises(NotImplementedError):
                call(FUNCTIONS[name], sample)
            call(info(name).op, sample)


WITH_ERRORS = ["amax", "amin", "mean", "dot"]  # of which torch lists some


@pytest.mark.parametrize("name", WITH_ERRORS)
def test_errors(name, device):
    """The calls that torch lists as errors raise the same class."""
    found, errors = [], list(info(name).error_inputs(device))
    for each in errors:
        kind = invalid_argument() if each.error_type is ValueError else each.error_type
        error = tried(functools.partial(call, FUNCTIONS[name], each.sample_input))
        if not isinstance(error, kind):
            found.append(f"{words(each.sample_input)}: {error!r} is not {kind.__name__}")
    assert errors
    settle((name, "errors"), found)


A_FILE_OF_TORCHS = """
import torch

def test_same():
    assert torch.ones(3, 4).sum(1).tolist() == [4, 4, 4]

def test_fixed_bits():
    x = torch.randn(5000, 64, generator=torch.Generator().manual_seed(0))
    ones = [x[:, i].contiguous().sum() for i in range(64)]
    assert torch.equal(x.sum(0), torch.stack(ones)), "the bits differ"

def test_not_here():
    import a_package_that_there_is_not
"""


def test_torchs_own_test_files(tmp_path):
    """tools/torch_tests.py runs a file with and without ours, and names each test that differs."""
    file = tmp_path / "test_something.py"
    file.write_text(A_FILE_OF_TORCHS)
    tool = pathlib.Path(__file__).resolve().parents[2] / "tools" / "torch_tests.py"
    result = subprocess.run([sys.executable, tool, file], capture_output=True, text=True, timeout=300)
    assert result.returncode == 1, result.stdout + result.stderr
    assert result.stdout.splitlines() == [
        "torch alone: 2 failed, 1 passed",
        "with ours: 1 failed, 2 passed",
        "test_fixed_bits, torch alone: failed: AssertionError: the bits differ",
        "test_fixed_bits, with ours: passed",
        "1 differ",
    ]
