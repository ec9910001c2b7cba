"""The one way to time. Three numbers that are never mixed:

- `gpu_times`: what the GPU needs for a call. A CUDA graph of many calls over rotating input buffers; the median of
  repeated replays, divided by the calls. **Cold**: between two reads of the same bytes, COLD_FACTOR times the L2 are
  read at least, by the other buffers, or where inputs are so small that a graph cannot hold enough calls, by the flush.
  A flush (not timed) goes before each replay: lines that a candidate has the L2 evict first, as torch.compile's and
  ours, do not replace others, so that it would find there what another candidate has left of the same buffers.
  **Hot**: one buffer, read again and again.
- `host_times`: what the CPU needs to get a call under way: many calls without waiting for the GPU.
- `end_to_end_times`: one call, then a wait for its result.

`cpu_times` times functions that run on the CPU. Everywhere the candidates take turns (A B C A B C ...) in one run, so
that clocks, heat and neighbours treat them alike, and their outputs are kept.
"""

import collections
import contextlib
import dataclasses
import functools
import gc
import math
import statistics
import time
from collections.abc import Callable

import torch

COLD_FACTOR = 4  # more than twice: the L2 does not replace its oldest line first, so twice would leave some hits
MAX_CALLS = 512  # calls in one graph
SLOW_US = 20_000.0  # a graph of a slow candidate is not longer, if one pass over the buffers is not
ALIGNMENT = 512  # bytes; where each rotating buffer begins


@dataclasses.dataclass
class Candidate:
    """`fn(buffer, out)` enqueues one call on the current stream. It writes `out`, or returns a tensor of its own."""

    name: str
    fn: Callable


@dataclasses.dataclass
class Timing:
    """Microseconds a call: the median, and the quartiles around it."""

    us: float
    low: float
    high: float
    calls: int
    repeats: int
    outputs: list = dataclasses.field(default_factory=list, repr=False)
    samples: list = dataclasses.field(default_factory=list, repr=False)

    @classmethod
    def of(cls, samples, calls, outputs=()):
        low, high = min(samples), max(samples)
        if len(samples) >= 4:
            low, _, high = statistics.quantiles(samples, n=4)
        return cls(statistics.median(samples), low, high, calls, len(samples), list(outputs), list(samples))

    def spread(self):
        """Half the distance of the quartiles over the median: a difference below this is noise."""
        return (self.high - self.low) / 2 / self.us

    def ratio(self, ours):
        """(this time over `ours`, half the width of its 95% interval), from pairs of samples of the same round."""
        pairs = [a / b for a, b in zip(self.samples, ours.samples, strict=True)]
        low, middle, high = statistics.quantiles(pairs, n=4)
        return middle, 1.57 * (high - low) / math.sqrt(len(pairs))


# --- inputs -------------------------------------------------------------------------------------------------


def l2_bytes(device="cuda"):
    return torch.cuda.get_device_properties(device).L2_cache_size


class Buffers:
    """Copies of one input, in one allocation. `view` turns a flat buffer into the tensor that is reduced.

    `bases[i]` is a flat copy, `views[i]` what a candidate gets; `cold` ones want a flush before each graph.
    """

    def __init__(self, base, view, hot=False):
        size = base.numel() * base.element_size()
        pitch = max(1, math.ceil(size / ALIGNMENT)) * ALIGNMENT
        wanted = COLD_FACTOR * l2_bytes(base.device) if not hot else 1
        self.count = max(1, min(MAX_CALLS, math.ceil(wanted / pitch)))
        self.cold = not hot
        slab = torch.empty(self.count, pitch, dtype=torch.uint8, device=base.device)
        slab[:, :size] = base.view(torch.uint8)
        self.bases = [slab[i, :size].view(base.dtype) for i in range(self.count)]
        self.views = [view(b) for b in self.bases]
        self.bytes = size


