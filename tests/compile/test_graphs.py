"""Whole models in CUDA graphs, on many streams and devices; tests/core/test_cuda.py has single calls.

Gradients, in-place writes by deterministic memory filling, and capture by torch's own helpers are what a model adds.
"""

import threading

import pytest
import torch

from support import assert_same_bits, data, every_operation, in_threads, python, taken

SHAPES = [((256, 1000), 1), ((5000, 30), 0), ((64, 200, 9), (0, 2)), ((1 << 21,), None)]


class Head(torch.nn.Module):
    """Scales its input and reduces it over time: our op in the forward pass, and an expand in the backward pass."""

    def __init__(self, op, device):
        super().__init__()
        self.reduce = op.function
        self.weight = torch.nn.Parameter(data((30,), "float32", seed=1, device=device))

    def forward(self, x):
        return self.reduce(x * self.weight, 1)


# --- CUDA graphs ------------------------------------------------------------------------------------------------------


@every_operation
def test_many_graphs(op, cuda):
    """Graphs that share a memory pool, replayed in any order and again and again, keep their own inputs and results."""
    pool = torch.cuda.graph_pool_handle()
    inputs = [(data(shape, "float32", device=cuda), dim) for shape, dim in SHAPES * 2]
    graphs, results = [], []
    for x, dim in inputs:
        op.function(x, dim)
    torch.cuda.synchronize()
    for x, dim in inputs:
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], pool=pool):
            results.append(op.function(x, dim))
    for seed in (5, 6):
        for x, _ in inputs:
            x.copy_(data(x.shape, "float32", seed=seed))
        # Memory of a pool is given out again: a result is good until a graph captured later runs, so newest first.
        for (x, dim), graph, result in reversed(list(zip(inputs, graphs, results, strict=True))):
            graph.replay()
            assert_same_bits(result, op(x.cpu(), dim))


FIRST = """
import torch
import torch_reduce
from support import assert_same_bits, data
x = data({shape}, "{name}", device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = torch_reduce.sum(x, {dim})
graph.replay()
assert_same_bits(result, torch_reduce.sum(x.cpu(), {dim}))
"""


@pytest.mark.parametrize("name", ["float32", "int8"])
@pytest.mark.parametrize("shape, dim", SHAPES)
def test_first_call_is_captured(shape, dim, name, cuda, tmp_path):
    """The first call of a process may stand in a capture: nothing that is asked or loaded then is forbidden there."""
    (tmp_path / "first.py").write_text(FIRST.format(shape=shape, dim=dim, name=name))
    python(tmp_path / "first.py")


