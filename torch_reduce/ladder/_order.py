"""``try --order``: has a kernel's sum the bits of the library's, and if not, which addition came in another order?

The kernel is run once more with numbers that know how they were made: history.h. `float` becomes a type of the same
size, in which each addition leaves its two operands, its thread and its line; the result's history is then compared
with the order of docs/order.md, and the first addition of another order is told. Bits are compared without that type.
"""

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path

from torch_reduce.ladder import _emulate, _translate
from torch_reduce.ladder._try import Kernel, listed

# One element, one lane more than 512, one chunk, a chunk and one element, and a tree with odd levels.
SIZES = (1, 513, 4096, 4097, 10_007, 40_000)
BLOCKS = (512,)  # the lanes; --block tells another
# What stands for a type or a function whose numbers know their history.
INSTEAD = {
    "float": "::emulate::Float", "double": "::emulate::Double", "volatile": "",
    "float2": "::emulate::Float2", "float4": "::emulate::Float4", "double2": "::emulate::Double2",
    "make_float2": "::emulate::make_Float2", "make_float4": "::emulate::make_Float4",
    "make_double2": "::emulate::make_Double2",
    "__float_as_int": "::emulate::float_as_int", "__int_as_float": "::emulate::int_as_float",
    "__double_as_longlong": "::emulate::double_as_longlong", "__longlong_as_double": "::emulate::longlong_as_double",
}  # fmt: skip


@dataclass
class Order:
    """What comparing a kernel's order found.

    Attributes:
        sizes: those that were tried.
        bits: {size: (the sum, the contract's)} where their bits differ.
        minus_zeros: the same of elements that are all -0.0.
        first: the first addition of another order, or None; `at` is the size at which it was found.
        others, additions: how many additions of the result are not the contract's, of how many.
        zeros: an addition of 0.0, which spoils a sum of -0.0, or None.
        unknown: why the additions cannot be followed, or empty.
    """

    sizes: tuple[int, ...]
    bits: dict[int, tuple[float, float]] = field(default_factory=dict)
    minus_zeros: dict[int, tuple[float, float]] = field(default_factory=dict)
    first: _emulate.Finding | None = None
    at: int = 0
    others: int = 0
    additions: int = 0
    zeros: _emulate.Finding | None = None
    unknown: str = ""

    @property
    def right(self) -> bool:
        """The bits of the contract, for all sizes, by its additions."""
        return not (self.bits or self.minus_zeros or self.first or self.zeros)


def with_history(kernel: Kernel) -> Kernel:
    """The kernel, adding numbers that know their history; its lines stay where they are."""
    code = _translate.blanked(kernel.text)
    pieces, at = [], 0
    for found in re.finditer(r"\b(?:" + "|".join(INSTEAD) + r")\b", code):
        pieces += [kernel.text[at : found.start()], INSTEAD[found[0]]]
        at = found.end()
    text = "".join([*pieces, kernel.text[at:]])
    element = INSTEAD[kernel.element]
    translation = _translate.translate(text, str(kernel.file), 100_000)
    return dataclasses.replace(kernel, text=text, element=element, result=element, translation=translation)


def compare(
    kernel: Kernel, program: Path, elements: int, partials: bool, block: int = 512, sizes: tuple[int, ...] = SIZES
) -> Order:
    """Compares the sums' bits with the contract's, then the additions.

    Args:
        kernel, program: the kernel, whose sums are right, and its program.
        elements, partials: per thread; whether it leaves one sum a block. The blocks' sums are then joined as the
            contract joins chunks, by nearest neighbours.
        block: threads per block.
        sizes: the numbers of elements to try, of a kernel that takes n; otherwise whole chunks.

    Raises:
        ValueError: results of another type than the elements.
    """
    if kernel.result != kernel.element:
        raise ValueError(
            f"--order: {kernel.name} writes {kernel.result}; it has to write {kernel.element}, which it adds"
        )
    sizes = sizes if kernel.counts else (1 << 15,)
    choices = {"block": block, "elements": elements, "partials": int(partials)}
    found = Order(sizes)
    shown: dict[str, tuple[int, bool]] = {}  # the smallest run of a kind with other bits
    for size in reversed(sizes):
        for kind, kept in (("1", found.bits), ("zeros", found.minus_zeros)):
            for descending in (True, False):
                run = kernel.run(program, size=size, order=kind, descending=descending, **choices)
                if run.found.hex() != run.wanted.hex():
                    kept[size], shown[kind] = (run.found, run.wanted), (size, descending)
    try:
        followed = with_history(kernel)
        program = followed.build('#include "history.h"', ("history.cpp",))
    except _emulate.CannotEmulate as error:
        found.unknown = f"where numbers know their history, it does not compile: {error}"
        return found
    # Where the bits of sums are right, the largest has every kind of addition; only then a zero counts.
    runs = [shown["1"]] if found.bits else [(sizes[-1], False), *([shown["zeros"]] if found.minus_zeros else [])]
    for size, descending in runs:
        run = followed.run(program, size=size, order="1", descending=descending, **choices)
        if not run.order:
            found.unknown = str(run.fault)
            return found
        found.at, found.additions, found.others = size, run.order["additions"], run.order["others"]
        found.first, found.zeros = run.order["first"], run.order["zeros"]
        if found.first:
            break
    return found


def report(found: Order, partials: bool) -> list[str]:
    """The lines about the order."""
    lines = ["", "order of additions, against the contract (docs/order.md):"]
    if partials:
        lines.append("the blocks' sums are joined by nearest neighbours, as chunks are")
    for kept, of in ((found.bits, ""), (found.minus_zeros, " that are -0.0")):
        if kept:
            sizes, (mine, theirs) = sorted(kept), kept[min(kept)]
            which = "all sizes" if 1 < len(sizes) == len(found.sizes) else f"{listed(sizes)} elements"
            lines.append(
                f"  other bits for {which}{of}; for {sizes[0]:,}: {mine.hex()}, and the contract's {theirs.hex()}"
            )
            break
    else:
        lines.append(f"  the contract's bits for {listed(list(found.sizes))} elements")
    at = f"  {found.at:,} element{'s' * (found.at > 1)}: "
    if found.unknown:
        return [*lines, f"  its additions cannot be followed: {found.unknown}"]
    if found.first:
        which = (
            f"the first of {found.others:,} in another order, of {found.additions:,}" if found.others else "the result"
        )
        lines += [f"{at}{which}:", f"  {found.first}"]
    elif found.zeros:
        lines += [f"{at}the order of additions is the contract's, but", f"  {found.zeros}"]
        lines.append("  -0.0 + 0.0 is 0.0: start from -0.0, which changes no sum")
    else:
        lines.append(f"{at}each of its {found.additions:,} additions is the contract's")
    return lines
