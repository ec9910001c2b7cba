"""examples/: each one runs at a small size, and keeps what it says."""

import contextlib
import importlib.util
import json
import pathlib
import re
import sys
import types

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torch_reduce
from support import data, expected, python

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("[!_]*.py"))


def run(name, *arguments):
    """What an example prints; it must end well."""
    return python(EXAMPLES / f"{name}.py", "--small", *arguments, OMP_NUM_THREADS="2")


def cells(text):
    """The rows of the Markdown table in `text`, without its header."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.fixture
def example(monkeypatch):
    """Imports an example."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # so that what train.py sets is undone

    def load(name):
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield load
    torch.use_deterministic_algorithms(False)


def main(module, monkeypatch, *arguments):
    """Runs an example that is imported already."""
    monkeypatch.setattr(sys, "argv", [module.__file__, *arguments])
    module.main()


def test_all_are_here():
    """Each example has a test below."""
    assert NAMES == [
        "batch_invariance",
        "distributed",
        "experts",
        "first_steps",
        "graph_network",
        "message_passing",
        "mixture_of_experts",
        "replace",
        "same_bits_cpu_gpu",
        "train",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_arguments(name, example, monkeypatch, capsys):
    """--help is the example's docstring; a wrong argument ends in a sentence, and not in a traceback."""
    module = example(name)
    with pytest.raises(SystemExit, match="0"):
        main(module, monkeypatch, "--help")
    assert module.__doc__.splitlines()[0] in capsys.readouterr().out
    gpus = torch.cuda.device_count()
    for wrong, message in {
        ("--device", "tpu"): "argument --device: it must be cpu, cuda or cuda:N, not 'tpu'",
        ("--device", "meta"): "argument --device: it must be cpu, cuda or cuda:N, not 'meta'",
        ("--device", "cuda:99"): f"argument --device: 'cuda:99' is not there: torch sees {gpus or 'no'} NVIDIA GPU",
        ("--smal", "7"): "unrecognized arguments: 7",
    }.items():
        with pytest.raises(SystemExit, match="2"):
            main(module, monkeypatch, *wrong)
        assert message in capsys.readouterr().err


def test_without_the_library(example, monkeypatch):
    """Where torch_reduce is not installed, an example says how to install it."""
    monkeypatch.setitem(sys.modules, "torch_reduce", None)
    with pytest.raises(SystemExit, match="make build"):
        example("_options")


# --- train.py ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), ("--compile",)], ids=["eager", "compiled"])
def test_train(arguments, device):
    """Two trainings have the same losses bit for bit; each shows its progress."""
    text = run("train", "--device", device, *arguments)
    assert text.splitlines()[-1] == "0 of 10 losses differ between the runs, in any bit"
    assert text.count(", compiled\n") == 2 * len(arguments)
    losses = re.findall(r"step +(\d+) +loss (\d+\.\d{4}) +right +\d+% +[\d.]+ ms a step", text)
    assert [int(step) for step, _ in losses] == [2, 4, 6, 8, 10] * 2
    assert losses[:5] == losses[5:] and len({loss for _, loss in losses}) > 1


def test_train_control(device):
    """The control pools with torch's index_add_, runs to its end, and says how many losses differ."""
    text = run("train", "--device", device, "--control")
    assert re.search(r"^\d+ of 10 losses differ between the runs, in any bit(, from step \d+ on)?$", text, re.MULTILINE)


def test_train_control_differs(example, cuda):
    """Atomics make the same training end otherwise, so that the control is one; three tries, since it takes luck."""
    train = example("train")
    sizes = train.BIG["sizes"] | {"pool": train.pool_by_atomics}
    runs = [train.train(train.predict, torch.device(cuda), sizes, train.BIG["batch"], steps=30) for _ in range(4)]
    assert any(not torch.equal(runs[0], other) for other in runs[1:])


def test_pools_agree(example, device):
    """The control pools the same elements, and only adds them in another order."""
    train = example("train")
    x, mask = data((5, 40, 16), "float64", device=device), torch.rand(5, 40, device=device) < 0.7
    torch.testing.assert_close(train.pool_by_atomics(x, mask), train.pool(x, mask))


def test_train_learns(example, device):
    """The gradients that flow through the sums are of use."""
    train = example("train")
    losses = train.train(train.predict, torch.device(device), **train.SMALL, steps=120)
    assert losses[-20:].mean() < 0.8 * losses[:20].mean()


def test_train_sees_a_difference(example, monkeypatch, capsys):
    """A sum that is not the same in the second run is found, and the exit status says so."""
    train, calls = example("train"), []

    def sum(x, dim=None, keepdim=False):
        calls.append(x)
        result = torch_reduce.sum(x, dim, keepdim)
        return result * (1 + 1e-3 * (len(calls) > 50)) if x.is_floating_point() else result

    monkeypatch.setattr(train, "torch_reduce", types.SimpleNamespace(sum=sum))
    with pytest.raises(SystemExit, match="another one"):
        main(train, monkeypatch, "--small", "--device", "cpu")
    assert re.search(r"^([1-9]|10) of 10 losses differ", capsys.readouterr().out, re.MULTILINE)


# --- distributed.py ---------------------------------------------------------------------------------------------------


def ranks(count, device):
    """The table of a training on that many ranks, by row."""
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count]
    text = python(*start, EXAMPLES / "distributed.py", "--small", "--device", device, OMP_NUM_THREADS="1")
    assert f"on {count} rank" in text
    return {name: bits for name, *bits in cells(text)}


