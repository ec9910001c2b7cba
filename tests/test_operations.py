"""The table of operations as Python reads it, and the operators that finish what ranks have joined."""

import itertools
import json
import pathlib
import re

import pytest
import torch

from support import DTYPES, POWERS, dtype_of, python
from torch_reduce import _operations

ROOT = pathlib.Path(__file__).resolve().parent.parent
ops = torch.ops.gpureduce


def test_rows():
    """Python's rows are those of csrc/operation.h, in their order, with every column that ranks need."""
    text = (ROOT / "csrc" / "operation.h").read_text()
    rows = re.findall(r"^  X\((\w+), (\w+), (\w+), (\w+), (\w+), \w+\)", text, re.MULTILINE)
    assert len(rows) > 20
    known = _operations.known()
    assert [(op.name, op.typing, op.map, op.combine, op.finish) for op in known.values()] == rows
    assert list(known) == [name for name, *_ in rows]


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


def test_nodes():
    """A node's operator gives nodes of the dtype that is told, and its join joins two of them to one of that dtype."""
    tried = 0
    for operation, *dtypes in itertools.product(_operations.known().values(), DTYPES, DTYPES):
        if operation.part:
            continue
        source, result = map(dtype_of, dtypes)
        x = torch.ones(2, 3, dtype=source)
        try:
            made = getattr(ops, operation.name)(x, [1], dtype=result)
        except (RuntimeError, NotImplementedError):
            continue
        node = _operations.node_dtype(operation.name, source, made.dtype)
        asked = None if operation.combine == "logsum" else node
        if operation.is_norm and source.is_complex:
            asked = node.to_complex()
        nodes = getattr(ops, operation.node)(x, [1], dtype=asked)
        assert nodes.dtype == node, (operation.name, source, result)
        if operation.join in _operations.known():
            assert getattr(ops, operation.join)(nodes, [0], dtype=node).dtype == node
        tried += 1
    assert tried > 1000


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


@pytest.mark.parametrize("mode", ["fake", "compiled"])
def test_it_is_read_under_modes(mode):
    """The first to ask for it may be a call that is traced."""
    under = {
        "fake": "with FakeTensorMode(): read()",
        "compiled": "torch.compile(lambda x: (read(), x + 1)[1], backend='eager')(torch.ones(3))",
    }
    python(
        "-c",
        "import torch, torch_reduce\n"
        "from torch._subclasses.fake_tensor import FakeTensorMode\n"
        "from torch_reduce import _operations as table\n"
        "@torch.compiler.disable\n"
        "def read():\n"
        "    assert table.known()['mean'].node == 'sum'\n"
        "    assert table.node_dtype('mean', torch.int8, torch.float16) == torch.int64\n"
        "    assert table.product_dtype(torch.int8, torch.float16, torch.float64) == torch.float64\n" + under[mode],
    )


def test_unknown_names():
    """An operator that is none is named."""
    with pytest.raises(RuntimeError, match="there is no operation summ"):
        ops._node_dtype("summ", torch.float32, torch.float32)
    assert json.loads(ops._operations())["powers"].keys() == {"0", "1", "2", "3", "inf", "-inf"}
    assert len(POWERS) == 6
