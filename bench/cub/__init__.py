"""CUB's sums, kernels that only read and one that does nothing, built with nvcc at first use, called through ctypes.

`load()` compiles the `.cu` files of this folder for the current GPU into build/bench/, with the CUB of the toolkit that
torch_reduce is built with. CUB's workspace is allocated once a shape and stays outside every timed region, which is
generous to CUB: torch.sum and torch_reduce get theirs from the caching allocator in each call.
"""

import ctypes
import functools
import hashlib
import os
import pathlib
import subprocess
import sys

import torch

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = ROOT / "build" / "bench"

sys.path.append(str(ROOT / "tools"))
import toolkit  # noqa: E402  (which nvcc serves this torch is decided in one place)

SOURCES = ("cub_full.cu", "cub_rows.cu", "empty.cu", "read.cu")
HEADERS = ("cub_sum.cuh",)
FLAGS = ("-O3", "-std=c++17", "-Xcompiler", "-fPIC")
UNKNOWN_TYPE, TOO_LARGE = -1, -2


def build(arch, root=None):
    """Compiles the library for `arch` (such as "sm_90") unless that was done before; returns its path."""
    root = root or toolkit.find()
    if root is None:
        raise RuntimeError("no nvcc was found: set CUDA_HOME, or run tools/toolkit.py")
    nvcc = str(pathlib.Path(root) / "bin" / "nvcc")
    key = hashlib.sha256(" ".join([arch, toolkit.version(root) or "", *FLAGS]).encode())
    for source in (*SOURCES, *HEADERS):
        key.update((HERE / source).read_bytes())
    target = BUILD / f"libbench_{arch}_{key.hexdigest()[:12]}.so"
    if target.exists():
        return target
    BUILD.mkdir(parents=True, exist_ok=True)
    objects = [target.with_suffix(f".{pathlib.Path(source).stem}.o") for source in SOURCES]
    commands = [
        [nvcc, *FLAGS, f"-arch={arch}", "-c", str(HERE / source), "-o", str(obj)]
        for source, obj in zip(SOURCES, objects, strict=True)
    ]
    running = [subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for c in commands]
    for command, process in zip(commands, running, strict=True):
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{output}")
    partial = target.with_suffix(f".{os.getpid()}.tmp")
    libraries = pathlib.Path(root) / "lib"  # where PyPI's toolkit keeps libcudart_static.a
    link = [nvcc, f"-arch={arch}", "-shared", f"-L{libraries}", "-o", str(partial), *map(str, objects)]
    done = subprocess.run(link, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(link)} failed:\n{done.stdout}{done.stderr}")
    partial.replace(target)  # at once, so that nobody loads half a file
    for obj in objects:
        obj.unlink()
    return target


class Library:
    """The built library, on one device."""

    def __init__(self, path, device):
        self.c = ctypes.CDLL(str(path))
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
        temp = [pointer, ctypes.POINTER(size), pointer]
        data = [ctypes.c_char_p, ctypes.c_char_p, pointer, pointer]
        self.c.bench_cub_full.argtypes = [*data, number, *temp]
        self.c.bench_cub_rows.argtypes = [*data, number, number, *temp]
        self.c.bench_read_loads.argtypes = [pointer, number, *[ctypes.c_int] * 3, pointer, pointer]
        self.c.bench_read_bulk.argtypes = [pointer, number, *[ctypes.c_int] * 3, pointer]
        self.c.bench_launch_empty.argtypes = [*[ctypes.c_int] * 3, pointer, ctypes.POINTER(ctypes.c_double)]
        properties = torch.cuda.get_device_properties(device)
        self.multiprocessors = properties.multi_processor_count
        self.sink = torch.zeros(1024, dtype=torch.int32, device=device)
        names = ["loads 2 x8", "loads 8 x4", "loads 8 x5"]
        self.early = properties.major >= 9
        if self.early:
            names += ["bulk 16 x1", "bulk 8 x2", "bulk 8 x3"]
        self.variants = [name for name in names if self._runs(name)]
        version = self.c.bench_cub_version()
        self.version = f"{version // 100000}.{version // 100 % 1000}.{version % 100}"
        self.fixed_size = bool(self.c.bench_cub_fixed_size())

    # --- CUB ------------------------------------------------------------------------------------------------

    def sum_full(self, view, to):
        """fn(buffer, out) that sums contiguous tensors like `view` with DeviceReduce to dtype `to`, or None."""
        return self._planned(self.c.bench_cub_full, view, to, (view.numel(),))

    def sum_rows(self, view, to):
        """fn(buffer, out) that sums the rows of contiguous tensors like `view` with DeviceSegmentedReduce, or None."""
        return self._planned(self.c.bench_cub_rows, view, to, tuple(view.shape))

    def _planned(self, function, view, to, shape):
        names = [str(dtype).removeprefix("torch.").encode() for dtype in (view.dtype, to)]
        needed = ctypes.c_size_t(0)
        code = function(*names, None, None, *shape, None, ctypes.byref(needed), None)
        if code in (UNKNOWN_TYPE, TOO_LARGE):
            return None
        _check(code, "asking CUB for its workspace")
        workspace = torch.empty(max(1, needed.value), dtype=torch.uint8, device=view.device)

        def run(buffer, out):
            stream = torch.cuda.current_stream().cuda_stream
            temp = workspace.data_ptr()
            code = function(*names, buffer.data_ptr(), out.data_ptr(), *shape, temp, ctypes.byref(needed), stream)
            _check(code, "CUB's sum")

        return run

    # --- only reading ---------------------------------------------------------------------------------------

    def read_variants(self):
        """The reading kernels that run here: what they use, how many of it in flight, x blocks a multiprocessor."""
        return self.variants

    def _runs(self, variant):
        try:
            self.read(variant, self.sink.data_ptr(), self.sink.numel() * 4)
        except RuntimeError as error:
            print(f"left out: {error}", flush=True)
            return False
        return True

    def read(self, variant, address, nbytes):
        """Enqueues the reading of `nbytes` at `address` (a multiple of 16) on the current stream."""
        kind, in_flight, blocks = variant.split()
        in_flight, blocks = int(in_flight), int(blocks[1:]) * self.multiprocessors
        stream = torch.cuda.current_stream().cuda_stream
        if kind == "bulk":
            code = self.c.bench_read_bulk(address, nbytes, in_flight, blocks, self.early, stream)
        else:
            code = self.c.bench_read_loads(address, nbytes, in_flight, blocks, self.early, self.sink.data_ptr(), stream)
        _check(code, f"the reading kernel '{variant}'")

    # --- only launching -------------------------------------------------------------------------------------

    def launch_empty(self, early, arguments, calls):
        """Host microseconds a launch of a kernel that does nothing; early: it may start as a sum's may; arguments:
        it has as many as a sum may have."""
        us = ctypes.c_double(0)
        stream = torch.cuda.current_stream().cuda_stream
        code = self.c.bench_launch_empty(early, arguments, calls, stream, ctypes.byref(us))
        _check(code, "launching the empty kernel")
        return us.value


def _check(code, what):
    if code:
        raise RuntimeError(f"{what} returned CUDA error {code}")


@functools.cache
def load(device=None):
    """The library for the current GPU (or `device`), compiled if need be."""
    device = torch.cuda.current_device() if device is None else device
    major, minor = torch.cuda.get_device_capability(device)
    return Library(build(f"sm_{major}{minor}"), device)