def test_distributed():
    """By microbatches a training has the same bits on any number of ranks; DDP and FSDP2 agree, with our sums. Without
    torchrun there is one rank."""
    alone, more = {name: bits for name, *bits in cells(run("distributed", "--device", "cpu"))}, ranks(3, "cpu")
    row = "ours: microbatches, all_reduce"
    assert alone[row] == more[row] and len(set(alone[row])) == 2
    for table in (alone, more):
        assert len(table) == 4 and table["ours: DDP, ddp_hook"] == table["ours: FSDP2, FSDPReduceScatter"]


def test_distributed_alone(cuda):
    """On a GPU, without torchrun, there is one rank."""
    assert len(cells(run("distributed", "--device", cuda))) == 4


def test_distributed_sees_a_difference(example, monkeypatch):
    """DDP and FSDP2 with other bits would be an error."""
    module, results = example("distributed"), iter(range(4))
    monkeypatch.setattr(module, "train", lambda *arguments: [str(next(results))] * 2)
    with pytest.raises(SystemExit, match="must not be"):
        main(module, monkeypatch, "--small", "--device", "cpu")


# --- first_steps.py ---------------------------------------------------------------------------------------------------


def test_first_steps(device, example):
    """Every step is shown with its words and its code, and what it asserts holds."""
    text = run("first_steps", "--device", device)
    for i, step in enumerate(example("first_steps").STEPS, 1):
        assert f"\n{i}. {step.__doc__}\n\n    " in text
    assert "tensor([ 6., 22., 38.]" in text and "IndexError: sum(): Dimension out of range" in text
    shown = re.findall(r"by hand: (\S+)  torch_reduce: (\S+)", text)
    assert len(shown) == 1 and shown[0][0] == shown[0][1]


# --- batch_invariance.py ----------------------------------------------------------------------------------------------


def test_batch_invariance(device, tmp_path):
    """Ours has one pattern of bits in every batch; what is printed is what is kept."""
    text = run("batch_invariance", "--device", device, "--save", tmp_path / "results.json")
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["sizes"][0] == 1 and results["sizes"][-1] == 48
    assert results["gpu"] == (torch.cuda.get_device_name() if device == "cuda" else None)
    counts = [
        [len(set(case["patterns"][name])) for name in ("torch.sum", "torch_reduce.sum")] for case in results["cases"]
    ]
    assert [row[0] for row in cells(text)] == [f"{case['layout']}, {case['dtype']}" for case in results["cases"]]
    assert [[int(n) for n in row[1:]] for row in cells(text)] == counts
    assert len(counts) == 6 and all(ours == 1 for _, ours in counts)


