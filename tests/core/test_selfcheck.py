"""`python -m torch_reduce`'s self-check: its pinned results are the model's, and it sees one wrong join.

`python tests/core/test_selfcheck.py` writes the pinned results, by the model alone.
"""

import functools
import hashlib
import json
import pathlib

import numpy as np
import pytest
import torch

import model
import support
import torch_reduce
from support import FAMILY, INTEGER, NORM, SUM, assert_same_bits, dtype_of, numpy_of, tensor_of
from table import SEGMENTS as OF_SEGMENTS
from table import WEIGHTED, moment
from test_exact import modelled
from torch_reduce import _selfcheck
from torch_reduce._selfcheck import (
    EPS,
    GROUPS,
    ROWS,
    SCALE,
    SEGMENTS,
    SHIFT,
    cases,
    check,
    digest,
    hashed,
    pinned,
    promised,
    size_of_memory,
)

FILE = pathlib.Path(_selfcheck.__file__).with_name("_selfcheck.json")
OPERATIONS = {"sum": SUM, "vector_norm": NORM} | {op.name: op for op in FAMILY}
every_group = pytest.mark.parametrize("group", GROUPS, ids=" ".join)


@functools.cache
def elements(size, name, factors):
    """The elements that the self-check makes with torch, made with NumPy."""
    if name in model.COMPLEX:
        return tensor_of(support.numpy_of(elements(2 * size, "float32", False)).reshape(size, 2), name)
    if name in INTEGER:
        h = np.arange(size).astype(np.uint32) * np.uint32(2654435761) + np.uint32(12345)
        h ^= h >> np.uint32(15)
        values = (h % 2 if name == "bool" else h).astype(np.int64)
    else:
        values = model.decode(model.value(np.arange(size), "float64"), "float64")
        values = 1 + values / 64 if factors else values
        values = values if name == "float64" else values.astype(np.float32)
    return tensor_of(model.encode(values, name)[:, None], name)


def expected(case, memory):
    """The model's result of a case, as stored elements."""
    x, dims = case.view(memory), list(case.dims)
    if case.function == "segment_sum":
        return OF_SEGMENTS[0].expected((x, case.offsets("cpu")), dtype=torch.float32)
    if case.function == "weighted_sum":
        return WEIGHTED.expected((x, case.view(memory, SHIFT)), dims)
    if case.function == "var":
        return moment(x, "var", dims, correction=0)
    if case.function == "index_sum":
        rows = [x[case.index("cpu") == k] for k in range(len(SEGMENTS))]
        return np.stack([SUM.expected(one, 0, dtype=torch.float32) for one in rows])
    if case.function == "exact_sum":
        return numpy_of(torch.tensor([modelled(row, "float32") for row in x.tolist()]))
    if case.function in ROWS:
        return expected_of_rows(case, memory)
    wide = case.function == "sum" and x.is_floating_point() and x.itemsize < 4
    return OPERATIONS[case.function].expected(x, dims, dtype=torch.float32 if wide else None)


def expected_of_rows(case, memory):
    """The model's result of a function that keeps its input's shape, or takes a target in each row."""
    x, *weights = (model.decode(numpy_of(t), case.dtype)[..., 0] for t in (case.view(memory), case.view(memory, SHIFT)))
    x = x.astype(np.float32)
    if case.function == "log_prob":
        y = model.log_probs(np.float32(SCALE) * x, case.target("cpu").numpy())[0]
        return model.encode(y, "float32")[..., None]
    if case.function in ("softmax", "log_softmax"):
        y = model.softmaxes(np.float32(SCALE) * x, case.function == "log_softmax")
    else:
        weight, bias = weights[0][:2].astype(np.float32)
        y = model.row_norms(x, weight, bias, EPS, case.function == "layer_norm")[0]
    return model.encode(y, case.dtype)[..., None]


@functools.cache
def results(group):
    """The model's results of a group, case by case, as bytes."""
    function, name, layout = group
    some = cases(layout, function, name)
    memory = elements(max(map(size_of_memory, some)), name, function == "prod")
    return [np.ascontiguousarray(expected(case, memory)).tobytes() for case in some]


def digests(group):
    return "".join(map(digest, results(group)))


def functions():
    """The SHA-256 of each function's results, by the model alone."""
    return hashed((group, b"".join(results(group))) for group in GROUPS)


@every_group
def test_pinned_results_are_the_models(group):
    """The file says what the model says, for every case."""
    assert pinned()[" ".join(group)] == digests(group)


def test_file_has_no_more():
    assert list(pinned()) == [" ".join(group) for group in GROUPS]
    assert promised() == functions()


@pytest.mark.parametrize("name", sorted({name for _, name, _ in GROUPS}))
def test_elements(name):
    """torch makes the same elements."""
    for factors in (False, True) if name in ("float32", "float64") else (False,):
        assert_same_bits(_selfcheck.elements(100_000, dtype_of(name), factors), elements(100_000, name, factors))


def test_passes(device):
    count, wrong, hashes = check(torch.device(device))
    assert not wrong and hashes == promised()
    assert count == sum(len(cases(layout, function, name)) for function, name, layout in GROUPS)


