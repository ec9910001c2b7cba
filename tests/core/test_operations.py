"""The table of operations as Python reads it, and the operators that finish what ranks have joined."""

import inspect
import itertools
import json
import pathlib
import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_reduce
from support import DTYPES, POWERS, assert_same_bits, data, dtype_of, python, walked
from torch_reduce import _operations

ROOT = pathlib.Path(__file__).resolve().parents[2]
ops = torch.ops.gpureduce
pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")


def test_rows():
    """Python's rows are those of csrc/core/operation.h, in their order, with every column that ranks need."""
    text = (ROOT / "csrc" / "core" / "operation.h").read_text()
    rows = re.findall(r"^  X\((\w+), (\w+), (\w+), (\w+), (\w+), \w+\)", text, re.MULTILINE)
    assert len(rows) > 20
    known = _operations.known()
    assert [(op.name, op.typing, op.map, op.combine, op.finish) for op in known.values()] == rows
    assert list(known) == [name for name, *_ in rows]
    others = {op.name: op.node for op in known.values() if op.node != op.name and not op.part}
    counts = dict.fromkeys(("_any", "_all"), "_count_nonzero")
    norms = {"_norm_2": "_powsum_2", "_norm_3": "_powsum_3"}
    assert others == {"mean": "sum", **counts, **norms}  # all others are their own nodes


def test_orders():
    """The operators by a norm's order are those that torch_reduce's norms call."""
    norms, powsums, roots = map(_operations.of_orders, ("norm", "powsum", "root"))
    assert [*norms] == [0, 1, 2, 3, float("inf"), -float("inf")]
    assert [*powsums] == [*roots] == [0, 1, 2, 3]
    x = torch.tensor([3.0, -4.0, 0.0, 12.0])
    for order, operator in norms.items():
        assert getattr(ops, operator)(x).equal(ops.linalg_vector_norm(x, order))
        assert _operations.known()[operator].title == f"vector_norm of order {order:g}"
    for order, operator in powsums.items():
        assert getattr(ops, operator)(x).equal(ops.linalg_powsum(x, order))
        root = getattr(ops, roots[order])
        assert root(ops.linalg_powsum(x, order)[None]).equal(ops.linalg_vector_norm(x, order))


def cases():
    """The operations that ranks have, an element's dtype, and a dtype= that the operation takes with it."""
    operations = [operation for operation in _operations.known().values() if not operation.part]
    operations = [operation for operation in operations if operation.map != "exponent"]  # tests/core/test_family.py
    for place, (operation, *dtypes) in enumerate(itertools.product(operations, DTYPES, DTYPES)):
        source, result = map(dtype_of, dtypes)
        if place % 5 and result != source:  # every result's dtype of each operation, and a fifth of all pairs
            continue
        try:
            getattr(ops, operation.name)(torch.ones(1, 2, dtype=source), [1], dtype=result)
        except (RuntimeError, NotImplementedError):
            continue
        yield operation, source, result


def nodes_of(operation, x, node):
    """The nodes of the rows."""
    asked = node
    if operation.is_norm and x.is_complex():
        asked = node.to_complex()
    return getattr(ops, operation.node)(x, [1], dtype=asked)


def test_nodes_and_results(device):
    """A node is of the dtype that is told, and joins to one of that dtype; _finish makes the result's bits of it."""
    tried, numbers = 0, torch.randn(7, 5000, generator=torch.Generator().manual_seed(3))
    numbers[0, 17], numbers[1, 4], numbers[2] = float("nan"), float("inf"), 0
    for operation, source, result in cases():
        x = numbers.sign() if operation.combine == "product" else numbers * 9
        if not _operations.is_inexact(source):
            x = x.nan_to_num(posinf=9).abs()
        x = x.to(source).to(device)
        wanted = getattr(ops, operation.name)(x, [1], dtype=result)
        node = _operations.node_dtype(operation.name, source, wanted.dtype)
        nodes = nodes_of(operation, x, node)
        what = f"{operation.name} {source} {result}"
        assert nodes.dtype == node, what
        if operation.join in _operations.known():
            assert getattr(ops, operation.join)(nodes, [0], dtype=node).dtype == node, what
        assert_same_bits(ops._finish(nodes, operation.name, x.shape[1], wanted.dtype), wanted, what)
        tried += 1
    assert tried > 300