def test_batch_invariance_keeps_large_results(example, monkeypatch, capsys):
    """Where README's picture comes from, no small results are put."""
    with pytest.raises(SystemExit, match="2"):
        main(example("batch_invariance"), monkeypatch, "--small", "--save")
    assert "name a file" in capsys.readouterr().err


def test_batch_sizes(example):
    """From 1 to 4096, half of them no powers of two."""
    batches = example("batch_invariance").batches
    assert batches(4096)[:7] == [1, 2, 3, 4, 6, 8, 12] and batches(4096)[-1] == 4096 and len(batches(4096)) == 24


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_patterns(name, example):
    """The first row's bits are counted, in each layout: a sum that changes with the batch has more of them."""
    module = example("batch_invariance")
    rows = data((8, 160), name)

    def varies(x, dim):
        return torch_reduce.sum(x, dim) * {320: -1.0, 480: 2.0}.get(x.numel(), 1.0)

    for layout in module.LAYOUTS:
        assert module.patterns(torch_reduce.sum, layout, rows, [1, 2, 3, 8]) == [0, 0, 0, 0]
        assert module.patterns(varies, layout, rows, [1, 2, 3, 8]) == [0, 1, 2, 0]


def test_batch_invariance_sees_a_difference(example, monkeypatch):
    """A sum of ours that depended on the batch would be an error."""
    module = example("batch_invariance")
    monkeypatch.setitem(module.SUMS, "torch_reduce.sum", lambda x, dim: x.sum(dim) + (x.numel() > 100_000))
    with pytest.raises(SystemExit, match="other bits in another batch"):
        main(module, monkeypatch, "--small", "--device", "cpu")


# --- same_bits_cpu_gpu.py ---------------------------------------------------------------------------------------------


def test_same_bits_cpu_gpu(device):
    """No result of ours differs between the devices, or between many threads and one."""
    text = run("same_bits_cpu_gpu", "--device", device)
    rows = cells(text)
    assert len(rows) == 36 and all(row[3] == "0" for row in rows)
    of, torchs = (sum(int(row[i]) for row in rows) for i in (1, 2))
    assert text.splitlines()[-1] == f"torch.sum: {torchs} of {of} differ, torch_reduce.sum: 0 of {of} differ"


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "complex64", "int32"])
def test_differing(name, example):
    """One bit of one element is a difference, of whatever dtype; so is the sign of a zero."""
    differing = example("same_bits_cpu_gpu").differing
    a = data((5, 7), name)
    b = a.clone()
    assert differing(a, b) == 0
    b.view(torch.uint8)[2, 3] ^= 1
    assert differing(a, b) == 1 == differing(a[2, :1], b[2, :1]) + differing(a[2, 1:], b[2, 1:])
    assert differing(torch.tensor(0.0), torch.tensor(-0.0)) == 1


def test_same_bits_sees_a_difference(example, monkeypatch):
    """A sum of ours that depended on the threads would be an error."""
    module = example("same_bits_cpu_gpu")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    threads = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setitem(module.SUMS, "torch_reduce.sum", lambda x, dim: x.sum(dim) + (threads[-1:] == [1]))
    with pytest.raises(SystemExit, match="other bits elsewhere"):
        main(module, monkeypatch, "--small", "--device", "cpu")
    assert threads[:2] == [1, 2]


# --- replace.py -------------------------------------------------------------------------------------------------------


