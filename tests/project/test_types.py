"""Type checkers see torch's arguments and types: mypy takes what the pages call, and refuses what would raise."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from test_pages import PAGES, blocks, text_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
RIGHT = """
import torch
import torch_reduce
from torch import Tensor
from typing import SupportsIndex
from typing_extensions import assert_type

x, offsets = torch.ones(3, 4), torch.tensor([0, 3])
dims = [0, 1]
index: SupportsIndex = torch.tensor(1)
assert_type(torch_reduce.sum(x), Tensor)
assert_type(torch_reduce.sum(x, dims, True, dtype=torch.float64, out=x), Tensor)
assert_type(torch_reduce.mean(input=x, dim=(0, index), keepdim=False, dtype=float), Tensor)
assert_type(torch_reduce.nansum(x, 1, exact=True), Tensor)
assert_type(torch_reduce.exact.round(torch_reduce.exact.partial(x, 1), torch.float64, count=4), Tensor)
assert_type(torch_reduce.exact.round(torch_reduce.exact.partial(x, 1, weight=x), root=True), Tensor)
assert_type(torch_reduce.vector_norm(x, dim=1, exact=True), Tensor)
assert_type(torch_reduce.dot(x[0], x[1], exact=True), Tensor)
assert_type(torch_reduce.vector_norm(x, float("inf"), -1), Tensor)
assert_type(torch_reduce.powsum(x, 3, dim=None), Tensor)
assert_type(torch_reduce.amax(x, [-1]), Tensor)
assert_type(torch_reduce.argmax(x, [-1]), Tensor)
assert_type(torch_reduce.max(x, 1).indices, Tensor)
assert_type(torch_reduce.aminmax(x, dim=0).max, Tensor)
assert_type(torch_reduce.std(x, 1, correction=0.5), Tensor)
assert_type(torch_reduce.var(x, False), Tensor)
assert_type(torch_reduce.var_mean(x, (0, 1), keepdim=True), tuple[Tensor, Tensor])
assert_type(torch_reduce.weighted_sum(x, x, 1), Tensor)
assert_type(torch_reduce.segment_sum(x, offsets), Tensor)
assert_type(torch_reduce.segment_softmax(torch.nested.nested_tensor([x], layout=torch.jagged)), Tensor)
assert_type(torch_reduce.gather_sum(x, offsets, offsets, 3, weight=x), Tensor)
assert_type(torch_reduce.gather_amax(x, torch_reduce.gather_plan(offsets, offsets, 3, 3)), Tensor)
assert_type(torch_reduce.moe_dispatch(x, torch_reduce.moe_plan(offsets, 3, drops=True)), Tensor)
assert_type(torch_reduce.moe_combine(x, offsets, x, dtype=torch.float64), Tensor)
assert_type(torch_reduce.softmax(x, -1, dtype=torch.float64), Tensor)
assert_type(torch_reduce.layer_norm(x, (4,), x[0], eps=1e-6), Tensor)
assert_type(torch_reduce.log_prob(x, offsets), Tensor)
assert_type(torch_reduce.log_prob(x, offsets, return_entropy=True), tuple[Tensor, Tensor])
assert_type(torch_reduce.log_prob_of(x, x, offsets, bias=x[0], chunk=2), Tensor)
assert_type(torch_reduce.log_prob_of(x, x, offsets, return_entropy=True), tuple[Tensor, Tensor])
assert_type(torch_reduce.cross_entropy(x, offsets, reduction="sum"), Tensor)
assert_type(torch_reduce.rms_norm(x, 4, residual=x), tuple[Tensor, Tensor])
assert_type(torch_reduce.rms_norm(x, 4, x[0], weight_offset=1.0), Tensor)
assert_type(torch_reduce.rms_norm(x, 4, quantize=torch_reduce.Fp8()), tuple[Tensor, Tensor])
assert_type(torch_reduce.rms_norm(x, 4, residual=x, quantize=torch_reduce.Fp8("row")), tuple[Tensor, Tensor, Tensor])
assert_type(torch_reduce.quantize(x, torch_reduce.Fp8(32, "ue8m0", torch.float8_e5m2)), tuple[Tensor, Tensor])
assert_type(torch_reduce.silu_mul(x), Tensor)
assert_type(torch_reduce.silu_mul(x, x, quantize=torch_reduce.Fp8()), tuple[Tensor, Tensor])
assert_type(torch_reduce.explain(x, 1), str)
assert_type(bool(torch_reduce.check_batch_invariance(torch.sin, x)), bool)
assert_type(torch_reduce.drift(torch.sin, torch.cos, x, [x], 3).difference, float | None)
assert_type(torch_reduce.contract(x.device).kept, bool)
assert_type(torch_reduce.clip_grad_norm_([x], 1.0), Tensor)
torch_reduce.ladder.rungs()
shard = torch_reduce.distributed.Shard(x, 1, sizes=[4])
assert_type(torch_reduce.sum(shard, 1, dtype=torch.float64), Tensor)
assert_type(torch_reduce.vector_norm(shard, 3), Tensor)
assert_type(torch_reduce.amax(shard, [-1]), Tensor)
assert_type(torch_reduce.var_mean(shard), tuple[Tensor, Tensor])
assert_type(torch_reduce.weighted_sum(x, shard, 1), Tensor)
assert_type(torch_reduce.weighted_sum(x, shard, 1, exact=True), Tensor)
assert_type(torch_reduce.powsum(shard, exact=True), Tensor)
assert_type(torch_reduce.segment_sum(shard, offsets), Tensor)
assert_type(torch_reduce.distributed.leaf_sum([x, x], 2, dtype=torch.float64), Tensor)
assert_type(torch_reduce.distributed.sum(x, 0, shard_dim=0), Tensor)
assert_type(torch_reduce.distributed.var_mean(x, 0, shard_dim=0), tuple[Tensor, Tensor])
with torch_reduce.replace_torch_sum("cpu"), torch_reduce.replace(), torch_reduce.replace(["sum", "mean"], "cpu"):
    pass
