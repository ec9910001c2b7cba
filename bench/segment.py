"""Measures sums of segments on a GPU, against torch's ways to the same and against our sum of all elements.

    python bench/segment.py                two minutes: every case
    python bench/segment.py --save         into bench/results/<gpu>/segments.json
    python bench/segment.py --save FILE    into FILE
    python bench/segment.py --only rows    one part: rows; columns, whose segments have several; or drawn, at random
    python bench/segment.py --cpu          on the CPU instead, smaller inputs

Times are of the GPU, between kernels that do not start early, in a CUDA graph, with a cold cache
(torch_reduce/tuning/race.py). Results are first compared with the bits of each segment's own sum, for some segments.
"""

import dataclasses
import functools
import math
import random
import sys
import time
from collections.abc import Callable

import torch

import contenders
import family
import family_report
import parts
import torch_reduce
from torch_reduce.tuning.race import Race, same_bits

PADDED = 1 << 28  # elements that torch may pad a nested tensor to: from 2^31 on, torch 2.11 writes outside of it
LONGEST = 1 << 20  # of a segment that torch.segment_reduce is asked for: of columns, a thread takes each


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Lengths of segments with `n` elements in all, or a few less."""

    name: str
    of: Callable[[int, random.Random], list[int]]


def equal(length):
    return Lengths(f"all of {length}", lambda n, _: [length] * max(1, n // length))


def log_uniform(longest, name=None):
    """Lengths of 1 to `longest`, as many of each magnitude."""

    def lengths(n, rng):
        made = []
        while n > 0:
            made.append(min(n, round(longest ** rng.random())))
            n -= made[-1]
        return made

    return Lengths(name or f"1 to {longest}", lengths)


def one_huge(length):
    def lengths(n, _):
        return [length] * (n // (4 * length)) + [n // 2] + [length] * (n // (4 * length))

    return Lengths(f"one of half, others of {length}", lengths)


def some_empty(longest):
    def lengths(n, rng):
        return [k for length in log_uniform(longest).of(n, rng) for k in (length, *[0] * rng.randint(0, 2))]

    return Lengths(f"1 to {longest}, as many empty", lengths)


SHORT, LONG = log_uniform(100), log_uniform(100_000, "1 to 10^5")
ROWS = [
    (LONG, (1 << 26,), torch.float32),
    (LONG, (1 << 26,), torch.bfloat16),
    (LONG, (1 << 25,), torch.float64),
    (LONG, (1 << 25,), torch.int64),
    (SHORT, (1 << 26,), torch.float32),
    (equal(1), (1 << 26,), torch.float32),
    (equal(32), (1 << 26,), torch.float32),
    (equal(32), (1 << 26,), torch.bfloat16),
    (equal(4096), (1 << 26,), torch.float32),
    (one_huge(32), (1 << 26,), torch.float32),
    (SHORT, (1 << 16,), torch.float32),
]
COLUMNS = [
    (SHORT, (1 << 20, 64), torch.float32),
    (SHORT, (1 << 20, 64), torch.bfloat16),
    (equal(1), (1 << 20, 64), torch.float32),
    (SHORT, (1 << 17, 512), torch.float32),
    (SHORT, (1 << 19, 64), torch.float64),
    (log_uniform(8192), (1 << 16, 1024), torch.bfloat16),
    (LONG, (1 << 20, 64), torch.bfloat16),
    (one_huge(32), (1 << 20, 64), torch.float32),
    (SHORT, (1 << 23, 3), torch.float32),
]


def drawn(count):
    """Random cases, of 2^14 to 2^26 elements, half of them of several columns."""
    rng, cases = random.Random(1), []
    for i in range(count):
        size = 2 ** rng.uniform(14, 26)
        columns = round(2 ** rng.uniform(1, 10)) if i % 2 else 1
        rows = max(1, round(size / columns))
        longest = max(1, round(2 ** rng.uniform(0, math.log2(rows))))
        lengths = rng.choice((log_uniform, log_uniform, equal, one_huge, some_empty))(longest)
        dtype = rng.choice((torch.float32, torch.float32, torch.bfloat16, torch.bfloat16, torch.float64, torch.int64))
        cases.append((lengths, (rows, columns) if columns > 1 else (rows,), dtype))
    return cases


PARTS = {"rows": ROWS, "columns": COLUMNS, "drawn": drawn(60)}


def functions_of(offsets, lengths, elements):
    """{name: f(data)}: ours, torch's ways, and our sum of all."""
    number = torch.repeat_interleave(lengths)
    segments = len(lengths)

    def index_add(x):
        return torch.zeros(segments, *x.shape[1:], dtype=x.dtype, device=x.device).index_add_(0, number, x)

    found = {
        "segment_sum": lambda x: torch_reduce.segment_sum(x, offsets),
        "sum": lambda x: torch_reduce.sum(x, 0),
        "index_add": index_add,
    }
    if segments * elements <= PADDED:
        found["nested"] = lambda x: torch.nested.nested_tensor_from_jagged(x, offsets).sum(1)
    if int(lengths.max()) <= LONGEST:
        found["segment_reduce"] = lambda x: torch.segment_reduce(x, "sum", offsets=offsets, axis=0, unsafe=True)
    return found


