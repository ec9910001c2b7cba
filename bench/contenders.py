"""Who is measured, on what, and whether the answers agree: shared by sum.py and tune.py."""

import datetime
import math
import pathlib
import platform
import subprocess
import sys

import torch

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
    return torch.ops.gpureduce.sum(view, dims(case))


def ours(case):
    op, dim = torch.ops.gpureduce.sum.out, dims(case)
    return Candidate("ours", lambda view, out: op(view, dim, False, out=out))


def torch_dtype(case):
    """The `dtype` that torch.sum has to be given; float8 it sums only when asked for another result."""
    return case.result_dtype() if case.dtype.is_floating_point and case.dtype.itemsize == 1 else None


def torch_sum(case, view):
    """torch.sum, or None where it lacks the dtype."""
    dim, dtype = dims(case), torch_dtype(case)

    def run(buffer, out):
        torch.sum(buffer, dim=dim, dtype=dtype, out=out)

    try:
        run(view, case.make_out(view.device))
    except (NotImplementedError, RuntimeError) as error:
        if "not implemented" in str(error).lower():
            return None
        raise
    return Candidate("torch", run)


def compiled_sum(case, view):
    """torch.compile of torch.sum, or None where it does not compile (it lacks some dtypes)."""
    dim, dtype = dims(case), torch_dtype(case)
    torch._dynamo.reset()
    run = torch.compile(lambda x: torch.sum(x, dim=dim, dtype=dtype), mode="max-autotune-no-cudagraphs", dynamic=False)
    try:
        run(view)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        print(f"    torch.compile does not do {case.name}: {str(error).splitlines()[0][:100]}", flush=True)
        return None
    return Candidate("compile", lambda buffer, _: run(buffer))


def cub_sum(case, view, library):
    """CUB's sum, or None where it has none for this layout or dtype."""
    if library is None or case.cub is None:
        return None
    run = library.sum_full(view) if case.cub == "full" else library.sum_rows(view)
    return Candidate("cub", run) if run else None


def load_cub():
    """The library of bench/cub, or None with a line that says what is then missing."""
    print("building bench/cub with nvcc, unless that was done before ...", flush=True)
    try:
        return cub.load()
    except (RuntimeError, OSError) as error:
        print(f"NO CUB AND NO READ CEILING in this run: {error}", flush=True)
        return None


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


def environment():
    """What a result depends on besides the code under test, and that code's hash."""
    facts = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "csrc": provenance.csrc_hash(),
    }
    if not torch.cuda.is_available():
        return facts | {"gpu": None, "cpu_threads": torch.get_num_threads()}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return facts | {
        "gpu": properties.name,
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
    }