def test_replace(device):
    """Under the replacement, an image's gradient has the same bits in each batch and in each run."""
    rows = cells(run("replace", "--device", device))
    assert [row[0] for row in rows] == [
        "differ in a batch of 2",
        "differ in a batch of 5",
        "differ in a second run",
        "ms, forward and backward",
    ]
    assert all(row[2] == "0" for row in rows[:-1]) and all(float(ms) > 0 for ms in rows[-1][1:])


def test_replace_compares(example, monkeypatch):
    """The example counts our results under the replacement, and torch's outside of it."""
    module, inside = example("replace"), []

    class Replacement:
        def __init__(self, device):
            assert device == "cpu"

        def __enter__(self):
            inside.append(True)

        def __exit__(self, *exception):
            inside.pop()

    def gradient(model, images, labels):
        return torch.full_like(images, 1.0 if inside else len(images))

    monkeypatch.setattr(module, "torch_reduce", types.SimpleNamespace(replace_torch_sum=Replacement))
    monkeypatch.setattr(module, "gradient", gradient)
    torchs, ours = module.compare(*module.make(torch.device("cpu"), small=True), rounds=1).values()
    assert torchs["batches"] == {2: 3072, 5: 3072} and ours["batches"] == {2: 0, 5: 0}
    assert torchs["again"] == ours["again"] == 0


# --- experts.py -------------------------------------------------------------------------------------------------------


def test_experts(device):
    """Rows that are combined once have the same bits on any number of ranks; sums of each rank's own have not."""
    text = run("experts", "--device", device)
    assert "an expert takes 100 rows: " in text and "of 800 choices are dropped" in text
    ranks_first, gradients_first, *ours = cells(text)
    assert all(row[1:] == ["0 of 3200"] * 3 for row in ours) and len(ours) == 2
    assert not any(cell.startswith("0 of") for row in (ranks_first, gradients_first) for cell in row[1:])


def test_experts_drops(example, device):
    """An expert takes the first tokens that chose it, as many as it may; both ways add the same rows."""
    module = example("experts")
    x, scores, up, down, _ = module.make(torch.device(device), **module.SMALL)
    weights, experts = module.route(scores, 90)
    best = scores.cpu().topk(module.EACH).indices.tolist()
    taken, wanted = [0] * 8, []
    for row in best:
        wanted.append([])
        for expert in row:
            wanted[-1].append(expert if taken[expert] < 90 else -1)
            taken[expert] += 1
    assert experts.tolist() == wanted and any(-1 in row for row in wanted)
    found = [way(x, weights, experts, up, down, ranks) for way in module.WAYS.values() for ranks in (1, 2)]
    rows = torch.zeros_like(x)
    for t in range(len(x)):
        for weight, expert in zip(weights[t], wanted[t], strict=True):
            if expert >= 0:
                rows[t] += weight * (torch.nn.functional.gelu(x[t] @ up[expert]) @ down[expert])
    for one in found:
        torch.testing.assert_close(one, rows, rtol=1e-4, atol=1e-5)


# --- graph_network.py and mixture_of_experts.py -----------------------------------------------------------------------

WAYS = ["torch, deterministic", "torch_reduce.replace()"]


def agreeing(rows, device):
    """{way: (how many gradients agree, of how many)} of a table; all must, but for those of torch's atomics."""
    assert [row[0] for row in rows[:3]] == ["torch, atomics" if device == "cuda" else "torch, no atomics", *WAYS]
    found = {name: tuple(map(int, same.split(" of "))) for name, same, _ in rows}
    assert all(float(ms) > 0 for *_, ms in rows)
    assert len({count for _, count in found.values()}) == 1
    assert all(same == count > 0 for name, (same, count) in found.items() if name != "torch, atomics")
    return found


def differs_by_atomics(module, run, device):
    """Whether torch's atomics give five runs gradients of which one differs; three tries, since it takes luck."""
    place = module.places(torch.device(device))["torch, atomics"]
    runs = {"torch, atomics": (place, run)}
    tries = (module.compare(runs, torch.device(device))["torch, atomics"] for _ in range(3))
    return any(same < count for same, count, _ in tries)


