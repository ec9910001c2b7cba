"""Without data: meta and fake tensors, symbolic sizes, export, opcheck, and torch.compile with the same bits."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import model
from support import DTYPES, OPERATIONS, assert_same_bits, data, dtype_of, every_operation, taken

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")

CALLS = [
    dict(dim=None),
    dict(dim=[]),
    dict(dim=[0]),
    dict(dim=[-1], keepdim=True),
    dict(dim=[0, 2]),
    dict(dim=[0, 1, 2], keepdim=True),
    dict(dim=[1], dtype=torch.float64),
    dict(dim=[1], dtype=torch.int32),
]


def calls_of(op, name="float32"):
    """The result dtypes that an operation takes for an input of this dtype."""
    return [call for call in CALLS if op.takes(name, call.get("dtype"))]


CASES = [(op, call) for op in OPERATIONS for call in calls_of(op)]


def same_description(a, b):
    """dtype, shape, strides and device."""
    return (a.dtype, a.shape, a.stride(), a.device) == (b.dtype, b.shape, b.stride(), b.device)


@pytest.mark.parametrize("name", DTYPES)
@every_operation
def test_meta_tensors(name, op):
    """A meta tensor's result is described as the CPU's is, whatever the layout."""
    x = data((3, 4, 5), name)
    for view in (x, x.permute(2, 0, 1), x[:, ::2], x[:, :0], x[:1].expand(6, 4, 5)):
        meta = torch.empty_strided(view.shape, view.stride(), dtype=view.dtype, device="meta")
        for call in calls_of(op, name):
            ours, real = op(meta, **call), op(view, **call)
            assert ours.device.type == "meta"
            assert (ours.dtype, ours.shape, ours.stride()) == (real.dtype, real.shape, real.stride())


@every_operation
def test_meta_of_any_size(op):
    """A meta tensor may be larger than any memory."""
    x = torch.empty(1 << 20, 1 << 20, 1 << 10, dtype=torch.float8_e5m2, device="meta")
    assert op(x, [0]).shape == (1 << 20, 1 << 10)
    assert op(x).shape == ()


def test_meta_out(op):
    """out= on meta tensors: out is checked, resized and returned."""
    x = torch.empty(3, 4, device="meta")
    out = torch.empty(0, dtype=torch.float64, device="meta")
    assert op(x, [1], out=out) is out
    assert out.shape == (3,) and out.dtype == torch.float64
    strided = torch.empty(9, device="meta")[::3]
    assert op(x, [1], out=strided).stride() == (3,)
    with pytest.raises(RuntimeError, match="dtype"):
        op(x, [1], dtype=torch.float32, out=out)
    with pytest.raises(RuntimeError, match="device"):
        op(x, [1], out=torch.empty(3))


def test_meta_errors(op):
    """Wrong calls are refused without data, with the classes of the real ones."""
    x = torch.empty(3, 4, device="meta")
    with pytest.raises(IndexError, match=r"\[-2, 1\]"):
        op(x, [2])
    with pytest.raises(RuntimeError, match="appears multiple times"):
        op(x, [0, -2])
    with pytest.raises(NotImplementedError, match="(?i)float8_e4m3fnuz"):
        op(torch.empty(3, dtype=torch.float8_e4m3fnuz, device="meta"))
    with pytest.raises(NotImplementedError, match="(?i)float8_e5m2fnuz"):
        op(x, dtype=torch.float8_e5m2fnuz)
    with pytest.raises(RuntimeError if op.divides else NotImplementedError, match="(?i)bits8"):
        op(x, dtype=torch.bits8)


@pytest.mark.parametrize("op, call", CASES, ids=str)
def test_fake_tensors(op, call, device):
    """A fake tensor's result is described as the real one's is, on its own device."""
    x = data((3, 4, 5), "float32", device=device).permute(1, 2, 0)
    with FakeTensorMode() as mode:
        fake = op(mode.from_tensor(x), **call)
        out = op(mode.from_tensor(x), call["dim"], out=mode.from_tensor(torch.empty(0, device=device)))
    real = op(x, **call)
    assert same_description(fake, real)
    assert same_description(out, op(x, call["dim"]))


@pytest.mark.parametrize("dim", [None, [0], [1], [0, 2], [2, 1, 0]], ids=str)
@every_operation
def test_symbolic_sizes(dim, op, device):
    """A trace with symbolic sizes holds for other sizes, without guards on the first ones."""

    def function(x):
        return op(x, dim, True) * 2

    traced = make_fx(function, tracing_mode="symbolic")(data((3, 4, 5), "float32", device=device))
    text = str(traced.graph)
    assert f"gpureduce.{op}" in text
    guards = traced.shape_env.guards
    assert not guards, guards
    for shape in ((3, 4, 5), (7, 2, 9), (40, 30, 20)):
        x = data(shape, "float32", device=device)
        assert_same_bits(traced(x), function(x))


@every_operation
def test_sizes_known_only_from_the_data(op, device):
    """Sizes that only the data decide (unbacked symbols) need no guard."""

    @torch.compile(fullgraph=True, backend="aot_eager")
    def function(x, mask):
        return op(x[mask], [0])

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        x = data((500, 6), "float32", device=device)
        mask = torch.arange(500, device=device) % 3 == 0
        assert_same_bits(function(x, mask), op(x[mask], [0]))


@every_operation
def test_export_with_dynamic_shapes(op, device):
    """torch.export with dynamic sizes, run on others, gives the op's bits."""

    reduce = op.function

    class Module(torch.nn.Module):
        def forward(self, x):
            return reduce(x, -1), reduce(x, (0, 1), keepdim=True, dtype=torch.float64)

    batch, length = torch.export.Dim("batch", min=2, max=1000), torch.export.Dim("length", min=2, max=100_000)
    x = data((4, 3, 50), "bfloat16", device=device)
    program = torch.export.export(Module(), (x,), dynamic_shapes={"x": {0: batch, 2: length}})
    for shape in ((4, 3, 50), (9, 3, 4097), (2, 3, 9001)):
        x = data(shape, "bfloat16", device=device)
        rows, columns = program.module()(x)
        assert_same_bits(rows, op.expected(x, -1))
        assert_same_bits(columns, op.expected(x, (0, 1), True, torch.float64))


