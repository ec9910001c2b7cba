"""Runs every kind of CUDA kernel once on small views, for compute-sanitizer to watch:

    compute-sanitizer --tool memcheck python tools/sanitize.py      (also racecheck, initcheck)
    compute-sanitizer --tool synccheck --num-cuda-barriers 65536 python tools/sanitize.py

Every input is an allocation of its own, exactly as large as its view, so that reading one element too far is seen.
Results are compared with the CPU's.
"""

import argparse
import os

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"

import torch

import torch_reduce  # noqa: F401

SHAPES = [  # sizes, reduced dims, tuning: every kernel, with joins and without, whole vectors and tails
    ((1,), [0]),
    ((40, 7), [1]),
    ((1000, 2), [1]),
    ((777, 100), [1]),
    ((1003, 3), [1]),
    ((2001, 8), [1]),
    ((777, 101), [1]),
    ((300, 513), [1]),
    ((33, 128), [1]),
    ((5, 1000), [1]),
    ((300, 1024), [1]),
    ((37, 301), [1]),
    ((37, 511), [1]),
    ((37, 1025), [1]),
    ((37, 2047), [1]),
    ((301, 16), [1]),
    ((301, 64), [1]),
    ((40, 12304), [1]),
    ((3, 4097), [1]),
    ((2, 40000), [1]),
    ((262147,), [0]),
    ((8, 520), [0]),
    ((700, 96), [0]),
    ((5000, 4), [0]),
    ((9000, 130), [0]),
    ((4099, 67), [0]),
    ((4099, 1031), [0]),
    ((40000, 7), [0]),
    ((3, 4100, 12), [1]),
    ((3, 900, 40), [1]),
    ((4, 3, 12, 20), [0, 2, 3]),
    ((90, 3, 7, 7), [0, 2, 3]),
    ((9, 3, 1000), [0, 2]),
    ((41, 3, 100), [0, 2]),
    ((4, 3, 10, 3, 64), [0, 2, 4]),
    ((4, 3, 7, 3, 331), [0, 2, 4]),
    ((30, 3, 30, 88), [0, 2]),
    ((30, 3, 60, 45), [0, 2]),
    ((30, 3, 160, 12), [0, 2]),
    ((20, 4000), [0], "kernel=thin"),
    ((3, 40, 9, 96), [0, 2], "kernel=thin"),
    ((9000, 128), [0], "kernel=panels,batches=4"),
    ((2048, 384), [0], "kernel=panels,tile_leaves=512,warps=2"),
    ((8193, 64), [0], "kernel=panels,tile_leaves=4096,warps=2"),
    ((9000, 130), [0], "kernel=columns,batches=4,tile_leaves=512,warps=2"),
    ((5000, 131), [0], "kernel=columns,tile_leaves=2048,warps=4"),
    ((5000, 4), [0], "kernel=narrow"),
    ((9000, 130), [0], "kernel=narrow"),
    ((40000, 7), [0], "kernel=narrow"),
    ((3, 4100, 12), [1], "kernel=narrow"),
    ((4099, 1031), [0], "vector=16"),
    ((9000, 121), [0], "vector=16,batches=4"),
    ((3, 8200), [1]),
    ((2, 100001), [1]),
    ((5, 12345), [1], "tile_leaves=512"),
    ((5, 12345), [1], "kernel=rows,tile_leaves=512"),
    ((4, 3, 7, 3, 331), [0, 2, 4], "kernel=rows"),
    ((3, 40000), [1], "tile_leaves=1024"),
    ((4, 12345), [1], "cluster=8,tile_leaves=512"),
    ((20480, 1), [0]),
    ((9000, 130), [0], "cluster=8,tile_leaves=512"),
    ((9000, 121), [0], "cluster=8,tile_leaves=512"),
    ((777, 45), [1], "width=1"),
    ((100, 33), [1], "width=1"),
    ((31, 13), [1], "width=1"),
    ((9, 5001), [1], "multiprocessors=1"),
    *(((27, n), [1], "multiprocessors=1") for n in (1025, 1040)),
]
VIEWS = [  # elements, how they are seen, reduced dims, tuning: two apart, nested dims, short columns; a row many times
    *((10 * n - 1, lambda x, n=n: x.as_strided((5, n), (2 * n, 2)), [1]) for n in (100, 700, 1500, 5001, 9001)),
    (5999, lambda x: x.as_strided((4, 3, 250), (1500, 500, 2)), [0, 2]),
    *(
        (26 * n + 20787, lambda x, n=n: x.as_strided((27, n, 13), (800, 26, 1)), [1, 2], "multiprocessors=1")
        for n in (9, 30)
    ),
    *((312 * n + 11401, lambda x, n=n: x.as_strided((5, n, 11, 13), (2860, 312, 26, 1)), [1, 2, 3]) for n in (3, 5, 9)),
    *((60 * n, lambda x, n=n: x.as_strided((n, 29), (60, 2)), [0]) for n in (900, 1900)),
    (39997, lambda x: x.as_strided((20, 999), (2000, 2)), [0], "multiprocessors=1"),
    (14994, lambda x: x.as_strided((100, 7, 4, 3), (150, 21, 5, 1)), [1, 2], "multiprocessors=1"),
    (300, lambda x: x.expand(5000, -1), [0]),
]
RINGS = [(40, 7), (1003, 3), (777, 100), (777, 101), (37, 301), (37, 511)]  # short rows of narrow elements
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool, torch.int64, torch.complex64]


def sums(dtype):
    """Every sum on the GPU, and the same on the CPU."""
    rings = [(sizes, [1], "kernel=ring_rows") for sizes in RINGS] if dtype.itemsize < 4 else []
    for sizes, dims, *tuning in [*SHAPES, *rings]:
        x = torch.randint(0, 100, sizes).to(dtype)
        for result in (None, torch.float64, torch.int32) if dtype is torch.float32 else (None,):
            tuning = tuning if result is None else []  # converted inputs have fewer kernels
            ours = torch.ops.gpureduce._sum_tuned(x.cuda(), dims, dtype=result, tuning="".join(tuning))
            yield ours, torch.ops.gpureduce.sum(x, dims, dtype=result)
    if dtype.is_floating_point:
        yield torch.ops.gpureduce.mean(x.cuda(), dims), torch.ops.gpureduce.mean(x, dims)
    for elements, view, dims, *tuning in VIEWS:
        x = torch.randint(0, 100, (elements,)).to(dtype)
        ours = torch.ops.gpureduce._sum_tuned(view(x.cuda()), dims, tuning="".join(tuning))
        yield ours, torch.ops.gpureduce.sum(view(x), dims)


def main():
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    runs = 0
    for dtype in DTYPES:
        for ours, theirs in sums(dtype):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0)
            runs += 1
    torch.cuda.synchronize()
    print(f"{runs} sums, all as on the CPU")


if __name__ == "__main__":
    main()
