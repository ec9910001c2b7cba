"""Every operation without data: meta and fake tensors, symbolic sizes, export, opcheck, and torch.compile's bits."""

import itertools
import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves, tree_map

from support import DTYPES, OPERATIONS, assert_same_bits, data, dtype_of
from table import CASES, SEGMENTS, VARIANCES, every_case, gradients, leaves, place, rotated, taken_by_all, tensors

pytestmark = pytest.mark.filterwarnings(
    "ignore:Casting complex values", "ignore:ComplexHalf support", "ignore:.*degrees of freedom"
)

CALLS = [
    dict(dim=None),
    dict(dim=[]),
    dict(dim=[0]),
    dict(dim=[-1]),
    dict(dim=[-1], keepdim=True),
    dict(dim=[0, 2]),
    dict(dim=[0, 1, 2], keepdim=True),
    dict(dim=[1], dtype=torch.float64),
    dict(dim=[0], dtype=torch.int32),
]
WITH_OUT = [op for op in CASES if op.has_out]


def calls_of(op, x, name):
    """Those calls that the operation has, each with its inputs."""
    for call in CALLS:
        known = call.get("dtype") is None or (op.has_dtype and op.takes(name, call["dtype"]))
        if known and op.has(x, call["dim"], call.get("keepdim", False)):
            yield op.around(x, call["dim"]), call


def same_description(a, b):
    """dtype, shape, strides and device."""
    return (a.dtype, a.shape, a.stride(), a.device) == (b.dtype, b.shape, b.stride(), b.device)


def placed(x, device):
    """Inputs on another device, with the strides that they have."""
    return tree_map(lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device), x)


@every_case
def test_meta_tensors(op):
    """A meta tensor's result is described as the CPU's is, whatever the layout; the result's dtype is the model's.

    Layouts take turns with dtypes.
    """
    for name in filter(op.takes, DTYPES):
        x = data((3, 4, 5), name)
        views = (x, x.permute(2, 0, 1), x[:, ::2], x[:, :0], x[:1].expand(6, 4, 5))
        for view in rotated(views, place(op, name), 5):
            for inputs, call in calls_of(op, view, name):
                for ours, real in zip(*(tensors(op(t, **call)) for t in (placed(inputs, "meta"), inputs)), strict=True):
                    assert (ours.device.type, ours.dtype) == ("meta", real.dtype), name
                    assert (ours.shape, ours.stride()) == (real.shape, real.stride()), name
        for dtype in op.targets(name, None, *DTYPES) if op.has_dtype else [None]:
            for device, inputs in itertools.product(("cpu", "meta"), [op.around(x, -1)]):
                result = op(tree_map(lambda t, device=device: t.to(device), inputs), -1, dtype=dtype)
                assert {t.dtype for t in tensors(result)} == {dtype_of(op.result(name, dtype))}, name


@every_case
def test_meta_of_any_size(op):
    """A meta tensor may be larger than any memory."""
    x = torch.empty(1 << 20, 1 << 20, 1 << 10, dtype=torch.float32, device="meta")
    offsets = torch.empty(9, dtype=torch.int64, device="meta")
    inputs = (x, offsets) if op in SEGMENTS else tuple([x] * len(tensors(op.around(x[:1, :1, :9], 0))))
    result = tensors(op(inputs if len(inputs) > 1 else x, [0]))
    assert {t.shape for t in result} == {(8, 1 << 20, 1 << 10) if op in SEGMENTS else (1 << 20, 1 << 10)}


@pytest.mark.parametrize("op", WITH_OUT, ids=str)
def test_meta_out(op):
    """out= on meta tensors: out is checked, resized and returned."""
    inputs = placed(op.inputs((3, 40), "float32", dim=1), "meta")
    wanted = op(inputs, 1)
    out = wanted.new_empty(0)
    assert op(inputs, 1, out=out) is out
    assert out.shape == wanted.shape
    strided = wanted.new_empty((*wanted.shape, 3))[..., 0]
    assert op(inputs, 1, out=strided).stride() == strided.stride() and strided.data_ptr() == 0
    with pytest.raises(RuntimeError, match="device"):
        op(inputs, 1, out=torch.empty(wanted.shape, dtype=wanted.dtype))
    if op in OPERATIONS:
        out = torch.empty(0, dtype=torch.float64, device="meta")
        assert op(inputs, [1], out=out).dtype == torch.float64
        with pytest.raises(RuntimeError, match="dtype"):
            op(inputs, [1], dtype=torch.float32, out=out)


def test_meta_errors(op):
    """Wrong dtypes are refused without data, with the classes of the real ones."""
    x = torch.empty(3, 4, device="meta")
    with pytest.raises(NotImplementedError, match="(?i)float8_e4m3fnuz"):
        op(torch.empty(3, dtype=torch.float8_e4m3fnuz, device="meta"))
    with pytest.raises(NotImplementedError, match="(?i)float8_e5m2fnuz"):
        op(x, dtype=torch.float8_e5m2fnuz)
    with pytest.raises(RuntimeError if op.divides else NotImplementedError, match="(?i)bits8"):
        op(x, dtype=torch.bits8)


