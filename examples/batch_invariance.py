"""One row's sum, while the batch around it grows: how many different results does it have?

    python examples/batch_invariance.py [--device cuda] [--small] [--save [FILE]]

The row always holds the same elements. Where the order of additions depends on the batch, its sum has other bits.
--save keeps the results as JSON, by default where `python bench/models_report.py` makes README's picture from them.
"""

import pathlib
import sys

import torch
from _options import name_of, parser, table

import torch_reduce

# what is summed -> (how it is made from a batch of rows, the dim): the first sum is always the first row's
LAYOUTS = {
    "rows: (batch, n), dim 1": (lambda rows: rows, 1),
    "columns: (n, batch), dim 0": (lambda rows: rows.t().contiguous(), 0),
    "time: (batch, n / 8, 8), dim 1": (lambda rows: rows.view(len(rows), -1, 8), 1),
}
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}
SUMS = {"torch.sum": torch.sum, "torch_reduce.sum": torch_reduce.sum}


def batches(most):
    """1, 2, 3, 4, 6, 8, 12, ... up to `most`."""
    sizes = {1 << i for i in range(13)} | {3 << i for i in range(11)}
    return sorted(size for size in sizes if size <= most)


def patterns(sum, layout, rows, sizes):
    """A number for each batch size: equal bits have equal numbers, from 0 on in order of appearance."""
    view, dim = LAYOUTS[layout]
    bits = [sum(view(rows[:size]), dim).flatten()[0].view(BITS[rows.dtype]).item() for size in sizes]
    order = list(dict.fromkeys(bits))
    return [order.index(b) for b in bits]


def measure(device, n, sizes):
    """An entry for each layout and dtype, as it becomes known."""
    rows = torch.randn(sizes[-1], n, generator=torch.Generator().manual_seed(0)).to(device)
    for dtype in BITS:
        for layout in LAYOUTS:
            found = {name: patterns(sum, layout, rows.to(dtype), sizes) for name, sum in SUMS.items()}
            yield {"layout": layout, "dtype": str(dtype).removeprefix("torch."), "patterns": found}


def main():
    made = parser(__doc__)
    made.add_argument("--save", type=pathlib.Path, nargs="?", const="", metavar="FILE", help="keep the results as JSON")
    options = made.parse_args()
    if options.small and options.save == pathlib.Path():
        made.error("small results have no place of their own: name a file, as in --save FILE")
    n, sizes = (4000, batches(48)) if options.small else (16_000, batches(4096))

    cases = []

    def lines():
        for case in measure(options.device, n, sizes):
            cases.append(case)
            yield f"{case['layout']}, {case['dtype']}", *(len(set(numbers)) for numbers in case["patterns"].values())

    print(f"Different results of one row's sum on {name_of(options.device)}, in batches of 1 to {sizes[-1]}; n = {n}\n")
    table(["", *SUMS], lines())
    if options.save is not None:
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
        import contenders
        import provenance

        facts = contenders.environment("batch_invariance.json", options.device.type)
        results = facts | {"n": n, "sizes": sizes, "cases": cases}
        provenance.save(results, "batch_invariance.json", options.save)
    if any(max(case["patterns"]["torch_reduce.sum"]) for case in cases):
        sys.exit("torch_reduce.sum has other bits in another batch: that must not be")


if __name__ == "__main__":
    main()
