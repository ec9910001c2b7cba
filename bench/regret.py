"""How far is the plan that is chosen from the best of those that are proposed, on random problems?

    python bench/regret.py                           two minutes: 2000 problems, all candidates of each
    python bench/regret.py --count 500 --seed 9
    python bench/regret.py --kind views              random views, as bench/views.py draws them
    python bench/regret.py --kind mixed --seed 100 --save FILE     what bench/fit.py fits the choice to

A problem is a random contiguous tensor of 2 KiB to 800 MiB and a sum of it: all of it, rows, columns, a middle dim,
or the dims of a batch norm. Each of the plans that the kernels propose is timed between kernels that do not start
early, in a CUDA graph over rotating buffers (bench/timing.py says what that means), once in each of a few rounds; the
median counts. The **regret** of a problem is the time of the plan that torch_reduce takes over the best plan's. It is
never quite 1, for the best of many noisy times is lower than its plan's. All candidates must have the same bits.
"""

import argparse
import dataclasses
import itertools
import json
import math
import pathlib
import random
import statistics
import sys
import time

import torch

import cases
import contenders as who
import provenance
import timing
import views

DTYPES = ("float32", "float32", "float32", "bfloat16", "bfloat16", "bfloat16", "float16", "float64", "int8", "int32")
DTYPES += ("int64", "float8_e5m2", "complex64", "bool")
SHOWN = 20
KINDS = ("contiguous", "views", "odd", "mixed")
SLAB_BYTES = 1 << 30
MOST_CALLS = 24
GRAPH_US = 120.0  # of calls in one graph
FINITE = -0x40404041  # a mask of bits: what is left is a finite number in every dtype
LEAST_US = 0.1
HOPELESS, HOPELESS_US = 5.0, 200.0  # times the fastest, and more: such candidates are not timed again


@dataclasses.dataclass(frozen=True)
class Problem:
    """A view of elements from `offset` on, and the dims that are summed."""

    kind: str
    dtype: str
    sizes: tuple
    strides: tuple
    offset: int
    dims: tuple

    def elements(self):
        """That lie between the first and the last, and `offset` before."""
        return self.offset + 1 + sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))

    def of(self, flat):
        return flat.as_strided(self.sizes, self.strides, self.offset)

    def bytes(self):
        return self.elements() * getattr(torch, self.dtype).itemsize


def split(rng, elements, parts):
    """Sizes whose product is about `elements`."""
    log = math.log2(max(1, elements))
    cuts = [0, *sorted(rng.random() for _ in range(parts - 1)), 1]
    return [max(1, round(2 ** (log * (b - a)))) for a, b in itertools.pairwise(cuts)]


def rounded(rng, n):
    """A size as models have them, or any."""
    kind = rng.random()
    if kind < 0.35 or n < 9:
        return n
    if kind < 0.55:
        return 1 << (n.bit_length() - 1)
    return n // 8 * 8 if n < 512 or kind < 0.8 else n // 64 * 64


def random_contiguous(rng, low=11, high=29.6):
    """A problem of 2^low to 2^high bytes."""
    dtype = rng.choice(DTYPES)
    size = getattr(torch, dtype).itemsize
    elements = max(4, 2 ** rng.uniform(low, high) / size)
    kind = rng.choice(("full", "rows", "rows", "columns", "columns", "middle", "norm"))
    parts = {"full": 1, "rows": 2, "columns": 2, "middle": 3, "norm": 3}[kind]
    sizes = [rounded(rng, n) for n in split(rng, elements, parts)]
    dims = {"full": (0,), "rows": (1,), "columns": (0,), "middle": (1,), "norm": (0, 2)}[kind]
    if kind == "norm" and rng.random() < 0.3:  # channels last
        dims = (0, 1)
    strides = torch.empty(sizes, device="meta").stride()
    return Problem(kind, dtype, tuple(sizes), strides, 0, dims)


def random_odd_rows(rng, low=12, high=29):
    """Rows of 2 to 16384 elements, of any size: contiguous, so mostly at odd addresses."""
    dtype = rng.choice(DTYPES)
    length = max(2, rounded(rng, round(2 ** rng.uniform(1, 14))))
    rows = max(1, round(2 ** rng.uniform(low, high) / getattr(torch, dtype).itemsize / length))
    return Problem("odd", dtype, (rows, length), (length, 1), 0, (1,))