def test_sees_a_wrong_digit(monkeypatch):
    """A case of which one digit differs is named, and no other."""
    function, name, layout = group = GROUPS[3]
    key, some = " ".join(group), cases(layout, function, name)
    wrong = pinned()[key]
    wrong = wrong[:8] + ("1" if wrong[8] == "0" else "0") + wrong[9:]
    monkeypatch.setattr(_selfcheck, "pinned", lambda: pinned() | {key: wrong})
    monkeypatch.setattr(_selfcheck, "GROUPS", [group])
    assert check(torch.device("cpu"))[:2] == (len(some), [f"{some[2]}: wrong bits"])


# --- contract ---------------------------------------------------------------------------------------------------------


VERSION_1 = "gpureduce-1:6bfe1cbb4b701394c07f707d817eae52542eb20741c3afb12ae645b9442eb66f"  # docs/order.md has it, too


def test_contract(device):
    """Every device has the one string, which docs/order.md names and the model's results have."""
    found, on_cpu = (torch_reduce.contract(one) for one in (device, "cpu"))
    assert found.kept and str(found) == found.promised == VERSION_1
    assert found.version == 1 and found.deviating == found.wrong == () and found.results > 9000
    assert found.device.startswith(device) and found == on_cpu and hash(found) == hash(on_cpu)
    assert repr(found) == f"Contract({VERSION_1!r}, device={found.device!r}, kept=True)"
    lines = "".join(f"{function} {of_model}\n" for function, of_model in sorted(functions().items()))
    assert f"gpureduce-1:{hashlib.sha256(lines.encode()).hexdigest()}" == VERSION_1
    page = (pathlib.Path(__file__).parents[2] / "docs" / "order.md").read_text(encoding="utf-8")
    section = page.partition("\n## The contract by name\n")[2].partition("\n## ")[0]
    assert f"\n{VERSION_1}\n" in section and all(f"`{function}`" in section for function in found.functions)


@pytest.fixture
def few(monkeypatch):
    """Few groups, so that a test takes less time."""
    some = [("sum", "float32", "many rows"), ("sum", "bfloat16", "pieces"), ("softmax", "bfloat16", "few rows")]
    monkeypatch.setattr(_selfcheck, "GROUPS", some)
    monkeypatch.setattr(_selfcheck, "promised", lambda: hashed((group, b"".join(results(group))) for group in some))
    kept = torch_reduce.contract()
    assert kept.kept and list(kept.functions) == ["sum", "softmax"]
    return kept


@pytest.mark.parametrize("function", ["sum", "softmax"])
def test_contract_of_other_bits(function, few, device, monkeypatch):
    """One other bit gives another string, and names the function."""
    real = getattr(torch_reduce, function)

    def wrong(x, *args, **kwargs):
        y = real(x, *args, **kwargs)
        if x.shape[1] == 9:
            y.view(-1)[:1].view(torch.int32 if y.itemsize == 4 else torch.int16).bitwise_xor_(1)
        return y

    monkeypatch.setitem(_selfcheck._FUNCTIONS, function, wrong)
    found = torch_reduce.contract(device)
    assert not found.kept and str(found) != str(few) == found.promised and found != few
    assert found.deviating == (function,) and len(found.wrong) == 1 and f"{function} of " in found.wrong[0]
    assert repr(found) == f"Contract({str(found)!r}, device={found.device!r}, deviating=({function!r},))"
    others = set(few.functions) - {function}
    assert all(found.functions[other] == few.functions[other] for other in others)


def test_contract_is_computed(few, monkeypatch):
    """What the file says changes what is promised, and not the string."""
    monkeypatch.setattr(_selfcheck, "promised", lambda: {"sum": "0", "softmax": few.functions["softmax"]})
    found = torch_reduce.contract()
    assert str(found) == str(few) != found.promised and not found.kept and found.deviating == ("sum",)


def test_contract_under_other_settings(few, device):
    """What surrounds the call changes nothing."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        settings = [
            torch.autocast(device, torch.bfloat16),
            torch.inference_mode(),
            torch_reduce.replace(devices=device),
        ]
        for setting in (torch.device("meta"), *settings):
            with setting:
                assert str(torch_reduce.contract(device)) == str(few), setting
    finally:
        torch.set_default_dtype(before)
    with torch.device("cpu"):
        assert torch_reduce.contract().device == "cpu"


def test_contract_of_other_devices():
    with pytest.raises(NotImplementedError, match=r"^contract\(\): argument 'device': meta devices are not supported$"):
        torch_reduce.contract("meta")
    with pytest.raises(RuntimeError, match=r"^contract\(\): argument 'device': .*nothing"):
        torch_reduce.contract("nothing")
    with pytest.raises(TypeError, match=r"^contract\(\): argument 'device' must be .*, not float$"):
        torch_reduce.contract(1.0)


if __name__ == "__main__":
    stored = {"functions": functions(), "groups": {" ".join(group): digests(group) for group in GROUPS}}
    FILE.write_text(json.dumps(stored, indent=0) + "\n")