@every_case
def test_fake_tensors(op, device):
    """A fake tensor's result is described as the real one's is, on its own device; an out is resized."""
    x = op.elements((3, 4, 5), "float32", device=device).permute(1, 2, 0)
    for inputs, call in calls_of(op, x, "float32"):
        real = op(inputs, **call)
        nothing = tensors(real)[0].new_empty(0)
        with FakeTensorMode() as mode:
            fake = tree_map(mode.from_tensor, inputs)
            described = tensors(op(fake, **call))
            if op.has_out and not call.get("keepdim"):
                described += [op(fake, **call, out=mode.from_tensor(nothing))]
        for each in described:
            assert any(same_description(each, one) for one in tensors(real))


def doubled(op, dim, keepdim):
    return lambda x: tree_map(lambda y: y * 2, op(x, dim, keepdim))


@every_case
def test_symbolic_sizes(op, device):
    """A trace with symbolic sizes holds for other sizes, without guards on the first ones.

    Of segments the only guard is torch's own, that there are several; an extremum asks for elements.
    """
    keepdim = op not in SEGMENTS
    x = op.elements((3, 4, 5), "float32", 1, device)
    for dim in [[0], [-1]] if op in SEGMENTS else rotated([None, [0], [1], [0, 2], [-1], [2, 1, 0]], CASES.index(op)):
        function = doubled(op, dim, keepdim)
        traced = make_fx(function, tracing_mode="symbolic")(op.around(x, dim))
        assert "gpureduce." in str(traced.graph)
        guards = [str(guard.expr) for guard in traced.shape_env.guards]
        assert op.empty is None or all(op in SEGMENTS and re.fullmatch(r"Ne\(s\d+ - 1, 1\)", g) for g in guards), guards
        for shape in ((3, 4, 5), (7, 2, 9), (40, 30, 20)):
            inputs = op.inputs(shape, "float32", 1, device, dim)
            assert_same_bits(traced(inputs), function(inputs), f"{dim=}")


@every_case
def test_export_with_dynamic_shapes(op, device):
    """torch.export with dynamic sizes, run on others, gives the op's bits."""
    reduce = op.function
    keepdim = {} if op in SEGMENTS else dict(keepdim=True)

    class Module(torch.nn.Module):
        def forward(self, x):
            return reduce(x, -1, **keepdim)

    batch, length = torch.export.Dim("batch", min=2, max=1000), torch.export.Dim("length", min=2, max=100_000)
    inputs = op.inputs((4, 3, 50), "bfloat16", 1, device, -1)
    sizes = {0: batch, 2: length}
    dynamic = (sizes, None if op in SEGMENTS else sizes) if isinstance(inputs, tuple) else sizes
    program = torch.export.export(Module(), (inputs,), dynamic_shapes={"x": dynamic})
    for shape in ((4, 3, 50), (9, 3, 4097), (2, 3, 9001)):
        inputs = op.inputs(shape, "bfloat16", 1, device, -1)
        wanted = op.expected(inputs, -1, **keepdim)
        assert_same_bits(program.module()(inputs), wanted)


# --- opcheck ----------------------------------------------------------------------------------------------------------


traced = set()  # the operators, and which of their arguments required a gradient


def opcheck(op, args, kwargs=None):
    """torch.library.opcheck; its schema check is left out for dtypes that torch.allclose does not take.

    What takes the longest, a trace through AOTAutograd, is made once for an operator and arguments that require
    gradients.
    """
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    case = op, tuple(isinstance(x, torch.Tensor) and x.requires_grad for x in args)
    if case not in traced:
        traced.add(case)
        checks.append("test_aot_dispatch_dynamic")
    results = [args[0], *tree_leaves(op(*args, **(kwargs or {})))]
    try:
        known = all(torch.allclose(x, x, equal_nan=True) is not None for x in results)
    except NotImplementedError:
        known = False
    torch.library.opcheck(op, args, kwargs, test_utils=checks if known else checks[1:])


def of_numbers(op, x, dim):
    """The inputs of a call that has no NaN among its results: no segment is empty."""
    return (x, torch.tensor([0, 1, 3], device=x.device)) if op in SEGMENTS else op.around(x, dim)


REPRESENTATIVE = ["float32", "bfloat16", "complex64", "float8_e5m2", "int8"]


