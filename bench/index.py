"""Measures sums by index on a GPU: with a plan and without, against torch's atomics, its deterministic way, and a copy.

    python bench/index.py                two minutes: every case
    python bench/index.py --save         into bench/results/<gpu>/index.json
    python bench/index.py --save FILE    into FILE
    python bench/index.py --only sums    one part: sums; embeddings, whose gradients; segments, operations over these;
                                         graphs, steps of a graph network

Times are of the GPU, between kernels that do not start early, in a CUDA graph, with a cold cache
(torch_reduce/tuning/race.py); of steps, the median of ten, with events around the whole step. Some results are first
compared with the bits of their own sums. `share`: how fast the bytes move that must move, as a part of a copy's speed.
"""

import contextlib
import dataclasses
import functools
import random
import statistics
import sys

import torch
from torch import Tensor

import contenders
import family
import parts
import torch_reduce
from torch_reduce.tuning.race import Race, same_bits

CHECKED = 30  # outputs


@dataclasses.dataclass(frozen=True)
class Case:
    entries: int
    columns: int
    outputs: int
    dtype: torch.dtype = torch.float32
    kind: str = "uniform"

    @property
    def shape(self):
        return (self.entries, self.columns) if self.columns > 1 else (self.entries,)

    def index(self) -> Tensor:
        index = torch.randint(0, self.outputs, (self.entries,), device="cuda")
        if self.kind == "one hot":  # half of all entries have one output
            index[torch.randperm(self.entries, device="cuda")[: self.entries // 2]] = self.outputs // 3
        return index


HALF = torch.bfloat16
SUMS = [
    Case(1 << 20, 64, 1 << 16),
    Case(1 << 20, 64, 1 << 16, HALF),
    Case(3_000_000, 64, 200_000),
    Case(1 << 18, 512, 1 << 14),
    Case(1 << 18, 512, 1 << 14, HALF),
    Case(1 << 17, 1024, 1 << 12, HALF),
    Case(1 << 21, 32, 1 << 17, HALF),
    Case(1 << 22, 16, 1 << 18),
    Case(1 << 23, 3, 1 << 19),
    Case(1 << 24, 1, 1 << 20),
    Case(1 << 24, 1, 1 << 20, HALF),
    Case(1 << 20, 64, 16),
    Case(1 << 20, 64, 1 << 16, torch.float32, "one hot"),
    Case(1 << 20, 64, 1 << 20),
    Case(1 << 14, 256, 1 << 10),
]
# Tokens, width and vocabulary of embeddings.
EMBEDDINGS = [
    Case(16_384, 4096, 128_256, HALF),
    Case(16_384, 768, 50_257),
    Case(1 << 20, 64, 1 << 20),
    Case(1 << 16, 1024, 32_000, HALF),
]
SEGMENTS = [Case(1 << 20, 64, 1 << 16), Case(1 << 20, 64, 1 << 16, HALF), Case(1 << 26, 1, 1 << 20)]


def drawn(count):
    """Random cases, of 2^18 to 2^25 elements in rows of 1 to 1,024."""
    rng, cases = random.Random(3), []
    for _ in range(count):
        columns = round(2 ** rng.uniform(0, 10))
        entries = max(1, round(2 ** rng.uniform(18, 25) / columns))
        outputs = max(1, round(entries ** rng.uniform(0, 1)))
        dtype = rng.choice((torch.float32, torch.float32, HALF, torch.float16))
        cases.append(Case(entries, columns, outputs, dtype, rng.choice(("uniform", "uniform", "one hot"))))
    return cases


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def check(x, index, result):
    """Compares some outputs with the sums of their own rows."""
    rng = random.Random(2)
    for k in {0, len(result) - 1, int(index[0]), *(rng.randrange(len(result)) for _ in range(CHECKED))}:
        if not same_bits(result[k], torch_reduce.sum(x[index == k], 0)):
            sys.exit(f"WRONG: output {k} of {len(result)}, {tuple(x.shape)} {x.dtype}")


def row_of(case, us, plan=True):
    moved = case.entries * case.columns * case.dtype.itemsize + case.outputs * case.columns * case.dtype.itemsize
    moved += 4 * case.entries  # of the plan's order
    copied = 2 * case.entries * case.columns * case.dtype.itemsize
    row = dataclasses.asdict(case) | {"dtype": str(case.dtype)[6:], "us": us}
    if plan and "copy" in us:
        row["share"] = round(moved / us["plan"] / (copied / us["copy"]), 3)
    return row


def told(row):
    times = ", ".join(f"{name} {us:.1f}" for name, us in row["us"].items())
    share = f"; {row['share']:.2f} of a copy" if "share" in row else ""
    what = f"{row['entries']} x {row['columns']} {row['dtype']} to {row['outputs']}, {row['kind']}"
    return f"{what}: {times} µs{share}"


def sums(race, cases):
    rows = []
    for case in cases:
        x, index = torch.randn(case.shape, device="cuda").to(case.dtype), case.index()
        plan = torch_reduce.index_plan(index, case.outputs)
        check(x, index, torch_reduce.index_sum(x, plan))
        check(x, index, torch_reduce.index_sum(x, index, case.outputs))

        def added(x, index=index, case=case):
            return torch.zeros(case.outputs, *case.shape[1:], dtype=case.dtype, device="cuda").index_add_(0, index, x)

        def added_in_order(x, added=added):
            with deterministic():
                return added(x)

        functions = {
            "plan": lambda x, plan=plan: torch_reduce.index_sum(x, plan),
            "sort": lambda x, index=index, case=case: torch_reduce.index_sum(x, index, case.outputs),
            "atomics": added,
            "deterministic": added_in_order,
            "copy": lambda x: x.clone(),
        }
        us, _ = race.times(family.clones(x), functions, unlike=tuple(functions))
        rows.append(row_of(case, us))
        print(told(rows[-1]), flush=True)
        torch.cuda.empty_cache()
    return rows


def embeddings(race):
    rows = []
    for case in EMBEDDINGS:
        grad, tokens = torch.randn(case.shape, device="cuda").to(case.dtype), case.index()
        torch.cuda.synchronize()  # the race has a stream of its own
        functions = {
            "sort": lambda g, t=tokens, case=case: torch_reduce.index_sum(g, t, case.outputs),
            "torch": lambda g, t=tokens, case=case: torch.ops.aten.embedding_dense_backward(
                g, t, case.outputs, -1, False
            ),
        }
        us, _ = race.times(family.clones(grad), functions, unlike=tuple(functions))
        rows.append(row_of(case, us, plan=False))
        print(told(rows[-1]), flush=True)
        torch.cuda.empty_cache()
    return rows


def segments(race):
    rows = []
    for case in SEGMENTS:
        x = torch.randn(case.shape, device="cuda").to(case.dtype)
        lengths = torch.bincount(case.index(), minlength=case.outputs)
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        torch.cuda.synchronize()  # the race has a stream of its own
        functions = {
            name: lambda x, name=name, o=offsets: getattr(torch_reduce, f"segment_{name}")(x, o)
            for name in ("sum", "amax", "amin", "prod", "logsumexp", "softmax")
        }
        us, _ = race.times(family.clones(x), functions, unlike=tuple(functions))
        rows.append(row_of(case, us, plan=False))
        print(told(rows[-1]), flush=True)
        torch.cuda.empty_cache()
    return rows


class GraphNet(torch.nn.Module):
    """Three layers: each node adds up its neighbours and itself, and a linear map follows."""

    def __init__(self, width, spread, collect):
        super().__init__()
        self.spread, self.collect = spread, collect
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x + self.collect(self.spread(x))))
        return x


