"""The same sums on the CPU and on a GPU: torch.sum's bits depend on the device, torch_reduce.sum's do not.

    python examples/same_bits_cpu_gpu.py [--device cuda] [--small]

Without a GPU it compares the CPU's threads with one thread alone.
"""

import contextlib
import sys

import torch
from _options import name_of, parser

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
    yield
    torch.set_num_threads(before)


def elsewhere(sum, x, layout, device):
    """The sum on the other device, or, where that is the CPU, on one thread."""
    with one_thread() if device == "cpu" else contextlib.nullcontext():
        return sum(*layout(x.to(device))).cpu()


def differing(a, b):
    """How many results differ, in any bit."""
    size = a.element_size()
    a, b = (t.contiguous().view(torch.uint8).view(-1, size) for t in (a.reshape(-1), b.reshape(-1)))
    return int((a != b).any(1).sum())


def main():
    options = parser(__doc__).parse_args()
    shape = (60, 1000) if options.small else (1000, 20_000)
    generator = torch.Generator().manual_seed(0)
    other = "one thread" if options.device == "cpu" else name_of(options.device)
    print(f"| results that differ between the CPU and {other} | of | {' | '.join(SUMS)} |")
    print("| :-- | --: | --: | --: |")
    failed = False
    for dtype in DTYPES:
        real = torch.randn(shape, generator=generator, dtype=torch.float64) * 100
        x = real.to(dtype)
        for name, layout in LAYOUTS.items():
            here = {sum_name: sum(*layout(x)) for sum_name, sum in SUMS.items()}
            counts = {
                sum_name: differing(here[sum_name], elsewhere(sum, x, layout, options.device))
                for sum_name, sum in SUMS.items()
            }
            of = here["torch.sum"].numel()
            print(f"| {str(dtype).removeprefix('torch.')} {name} | {of} | {' | '.join(map(str, counts.values()))} |")
            failed |= counts["torch_reduce.sum"] > 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