@every_operation
def test_graph_of_a_backward_pass(op, cuda):
    """Forward, backward and step captured together give, on changed data, what they give outside of a graph."""
    captured, plain = Head(op, cuda), Head(op, cuda)
    x = data((40, 300, 30), "float32", seed=2, device=cuda)

    def step(model, x):
        loss = op.function(model(x) ** 2)
        (gradient,) = torch.autograd.grad(loss, model.weight)
        with torch.no_grad():
            model.weight.sub_(gradient, alpha=1e-12)
        return loss.detach(), gradient

    start = captured.weight.detach().clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(captured, x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step(captured, x)
    with torch.no_grad():
        captured.weight.copy_(start)
    for seed in (3, 4, 5):
        x.copy_(data(x.shape, "float32", seed=seed))
        graph.replay()
        for ours, theirs in zip(results, step(plain, x), strict=True):
            assert_same_bits(ours, theirs)
        assert_same_bits(captured.weight.detach(), plain.weight.detach())


@every_operation
def test_make_graphed_callables(op, cuda):
    """torch.cuda.make_graphed_callables captures a module that uses the op, forwards and backwards."""
    model, plain = Head(op, cuda), Head(op, cuda)
    sample = data((40, 300, 30), "float32", seed=2, device=cuda).requires_grad_()
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    for seed in (3, 4, 5):
        x = data((40, 300, 30), "float32", seed=seed, device=cuda).requires_grad_()
        weight = data((40, 30), "float32", seed=seed + 10, device=cuda)
        ours, theirs = graphed(x), plain(x)
        assert_same_bits(ours, theirs)
        for a, b in zip(
            torch.autograd.grad(ours, (x, model.weight), weight),
            torch.autograd.grad(theirs, (x, plain.weight), weight),
            strict=True,
        ):
            assert_same_bits(a, b)


# --- threads and streams ----------------------------------------------------------------------------------------------


@every_operation
def test_eight_threads_and_eight_streams(op, cuda):
    """Eight threads share eight streams, forwards and backwards, with graphs among the calls, and all is right."""
    streams = [torch.cuda.Stream() for _ in range(8)]
    model = Head(op, cuda)
    x = data((40, 300, 30), "float32", seed=2, device=cuda)
    inputs = [(data(shape, "float32", seed=3, device=cuda), dim) for shape, dim in SHAPES]
    results = [op(x.cpu(), dim) for x, dim in inputs]
    gradient = torch.autograd.grad(op.function(model(x)), model.weight)[0]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graphed = op.function(*inputs[1])
    one_replay = threading.Lock()

    def work(seed):
        for i in range(64):
            with torch.cuda.stream(streams[(seed + i) % 8]):
                at = (seed * 7 + i) % len(inputs)
                assert_same_bits(op.function(*inputs[at]), results[at])
                found = torch.autograd.grad(op.function(model(x)), model.weight)[0]
                torch.cuda.current_stream().synchronize()
                assert torch.equal(found, gradient)
                with one_replay:  # a graph has one set of results
                    graph.replay()
                    assert_same_bits(graphed, results[1])

    in_threads(work, range(8))


def test_threads_on_the_cpu(op):
    """Eight threads that call at once on the CPU, forwards and backwards, get the bits of one alone."""
    leaf = data((40, 300, 30), "float32", seed=2).requires_grad_()
    weight = data((40, 30), "float32", seed=3)
    total = op.function(leaf, 1).detach()
    gradient = op.torch(leaf, 1).grad_fn(weight)

    def work(_):
        for _ in range(30):
            result = op.function(leaf, 1)
            assert_same_bits(result.detach(), total)
            assert torch.equal(torch.autograd.grad(result, leaf, weight)[0], gradient)

    in_threads(work, range(8))


# --- devices ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def devices(cuda):
    """All GPUs, at least two."""
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip("needs a second GPU")
    return [f"cuda:{i}" for i in range(count)]


@every_operation
def test_a_thread_a_device(op, devices):
    """One thread a GPU at the same time, as DataParallel has it: every GPU gives the CPU's bits, and its own gradients.

    torch's gradients are near: its norm has other bits, and the division of a mean is its own on every kind of device.
    """
    inputs = [(data(shape, "float32", seed=4), dim) for shape, dim in SHAPES]

    def gradient_of(x, dim, device):
        leaf = x.to(device).requires_grad_()
        result = op.function(leaf, dim)
        assert result.device == leaf.device
        assert_same_bits(result.detach(), op(x.cpu(), dim))
        (gradient,) = torch.autograd.grad(op.function(result), leaf)
        (theirs,) = torch.autograd.grad(op.torch(op.torch(leaf, dim)), leaf)
        assert gradient.device == leaf.device
        torch.testing.assert_close(gradient, theirs)
        return gradient

    alone = {device: [gradient_of(x, dim, device) for x, dim in inputs] for device in devices}

    def work(device):
        for (x, dim), gradient in zip(inputs * 5, alone[device] * 5, strict=True):
            assert_same_bits(gradient_of(x, dim, device), gradient)

    in_threads(work, [device for device in devices for _ in range(2)])


def test_data_parallel(op, devices):
    """torch.nn.DataParallel over all GPUs: the same bits as one of them, for each row."""
    model = Head(op, devices[0])
    x = data((8 * len(devices), 300, 30), "float32", seed=2, device=devices[0])
    assert_same_bits(torch.nn.DataParallel(model)(x).detach(), model(x).detach())


def test_graphs_on_devices(op, devices):
    """A graph on each device, replayed all at once."""
    made = []
    for device in devices:
        with torch.cuda.device(device):
            x = data((256, 1000), "float32", device=device)
            op.function(x, 1)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=torch.cuda.Stream()):  # its own default is one stream, of one device
                made.append((device, graph, x, op.function(x, 1)))
    new = data((256, 1000), "float32", seed=9)
    for device, graph, x, _ in made:
        with torch.cuda.device(device):
            x.copy_(new)
            graph.replay()
    for *_, result in made:
        assert_same_bits(result, op(new.cpu(), 1))


# --- deterministic mode -----------------------------------------------------------------------------------------------


@pytest.fixture
def deterministic():
    """torch.use_deterministic_algorithms(True), which fills what is allocated and not written."""
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = before


@pytest.mark.parametrize("op, name", taken("float32", "bfloat16", "int32", "complex64", "bool"), ids=str)
def test_deterministic_algorithms(op, name, device, deterministic):
    """Deterministic mode refuses nothing and changes no bit, with and without out=; empty results stay empty."""
    for shape, dim in SHAPES:
        x = data(shape, name, seed=5, device=device)
        inside = op.function(x, dim)
        into = op.function(x, dim, out=torch.empty(0, dtype=inside.dtype, device=device))
        torch.use_deterministic_algorithms(False)
        outside = op.function(x, dim)
        torch.use_deterministic_algorithms(True)
        assert_same_bits(inside, outside)
        assert_same_bits(into, outside)
    nothing = torch.empty(0, 4, device=device)
    assert_same_bits(op.function(nothing, 0), op.torch(nothing, 0))
    assert op.function(nothing, 1).shape == (0,)


def test_deterministic_mode_fills_nothing(op, cuda, deterministic):
    """A result is written by its kernel, so nothing fills it before: a call has the kernels that it has without."""
    x = data((256, 1000), "float32", device=cuda)

    def kernels():
        op.function(x, 1)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            op.function(x, 1)
            torch.cuda.synchronize()
        return [e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]

    inside = kernels()
    torch.use_deterministic_algorithms(False)
    assert inside and inside == kernels()
