"""The one way to time. Three numbers that are never mixed:

- `gpu_times`: what the GPU needs for a call **between kernels** that do not start early. A CUDA graph holds many calls
  over rotating input buffers, each followed by a separator, which adds to one element: no call can begin before the
  separator in front of it ends, and no call can hide its own end behind the next. A graph of as many separators alone
  is replayed in the same round. A sample is the difference of the two, divided by the calls; the median counts.
  **Back to back** is the other way: the same graph without separators, where kernels that may start early overlap.
  **Cold**: between two reads of the same bytes, COLD_FACTOR times the L2 are read at least, by the other buffers, or
  where inputs are so small that a graph cannot hold enough calls, a few times the L2 by the flush.
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
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))  # the library, where it is not installed
from torch_reduce.tuning.race import Flush, Separator, l2_bytes

COLD_FACTOR = 16  # with a few times the L2, it still has lines that kernels did not mark as streamed
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
    """`calls` calls of one candidate over rotating buffers, captured once, each with `separator()` after it, if given.

    `choose(us, buffers)` says how many calls, from about how long one takes. Keeps the last outputs.
    """

    def __init__(self, candidate, views, outs, choose, separator=None):
        self.outs, self.samples = outs, []
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
                    if separator:
                        separator()
            except Exception:
                with contextlib.suppress(RuntimeError):  # what went wrong in the call says more than the broken capture
                    self.graph.capture_end()
                raise
            self.graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        self.returned = [r for r in returned if isinstance(r, torch.Tensor)]

    def outputs(self):
        return self.returned or self.outs


class Race:
    """Candidates that are timed in turns, for as many rounds as it takes.

    A graph holds about `target_us` of the first candidate's work, as many calls of each other one, but at most SLOW_US.
    `make_out()` returns an output for one call. The device is kept busy for `warm_ms` before the first sample, so that
    clocks are up. A candidate that raises is out of the race, with the first line of its error in `failed`; only the
    first one's error is raised. A round flushes the cache before each graph of cold buffers. `back_to_back`: whether
    the candidates are to be timed in that way too, by `run_back_to_back`.
    """

    def __init__(
        self, candidates, buffers, make_out, *, target_us=1500.0, warm_ms=40.0, flush=None, back_to_back=False
    ):
        self.failed, self.graphs, self.beside, self.separators, calls = {}, {}, {}, {}, 0
        self.flush = (flush or Flush()) if buffers.cold else None
        separator = self._separator()

        def choose(us, count):
            wanted = max(1, min(calls, SLOW_US / us)) if calls else max(4, target_us / us)
            return math.ceil(min(MAX_CALLS, wanted) / count) * count

        with _no_collector():
            for c in candidates:
                try:
                    outs = [make_out() for _ in buffers.views]
                    graph = self._graph(c, buffers.views, outs, choose, separator)
                    if back_to_back:
                        self.beside[c.name] = self._graph(c, buffers.views, outs, lambda *_, n=graph.calls: n)
                    self.graphs[c.name] = graph
                    calls = calls or graph.calls
                except Exception as error:
                    if not self.graphs or self._is_lost():
                        raise
                    self.failed[c.name] = first_line(error)
            alone = Candidate("separators", lambda *_: separator())
            for n in sorted({graph.calls for graph in self.graphs.values()}):
                self.separators[n] = self._graph(alone, [None], [None], lambda *_, n=n: n)
        self._wait()
        deadline = time.perf_counter() + warm_ms / 1e3
        while True:
            for graph in (*self.separators.values(), *self.graphs.values(), *self.beside.values()):
                self._replay(graph)
            self._wait()
            if time.perf_counter() >= deadline:
                break

    # What a race asks of the GPU; the tests have a made-up one.

    def _separator(self):
        return Separator()

    def _graph(self, *arguments):
        return _Graph(*arguments)

    def _is_lost(self):
        return device_is_lost()

    def _wait(self):
        torch.cuda.synchronize()

    def _replay(self, graph):
        """Queues one replay; returns a function that says how many microseconds it took, once it is done."""
        if self.flush:
            self.flush()
        torch.cuda._sleep(200_000)  # about 0.1 ms, in which the host queues what follows: no launch gap is timed
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.graph.replay()
        end.record()
        return lambda: start.elapsed_time(end) * 1e3

    # How it goes.

    def _turns(self, rounds, *groups):
        """A list of rounds. In each round every graph of each group has its turn: {key: microseconds} a group."""
        queued = [[{key: self._replay(g) for key, g in group.items()} for group in groups] for _ in range(rounds)]
        self._wait()
        return [[{key: took() for key, took in group.items()} for group in turn] for turn in queued]

    def run(self, rounds):
        """Times each candidate between kernels, `rounds` times more."""
        for alone, together in self._turns(rounds, self.separators, self.graphs):
            for name, graph in self.graphs.items():
                graph.samples.append((together[name] - alone[graph.calls]) / graph.calls)
        return self

    def run_back_to_back(self, rounds):
        """Times each candidate back to back, `rounds` times more."""
        for (together,) in self._turns(rounds, self.beside):
            for name, graph in self.beside.items():
                graph.samples.append(together[name] / graph.calls)
        return self

    def timings(self):
        """{name: Timing} between kernels, of all rounds so far."""
        return self._timings(self.graphs)

    def timings_back_to_back(self):
        """{name: Timing} back to back, of all rounds so far."""
        return self._timings(self.beside)

    def _timings(self, graphs):
        found = {name: Timing.of(graph.samples, graph.calls, graph.outputs()) for name, graph in graphs.items()}
        for name, timing in found.items():
            if timing.us <= 0:
                raise RuntimeError(f"the calls of {name} took no longer than the separators between them alone")
        return found


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
    """Times `candidates` in turns, between kernels, and returns {name: Timing}; for `more` see `Race`. All must run."""
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


def fastest(timings, kind):
    """(name, Timing) of the fastest that is called `kind`, or `kind` and more words, among {name: Timing}, or None."""
    found = [(name, t) for name, t in timings.items() if name.split()[0] == kind]
    return min(found, key=lambda item: item[1].us, default=None)


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
    name, timing = fastest(timings, "read")
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
    """{name: samples} of {name: measure()}, each taken when the GPU is idle; those of a first round are left out.

    Each round begins one further on, for what ran before leaves its mark on the next one.
    """
    wait = torch.cuda.synchronize if torch.cuda.is_available() else _nothing
    samples, names = {name: [] for name in measures}, list(measures)
    for round_ in range(repeats + 1):
        first = round_ % len(names)
        for name in names[first:] + names[:first]:
            wait()
            sample = measures[name]()
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
