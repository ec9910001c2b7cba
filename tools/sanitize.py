"""Runs every plan of small sums, and all other operations, so that every CUDA kernel runs, for compute-sanitizer:

    compute-sanitizer --tool memcheck python tools/sanitize.py      (also racecheck, initcheck)
    compute-sanitizer --tool synccheck --num-cuda-barriers 65536 python tools/sanitize.py

Every input is an allocation of its own, exactly as large as its view, so that reading one element too far is seen.
Results are compared with the CPU's. It takes a few minutes a tool; --part 1/4 runs a quarter, --only norms one kind.
"""

import argparse
import os

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"

import torch

import torch_reduce

# Elements, sizes, strides, offset, and the dims that are summed.
VIEWS = []


def view(sizes, dims, strides=None, offset=0):
    strides = strides or torch.empty(sizes, device="meta").stride()
    elements = offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    VIEWS.append((elements, sizes, strides, offset, dims))


for n in (7, 33, 100, 128, 301, 511, 513, 1000, 1025, 2047, 4097, 12304, 40000):
    view((37, n), [1])  # rows
    view((9, n), [1], offset=1)  # at odd addresses
    view((5, n), [1], (2 * n, 2))  # two apart
for sizes in ((1,), (262147,), (1000, 2), (1003, 3), (2001, 8), (301, 16), (301, 64), (20480, 1)):
    view(sizes, [len(sizes) - 1])