def random_view(rng, low=12, high=27):
    view = views.random_view(rng, low, high)
    flat = torch.empty(view.elements(), dtype=torch.int8, device="meta")
    x = view.of(flat)
    return Problem("view", cases.dtype_name(view.dtype), tuple(x.shape), x.stride(), x.storage_offset(), view.dims)


def random_problem(rng, kind):
    if kind == "mixed":
        kind = rng.choice(("contiguous", "contiguous", "contiguous", "views", "views", "odd"))
    draw = {"contiguous": random_contiguous, "views": random_view, "odd": random_odd_rows}
    return draw[kind](rng)


class Bench:
    """Times plans of one problem after the other, in one slab of memory."""

    def __init__(self, repeats):
        self.repeats = repeats
        self.l2 = timing.l2_bytes()
        generator = torch.Generator(device="cuda").manual_seed(1)
        how = {"dtype": torch.int32, "device": "cuda", "generator": generator}
        bits = torch.randint(-(2**31), 2**31 - 1, (SLAB_BYTES // 4,), **how)
        self.slab = bits.bitwise_and_(FINITE).view(torch.uint8)
        self.flush = timing.Flush()
        self.separator = timing.Separator()
        self.alone = {}
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        self.kept = self.graph(1, lambda _: None)  # the pool lives as long as one of its graphs

    def inputs(self, problem):
        """Copies of the problem's input: as many as a graph reads before the L2 has none of the first, and one more."""
        pitch = -(-problem.bytes() // 512) * 512
        count = max(1, min(MOST_CALLS + 1, SLAB_BYTES // pitch, -(-4 * self.l2 // pitch)))
        dtype = getattr(torch, problem.dtype)
        return [problem.of(self.slab[i * pitch : i * pitch + problem.bytes()].view(dtype)) for i in range(count)]

    def graph(self, calls, call):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            for i in range(calls):
                call(i)
                self.separator()
            graph.capture_end()
        return graph

    def replay(self, graph):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        return start, end

    def separators(self, calls):
        """Microseconds of as many separators alone."""
        if calls not in self.alone:
            graph, marks = self.graph(calls, lambda _: None), []
            for _ in range(12):
                self.flush()
                marks.append(self.replay(graph))
            torch.cuda.synchronize()
            self.alone[calls] = 1e3 * statistics.median(start.elapsed_time(end) for start, end in marks[2:])
        return self.alone[calls]

    def times(self, problem, functions):
        """Microseconds of each of {name: f(x)}, and the names of those whose bits are not the first one's."""
        *inputs, spare = self.inputs(problem)
        inputs = inputs or [spare]
        guesses, first, wrong = {}, None, []
        with torch.cuda.stream(self.stream):
            for name, f in functions.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                result = f(inputs[0])
                first = result if first is None else first
                if name != "torch" and not who.same_bits(first, result):
                    wrong.append(name)
                self.flush()
                start.record()
                f(inputs[0])
                end.record()
                guesses[name] = (start, end)
        torch.cuda.synchronize()
        guesses = {name: start.elapsed_time(end) * 1e3 for name, (start, end) in guesses.items()}
        fastest = min(guesses.values())
        found = {name: us for name, us in guesses.items() if us > HOPELESS * fastest + HOPELESS_US}
        calls = max(3, min(MOST_CALLS, round(GRAPH_US / max(fastest - 2, 2.0))))
        graphs = {
            name: self.graph(calls, lambda i, f=f: f(inputs[i % len(inputs)]))
            for name, f in functions.items()
            if name not in found
        }
        alone = self.separators(calls)
        samples = {name: [] for name in graphs}
        for round_ in range(self.repeats):
            marks = {}
            self.flush()
            self.replay(next(iter(graphs.values())))  # the first one after a wait is late: it does not count
            first = round_ * len(graphs) // self.repeats  # and the next ones a little: each round begins with another
            names = list(graphs)
            for name in names[first:] + names[:first]:
                graph = graphs[name]
                self.flush()  # of what other candidates have left, too; and the host queues what follows meanwhile
                functions[name](spare)  # brings its code into the caches
                marks[name] = self.replay(graph)
            torch.cuda.synchronize()
            for name, (start, end) in marks.items():
                samples[name].append(max(LEAST_US, (start.elapsed_time(end) * 1e3 - alone) / calls))
        found |= {name: statistics.median(s) for name, s in samples.items()}
        return {name: round(found[name], 4) for name in functions}, wrong


def device_text():
    facts = json.loads(torch.ops.gpureduce._device(torch.cuda.current_device()))
    return ",".join(f"{name}={int(value)}" for name, value in facts.items())


def tuned(problem, candidate):
    tuning = f"candidate={candidate}"
    return lambda x: torch.ops.gpureduce._sum_tuned(x, problem.dims, tuning=tuning)


def plain(problem):
    return lambda x: torch.ops.gpureduce.sum(x, problem.dims)


def candidates(problem, device):
    """What is known of each plan that is proposed."""
    x = problem.of(torch.empty(problem.elements(), dtype=getattr(torch, problem.dtype), device="meta"))
    result = torch.ops.gpureduce.sum(x, problem.dims).dtype
    address = problem.offset * x.element_size()
    arguments = (x.shape, x.stride(), problem.dims, x.dtype, result, "", device)
    return torch.ops.gpureduce._candidates(*arguments, address)


def measure(problems, options, say):
    """[{"problem", "us" of ours, torch's and each candidate, "features" of the candidates}, ...]"""
    bench, rows, device, begin = Bench(options.repeats), [], device_text(), time.monotonic()
    for i, problem in enumerate(problems):
        passed = time.monotonic() - begin
        if passed > options.seconds:
            break
        if i % 50 == 0:
            torch.cuda.empty_cache()
            say(f"\r{i} of {len(problems)} problems, {passed:.0f} s")
        functions = {"ours": plain(problem)}
        if not problem.dtype.startswith("float8"):
            functions["torch"] = lambda x, dims=problem.dims: torch.sum(x, dims)
        row = {"problem": dataclasses.asdict(problem)}
        if options.candidates:
            row["features"] = [[float(f"{v:.6g}") for v in known] for known in candidates(problem, device).tolist()]
            functions |= {str(k): tuned(problem, k) for k in range(len(row["features"]))}
        row["us"], wrong = bench.times(problem, functions)
        if wrong:
            row["wrong"] = wrong
            say(f"\nWRONG BITS: {problem}: {wrong}\n")
        rows.append(row)
    say("\n")
    return rows


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


def summary(rows):
    """Lines about what `measure` returns."""
    against = [row["us"]["torch"] / row["us"]["ours"] for row in rows if "torch" in row["us"]]
    if against:
        slower = sum(r < 1 for r in against)
        yield (
            f"{len(against)} problems: {statistics.geometric_mean(against):.2f} times as fast as torch.sum, geometric "
            f"mean, median {statistics.median(against):.2f}; in {slower} torch.sum is faster, at worst "
            f"{min(against):.2f}"
        )
    regrets = []
    for row in rows:
        best = min((us for name, us in row["us"].items() if name not in ("ours", "torch")), default=None)
        if best:
            regrets.append((row["us"]["ours"] / best, row))
    if regrets:
        values = [r for r, _ in regrets]
        yield (
            f"regret: geometric mean {statistics.geometric_mean(values):.4f}, 95 of 100 below "
            f"{quantile(values, 0.95):.3f}, worst {max(values):.2f}"
        )
        for regret, row in sorted(regrets, key=lambda pair: -pair[0])[:SHOWN]:
            yield f"{regret:6.2f} {row['us']['ours']:9.2f} us  {row['problem']}"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="problems")
    parser.add_argument("--kind", choices=KINDS, default="contiguous")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=600, help="stop after so many")
    parser.add_argument("--no-candidates", dest="candidates", action="store_false", help="only ours and torch.sum")
    parser.add_argument("--save", metavar="FILE", type=pathlib.Path, help="keep what was measured, as JSON")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.exit("bench/regret.py needs a GPU")
    who.load_torch_reduce()
    rng = random.Random(options.seed)
    problems = [random_problem(rng, options.kind) for _ in range(options.count)]
    rows = measure(problems, options, lambda text: print(text, end="", file=sys.stderr, flush=True))
    if options.save:
        how = {"kind": options.kind, "seed": options.seed}
        if options.candidates:
            how["features"] = torch.ops.gpureduce._features().split()
        provenance.save({**who.environment(), **how, "problems": rows}, "regret.json", options.save)
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