def works(f, x):
    """Whether torch has this for such data."""
    try:
        f(x)
    except (RuntimeError, NotImplementedError, ValueError):
        return False
    return True


def check(x, offsets, result):
    """Compares some segments with their own sums."""
    rng = random.Random(2)
    for i in [0, len(result) - 1, *(rng.randrange(len(result)) for _ in range(30))]:
        begin, end = int(offsets[i]), int(offsets[i + 1])
        if not same_bits(result[i], torch_reduce.sum(x[begin:end], 0)):
            sys.exit(f"WRONG: segment {i} of {len(result)}, {tuple(x.shape)} {x.dtype}")


def cpu_race(x, functions):
    """Microseconds of each, the median of calls in turns."""
    samples = {name: [] for name in functions}
    for _ in range(6):
        for name, f in functions.items():
            begin = time.perf_counter()
            f(x)
            samples[name].append(1e6 * (time.perf_counter() - begin))
    return {name: sorted(times[1:])[2] for name, times in samples.items()}


def measure(cases, device):
    """A row per case: microseconds of each way. The CPU has a sixteenth of the elements."""
    shrink = 16 if device == "cpu" else 1
    race, rows = device == "cuda" and Race(5), []
    for kind, (size, *columns), dtype in cases:
        size //= shrink
        lengths = torch.as_tensor(kind.of(size, random.Random(1)), device=device)
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        x = torch.randn(int(offsets[-1]), *columns, device=device).to(dtype)
        check(x, offsets, torch_reduce.segment_sum(x, offsets))
        functions = {name: f for name, f in functions_of(offsets, lengths, x.numel()).items() if works(f, x)}
        if race:
            us, _ = race.times(family.clones(x), functions, unlike=tuple(functions))
        else:
            us = cpu_race(x, functions)
        row = {
            "lengths": kind.name,
            "shape": list(x.shape),
            "segments": len(lengths),
            "dtype": str(dtype)[6:],
            "us": us,
        }
        results = len(lengths) * (x.numel() // max(1, x.size(0)))
        row["bytes"] = x.numel() * dtype.itemsize + offsets.numel() * 8 + results * dtype.itemsize
        rows.append(row)
        print(told(row), flush=True)
        del x, lengths, offsets, functions
        if race:
            torch.cuda.empty_cache()
    print(family_report.all_segments(rows))
    return rows


def told(row):
    us = row["us"]
    shape = "x".join(map(str, row["shape"]))
    others = ", ".join(f"{name} {t:.1f}" for name, t in us.items() if name != "segment_sum")
    rate = row["bytes"] / us["segment_sum"] / 1e6
    what = f"{row['lengths']}, {shape} {row['dtype']}, {row['segments']} segments"
    return f"{what}: {us['segment_sum']:.1f} µs ({rate:.2f} TB/s); {others}"


def main(arguments=None):
    parser = parts.parser(__doc__, PARTS)
    parser.add_argument("--cpu", action="store_true", help="measure the CPU, with a sixteenth of the elements")
    options = parser.parse_args(arguments)
    if not options.cpu and not torch.cuda.is_available():
        sys.exit("bench/segment.py needs an NVIDIA GPU")
    device = "cpu" if options.cpu else "cuda"
    facts = contenders.environment("segments.json", device) | {"device": device}
    measured = {name: functools.partial(measure, cases, device) for name, cases in PARTS.items()}
    parts.run("segments.json", measured, options, facts)


if __name__ == "__main__":
    main()