def opcheck(op, args, kwargs=None):
    """torch.library.opcheck; its schema check needs torch.allclose, and is left out for dtypes that has not."""
    checks = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    results = [args[0], op(*args, **(kwargs or {}))]
    try:
        known = all(torch.allclose(x, x, equal_nan=True) is not None for x in results)
    except NotImplementedError:
        known = False
    torch.library.opcheck(op, args, kwargs, test_utils=checks if known else checks[1:])


@pytest.mark.parametrize("name", DTYPES)
def test_opcheck(name, op, device):
    """torch.library.opcheck: schema, fake kernel, and tracing through AOTAutograd."""
    x = data((3, 4, 5), name, device=device)
    for call in calls_of(op, name):
        opcheck(op.operator.default, (x,), call)
    dtype = dict(dtype=op.targets(name, None, "float32")[0])
    opcheck(op.operator.default, (x.permute(2, 0, 1)[::2], [1], True), dtype)
    opcheck(op.operator.default, (x[:, :0], [0 if op.divides else 1]), dtype)  # opcheck finds that NaN is not NaN


@pytest.mark.parametrize("op, name", taken(*DTYPES), ids=str)
def test_opcheck_of_out(op, name, device):
    """torch.library.opcheck of the out= overload."""
    x = data((3, 4, 5), name, device=device)
    result = model.natural_result(name)
    for call in (dict(dim=[1]), dict(dim=None), dict(dim=[0, 2], keepdim=True)):
        opcheck(op.operator.out, (x,), dict(call, out=torch.empty_like(op(x, **call))))
    opcheck(op.operator.out, (x, [1]), dict(out=torch.zeros(6, 5, dtype=dtype_of(result), device=device)[::2]))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "complex64", "float8_e5m2"])
def test_compile(name, op, device):
    """torch.compile(fullgraph=True) keeps the op whole, and with it the bits."""
    torch._dynamo.reset()
    reduce, dtype = op.function, op.targets(name, None, "float32")[0]

    def function(x):
        return (
            reduce(x, dtype=dtype),
            reduce(x, 0, dtype=dtype),
            reduce(x, (0, -1), keepdim=True, dtype=dtype),
            reduce(x.transpose(0, 1), -1, dtype=torch.float64 if not x.is_complex() else torch.complex128),
        )

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    x = data((5, 700, 9), name, device=device)
    for got, wanted in zip(compiled(x), function(x), strict=True):
        assert_same_bits(got, wanted)


@every_operation
def test_compile_with_dynamic_shapes(op, device):
    """One compilation serves all sizes."""
    torch._dynamo.reset()
    reduce = op.function
    compiled = torch.compile(lambda x: reduce(x, -1), fullgraph=True, backend="aot_eager", dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for shape in ((3, 50), (9, 4097), (20, 1000)):
            x = data(shape, "float32", device=device)
            assert_same_bits(compiled(x), op.expected(x, -1))


@every_operation
def test_compile_with_out(op, device):
    """A call with out= compiles, and writes out."""
    torch._dynamo.reset()
    reduce = op.function

    @torch.compile(backend="aot_eager")
    def function(x, out):
        reduce(x, 1, out=out)
        return out + 1

    x, out = data((5, 700), "float32", device=device), torch.zeros(5, device=device)
    result = function(x, out)
    assert_same_bits(out, op.expected(x, 1))
    assert_same_bits(result, out + 1)
