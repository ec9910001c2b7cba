"""One row's sum, while the batch around it grows: how many different results does it have?

    python examples/batch_invariance.py [--figure docs/images/batch-invariance.svg] [--device cuda] [--small]

The row always holds the same elements. A sum whose order of additions depends on the batch gives it other bits.
"""

import pathlib

import torch
from _options import name_of, parser

import torch_reduce

# name -> (the tensor of a batch of rows, which dim is summed): the first result is the row's
LAYOUTS = {
    "rows: (batch, n), dim 1": (lambda rows: rows, 1),
    "columns: (n, batch), dim 0": (lambda rows: rows.t().contiguous(), 0),
    "time: (batch, n / 8, 8), dim 1": (lambda rows: rows.view(len(rows), -1, 8), 1),
}
DTYPES = (torch.float32, torch.bfloat16)
SUMS = {"torch.sum": torch.sum, "torch_reduce.sum": torch_reduce.sum}


def batches(most):
    """1, 2, 3, 4, 6, 8, 12, ... up to `most`."""
    sizes = {1 << i for i in range(13)} | {3 << i for i in range(11)}
    return sorted(size for size in sizes if size <= most)


def patterns(sum, layout, rows, sizes):
    """For every batch size, the number of the row's result: equal bits have equal numbers, in order of appearance."""
    view, dim = LAYOUTS[layout]
    seen = {}
    for size in sizes:
        bits = (
            sum(view(rows[:size]), dim)
            .flatten()[0]
            .cpu()
            .view(torch.int16 if rows.element_size() == 2 else torch.int32)
        )
        seen.setdefault(size, bits.item())
    order = list(dict.fromkeys(seen.values()))
    return [order.index(bits) for bits in seen.values()]


# --- the figure -------------------------------------------------------------------------------------------------------

CELL, LABEL, LINE = 24, 290, 22
COLOURS = ["#2e86c1", "#e67e22", "#27ae60", "#8e44ad", "#c0392b", "#f1c40f", "#16a085", "#7f8c8d", "#d35400", "#2c3e50"]


def figure(title, sizes, found):
    """SVG: a line a sum and a cell a batch size, coloured and numbered by the result's bits."""
    parts, y = [f'<text x="12" y="22" font-size="14" font-weight="bold">{title}</text>'], 40
    for i, size in enumerate(sizes):
        parts.append(
            f'<text x="{LABEL + i * CELL + CELL / 2}" y="{y + 8}" font-size="8" text-anchor="middle">{size}</text>'
        )
    y += 14
    for (layout, dtype), sums in found.items():
        parts.append(f'<text x="12" y="{y + 15}" font-weight="bold">{layout}, {dtype}</text>')
        y += LINE
        for name, numbers in sums.items():
            different = len(set(numbers))
            parts.append(f'<text x="24" y="{y + 15}">{name}: {different} result{"s" * (different > 1)}</text>')
            for i, number in enumerate(numbers):
                x = LABEL + i * CELL
                fill = COLOURS[number % len(COLOURS)]
                parts.append(f'<rect x="{x}" y="{y}" width="{CELL - 1}" height="{LINE - 2}" fill="{fill}"/>')
                parts.append(
                    f'<text x="{x + CELL / 2}" y="{y + 14}" font-size="9" text-anchor="middle" fill="#ffffff">'
                    f"{number + 1}</text>"
                )
            y += LINE
        y += 6
    width = LABEL + len(sizes) * CELL + 12
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + 6}" width="{width}" height="{y + 6}" '
        f'role="img" font-family="Helvetica, Arial, sans-serif" font-size="11" fill="#222222">'
    )
    background = f'<rect width="{width}" height="{y + 6}" fill="#ffffff"/>'
    return "\n".join([head, f"<title>{title}</title>", background, *parts, "</svg>"]) + "\n"


def main():
    made = parser(__doc__)
    made.add_argument("--figure", type=pathlib.Path, help="where to write the picture (SVG)")
    options = made.parse_args()
    n, sizes = (4000, batches(48)) if options.small else (16_000, batches(4096))
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(sizes[-1], n, generator=generator).to(options.device)

    print(f"| a row of {n} elements on {name_of(options.device)}, batch 1 to {sizes[-1]} | {' | '.join(SUMS)} |")
    print("| :-- | --: | --: |")
    found = {}
    for dtype in DTYPES:
        for layout in LAYOUTS:
            given = {name: patterns(sum, layout, rows.to(dtype), sizes) for name, sum in SUMS.items()}
            found[layout, str(dtype).removeprefix("torch.")] = given
            counts = " | ".join(str(len(set(numbers))) for numbers in given.values())
            print(f"| {layout}, {str(dtype).removeprefix('torch.')} | {counts} |", flush=True)
    if options.figure:
        where = f"{name_of(options.device)}, torch {torch.__version__.split('+')[0]}"
        title = f"The bits of one row's sum while the batch grows: {where}, n = {n}"
        options.figure.write_text(figure(title, sizes, found), encoding="utf-8")
        print(f"written: {options.figure}")


if __name__ == "__main__":
    main()