@walked("root", [False, True])
@walked("correction", [0.0, 1.0, 2.5, 5000.0])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "float8_e5m2"])
def test_moments(name, correction, root, device):
    """A variance and a mean of the sums of differences and of their squares have the bits of var_mean."""
    x = data([7, 5000], name, 5, device)
    first = x[:, :1].double()
    differences = x.double() - first
    sums = torch.stack([ops.sum(differences, [1]), ops._powsum_2(differences, [1])], 1)
    wanted = ops._var_mean(x, [1], correction, root, False)
    found = ops._finish_moments(sums, first[:, 0], 5000, correction, root, wanted[0].dtype)
    for got, bits in zip(found, wanted, strict=True):
        assert got.dtype == bits.dtype
        assert_same_bits(got, bits)


def test_finishing_is_an_operator(device):
    """Both have meta tensors, for compiled graphs; and take views."""
    nodes = torch.randn(6, 2, device=device)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(ops._finish.default, (nodes, "mean", 3, torch.float16), test_utils=checks)
    moments = (nodes.double(), nodes.double()[:, 0], 3, 1.0, False, torch.float16)
    torch.library.opcheck(ops._finish_moments.default, moments, test_utils=checks)
    found = ops._finish(nodes.abs().t(), "_norm_3", 1, torch.float64)
    assert found.equal(ops._finish(nodes.abs().t().contiguous(), "_norm_3", 1, torch.float64))
    assert ops._finish(nodes[:0], "mean", 3, torch.float16).shape == (0, 2)


def test_wrong_nodes(device):
    """Nodes that are none of the operation's accumulators, and moments without their first elements."""
    nodes = torch.ones(3, device=device)
    for wrong, name in ((nodes.half(), "mean"), (nodes.bool(), "_norm_2")):
        with pytest.raises(RuntimeError, match=f"nodes of {name} are its accumulators, not of dtype"):
            ops._finish(wrong, name, 1, torch.float32)
    with pytest.raises(RuntimeError, match="there is no operation summ"):
        ops._finish(nodes, "summ", 1, torch.float32)
    for moments, first in ((nodes, nodes), (nodes.double(), nodes.double())):
        with pytest.raises(RuntimeError, match="moments are two float64"):
            ops._finish_moments(moments, first, 1, 1.0, False, torch.float32)


def test_it_is_read_late():
    """Importing torch_reduce, and calling sums, does not read the table: norms, clipping and ranks do, once."""
    python(
        "-c",
        "import torch, torch_reduce\n"
        "from torch_reduce import _operations as table\n"
        "x = torch.ones(3)\n"
        "torch_reduce.sum(x), torch_reduce.amax(x), torch_reduce.var(x)\n"
        "assert table._table.cache_info().currsize == table.known.cache_info().currsize == 0\n"
        "torch_reduce.vector_norm(x), torch_reduce.vector_norm(x, 3), torch_reduce.get_total_norm([x])\n"
        "assert table._table.cache_info().misses == 1\n",
    )


def forget():
    """As in a process that has not asked for the table."""
    for told in vars(_operations).values():
        if hasattr(told, "cache_info"):
            inspect.getclosurevars(told).nonlocals["cached"].cache_clear()
    assert _operations._table.cache_info().currsize == _operations.known.cache_info().currsize == 0


def test_it_is_read_under_modes():
    """The first to ask for it may be a call that is traced; and a graph does not end there."""
    forget()
    with FakeTensorMode():
        assert _operations.known()["mean"].node == "sum"
        assert _operations.node_dtype("mean", torch.int8, torch.float16) == torch.int64
        assert _operations.product_dtype(torch.int8, torch.float16, torch.float64) == torch.float64
    forget()

    def norm(x):
        return torch_reduce.get_total_norm([x, x.bfloat16()], 3.0) + 1

    x = torch.randn(9)
    torch._dynamo.reset()
    found = torch.compile(norm, backend="eager", fullgraph=True)(x)
    assert _operations._table.cache_info().misses == 1
    assert found.equal(norm(x))


def test_unknown_names():
    """An operator that is none is named."""
    with pytest.raises(RuntimeError, match="there is no operation summ"):
        ops._node_dtype("summ", torch.float32, torch.float32)
    assert json.loads(ops._operations())["powers"].keys() == {"0", "1", "2", "3", "inf", "-inf"}
    assert len(POWERS) == 6
