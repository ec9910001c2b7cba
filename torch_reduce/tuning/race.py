"""Times functions on a GPU in turns, fast enough for the plans of thousands of problems.

A call is timed between kernels that do not start early, with a cold cache: a CUDA graph holds calls, each with its own
copy of the input and followed by a separator, and the time of as many separators alone is subtracted. A flush precedes
each graph, and no copy is read twice in one graph: the L2 keeps lines for long that other kernels do not mark as
streamed. bench/timing.py explains the method.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

FLUSH_FACTOR = 4  # times the L2 that a flush reads: the L2 does not replace its oldest line first
MOST_CALLS = 24  # in one graph
GRAPH_US = 120.0  # of calls in one graph
LEAST_US = 0.1
HOPELESS, HOPELESS_US = 5.0, 200.0  # times the fastest, and more: such functions are not timed again
HEAD_START = 3_000_000  # GPU cycles of the host's head start


def l2_bytes(device: torch.device | str = "cuda") -> int:
    return torch.cuda.get_device_properties(device).L2_cache_size


def other_bits(a: Tensor, b: Tensor) -> Tensor:
    """Which elements of two tensors of one dtype and shape have other bits; all NaNs count as equal."""
    a, b = (x.resolve_conj().resolve_neg().contiguous().to(a.device) for x in (a, b))
    if a.dtype.is_complex:
        return other_bits(torch.view_as_real(a), torch.view_as_real(b)).any(-1)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.dtype.itemsize]
    other = a.view(integers) != b.view(integers)
    return other & ~(a.isnan() & b.isnan()) if a.dtype.is_floating_point else other


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two results have equal dtypes, shapes and bits; all NaNs count as equal."""
    return a.dtype == b.dtype and a.shape == b.shape and not bool(other_bits(a, b).any())


def median(times: Iterable[float]) -> float:
    import statistics  # here, as importing torch_reduce reads this file, and that module takes long

    return statistics.median(times)


class Flush:
    """Reads FLUSH_FACTOR times the L2, so that nothing else is left in it; leaves no dirty lines behind."""

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self.slab = torch.zeros(FLUSH_FACTOR * l2_bytes(device) // 4, dtype=torch.float32, device=device)
        self.out = torch.empty((), device=device)

    def __call__(self) -> None:
        torch.sum(self.slab, dim=None, out=self.out)


class Separator:
    """A kernel that stands between two calls: it adds to one element of its own, and does not start early."""

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self.cell = torch.zeros(1, device=device)

    def __call__(self) -> None:
        self.cell.add_(1)


class Race:
    """Times functions of one input after the other. It belongs to the current device."""

    def __init__(self, repeats: int = 3) -> None:
        self.repeats = repeats
        self.flush = Flush()
        self.separator = Separator()
        self.alone = {}
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        self.kept = self._graph(1, lambda _: None)  # the pool lives as long as one of its graphs

    def _graph(self, calls, call):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                for i in range(calls):
                    call(i)
                    self.separator()
            finally:
                graph.capture_end()
        return graph

    def _timed(self, run):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        return start, end

    def _separators(self, calls):
        """Microseconds of as many separators alone."""
        if calls not in self.alone:
            graph, marks = self._graph(calls, lambda _: None), []
            for _ in range(12):
                self.flush()
                marks.append(self._timed(graph.replay))
            torch.cuda.synchronize()
            self.alone[calls] = 1e3 * median(start.elapsed_time(end) for start, end in marks[2:])
        return self.alone[calls]

    def times(
        self, copies: list[Tensor], functions: dict[str, Callable[[Tensor], Tensor]], unlike: tuple[str, ...] = ()
    ) -> tuple[dict[str, float], list[str]]:
        """Microseconds of each function, and the names of those whose bits are not the first one's.

        Args:
            copies: of one input. If there are several, the last one is a spare: it is in no graph.
            functions: by name; each takes a copy and returns a result.
            unlike: names of those that may have other bits.
        """
        *inputs, spare = copies
        inputs = inputs or [spare]
        guesses, first, wrong = {}, None, []
        with torch.cuda.stream(self.stream):
            for name, f in functions.items():
                result = f(inputs[0])
                first = result if first is None else first
                if name not in unlike and not same_bits(first, result):
                    wrong.append(name)
                guesses[name] = []
                for _ in range(2):  # the smaller time counts: the host may be interrupted in between
                    self.flush()
                    guesses[name].append(self._timed(lambda f=f: f(inputs[0])))
        torch.cuda.synchronize()
        guesses = {name: 1e3 * min(start.elapsed_time(end) for start, end in pairs) for name, pairs in guesses.items()}
        fastest = min(guesses.values())
        most = HOPELESS * fastest + HOPELESS_US
        for name in [name for name, us in guesses.items() if us > most]:  # or was the host held up both times?
            torch.cuda._sleep(HEAD_START)
            start, end = self._timed(lambda f=functions[name]: f(inputs[0]))
            torch.cuda.synchronize()
            guesses[name] = min(guesses[name], 1e3 * start.elapsed_time(end))
        found = {name: us for name, us in guesses.items() if us > most}
        calls = max(3, min(MOST_CALLS, round(GRAPH_US / max(fastest - 2, 2.0))))
        graphs = {
            name: self._graph(calls, lambda i, f=f: f(inputs[i % len(inputs)]))
            for name, f in functions.items()
            if name not in found
        }
        alone = self._separators(calls)
        samples = {name: [] for name in graphs}
        for round_ in range(self.repeats):
            marks = {}
            self.flush()
            next(iter(graphs.values())).replay()  # the first one after a wait is late: it does not count
            first = round_ * len(graphs) // self.repeats  # and the next ones a little: each round begins with another
            names = list(graphs)
            for name in names[first:] + names[:first]:
                self.flush()  # of what others have left, too; and the host queues what follows meanwhile
                functions[name](spare)  # brings its code into the caches
                marks[name] = self._timed(graphs[name].replay)
            torch.cuda.synchronize()
            for name, (start, end) in marks.items():
                samples[name].append(max(LEAST_US, (start.elapsed_time(end) * 1e3 - alone) / calls))
        found |= {name: median(s) for name, s in samples.items()}
        return {name: round(found[name], 4) for name in functions}, wrong