"""
# Every line is an error.
WRONG = """
torch_reduce.sum(x, dims=1)
torch_reduce.sum()
torch_reduce.sum(x, "rows")
torch_reduce.sum(x, 1.0)
torch_reduce.sum([1.0])
torch_reduce.sum(x, keepdim=None)
torch_reduce.sum(x, 1, True, torch.float64)
torch_reduce.summ(x)
torch_reduce.mean(x, dtype="float")
torch_reduce.vector_norm(x, "nuc")
torch_reduce.powsum(x, order=2)
torch_reduce.amax(x, dtype=torch.float64)
torch_reduce.prod(x, 0, out=[])
torch_reduce.prod(x, exact=True)
torch_reduce.sum(x, exact=1)
torch_reduce.dot(x, x, exact="yes")
torch_reduce.weighted_sum(x, x, exact=1)
torch_reduce.powsum(x, exact=None)
torch_reduce.exact.partial(shard)
torch_reduce.exact.partial(x, weight=1.0)
torch_reduce.exact.round(x, root=1)
torch_reduce.logsumexp(x, axes=1)
torch_reduce.var(x, correction=None, ddof=1)
torch_reduce.var_mean(x, out=x)
torch_reduce.var_mean(x).sqrt()
torch_reduce.weighted_sum(x)
torch_reduce.dot(x, 1)
torch_reduce.log_prob_of(x, x, offsets, 8)
torch_reduce.log_prob_of(shard, x, offsets)
torch_reduce.segment_sum(x, [0, 4, 10])
torch_reduce.segment_mean(x, [0, 1])
torch_reduce.gather_sum(x, [0, 1], offsets, 3)
torch_reduce.gather_plan(offsets, offsets)
torch_reduce.moe_dispatch(x, offsets)
torch_reduce.moe_combine(x, [[0, 1]])
torch_reduce.clip_grad_norm_([x])
torch_reduce.distributed.leaf_sum(x)
torch_reduce.distributed.sum(x, 0)
torch_reduce.distributed.amax(x, 0, shard_dim=0, dtype=torch.float64)
torch_reduce.distributed.Shard([1.0])
torch_reduce.distributed.Shard(x, shard_dim=0)
torch_reduce.sum(shard, 1.0)
torch_reduce.explain(shard)
torch_reduce.drift(torch.sin, x)
torch_reduce.contract(1.0)
torch_reduce.replace("summ")
torch_reduce.replace(["sum", "summ"])
"""


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """What mypy says of RIGHT and WRONG, and of each page's Python."""
    pytest.importorskip("mypy")
    folder = tmp_path_factory.mktemp("types")
    (folder / "calls.py").write_text(RIGHT + WRONG.lstrip())
    for page in PAGES:
        if code := blocks(text_of(page), "python"):
            (folder / page.replace("/", "_").replace(".md", ".py")).write_text("\n".join(code))
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--check-untyped-defs"]
    command += ["--cache-dir", str(ROOT / "build" / "mypy"), *sorted(map(str, folder.glob("*.py")))]
    env = dict(os.environ, MYPYPATH=str(ROOT))
    result = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600, cwd=folder)
    assert result.returncode in (0, 1), result.stdout + result.stderr
    return result.stdout


def lines(errors, file, codes=r"[\w-]+"):
    """The lines of a file that have errors of these codes."""
    return {int(line) for line in re.findall(rf"^{file}\.py:(\d+): error: .*\[(?:{codes})\]$", errors, re.MULTILINE)}


def test_right_and_wrong_calls(errors):
    """Each call that raises is an error, and nothing else; results have types."""
    first = len(RIGHT.splitlines()) + 1
    assert lines(errors, "calls") == set(range(first, first + WRONG.count("\n") - 1)), errors


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(text_of(page), "python")])
def test_pages(page, errors):
    """A page's calls have the arguments, and arguments of the types, that the functions take."""
    assert not lines(errors, page.replace("/", "_").replace(".md", ""), "call-arg|arg-type|call-overload"), errors
