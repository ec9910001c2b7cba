"""Who is measured, on what, and whether the answers agree: shared by grid.py and tune.py."""

import concurrent.futures
import contextlib
import datetime
import math
import multiprocessing
import pathlib
import platform
import re
import subprocess
import sys

import torch

import cases as grid
import cub
import provenance
from timing import Candidate

ROOT = pathlib.Path(__file__).resolve().parent.parent


def load_torch_reduce():
    """Imports the library, from the repository or as installed; ends the program in one sentence if there is none."""
    sys.path.insert(0, str(ROOT))
    try:
        import torch_reduce

        return torch_reduce, torch.ops.gpureduce.sum
    except (ImportError, OSError, AttributeError) as error:
        sys.exit(f"torch_reduce cannot be loaded; build it with 'make build' first. ({error})")


def dims(case):
    return None if case.dim is None else list(case.dim) if isinstance(case.dim, tuple) else [case.dim]


def our_sum(case, view):
    return torch.ops.gpureduce.sum(view, dims(case), False, dtype=case.sum_dtype)


def ours(case):
    """torch_reduce.sum, a function of Python as torch.sum is; what torch.ops adds, grid.py's small_calls tells."""
    import torch_reduce  # where load_torch_reduce found it

    dim, dtype = dims(case), case.sum_dtype
    return Candidate("ours", lambda view, out: torch_reduce.sum(view, dim, dtype=dtype, out=out))


def torch_dtype(case):
    """The `dtype` that torch.sum has to be given; float8 it sums only when asked for another result."""
    eighth = case.dtype.is_floating_point and case.dtype.itemsize == 1
    return case.result_dtype() if eighth else case.sum_dtype


def torch_sum(case):
    dim, dtype = dims(case), torch_dtype(case)

    def run(buffer, out):
        torch.sum(buffer, dim=dim, dtype=dtype, out=out)

    return Candidate("torch", run)


def compiled_sum(case):
    dim, dtype = dims(case), torch_dtype(case)
    torch._dynamo.reset()
    run = torch.compile(lambda x: torch.sum(x, dim=dim, dtype=dtype), mode="max-autotune-no-cudagraphs", dynamic=False)
    return Candidate("compile", lambda buffer, _: run(buffer))


def cub_sum(case, view, library):
    """CUB's sum, or None where it has none for this layout or dtype."""
    if library is None or case.cub is None:
        return None
    make = library.sum_full if case.cub == "full" else library.sum_rows
    run = make(view, case.result_dtype())
    return Candidate("cub", run) if run else None


def load_cub():
    """The library of bench/cub, or None with a line that says what is then missing."""
    print("building bench/cub with nvcc, unless that was done before ...", flush=True)
    try:
        return cub.load()
    except (RuntimeError, OSError) as error:
        print(f"NO CUB AND NO READ CEILING in this run: {error}", flush=True)
        return None


# --- torch.compile ahead of time ----------------------------------------------------------------------------


class CompileAhead:
    """Processes that compile cells before their turn, so that the race finds them in inductor's cache on disk.

    Nothing else may run on the GPU meanwhile: inductor measures what it compiles, one process at a time.
    """

    def __init__(self, jobs):
        context = multiprocessing.get_context("spawn")
        self.pool = concurrent.futures.ProcessPoolExecutor(jobs, context, _prepare, (context.Lock(),))

    def compile(self, names, seconds):
        """Whether all cells of these names were done in that time."""
        waiting = [self.pool.submit(_compile, name) for name in names]
        _, late = concurrent.futures.wait(waiting, timeout=seconds)
        return not late

    def close(self):
        processes = list((self.pool._processes or {}).values())
        self.pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
            process.join()


def _prepare(lock):
    """In each process: no helpers of its own, and what measures waits for its turn."""
    import torch._inductor.config
    from torch._inductor.runtime.benchmarking import benchmarker

    torch._inductor.config.compile_threads = 1
    measure = benchmarker.benchmark

    def in_turn(*arguments, **more):
        with lock:
            return measure(*arguments, **more)

    benchmarker.benchmark = in_turn


def _compile(name):
    case = grid.parse(name)
    with contextlib.suppress(Exception):  # the race will meet the same error, and record it
        compiled_sum(case).fn(case.view(torch.zeros(case.elements, dtype=case.dtype, device="cuda")), None)
        torch.cuda.synchronize()
    torch.cuda.empty_cache()


# --- do the answers agree -----------------------------------------------------------------------------------


def same_bits(a, b):
    """Whether two results have equal dtypes, shapes and bits; all NaNs count as equal."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    a, b = a.resolve_conj().contiguous(), b.resolve_conj().contiguous().to(a.device)
    if a.dtype.is_complex:
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.dtype.itemsize]
    equal = a.view(integers) == b.view(integers)
    if a.dtype.is_floating_point:
        equal |= a.isnan() & b.isnan()
    return bool(equal.all())


def close(a, b, length):
    """Whether a rival's result is nearly ours, as sums of `length` random elements go: no broken one is timed."""
    a, b = a.reshape(b.shape), b
    if not (a.dtype.is_floating_point or a.dtype.is_complex):
        return torch.equal(a.to(b.dtype), b)
    wide = torch.complex128 if a.dtype.is_complex else torch.float64
    rough = 1e-2 if a.dtype.itemsize <= 2 else 1e-4
    return torch.allclose(a.to(wide), b.to(wide), rtol=rough, atol=rough * math.sqrt(length), equal_nan=True)


def length(case):
    return case.elements // max(1, math.prod(case.result_shape()))


# --- where and when -----------------------------------------------------------------------------------------


def driver_version():
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return lines[0] if lines else "unknown"


def processor():
    """The CPU's name."""
    with contextlib.suppress(OSError):
        found = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
        if found:
            return found[1]
    return platform.processor() or platform.machine()


def environment():
    """What a result depends on besides the code under test, and that code's hash."""
    facts = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "csrc": provenance.csrc_hash(),
        "cpu_name": processor(),
        "cpu_threads": torch.get_num_threads(),
    }
    if not torch.cuda.is_available():
        return facts | {"gpu": None}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return facts | {
        "gpu": properties.name,
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
    }