def test_graph_network(device):
    """Five trainings have the same gradients under the replacement, on the CPU with torch's own sums, too."""
    text = run("graph_network", "--device", device)
    assert list(agreeing(cells(text), device).values())[-1] == (4188, 4188)
    assert ("fixed order" in text) == (device == "cpu") and ("in another order" in text) == (device == "cuda")


def test_graph_network_geometric(device):
    """torch_geometric's layers are taken as they are, in the forward and in the backward pass."""
    pytest.importorskip("torch_geometric")
    text = run("graph_network", "--device", device, "--geometric")
    assert "torch_geometric's layers" in text and len(agreeing(cells(text), device)) == 3


def test_graph_network_geometric_calls(example):
    """torch_geometric's layers call what the example says, forwards and backwards; replace() takes what adds."""
    pytest.importorskip("torch_geometric")
    module, calls = example("graph_network"), set()

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            calls.add(function.overloadpacket.__name__)
            if function.overloadpacket == torch.ops.aten.scatter_reduce_:
                assert args[4] == "amax"
            return function(*args, **(kwargs or {}))

    graph = module.make_graph(**module.SMALL["graph"], device=torch.device("cpu"))
    with Calls():
        module.train(module.geometric(), graph, module.SMALL["width"], steps=1)
    by_index = {name for name in calls if re.search("index|scatter|gather|put|embedding|segment|spmm", name)}
    assert by_index - {"index"} == {"index_select", "index_add", "scatter_add_", "scatter_reduce_", "gather"}


@pytest.mark.parametrize("layers", ["plain", "geometric"])
def test_message_passing(layers, device):
    """Without messages a training has the same losses and gradients; so have torch_geometric's layers."""
    if layers == "geometric":
        pytest.importorskip("torch_geometric")
    text = run("message_passing", "--device", device, *["--geometric"] * (layers == "geometric"))
    assert [row[0] for row in cells(text)] == ["torch_reduce, messages", "torch_reduce, no messages"]
    assert "all losses and gradients have the same bits" in text


def test_message_passing_as_torch(example):
    """The layers are what they say: a mean, a sum, and sums with shares of a softmax over each node's edges."""
    module = example("message_passing")
    x, ends, _ = module.make_graph(30, 400, 8, torch.device("cpu"))
    edges = module.Edges.of(*ends, 30)
    sage, gat, gin = module.plain_layers(module.gathered)(8, 8)
    with torch.no_grad():
        layers = {"sage": sage(x, edges), "gat": gat(x, edges), "gin": gin(x, edges)}
        rows, asked = gat.project(x).view(30, 4, 2), (gat.project(x).view(30, 4, 2) * gat.ask).sum(2)
        answered = (rows * gat.answer).sum(2)
        for node in range(30):
            sent = edges.source[edges.target == node]
            torch.testing.assert_close(layers["sage"][node], sage.own(x[node]) + sage.others(x[sent].mean(0)))
            torch.testing.assert_close(layers["gin"][node], gin.network(x[node] + x[sent].sum(0)))
            share = torch.nn.functional.leaky_relu(asked[node] + answered[sent], 0.2).softmax(0)
            torch.testing.assert_close(layers["gat"][node], (share[:, :, None] * rows[sent]).sum(0).flatten())


