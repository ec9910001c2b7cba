"""Who is measured, on what, and whether the answers agree: shared by the scripts of this folder."""

import concurrent.futures
import contextlib
import datetime
import functools
import hashlib
import inspect
import math
import multiprocessing
import pathlib
import platform
import re
import subprocess

import torch

import cases as grid
import cub
import provenance
from timing import Candidate
from torch_reduce.tuning.race import same_bits as same_bits

ROOT = pathlib.Path(__file__).resolve().parent.parent


def dims(case):
    return None if case.dim is None else list(case.dim) if isinstance(case.dim, tuple) else [case.dim]


def our_sum(case, view):
    return torch.ops.gpureduce.sum(view, dims(case), False, dtype=case.sum_dtype)


def ours(case):
    """torch_reduce.sum, a function of Python as torch.sum is; what torch.ops adds, grid.py's small_calls tells."""
    import torch_reduce  # where timing.py finds it

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


COMPILED = {"compile": {}, "compile PDL": {"triton.enable_pdl": True}}  # the second is TORCHINDUCTOR_ENABLE_PDL=1


def compiled_sums(case, early):
    """torch.compile's sum; where kernels can start `early`, also as one that does. The faster one counts."""
    dim, dtype = dims(case), torch_dtype(case)
    torch._dynamo.reset()
    _tune_once()
    tuned = torch._inductor.list_mode_options("max-autotune-no-cudagraphs")

    def candidate(name, more):
        run = torch.compile(lambda x: torch.sum(x, dim=dim, dtype=dtype), options=tuned | more, dynamic=False)
        return Candidate(name, lambda buffer, _: run(buffer))

    return [candidate(name, more) for name, more in COMPILED.items() if early or not more]


def starts_early():
    """Whether kernels can start while the one before drains, on the current GPU."""
    return torch.cuda.get_device_capability()[0] >= 9


@functools.cache
def _tune_once():
    """Has inductor find what it tuned for a kernel also for the same kernel that may start early.

    It tunes a kernel by itself, after a pause, so starting early has no part in its choice; and tuning is most of what
    compiling takes. Inductor keeps each choice in a file that is named after the kernel's source: here, it is named
    after the source without what PDL adds. Where inductor has these functions no more, or others, both are tuned.
    """
    import torch._inductor.config
    from torch._inductor.runtime import autotune_cache, runtime_utils

    torch._inductor.config.compile_threads = 1  # helper processes would look for the files under their old names
    cache = autotune_cache.AutotuneCache
    known = all(hasattr(cache, name) for name in ("create", "_prepare_key", "_setup_local_cache"))
    if not known or list(inspect.signature(cache._setup_local_cache).parameters)[2:] != ["dirname", "cache_key"]:
        print("torch.compile's kernels are tuned twice, with and without PDL: that takes longer", flush=True)
        return
    prepare, set_up = cache._prepare_key, cache._setup_local_cache
    folder = pathlib.Path(runtime_utils.cache_dir()) / "tuned_once"

    def key_of(filename):
        try:
            source = pathlib.Path(filename).read_text(encoding="utf-8")
        except OSError:
            return prepare(filename)
        return hashlib.sha256(without_pdl(source).encode()).hexdigest()

    def in_one_folder(self, inductor_meta, dirname, key):
        folder.mkdir(parents=True, exist_ok=True)
        set_up(self, inductor_meta, str(folder), key)

    cache._prepare_key = staticmethod(key_of)
    cache._setup_local_cache = in_one_folder


def without_pdl(source):
    """The source of a Triton kernel without what TORCHINDUCTOR_ENABLE_PDL=1 adds to it."""
    lines = [line for line in source.splitlines() if not line.strip().startswith("tl.extra.cuda.gdc_")]
    return "\n".join(lines).replace("'launch_pdl': True", "'launch_pdl': False")


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
    """In each process: what measures waits for its turn."""
    from torch._inductor.runtime.benchmarking import benchmarker

    measure = benchmarker.benchmark

    def in_turn(*arguments, **more):
        with lock:
            return measure(*arguments, **more)

    benchmarker.benchmark = in_turn


def _compile(name):
    case = grid.parse(name)
    for candidate in compiled_sums(case, starts_early()):
        with contextlib.suppress(Exception):  # the race will meet the same error, and record it
            candidate.fn(case.view(torch.zeros(case.elements, dtype=case.dtype, device="cuda")), None)
            torch.cuda.synchronize()
    torch.cuda.empty_cache()


# --- do the answers agree -----------------------------------------------------------------------------------


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


def environment(file=None, device=None):
    """Facts that a result depends on besides the code under test, and the hashes of that code.

    `file` is the one of bench/results that they are for; `device` "cpu" where a GPU is there, but not measured.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    facts = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "csrc": provenance.csrc_hash(),
        "sources": provenance.hashes_of(file, device),
        "cpu_name": processor(),
        "cpu_threads": torch.get_num_threads(),
    }
    if device == "cpu":
        return facts | {"gpu": None}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return facts | {
        "gpu": properties.name,
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
    }
