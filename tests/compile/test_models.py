"""Gradients, autocast and the replacement together with export, vmap and graphs; and the lists in docs/models.md.

Each of them alone has tests in a file of its own; the list says which.
"""

import ast
import pathlib
import re

import pytest
import torch

import torch_reduce
from support import assert_same_bits, data

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZES = (2, 4097)  # of the batches that an exported program runs on; it is exported with 4


class Scaled(torch.nn.Module):
    """Scales its input and reduces it over time."""

    def __init__(self, function, device):
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(data((12,), "float32", seed=1, device=device))

    def forward(self, x):
        return self.function(x * self.weight, 1)


class Lowered(Scaled):
    """The same under autocast, on half precision."""

    def forward(self, x):
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.function((x * self.weight).to(torch.bfloat16), 1)


class PerExample(Scaled):
    """The same, written for one example and batched by vmap."""

    def forward(self, x):
        return torch.vmap(lambda x: self.function(x * self.weight, 0))(x)


def inputs(batch, device, seed=0):
    return data((batch, 50, 12), "float32", seed=seed, device=device)


def export(model, device):
    """The model as an exported program, for any batch."""
    sizes = {"x": {0: torch.export.Dim("batch", min=2, max=100_000)}}
    return torch.export.export(model, (inputs(4, device),), dynamic_shapes=sizes)


def captured(function, *arguments):
    """`function` in a CUDA graph: called, it copies new arguments over the captured ones and replays."""
    static = [argument.clone() for argument in arguments]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function(*static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function(*static)

    def replay(*arguments):
        for old, new in zip(static, arguments, strict=True):
            old.copy_(new)
        graph.replay()
        return results

    return replay


# --- exported ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Scaled, PerExample, Lowered])
def test_export(kind, op, device):
    """Exported, with autocast and vmap inside too: eager's results and gradients, for other sizes, to the bit."""
    model = kind(op.function, device)
    program = export(model, device)
    assert f"gpureduce.{op.name}.default" in str(program.graph_module.print_readable(print_output=False)).replace(
        "ops.", ""
    )
    exported = program.module()
    for batch in SIZES:
        x = inputs(batch, device, seed=batch).requires_grad_()
        ours, theirs = exported(x), model(x)
        assert_same_bits(ours.detach(), theirs.detach())
        upstream = data(theirs.shape, "float32", seed=3, device=device).to(theirs.dtype)
        gradients = torch.autograd.grad(ours, (x, exported.weight), upstream)
        wanted = torch.autograd.grad(theirs, (x, model.weight), upstream)
        for a, b in zip(gradients, wanted, strict=True):
            assert_same_bits(a, b)


# --- forward mode -----------------------------------------------------------------------------------------------------


def directional(op):
    """(value, tangent) of the reduced squares."""
    return lambda x, tangent: torch.func.jvp(lambda x: op.function(x * x, 1), (x,), (tangent,))


def test_forward_mode_compiled(op, device):
    """torch.func.jvp compiles whole, with eager's bits for other sizes."""
    torch._dynamo.reset()
    compiled = torch.compile(directional(op), fullgraph=True, backend="aot_eager", dynamic=True)
    for batch in SIZES:
        arguments = inputs(batch, device), inputs(batch, device, seed=1)
        for ours, theirs in zip(compiled(*arguments), directional(op)(*arguments), strict=True):
            assert_same_bits(ours, theirs)


def test_forward_mode_exported(op, device):
    """An exported program has forward derivatives, with eager's bits."""
    model = Scaled(op.function, device)
    exported = export(model, device).module()
    for batch in SIZES:
        x, tangent = inputs(batch, device), inputs(batch, device, seed=1)
        ours, theirs = (torch.func.jvp(f, (x,), (tangent,)) for f in (exported, model))
        for a, b in zip(ours, theirs, strict=True):
            assert_same_bits(a.detach(), b.detach())


def test_forward_mode_in_a_graph(op, cuda):
    """torch.func.jvp in a CUDA graph."""
    replay = captured(directional(op), inputs(300, cuda), inputs(300, cuda, 1))
    for seed in (5, 6):
        arguments = inputs(300, cuda, seed), inputs(300, cuda, seed + 10)
        for ours, theirs in zip(replay(*arguments), directional(op)(*arguments), strict=True):
            assert_same_bits(ours, theirs)


# --- autocast, and the replacement ------------------------------------------------------------------------------------


def test_autocast_in_a_graph(op, cuda):
    """Captured under autocast, the result's dtype and bits stay those of torch's policy."""
    model = Lowered(op.function, cuda).requires_grad_(False)
    replay = captured(model, inputs(300, cuda))
    for seed in (5, 6):
        x = inputs(300, cuda, seed)
        result = replay(x)
        assert result.dtype == model(x).dtype
        assert_same_bits(result, model(x))


def test_replacement_of_an_exported_sum(device):
    """A program that was exported with torch's sum runs on ours under the replacement, backwards too."""
    model = Scaled(torch.sum, device)
    exported = export(model, device).module()
    for batch in SIZES:
        x = inputs(batch, device)
        with torch_reduce.replace_torch_sum(device):
            inside = exported(x)
            (gradient,) = torch.autograd.grad(inside, exported.weight, torch.ones_like(inside))
        assert_same_bits(inside.detach(), torch_reduce.sum(x * model.weight, 1).detach())
        assert_same_bits(gradient, torch_reduce.sum(x, (0, 1)))


# --- docs/models.md ---------------------------------------------------------------------------------------------------

NAMED = re.compile(r"\[`(\w+)`\]\(\.\./tests/(\w+/test_\w+\.py)\)")


def page():
    return (ROOT / "docs" / "models.md").read_text(encoding="utf-8")


def functions_of(file):
    """The names of a test file's functions."""
    return {
        node.name for node in ast.parse((ROOT / "tests" / file).read_text()).body if isinstance(node, ast.FunctionDef)
    }


WAYS = ("eager", "compile", "export", "vmap", "graph")


def features():
    """(feature, ways and tests) of the list of features, as text."""
    text = page().split("Combinations of these features")[1].split("\n## ")[0]
    return re.findall(r"^- \*\*(.+?)\*\*: (.*(?:\n  .*)*)\.$", text, re.MULTILINE)


@pytest.mark.parametrize(("feature", "tests"), features(), ids=[name for name, _ in features()])
def test_every_way_is_proven(feature, tests):
    """Each feature names tests of each way to run it, and nothing else."""
    known = dict(part.split(":", 1) for part in " ".join(tests.split()).split("; "))
    assert tuple(known) == WAYS
    for text in known.values():
        assert NAMED.findall(text) and not NAMED.sub("", text).strip(", ")


def test_features():
    assert len(features()) == 7


@pytest.mark.parametrize(("name", "file"), sorted(set(NAMED.findall(page()))))
def test_named_tests_exist(name, file):
    """A test that the page names is there."""
    assert name in functions_of(file)