def test_propagate(example):
    """What stands for `propagate` gives what torch_geometric's layers give, with and without nodes without edges."""
    pytest.importorskip("torch_geometric")
    from torch_geometric.nn import GATConv, GCNConv, GINConv, GraphConv, SAGEConv

    module = example("message_passing")
    x, edges = torch.randn(30, 8), torch.randint(0, 28, (2, 90))
    for layer in (
        SAGEConv(8, 8),
        SAGEConv(8, 8, aggr="max"),
        SAGEConv(8, 8, aggr="sum"),
        GATConv(8, 4, heads=2),
        GCNConv(8, 8),
        GINConv(torch.nn.Linear(8, 8)),
        GraphConv(8, 8),
    ):
        wanted = layer(x, edges)
        layer.propagate = module.Propagate(layer, module.gathered)
        torch.testing.assert_close(layer(x, edges), wanted)
    pair = (x, torch.randn(12, 8))
    bipartite, into = SAGEConv((8, 8), 8), torch.stack([edges[0], edges[1] % 12])
    wanted = bipartite(pair, into)
    bipartite.propagate = module.Propagate(bipartite, module.gathered)
    torch.testing.assert_close(bipartite(pair, into), wanted)


def test_graph_network_without_geometric(example, monkeypatch):
    """Where torch_geometric is not installed, --geometric says how to install it, before anything is run."""
    for name in ("torch_geometric", "torch_geometric.nn"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit, match="pip install torch_geometric"):
        main(example("graph_network"), monkeypatch, "--small", "--device", "cpu", "--geometric")


def test_graph_network_adds_by_ours(example, device):
    """The third way has the contract's bits in means over up to hundreds of neighbours; torch's sums have others."""
    module, place = example("graph_network"), torch.device(device)
    x, edges, _ = module.make_graph(40, 3000, 4, place)
    with module.places(place)["torch_reduce.replace()"]():
        means = module.mean_of_neighbours(x, edges)
    torchs = module.mean_of_neighbours(x, edges)
    torch.testing.assert_close(means, torchs)
    assert not means.equal(torchs)
    for node, mean in enumerate(means.cpu()):
        sent = x[edges[0, edges[1] == node]].cpu()
        assert mean.equal(torch.from_numpy(expected(sent, 0)[:, 0]) / max(len(sent), 1))


def test_graph_network_adds_by_atomics(example, cuda):
    """On a GPU the gradients of torch's own sums do differ from run to run, so that there is something to see."""
    module = example("graph_network")
    graph = module.make_graph(5000, 200_000, 16, torch.device(cuda))
    assert differs_by_atomics(module, lambda: module.train(module.plain_layers, graph, 32, 2)[1], cuda)


def test_graph_network_learns(example, device):
    """The gradients that are compared are of use."""
    module = example("graph_network")
    graph = module.make_graph(**module.SMALL["graph"], device=torch.device(device))
    losses, _ = module.train(module.plain_layers, graph, module.SMALL["width"], steps=40)
    assert losses[-1] < 0.5 * losses[0]


def test_mixture_of_experts(device):
    """Our ways have one gradient in five runs; a token's sums are the same in a batch and in its halves."""
    *_, first, second = run("mixture_of_experts", "--device", device).split("\n\n")
    assert list(agreeing(cells(first), device))[3:] == ["torch_reduce.index_sum"]
    rows = cells(second)
    assert [row[0] for row in rows] == [
        "tokens plus given outputs",
        "the gradient of gathering, of given gradients",
        "what the model makes of the tokens",
        "the gradient of the tokens",
        "the gradient of the experts' weights",
    ]
    for row in rows[:2]:
        assert row[-2:] == ["0 of 1536", "0 of 1536"]


def test_mixture_of_experts_adds_by_ours(example, device):
    """Both of our ways add a token's two outputs, and then the token; torch adds the outputs one by one."""
    module, place = example("mixture_of_experts"), torch.device(device)
    _, x, _ = module.make(place, **module.SMALL)
    token = torch.arange(len(x)).repeat(2)[torch.randperm(2 * len(x))].to(place)
    outputs, weight = data((len(token), x.shape[1]), "float32", device=device), torch.rand(len(token), device=device)
    with module.places(place)["torch_reduce.replace()"]():
        replaced = module.TORCH.combine(x, outputs, weight, token)
    products = outputs.cpu() * weight.cpu()[:, None]
    wanted = torch.stack([one + sum(products[token.cpu() == i]) for i, one in enumerate(x.cpu())])
    assert replaced.cpu().equal(wanted) and module.OURS.combine(x, outputs, weight, token).cpu().equal(wanted)
    torchs = module.TORCH.combine(x, outputs, weight, token)
    torch.testing.assert_close(torchs, replaced)
    assert not torchs.equal(replaced)