for rows, columns in ((8, 520), (20, 4000), (700, 96), (5000, 4), (9000, 130), (4099, 67), (4099, 1031), (40000, 7)):
    view((rows, columns), [0])
    view((rows, columns), [0], offset=1)
    view((rows, columns // 2), [0], (columns, 2))
for sizes in ((3, 4100, 12), (3, 900, 40), (5, 300, 30), (40, 17, 3)):
    view(sizes, [1])
    view(sizes, [1], offset=3)
for sizes in ((4, 3, 12, 20), (90, 3, 7, 7), (3, 40, 9, 96)):
    view(sizes, [0, 2, 3])
    view(sizes, [0, 2])
for sizes in ((9, 3, 1000), (41, 3, 100), (30, 3, 30), (30, 3, 160), (300, 9, 2)):
    view(sizes, [0, 2])
view((4, 3, 10, 3, 64), [0, 2, 4])
view((4, 3, 7, 3, 331), [0, 2, 4])
view((27, 9, 13), [1, 2], (800, 26, 1))
view((5, 9, 11, 13), [1, 2, 3], (2860, 312, 26, 1))
view((100, 7, 4, 3), [1, 2], (150, 21, 5, 1))
view((5000, 300), [0], (0, 1))  # each element many times
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool, torch.int64, torch.complex64]


def on_both(dtype, view, below=100):
    """Integers below a number as such a view, on the CPU and on the GPU."""
    elements, sizes, strides, offset = view
    x = torch.randint(0, below, (elements,)).to(dtype)
    return [t.as_strided(sizes, strides, offset) for t in (x, x.cuda())]


def sums(views):
    """Each plan of each view's sum on the GPU, and the same on the CPU; converted sums and means too."""
    for dtype in DTYPES:
        for *view, dims in views:
            here, there = on_both(dtype, view)
            right = torch.ops.gpureduce.sum(here, dims)
            for k in range(torch.ops.gpureduce._plans(there, dims)):
                yield torch.ops.gpureduce._sum_tuned(there, dims, tuning=f"candidate={k}"), right
            if dtype is torch.float32:
                for how in ({"dtype": torch.float64}, {"dtype": torch.int32}):
                    yield torch.ops.gpureduce.sum(there, dims, **how), torch.ops.gpureduce.sum(here, dims, **how)
            if dtype.is_floating_point:
                yield torch.ops.gpureduce.mean(there, dims), torch.ops.gpureduce.mean(here, dims)


def norms(views):
    """Every norm of each view."""
    for dtype in (*DTYPES, torch.float16, torch.float8_e5m2):
        if not (dtype.is_floating_point or dtype.is_complex):
            continue
        for *view, dims in views:
            here, there = on_both(dtype, view)
            for ord in (0, 1, 2, 3, float("inf"), -float("inf")):
                yield [torch.ops.gpureduce.linalg_vector_norm(x, ord, dims) for x in (there, here)]


def exact(views):
    """Exact sums and their states, and exact sums of segments."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.float8_e5m2):
        for *view, dims in views:
            here, there = on_both(dtype, view)
            of = dict(dtype=torch.float32) if not dtype.is_floating_point else {}
            yield torch_reduce.sum(there, dims, exact=True, **of), torch_reduce.sum(here, dims, exact=True, **of)
            yield torch_reduce.exact.partial(there, dims), torch_reduce.exact.partial(here, dims)
        for length, columns in ((1, 1), (9001, 1), (3000, 3), (3000, 64)):
            x = torch.randint(0, 100, (length, columns)).to(dtype)
            for offsets in offsets_of(length):
                for layout in LAYOUTS:
                    pair = layout(x.cuda()), layout(x)
                    of = dict(dtype=torch.float32, exact=True)
                    yield [torch_reduce.segment_sum(t, offsets.to(t.device), **of) for t in pair]
                    yield [torch_reduce.segment_sum(t.t(), offsets.to(t.device), -1, **of) for t in pair]


def is_real(dtype):
    return not dtype.is_complex


def is_floating(dtype):
    return dtype.is_floating_point


def is_any(dtype):
    return True


KIN = {"prod": is_real, "nansum": is_real, "amax": is_real, "amin": is_real, "any": is_any, "all": is_any}
KIN |= {"argmax": is_real, "argmin": is_real, "count_nonzero": is_any, "logsumexp": is_real, "var_mean": is_floating}


def kin(views):
    """Every other operation of each view."""
    for dtype in (*DTYPES, torch.float16, torch.int16, torch.uint8):
        for *view, dims in views:
            here, there = on_both(dtype, view, below=3)
            for name, takes in KIN.items():
                if takes(dtype):
                    results = [getattr(torch_reduce, name)(x, dims) for x in (there, here)]
                    yield from zip(*results, strict=True) if name == "var_mean" else [results]


def weighted(views):
    """Weighted sums of each view: by as many weights, by a mask, and by a weight a row or a column."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32):
        for *view, dims in views:
            here, there = on_both(dtype, view)
            weights = [
                torch.randint(0, 100, shape).to(dtype) for shape in (here.shape, here.shape[-1:], (*here.shape[:-1], 1))
            ]
            for w in (*weights, torch.randint(0, 2, here.shape).bool()):
                yield torch_reduce.weighted_sum(there, w.cuda(), dims), torch_reduce.weighted_sum(here, w, dims)


def offsets_of(length):
    """Segments of one element, of all magnitudes, empty ones, and one of most elements."""
    generator = torch.Generator().manual_seed(1)
    ends = (length ** torch.rand(length // 50 + 1, generator=generator)).long().cumsum(0)
    cuts = [range(length + 1), ends[ends < length].tolist(), [7, 7, 7, 40], [3, length - 5]]
    return [torch.tensor([0, *(c for c in cut if 0 < c < length), length]) for cut in cuts]


LAYOUTS = (lambda x: x, lambda x: x.t().contiguous().t(), lambda x: x[:, ::2])


def segments(views):
    """Segments of rows and of columns, side by side and not, of each kind of dtype."""
    for dtype in (*DTYPES, torch.int16, torch.float8_e5m2):
        for length, columns in ((1, 1), (5000, 1), (70_001, 1), (9001, 3), (5000, 64), (4099, 130)):
            x = torch.randint(0, 100, (length, columns)).to(dtype)
            for offsets in offsets_of(length):
                for layout in LAYOUTS:
                    here, there = layout(x), layout(x.cuda())
                    for ends in (offsets, offsets.int()):
                        yield [torch_reduce.segment_sum(t, ends.to(t.device), 0) for t in (there, here)]
                if dtype.is_floating_point or dtype.is_complex:
                    yield [torch_reduce.segment_mean(t.t(), offsets.to(t.device), -1) for t in (there, here)]


def indices(views):
    """Sums, means and extrema by index, with plans and without, weights, gathers, and functions over segments."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int16):
        for length, columns, outputs in (
            (1, 1, 1),
            (5000, 1, 700),
            (40_001, 1, 3),
            (9001, 3, 9001),
            (5000, 64, 300),
            (4099, 130, 5),
        ):
            x = torch.randint(-50, 100, (length, columns)).to(dtype).squeeze(1 if columns == 1 else 0)
            index = torch.randint(0, outputs, (length,))
            weight = torch.randint(-3, 4, (length,)).to(dtype)
            for indexes in (index, index.int()):
                pair = [(t, indexes.to(t.device)) for t in (x.cuda(), x)]
                for f in (torch_reduce.index_sum, torch_reduce.index_amax, torch_reduce.index_amin):
                    yield [f(t, i, outputs) for t, i in pair]
                    yield [f(t, torch_reduce.index_plan(i, outputs)) for t, i in pair]
                yield [torch_reduce.index_sum(t, i, outputs, weight=weight.to(t.device)) for t, i in pair]
                most = min(outputs, length)
                yield [torch_reduce.embedding(i, t.reshape(length, -1)[:most].clone()) for t, i in pair]
                yield [torch_reduce.index_add(t[:most].clone(), 0, i % length, t) for t, i in pair]
            offsets = torch.tensor([0, 0, min(3, length), length // 2, length])
            for name in ("amax", "amin", "prod", "softmax", "logsumexp"):
                if name in ("softmax", "logsumexp") and not dtype.is_floating_point:
                    continue
                f = getattr(torch_reduce, f"segment_{name}")
                if length >= 6:
                    yield [f(t, offsets.to(t.device)) for t, _ in pair]


# Rows, their length, and the offset of the first one: all kernels, and every distance of both ends from 16 bytes.
ROWS = [
    (count, length, offset) for count, length in ((300, 7), (300, 100), (30, 4096), (3, 33_001)) for offset in (0, 1)
]
ROWS += [(3, length, offset) for length in range(1, 10) for offset in range(8)]
ROWS += [(2, n, 3 * n % 8) for most in (100, 512, 1024, 2048, 4099, 9003) for n in range(most - 7, most + 1)]
ROWS += [(1, 150_001, 1), (1, 600_003, 3)]


def placed(x, offset):
    """A copy of x on the GPU that ends where its allocation ends. Nobody has written the elements before it."""
    memory = torch.empty(offset + x.numel(), dtype=x.dtype, device="cuda")
    return memory[offset:].view(x.shape).copy_(x)


def rows(views):
    """Functions that keep their shape, and their gradients: rows of many lengths, at aligned and at odd addresses."""
    functions = {
        "softmax": lambda x, w, b: torch_reduce.softmax(x, 1),
        "log_softmax": lambda x, w, b: torch_reduce.log_softmax(x, 1),
        "logsumexp": lambda x, w, b: torch_reduce.logsumexp(x, 1),
        "log_prob": lambda x, w, b: torch_reduce.log_prob(x, torch.arange(len(x), device=x.device) % len(w)),
        "rms_norm": lambda x, w, b: torch_reduce.rms_norm(x, w.shape, w),
        "layer_norm": lambda x, w, b: torch_reduce.layer_norm(x, w.shape, w, b),
    }
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for count, length, offset in ROWS:
            of_weights = dtype if length % 2 else torch.float32
            there = [
                torch.randn(count, length).to(dtype),
                torch.randn(length).to(of_weights),
                torch.randn(length).to(of_weights),
            ]
            here = [placed(t, (offset + i) % 8) for i, t in enumerate(there)]
            for f in functions.values():
                results = [f(*(t.requires_grad_() for t in leaves)) for leaves in (here, there)]
                grad = torch.randn(results[1].shape).to(results[1].dtype)
                grads = [placed(grad, (offset + 3) % 8), grad]
                found = [
                    [y.detach(), *(g for g in torch.autograd.grad(y, leaves, dy, allow_unused=True) if g is not None)]
                    for y, leaves, dy in zip(results, (here, there), grads, strict=True)
                ]
                yield from zip(*found, strict=True)


LENGTHS = (0, 1, 7, 31, 128, 511, 513, 1000, 4095, 4097, 12_289, 40_000, 600_001)


def lists(views):
    """The sums of squares of tensors of many lengths and addresses in one launch; numbers as parameters; agreements."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for offset in (0, 1, 3):
            here = [torch.randint(0, 100, (n + offset,)).to(dtype) for n in LENGTHS]
            there = [x.cuda()[offset:] for x in here]
            for some in (slice(None), slice(0, 4), slice(-1, None)):
                lists = [torch.ops.gpureduce._foreach_powsum(t[some]) for t in (there, [x[offset:] for x in here])]
                yield from zip(*lists, strict=True)
            yield torch_reduce.get_total_norm(there), torch_reduce.get_total_norm([x[offset:] for x in here])
    for count in (1, 499, 500, 501, 1203):
        numbers = torch.arange(count)
        yield torch.ops.gpureduce._numbers(numbers.tolist(), torch.empty(0, device="cuda")), numbers
    for ranks in (1, 33, 700):
        notices = torch.zeros(256 * ranks, dtype=torch.uint8, device="cuda")
        report = torch.zeros(1 + 32 * ranks, dtype=torch.int64, pin_memory=True)
        torch.ops.gpureduce._expect_agreement(notices, notices[:256].clone(), report)
        yield report, torch.zeros_like(report)


KINDS = {"sums": sums, "norms": norms, "lists": lists, "kin": kin, "weighted": weighted, "segments": segments}
KINDS |= {"indices": indices, "rows": rows, "exact": exact}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="1/1", metavar="I/N", help="every Nth view, from the Ith on")
    parser.add_argument("--only", choices=list(KINDS), help="run this kind")
    options = parser.parse_args()
    part, parts = (int(n) for n in options.part.split("/"))
    for kind in [options.only] if options.only else KINDS:
        runs = 0
        for ours, theirs in KINDS[kind](VIEWS[part - 1 :: parts]):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0, equal_nan=True)
            runs += 1
        torch.cuda.synchronize()
        print(f"{runs} {kind}, all as on the CPU")


if __name__ == "__main__":
    main()
