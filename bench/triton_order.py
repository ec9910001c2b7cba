"""Times kernels in Triton that add in the contract's order, beside the same ones with tl.sum, and beside the library.

    python bench/triton_order.py                  sums of x * 1.5 over rows, and rms_norm of x + residual times a weight
    python bench/triton_order.py --only rms_norm  one of both
    python bench/triton_order.py --all            every launch, not the fastest one of each kernel alone

GPU time between kernels that do not start early, cold (bench/timing.py). Each kernel is launched with several numbers
of warps and of rows per program; before it is timed, its bits are compared with the library's. "block" holds whole rows
in registers, "tiles" loads 512 elements of each row at a time. The library's sum reads x alone, without the product.
"""

import argparse
import itertools
import sys

import torch
import triton
import triton.language as tl

import timing
import torch_reduce
import torch_reduce.triton as ordered

SHAPES = ((16_384, 4096), (16_384, 4095), (65_536, 768), (65_536, 1001), (262_144, 128), (524_288, 64), (4096, 50_257))
SHAPES += ((2048, 128_256),)
EPS = 1e-5
LEAST, MOST = 8, 64  # elements of a block per thread: one load of halves, and what fits the registers


@triton.jit
def block_sum(x, y, n, s, ORDERED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    e = tl.load(x + row[:, None] * n + column, column < n, other=0.0).to(tl.float32) * s
    if ORDERED:
        tl.store(y + row, ordered.sum(e, column < n))
    else:
        tl.store(y + row, tl.sum(e, 1))


@triton.jit
def scaled(column, mask, arguments):
    x, row, n, s = arguments
    return tl.load(x + row * n + column, mask, other=0.0).to(tl.float32) * s


@triton.jit
def tiled_sum(x, y, n, s, ORDERED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    if ORDERED:
        tl.store(y + row, ordered.reduce_rows(scaled, (x, row[:, None], n, s), n, ROWS, BLOCK))
    else:
        WIDTH: tl.constexpr = min(BLOCK, 2048)
        total = tl.zeros((ROWS, WIDTH), tl.float32)
        for begin in range(0, n, WIDTH):
            column = begin + tl.arange(0, WIDTH)[None, :]
            total += scaled(column, column < n, (x, row[:, None], n, s))
        tl.store(y + row, tl.sum(total, 1))


@triton.jit
def rms_norm(x, residual, weight, y, h, n, eps, ORDERED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    there = column < n
    at = row.to(tl.int64) * n + column
    e = tl.load(x + at, there, other=0.0).to(tl.float32) + tl.load(residual + at, there, other=0.0).to(tl.float32)
    e = e.to(h.dtype.element_ty)
    tl.store(h + at, e, there)
    e = e.to(tl.float32)
    if ORDERED:
        r = ordered.divide(1.0, ordered.square_root(ordered.divide(ordered.sum(e * e, there), n) + eps))
    else:
        r = tl.rsqrt(tl.sum(e * e, 1) / n + eps)
    w = tl.load(weight + column, there).to(tl.float32)
    tl.store(y + at, ((e * r[:, None]) * w).to(y.dtype.element_ty), there)


def launches(rows, width):
    """(rows in a program, warps) that fit blocks of rows of this width."""
    for many, warps in itertools.product((1, 4, 16, 32), (1, 2, 4, 8)):
        if rows % many == 0 and LEAST <= many * width // (32 * warps) <= MOST:
            yield many, warps


def candidates(kernels, call, rows, n, right):
    """A candidate for each kernel, order and launch; those with the contract's order have the library's bits first."""
    for (name, (kernel, width)), exact in itertools.product(kernels.items(), (True, False)):
        for many, warps in launches(rows, width):
            options = {"ORDERED": exact, "ROWS": many, "BLOCK": triton.next_power_of_2(n), "num_warps": warps}
            options["enable_fp_fusion"] = not exact

            def run(view, out, kernel=kernel, grid=(rows // many,), options=options):
                return call(kernel[grid], view, out, options)

            title = f"{name} {'ordered' if exact else 'tl.sum'} rows={many} warps={warps}"
            if exact:
                right(run, title)
            yield timing.Candidate(title, run)


def sum_race(rows, n):
    base = torch.randn(rows * n, device="cuda").bfloat16()
    x = base.view(rows, n)
    wanted = torch_reduce.sum(x.float() * 1.5, 1)

    def right(run, title):
        got = torch.empty(rows, device="cuda")
        run(x, got)
        if not got.equal(wanted):
            sys.exit(f"WRONG: {title} of ({rows}, {n}): {(got != wanted).sum().item()} of {rows} sums differ")

    kernels = {"tiles": (tiled_sum, min(512, triton.next_power_of_2(n)))}
    if n <= 8192:
        kernels = {"block": (block_sum, triton.next_power_of_2(n))} | kernels
    ours = timing.Candidate("library", lambda view, out: torch_reduce.sum(view, 1, dtype=torch.float32, out=out))
    made = candidates(kernels, lambda go, view, out, options: go(view, out, n, 1.5, **options), rows, n, right)
    buffers = timing.Buffers(base, lambda flat: flat.view(rows, n))
    return [ours, *made], buffers, lambda: torch.empty(rows, device="cuda")


def norm_race(rows, n):
    base = torch.randn(2 * rows * n, device="cuda").bfloat16()
    weight = torch.rand(n, device="cuda").bfloat16()

    def call(go, view, out, options):
        return go(view[0], view[1], weight, out[0], out[1], n, EPS, **options)

    def library(view, out):
        return torch_reduce.rms_norm(view[0], n, weight, EPS, residual=view[1])[0]

    x = base.view(2, rows, n)
    wanted = torch.stack(torch_reduce.rms_norm(x[0], n, weight, EPS, residual=x[1]))

    def right(run, title):
        got = torch.empty_like(x)
        run(x, got)
        if not got.equal(wanted):
            sys.exit(f"WRONG: {title} of ({rows}, {n}): {(got != wanted).sum().item()} elements differ")

    made = candidates({"block": (rms_norm, triton.next_power_of_2(n))}, call, rows, n, right)
    buffers = timing.Buffers(base, lambda flat: flat.view(2, rows, n))
    return [timing.Candidate("library", library), *made], buffers, lambda: torch.empty_like(x)


def tell(title, race, every):
    """The fastest launch of each kernel and order, or all."""
    timings, best = race.timings(), {}
    for name, took in sorted(timings.items(), key=lambda item: item[1].us):
        best.setdefault(name.partition(" rows=")[0], (name, took.us))
    print(title, *(f"  {us:9.2f} µs  {name}" for name, us in best.values()), sep="\n", flush=True)
    if every:
        print(*(f"    {took.us:9.2f} µs  {name}" for name, took in timings.items()), sep="\n", flush=True)
    for name, error in race.failed.items():
        print(f"    {name}: {error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("sum", "rms_norm"), help="measure these alone")
    parser.add_argument("--all", action="store_true", help="print every launch")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench/triton_order.py needs an NVIDIA GPU")
    for name, make in {"sum": sum_race, "rms_norm": norm_race}.items():
        for rows, n in SHAPES:
            if options.only in (None, name) and (name == "sum" or n <= 8192):
                tell(f"{name} of ({rows}, {n}) bfloat16", timing.Race(*make(rows, n)).run(7), options.all)
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