def test_mixture_of_experts_routes(example):
    """Each token goes to its two best experts, with weights that add up to 1, and gets what they make of it."""
    module = example("mixture_of_experts")
    model, x, _ = module.make(torch.device("cpu"), **module.SMALL)
    layer = model.layers[0]
    normalized = layer.norm(x)
    scores, wanted = layer.router(normalized), x.clone()
    for i, row in enumerate(normalized):
        best = scores[i].argsort(descending=True)[:2]
        for expert, share in zip(best, scores[i, best].softmax(0), strict=True):
            wanted[i] += share * (torch.nn.functional.gelu(row @ layer.up[expert]) @ layer.down[expert])
    for sums in (module.TORCH, module.OURS):
        torch.testing.assert_close(layer(x, sums), wanted, rtol=1e-4, atol=1e-4)


def test_mixture_of_experts_adds_by_atomics(example, cuda):
    """On a GPU the gradients of torch's own sums do differ from run to run."""
    module = example("mixture_of_experts")
    batch = module.make(torch.device(cuda), **module.BIG)
    assert differs_by_atomics(module, lambda: module.flat(module.gradients(*batch, module.TORCH).values()), cuda)


def test_mixture_of_experts_sees_a_batch(example, monkeypatch, capsys):
    """A sum of ours that depended on the batch would be an error."""
    module = example("mixture_of_experts")

    def combine(x, outputs, weight, token):
        return module.add_by_ours(x, outputs, weight, token) * (1 + 1e-3 * (len(x) > 48))

    monkeypatch.setattr(module, "OURS", module.OURS._replace(combine=combine))
    with pytest.raises(SystemExit, match="depends on the batch"):
        main(module, monkeypatch, "--small", "--device", "cpu")
    row = cells(capsys.readouterr().out.split("\n\n")[-1])[0]
    assert row[0] == "tokens plus given outputs" and row[3] == "0 of 1536" and row[4] != "0 of 1536"


def test_runs_see_a_difference(example, capsys):
    """A gradient that differs in one run of the five is counted; of ours it is an error, of torch's a row."""
    module, runs, nothing = example("_runs"), [], contextlib.nullcontext

    def run():
        runs.append(torch.zeros(7))
        runs[-1][2] = -0.0 if len(runs) == 4 else 0.0
        return runs[-1]

    found = module.compare({"torch": (nothing, run)}, torch.device("cpu"), steps=2)
    assert found["torch"][:2] == (6, 7) and len(runs) == 5
    module.report(found)
    assert cells(capsys.readouterr().out)[0][:2] == ["torch", "6 of 7"]
    with pytest.raises(SystemExit, match="differs between the runs"):
        module.report({"torch_reduce.replace()": (6, 7, 1.0)})


def test_places(example, device):
    """torch is told to be deterministic in the second place alone, and replaced in the third alone."""
    module, x = example("_runs"), torch.full((3,), 1e8, device=device)
    index, small = torch.zeros(5, dtype=torch.int64, device=device), torch.full((5,), 3.0, device=device)
    for name, place in module.places(torch.device(device)).items():
        with place():
            told = torch.are_deterministic_algorithms_enabled()
            first = float(x.index_add(0, index, small)[0])
        assert told == (name == "torch, deterministic")
        if not told:  # then torch may add in either way
            assert first == (100000016.0 if name == "torch_reduce.replace()" else 1e8)
    assert not torch.are_deterministic_algorithms_enabled()
