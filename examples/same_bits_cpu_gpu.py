"""The same sums on the CPU and on a GPU: torch.sum's bits depend on the device, torch_reduce.sum's do not.

    python examples/same_bits_cpu_gpu.py [--device cuda] [--small]

Without a GPU it compares the CPU's threads with one thread alone.
"""

import contextlib
import sys

import torch
from _options import name_of, parser, table

import torch_reduce

LAYOUTS = {
    "rows": lambda x: (x, 1),
    "columns": lambda x: (x, 0),
    "all": lambda x: (x, None),
    "every third": lambda x: (x[:, ::3], 1),
    "transposed": lambda x: (x.t(), 0),
    "images": lambda x: (x.view(len(x), -1, 4, 5), (0, 2, 3)),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.int32)
SUMS = {"torch.sum": torch.sum, "torch_reduce.sum": torch_reduce.sum}


@contextlib.contextmanager
def one_thread():
    """torch's CPU kernels on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def elsewhere(sum, x, layout, device):
    """The sum on the GPU, or, where there is none, on one thread."""
    with one_thread() if device.type == "cpu" else contextlib.nullcontext():
        return sum(*layout(x.to(device))).cpu()


def differing(a, b):
    """How many results differ, in any bit."""
    a, b = (t.contiguous().view(-1, 1).view(torch.uint8) for t in (a, b))
    return int((a != b).any(1).sum())


def compare(shape, device):
    """(what, how many results, how many differ with each sum), as it becomes known."""
    generator = torch.Generator().manual_seed(0)
    for dtype in DTYPES:
        x = (torch.randn(shape, generator=generator, dtype=torch.float64) * 100).to(dtype)
        for name, layout in LAYOUTS.items():
            here = [sum(*layout(x)) for sum in SUMS.values()]
            there = [elsewhere(sum, x, layout, device) for sum in SUMS.values()]
            what = f"{str(dtype).removeprefix('torch.')} {name}"
            yield what, here[0].numel(), *(differing(a, b) for a, b in zip(here, there, strict=True))


def main():
    options = parser(__doc__).parse_args()
    shape = (60, 1000) if options.small else (1000, 20_000)
    pair = "CPU: all threads and one" if options.device.type == "cpu" else f"CPU and {name_of(options.device)}"
    totals = [0] * (1 + len(SUMS))

    def lines():
        for what, *counts in compare(shape, options.device):
            totals[:] = [total + count for total, count in zip(totals, counts, strict=True)]
            yield what, *counts

    print(f"Results that differ, in any bit. {pair}\n")
    table(["", "results", *SUMS], lines())
    of, *different = totals
    print("\n" + ", ".join(f"{name}: {n} of {of} differ" for name, n in zip(SUMS, different, strict=True)))
    if different[1]:
        sys.exit("torch_reduce.sum has other bits elsewhere: that must not be")


if __name__ == "__main__":
    main()