class Flush:
    """Reads COLD_FACTOR times the L2, so that nothing else is left in it; leaves no dirty lines behind."""

    def __init__(self, device="cuda"):
        self.slab = torch.zeros(COLD_FACTOR * l2_bytes(device) // 4, dtype=torch.float32, device=device)
        self.out = torch.empty((), device=device)

    def __call__(self):
        torch.sum(self.slab, dim=None, out=self.out)


# --- GPU time -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _no_collector():
    """A collection in the middle of a capture could free device memory, which a capture forbids."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Graph:
    """`calls` calls of one candidate over rotating buffers, captured once. Keeps its last outputs.

    `choose(us, buffers)` says how many calls, from about how long one takes.
    """

    def __init__(self, candidate, views, make_out, choose):
        self.outs = [make_out() for _ in views]
        self.graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # twice, so that lazy set-up (modules, attributes, compilation) is neither captured nor timed
            for i in (0, -1):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                candidate.fn(views[i], self.outs[i])
                end.record()
                torch.cuda.synchronize()
            self.calls = choose(start.elapsed_time(end) * 1e3, len(views))
            returned = collections.deque(maxlen=len(views))
            self.graph.capture_begin(capture_error_mode="thread_local")
            try:
                for i in range(self.calls):
                    result = candidate.fn(views[i % len(views)], self.outs[i % len(views)])
                    returned.append(result)
            except Exception:
                with contextlib.suppress(RuntimeError):  # what went wrong in the call says more than the broken capture
                    self.graph.capture_end()
                raise
            self.graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        self.returned = [r for r in returned if isinstance(r, torch.Tensor)]
        self.samples = []

    def outputs(self):
        return self.returned or self.outs

    def timing(self):
        return Timing.of(self.samples, self.calls, self.outputs())


class Race:
    """Candidates that are timed in turns, for as many rounds as it takes.

    A graph holds about `target_us` of the first candidate's work, as many calls of each other one, but at most SLOW_US.
    `make_out()` returns an output for one call. The device is kept busy for `warm_ms` before the first sample, so that
    clocks are up. A candidate that raises is out of the race, with the first line of its error in `failed`; only the
    first one's error is raised. A round flushes the cache before each graph of cold buffers.
    """

    def __init__(self, candidates, buffers, make_out, *, target_us=1500.0, warm_ms=40.0, flush=None):
        self.failed, self.graphs, calls = {}, {}, 0

        def choose(us, count):
            wanted = max(1, min(calls, SLOW_US / us)) if calls else max(4, target_us / us)
            return math.ceil(min(MAX_CALLS, wanted) / count) * count

        with _no_collector():
            for c in candidates:
                try:
                    self.graphs[c.name] = _Graph(c, buffers.views, make_out, choose)
                    calls = calls or self.graphs[c.name].calls
                except Exception as error:
                    if not self.graphs or device_is_lost():
                        raise
                    self.failed[c.name] = first_line(error)
        self.flush = flush or Flush() if buffers.cold else None
        torch.cuda.synchronize()
        deadline = time.perf_counter() + warm_ms / 1e3
        while True:
            for graph in self.graphs.values():
                self._replay(graph)
            torch.cuda.synchronize()
            if time.perf_counter() >= deadline:
                break

    def _replay(self, graph):
        if self.flush:
            self.flush()
        torch.cuda._sleep(200_000)  # about 0.1 ms, in which the host queues what follows: no launch gap is timed
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.graph.replay()
        end.record()
        return start, end

    def run(self, rounds):
        events = [(graph, self._replay(graph)) for _ in range(rounds) for graph in self.graphs.values()]
        torch.cuda.synchronize()
        for graph, (start, end) in events:
            graph.samples.append(start.elapsed_time(end) * 1e3 / graph.calls)
        return self

    def timings(self):
        """{name: Timing} of all rounds so far."""
        return {name: graph.timing() for name, graph in self.graphs.items()}


def device_is_lost():
    """Whether an error was of the kind after which nothing works on the GPU any more."""
    try:
        torch.cuda.synchronize()
    except torch.AcceleratorError:
        return True
    return False


def first_line(error):
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def gpu_times(candidates, buffers, make_out, *, repeats=11, **more):
    """Times `candidates` in turns and returns {name: Timing}; for `more` see `Race`. All of them must run."""
    race = Race(candidates, buffers, make_out, **more)
    if race.failed:
        raise RuntimeError("; ".join(f"{name}: {error}" for name, error in race.failed.items()))
    return race.run(repeats).timings()


# --- the read ceiling ---------------------------------------------------------------------------------------


def read_candidates(library, buffers, nbytes=None, variants=None):
    """Kernels that only read the flat buffers, as candidates; the fastest is the ceiling.

    `library` is what `cub.load()` returns. Each reads the first `nbytes` (default: all), whatever the input's layout.
    """
    nbytes = nbytes or buffers.bytes
    address = {view.data_ptr(): base.data_ptr() for view, base in zip(buffers.views, buffers.bases, strict=True)}

    def candidate(variant):
        return Candidate(f"read {variant}", lambda view, _: library.read(variant, address[view.data_ptr()], nbytes))

    return [candidate(variant) for variant in variants or library.read_variants()]


def best_read(timings):
    """(name, Timing) of the fastest reading kernel among {name: Timing}, or None."""
    reads = [(name, t) for name, t in timings.items() if name.startswith("read ")]
    return min(reads, key=lambda item: item[1].us, default=None)


def fastest_reads(library, buffers, nbytes, count=2, flush=None):
    """The `count` reading kernels that are fastest at `nbytes`, from a short race of all: not all need a long one."""
    reads = read_candidates(library, buffers, nbytes)
    times = gpu_times(reads, buffers, lambda: None, repeats=4, target_us=400, warm_ms=5, flush=flush)
    return [name.removeprefix("read ") for name in sorted(times, key=lambda name: times[name].us)[:count]]


def read_ceiling(library, nbytes, repeats=11, hot=False):
    """The rate at which `nbytes` can be read on the current GPU: the best reading kernel's, timed like all else."""
    base = torch.randint(-(2**31), 2**31 - 1, (max(4, nbytes // 4),), dtype=torch.int32, device="cuda")
    buffers = Buffers(base, lambda b: b, hot)
    timings = gpu_times(read_candidates(library, buffers), buffers, lambda: None, repeats=repeats)
    name, timing = best_read(timings)
    return {"bytes": buffers.bytes, "gbps": buffers.bytes / timing.us / 1e3, "us": timing.us, "kernel": name}


# --- host time, end to end, CPU time ------------------------------------------------------------------------


def _wall_us(fn, calls, wait):
    begin = time.perf_counter_ns()
    for _ in range(calls):
        fn()
    wait()
    return (time.perf_counter_ns() - begin) / 1e3 / calls


def _nothing():
    pass


def in_turns(measures, repeats=21):
    """{name: samples} of {name: measure()}, each taken when the GPU is idle; those of a first round are left out."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else _nothing
    samples = {name: [] for name in measures}
    for round_ in range(repeats + 1):
        for name, measure in measures.items():
            wait()
            sample = measure()
            if round_:
                samples[name].append(sample)
    wait()
    return samples


def host_times(functions, calls=300, repeats=21):
    """Host microseconds a call of each of {name: fn()}; the GPU must be faster than the host, so use small tensors."""
    measures = {name: functools.partial(_wall_us, fn, calls, _nothing) for name, fn in functions.items()}
    return {name: Timing.of(s, calls) for name, s in in_turns(measures, repeats).items()}


def end_to_end_times(functions, calls=20, repeats=21):
    """Microseconds from a call until its result is there, for each of {name: fn()}."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else _nothing

    def call_and_wait(fn):
        fn()
        wait()

    waiting = {name: functools.partial(call_and_wait, fn) for name, fn in functions.items()}
    return host_times(waiting, calls, repeats)


def merged(races):
    """One race of several, of the same candidates: {name: Timing} of all their samples."""
    return {
        name: Timing.of([s for race in races for s in race[name].samples], last.calls, last.outputs)
        for name, last in races[-1].items()
    }


def cpu_times(candidates, view, make_out, *, repeats=11, sample_us=2000.0, budget_s=4.0):
    """Times functions of the CPU in turns; one buffer, so what fits the caches is hot. State torch.get_num_threads().

    A sample is as many calls as last about `sample_us`; repeats are cut, not below 3, to keep to `budget_s`.
    """
    outs = {c.name: make_out() for c in candidates}
    calls, total = {}, 0.0
    for c in candidates:
        c.fn(view, outs[c.name])
        once = min(_wall_us(lambda c=c: c.fn(view, outs[c.name]), 1, _nothing) for _ in range(2))
        calls[c.name] = max(1, min(5000, round(sample_us / max(once, 0.1))))
        total += once * calls[c.name] / 1e6
    repeats = max(3, min(repeats, int(budget_s / max(total, 1e-9))))
    samples = {c.name: [] for c in candidates}
    for _ in range(repeats):
        for c in candidates:
            samples[c.name].append(_wall_us(lambda c=c: c.fn(view, outs[c.name]), calls[c.name], _nothing))
    return {name: Timing.of(s, calls[name], [outs[name]]) for name, s in samples.items()}