@taken_by_all("float32", others=REPRESENTATIVE)  # test_meta_tensors has all dtypes of all
def test_opcheck(op, name, device):
    """torch.library.opcheck: schema, fake kernel, autograd's registration, and tracing through AOTAutograd."""
    x = op.elements((3, 4, 5), name, 73, device)
    calls = [(x, [0], False)]
    if name == "float32" or op in OPERATIONS:
        strided = x.permute(2, 0, 1)[::2]
        calls += [(strided, [-1], False) if op in SEGMENTS else (strided, [0, 2], True)]
    if op in OPERATIONS and name in REPRESENTATIVE:  # opcheck finds that NaN is not NaN
        calls += [(x, None, False), (x[:, :0], [0 if op.divides else 1], False)]
    for view, dim, keepdim in calls:
        args, named = op.arguments(of_numbers(op, view, dim), dim, keepdim)
        if view.numel() and name != "complex32":
            args = tuple(
                leaves(op, t) if isinstance(t, torch.Tensor) and "int" not in str(t.dtype) else t for t in args
            )
        opcheck(op.operator.default, args, named)
        if op.schema is not op.operator:
            opcheck(op.schema.default, args, named)
    for dtype in op.targets(name, "float64") if op.has_dtype and not dtype_of(name).is_complex else []:
        args, named = op.arguments(of_numbers(op, x, [0]), [0])
        opcheck(op.operator.default, args, named | dict(dtype=dtype))


@taken_by_all("float32", others=REPRESENTATIVE, cases=WITH_OUT)
def test_opcheck_of_out(op, name, device):
    """torch.library.opcheck of the out= overload."""
    x = op.elements((3, 4, 5), name, 73, device)
    for dim, keepdim in ([0], False), (None, False), ([0, 2], True):
        if op.has(x, dim, keepdim) and (
            dim == [0] or name == "float32" or (op in OPERATIONS and name in REPRESENTATIVE)
        ):
            inputs = of_numbers(op, x, dim)
            result = op(inputs, dim, keepdim)
            args, named = op.arguments(inputs, dim, keepdim)
            if name == "float32":
                opcheck(op.operator.out, args, named | dict(out=torch.zeros_like(result)))
            opcheck(op.operator.out, args, named | dict(out=result.new_zeros((*result.shape, 2))[..., 0]))


# --- torch.compile ----------------------------------------------------------------------------------------------------


@taken_by_all("float32", others=["bfloat16", "int8", "complex64", "float8_e5m2"])
def test_compile(op, name, device):
    """One graph for all sizes, forward and backward, with the bits and the strides of eager."""
    torch._dynamo.reset()
    reduce = op.function
    dtype = {"dtype": op.targets(name, "float64", "complex128")[0]} if op.has_dtype else {}
    before = (lambda t: t) if name in ("int8", "float8_e5m2") else (lambda t: t * 3 if t.is_floating_point() else t)

    def function(x):
        x = tree_map(before, x)
        if op in SEGMENTS:
            return [reduce(x, -1), reduce(x, -1, **dtype)]
        parts = [reduce(x, -1), reduce(x, (0, -1), keepdim=True, **dtype), reduce(x, 0, **dtype)]
        return [t for part in parts for t in (part if isinstance(part, tuple) else (part,))]

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for count, (rows, length) in enumerate(((3, 50), (9, 4097), (20, 1000))):
        x = leaves(op, op.inputs((rows, 4, length), name, 75, device, -1))
        with torch._dynamo.config.patch(error_on_recompile=count > 0):
            ours = compiled(x)
        theirs = function(x)
        for a, b in zip(ours, theirs, strict=True):
            assert a.stride() == b.stride()
            assert_same_bits(a, b)
        if name == "float32":
            for a, b in zip(*(gradients(tuple(y), x) for y in (ours, theirs)), strict=True):
                assert a.stride() == b.stride()
                assert_same_bits(a, b)


@pytest.mark.parametrize("op", WITH_OUT, ids=str)
def test_compile_with_out(op, device):
    """A call with out= compiles, and writes out."""
    torch._dynamo.reset()
    reduce = op.function

    @torch.compile(backend="aot_eager")
    def function(x, out):
        reduce(x, 1, out=out)
        return out + 1

    x = op.inputs((5, 700), "float32", 75, device, 1)
    out = torch.zeros_like(op(x, 1))
    result = function(x, out)
    assert_same_bits(out, op.expected(x, 1))
    assert_same_bits(result, out + 1)


@pytest.mark.parametrize("op", [op for op in WITH_OUT if op not in VARIANCES], ids=str)
def test_functionalized_out(op, device):
    """The dispatcher's out= under torch.func.functionalize, as AOTAutograd has it."""

    def function(x, out):
        args, named = op.arguments(x, [1])
        op.schema(*args, **named, out=out)
        return out.clone()

    for name in filter(op.takes, ("float32", "bfloat16", "complex64", "float8_e5m2")):
        inputs = op.inputs((3, 40), name, 84, device, 1)
        wanted = op(inputs, 1)
        out = torch.zeros_like(wanted)
        assert_same_bits(torch.func.functionalize(function)(inputs, out), wanted, name)
        assert_same_bits(out, wanted, name)
