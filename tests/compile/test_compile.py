"""torch.compile with Inductor, torch.export, AOTInductor: no graph break, no recompilation, eager's bits and strides.

tests/core/test_meta.py has what needs no code generation: tracing, fake tensors, AOTAutograd.
"""

import pytest
import torch

import torch_reduce
from support import OPERATIONS, assert_same_bits, data, every_operation, python, taken
from table import CASES, SEGMENTS, WEIGHTED, rotated, tensors

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script", "ignore:.*TF32|.*tensor cores")


@pytest.fixture(autouse=True)
def fresh():
    """Nothing compiled before."""
    torch._dynamo.reset()


def same(got, wanted):
    """Bits, dtypes and strides."""
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours.stride() == theirs.stride()
        assert_same_bits(ours, theirs)


FORMS = [op.forms for op in OPERATIONS]


def calls(x):
    """The operations in the forms in which models have them, between things that Inductor fuses."""
    y = torch.relu(x) + 1
    results = []
    for operator, function in FORMS:
        results += [
            function(y),
            function(y, 0) * 2,
            function(y, (0, -1), keepdim=True),
            function(y.transpose(0, 1), -1),
            function(x[:, ::2].permute(2, 0, 1), 0),
            operator(y, [1], dtype=torch.float64),
        ]
    return results