def graphs(_):
    """Microseconds of a training step: 200,000 nodes of 64 features, 3,000,000 edges."""
    nodes, edges, width = 200_000, 3_000_000, 64
    source, target = (torch.randint(0, nodes, (edges,), device="cuda") for _ in range(2))
    x = torch.randn(nodes, width, device="cuda")

    def ours():
        plan = torch_reduce.index_plan(target, nodes)  # for all layers
        return (lambda x: torch_reduce.embedding(source, x)), (lambda m: torch_reduce.index_sum(m, plan))

    def torchs():
        return (lambda x: x.index_select(0, source)), (lambda m: torch.zeros_like(x).index_add(0, target, m))

    def step_us(makes, context=contextlib.nullcontext):
        torch.manual_seed(0)
        net = GraphNet(width, *makes()).cuda()
        times, first = [], None
        with context():
            for _ in range(12):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                net.spread, net.collect = makes()
                net.zero_grad()
                net(x).square().mean().backward()
                end.record()
                torch.cuda.synchronize()
                times.append(1e3 * begin.elapsed_time(end))
                grad = net.layers[0].weight.grad.clone()
                first = grad if first is None else first
        return round(statistics.median(times[2:]), 1), torch.equal(first, grad)

    us, repeats = {}, {}
    us["ours"], repeats["ours"] = step_us(ours)  # the sorts of each step included
    us["atomics"], repeats["atomics"] = step_us(torchs)
    us["deterministic"], repeats["deterministic"] = step_us(torchs, deterministic)
    row = {"nodes": nodes, "edges": edges, "width": width, "us": us, "same_gradients": repeats}
    print(row, flush=True)
    return [row]


PARTS = {
    "sums": lambda race: sums(race, SUMS),
    "drawn": lambda race: sums(race, drawn(24)),
    "embeddings": embeddings,
    "segments": segments,
    "graphs": graphs,
}


def main(arguments=None):
    parser = parts.parser(__doc__, PARTS)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.exit("bench/index.py needs an NVIDIA GPU")
    measured = {name: functools.partial(measure, Race(5)) for name, measure in PARTS.items()}
    parts.run("index.json", measured, options, contenders.environment("index.json"))


if __name__ == "__main__":
    main()