def test_inductor(device):
    """fullgraph and dynamic: one compilation serves all sizes, with eager's bits and strides."""
    compiled = torch.compile(calls, fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for shape in ((5, 70, 9), (8, 4097, 6), (300, 20, 33)):
            x = data(shape, "float32", device=device)
            same(compiled(x), calls(x))


def test_no_graph_break():
    """The function and the operator are both one node of one graph."""
    explanation = torch._dynamo.explain(calls)(torch.ones(5, 7, 9))
    assert explanation.graph_break_count == 0 and explanation.graph_count == 1
    (graph,) = explanation.graphs
    for op in OPERATIONS:
        assert str(graph.graph).count(f"gpureduce.{op}") == 6


def guards(function):
    """How many things a compiled call checks before it runs."""

    def compiled(x):
        return function(x)

    torch._dynamo.reset()
    torch.compile(compiled, backend="eager", fullgraph=True)(torch.ones(5, 7))
    (entry,) = torch._dynamo.eval_frame._debug_get_cache_entry_list(compiled.__code__)
    return str(entry.guard_manager).count("GuardManager:")


def test_few_guards():
    """All that reads the arguments of a function is checked at each compiled call, which takes host time."""
    calls = [
        lambda x: torch_reduce.sum(x, 1),
        lambda x: torch_reduce.mean(x, (0, -1), True, dtype=torch.float64),
        lambda x: torch_reduce.sum(x, [0]),
        lambda x: torch_reduce.amax(x, -1),
        lambda x: torch_reduce.vector_norm(x, 3.0, 0),
        lambda x: torch_reduce.var(x, 1),
    ]
    unusual = guards(lambda x: torch_reduce.sum(x, axis=1))
    for k, call in enumerate(calls):
        assert guards(call) < unusual - 10, k


@pytest.mark.parametrize("op, name", taken("float32", "bfloat16", "int32"), ids=str)
def test_no_recompilation(op, name, device):
    """Without dynamic=True: the first size is compiled as it is, the second for all, and then no more."""
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    reduce = op.function
    compiled = torch.compile(lambda x: reduce(x, -1), fullgraph=True, backend=counter)
    for shape in ((3, 50), (4, 60)):
        compiled(data(shape, name, device=device))
    assert counter.frame_count == 2
    with torch.compiler.set_stance("fail_on_recompile"):
        for shape in ((9, 4097), (2, 2), (500, 30), (7, 10_000)):
            x = data(shape, name, device=device)
            assert_same_bits(compiled(x), reduce(x, -1))
    assert counter.frame_count == 2


@every_operation
def test_guards_know_zero_and_one(op, device):
    """Sizes of 0 and 1 may recompile, and are right."""
    reduce = op.function
    compiled = torch.compile(lambda x: reduce(x, 1), fullgraph=True, backend="aot_eager")
    for shape in ((3, 50), (3, 1), (1, 50), (0, 50), (3, 0), (4, 60)):
        x = data(shape, "float32", device=device)
        same([compiled(x)], [reduce(x, 1)])


def test_out(op, device):
    """out= under Inductor writes out, of any strides."""
    reduce = op.function

    def function(x, out):
        reduce(x, 1, out=out)
        return out + 1

    x = data((5, 700), "float32", device=device)
    buffer, twin = torch.zeros(10, device=device), torch.zeros(10, device=device)
    same([torch.compile(function)(x, buffer[::2])], [function(x, twin[::2])])
    assert_same_bits(buffer, twin)


def test_reduce_overhead(cuda):
    """mode="reduce-overhead" runs it in CUDA graphs, with eager's bits on changed data."""
    compiled = torch.compile(calls, fullgraph=True, mode="reduce-overhead")
    for seed in range(5):
        x = data((64, 500, 9), "float32", seed=seed, device=cuda)
        torch.compiler.cudagraph_mark_step_begin()
        got = [y.clone() for y in compiled(x)]
        same(got, calls(x))
    trees = torch._inductor.cudagraph_trees.get_container(torch.cuda.current_device()).tree_manager
    assert trees is not None and trees.roots, "it did not run in a CUDA graph"


# --- sizes that only the data decide ----------------------------------------------------------------------------------

OPS = torch.ops.gpureduce
OFFSETS = torch.tensor([0, 1, 3])


def of_vector(op, v, dim):
    """The inputs of which `v`, whose size is not known, is the first."""
    return (v, OFFSETS.to(v.device)) if op in SEGMENTS else (v, v / 2) if op is WEIGHTED else v


def two(v):
    return torch.stack([v, v + 1])


def reductions(op):
    """Calls on a vector: of all, by the operator, of rows whose number or whose length is not known, and into out=."""

    def out_of(v, dim):
        with torch.no_grad():
            x = of_vector(op, v, dim)
            return op.function(x, dim, out=torch.empty_like(op.function(x, dim)))

    calls = [lambda v, f=f: f(of_vector(op, v, 0), 0) for f in op.forms]
    calls += [lambda v: op.function(of_vector(op, two(v), 1), 1, **({} if op in SEGMENTS else {"keepdim": True}))]
    if op not in SEGMENTS:
        calls += [lambda v: op.function(of_vector(op, v, None)), lambda v: op.function(of_vector(op, two(v), 0), 0)]
    if op.has_out:
        calls += [lambda v: out_of(v, 0), lambda v: out_of(two(v), 1)]
    return [lambda v, call=call: torch.stack(tensors(call(v))) for call in calls]


def inside(v):
    return torch.nonzero(v.detach() > 3).flatten()


UNKNOWN = {str(op): reductions(op) for op in CASES}
UNKNOWN["weighted_sum"] += [
    lambda v: OPS.weighted_sum(two(v), v.detach(), [1]),
    lambda v: torch_reduce.weighted_sum(two(v), v[None], 1),
    lambda v: torch_reduce.weighted_sum(v, torch_reduce.sum(v, keepdim=True)),
]
UNKNOWN["dot"] = [
    lambda v: torch_reduce.dot(v, v + 1),
    lambda v: OPS.dot(v, v.detach()),
    lambda v: torch_reduce.dot(v.detach(), v.detach(), out=v.new_empty(())),
]
for op in SEGMENTS:
    UNKNOWN[str(op)] += [lambda v, op=op: op.function((torch.arange(12.0, device=v.device) * v.sum(), inside(v)))]


def of_positive(name, calls=None):
    """All calls of this name, or these of them, on the positive elements of a tensor."""

    def function(x):
        v = x[x > 0]
        return [call(v) for call in calls or UNKNOWN[name]]

    return function


def with_gradient(function, x):
    """Its results, and the gradient of those that have one."""
    x = x.clone().requires_grad_()
    results = function(x)
    ours = [result for result in results if result.requires_grad]
    if not ours:
        return results
    seeds = [torch.linspace(1, 2, y.numel(), dtype=y.dtype, device=y.device).view_as(y) for y in ours]
    return [*results, *torch.autograd.grad(ours, x, seeds, materialize_grads=True)]


@pytest.fixture
def unknown_sizes():
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


@pytest.mark.parametrize("name", UNKNOWN)
def test_sizes_known_only_from_the_data(name, unknown_sizes, device):
    """One graph without a guard on such a size, whose values and gradients are eager's whatever the size.

    Every second call of each name, in turns; all that only one name has.
    """
    calls = UNKNOWN[name]
    if name not in ("weighted_sum", "dot"):
        calls = rotated(calls, list(UNKNOWN).index(name), 2)
    function = of_positive(name, calls)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for shift in (0, 4, -0.5):
            x = torch.tensor([1.0, -2, 3, 4, -5, 6, 7, 2.5], device=device) + shift
            same(with_gradient(compiled, x), with_gradient(function, x))


def test_sizes_known_only_from_the_data_in_inductor(unknown_sizes, device):
    """As above, where Inductor generates the code around."""
    x = torch.tensor([1.0, -2, 3, 4, -5, 6, 7, 2.5], device=device)
    function = of_positive("amax")
    compiled = torch.compile(function, fullgraph=True)
    for ours, theirs in zip(with_gradient(compiled, x), with_gradient(function, x), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_wrong_sizes_known_only_from_the_data(unknown_sizes, device):
    """What eager refuses is refused when the size is known: with eager's error, where a kernel raises it."""
    x = torch.ones(4, device=device)
    compiled = torch.compile(lambda x: torch_reduce.amax(x[x > 1], 0), fullgraph=True, backend="aot_eager")
    with pytest.raises(IndexError, match="Expected reduction dim 0 to have non-zero size"):
        compiled(x)
    compiled = torch.compile(lambda x: torch_reduce.dot(x[x > 1], x[x > 0]), fullgraph=True, backend="aot_eager")
    with pytest.raises(RuntimeError, match="(?i)size|runtime assertion"):
        compiled(x)


# --- gradients --------------------------------------------------------------------------------------------------------


def loss(x, weight):
    """Of each operation, the square of a weighted one, and one of all with dtype=."""
    result = 0
    for _, function in FORMS:
        result = result + function(function(x * weight, 1) ** 2) + function(x, (0, 1), dtype=torch.float32)
    return result


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_backward(backend, device):
    """Compiled forward and backward passes give eager's gradients."""
    x, weight = (data((6, 300), "float32", seed=s, device=device).requires_grad_() for s in (1, 2))
    wanted = torch.autograd.grad(loss(x, weight), (x, weight))
    compiled = torch.compile(loss, fullgraph=True, backend=backend, dynamic=True)
    for ours, theirs in zip(torch.autograd.grad(compiled(x, weight), (x, weight)), wanted, strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)  # what Inductor fuses may be contracted


# --- export and AOTInductor -------------------------------------------------------------------------------------------


class Pooling(torch.nn.Module):
    """Means over time, as before a classifier, masked and not. The mask is counted with dtype=, or converted before."""

    def __init__(self, convert=False):
        super().__init__()
        self.convert = convert

    def forward(self, x, mask):
        if self.convert:
            count = torch_reduce.sum(mask.to(x.dtype), 1, keepdim=True)
        else:
            count = torch_reduce.sum(mask, 1, keepdim=True, dtype=x.dtype)
        return torch_reduce.sum(x * mask[..., None], 1) / count, count, torch_reduce.mean(x, 1)


def pooling_inputs(batch, length, device, name="float32"):
    x = data((batch, length, 12), name, seed=batch, device=device)
    return x, torch.arange(length, device=device).expand(batch, length) < length - 1


def export(model, device):
    """The model, exported for any batch and length."""
    batch, length = torch.export.Dim("batch", min=2, max=1000), torch.export.Dim("length", min=2, max=100_000)
    sizes = {0: batch, 1: length}
    return torch.export.export(model, pooling_inputs(4, 50, device), dynamic_shapes={"x": sizes, "mask": sizes})


@pytest.fixture(scope="module")
def exported(device):
    return export(Pooling(), device)


SIZES = [(4, 50), (9, 4097), (2, 3)]


def test_export(exported, device, tmp_path):
    """An exported program with dynamic sizes holds the op, survives saving, and gives eager's bits."""
    assert all(f"gpureduce.{op}.default" in str(exported.graph) for op in OPERATIONS)
    torch.export.save(exported, tmp_path / "pooling.pt2")
    loaded = torch.export.load(tmp_path / "pooling.pt2")
    for sizes in SIZES:
        inputs = pooling_inputs(*sizes, device)
        same(exported.module()(*inputs), Pooling()(*inputs))
        same(loaded.module()(*inputs), Pooling()(*inputs))


def test_export_decomposed(exported, device):
    """Decomposition to core ATen leaves the op whole."""
    program = exported.run_decompositions()
    assert str(program.graph).count("gpureduce.sum.default") == 2
    assert str(program.graph).count("gpureduce.mean.default") == 1
    inputs = pooling_inputs(9, 4097, device)
    same(program.module()(*inputs), Pooling()(*inputs))


PACKAGED = """
import sys
import torch, torch_reduce
package = torch._inductor.aoti_load_package(sys.argv[1])
torch.save([package(*inputs) for inputs in torch.load(sys.argv[2])], sys.argv[3])
"""


def test_aot_inductor(device, tmp_path):
    """An AOTInductor package, loaded and run where there is no model, gives eager's bits for other sizes."""
    # torch 2.11 reads a dtype= of any custom op as another one (pytorch/pytorch#169157)
    model = Pooling(convert=torch.__version__ < "2.12")
    package, given, results = (tmp_path / name for name in ("pooling.pt2", "inputs.pt", "results.pt"))
    torch._inductor.aoti_compile_and_package(export(model, device), package_path=str(package))
    all_inputs = [pooling_inputs(*sizes, device) for sizes in SIZES]
    torch.save(all_inputs, given)
    python("-c", PACKAGED, package, given, results)
    for inputs, (masked, *ours) in zip(all_inputs, torch.load(results), strict=True):
        wanted, *theirs = model(*inputs)
        same(ours, theirs)
        assert masked.stride() == wanted.stride()
        torch.testing.assert_close(masked, wanted, rtol=1e-6, atol=0)  # Inductor may turn a division round
