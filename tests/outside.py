"""Sums views whose first or last byte is next to a page that nothing may read: a read outside them ends the process.

Run by test_layouts.py, once for each instruction set of the CPU; on Linux.
"""

import ctypes
import mmap

import torch

import torch_reduce
from support import DTYPES, assert_same_bits, data

PAGE = mmap.PAGESIZE
PROT_NONE = 0
mprotect = ctypes.CDLL(None, use_errno=True).mprotect
# Sizes of a contiguous tensor, and the dims that are summed: whole chunks, rests, and pieces of all lengths; of those
# also more than a core's cache holds.
VIEWS = [((n,), [0]) for n in (1, 7, 511, 513, 4095, 4097, 9001)]
VIEWS += [((5, n), [1]) for n in (3, 17, 100, 513, 1301, 4099)] + [((n, 5), [0]) for n in (3, 9, 513, 4099)]
VIEWS += [((n, 70), [0]) for n in (3, 9, 513)] + [((9, 515), [0]), ((3, 700, 5), [1])]
VIEWS += [
    ((b, c, n), [0, 2]) for b, c, n in ((30, 7, 49), (5, 6, 196), (21, 3, 400), (3, 9, 784), (9, 1, 17), (4, 5, 8))
]
VIEWS += [((2800, 9, 49), [0, 2]), ((700, 9, 196), [0, 2])]


def enclosed(size):
    """Memory between two pages that cannot be read, and the offsets of so many bytes at its start and at its end."""
    pages = -(-size // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (0, pages + 1):
        if mprotect(ctypes.c_void_p(address + page * PAGE), ctypes.c_size_t(PAGE), PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    return memory, (PAGE, (pages + 1) * PAGE - size)


def main():
    torch.set_num_threads(1)
    for name in DTYPES:
        for sizes, dims in VIEWS:
            x = data(sizes, name, seed=7)
            wanted = torch_reduce.sum(x, dims)
            memory, offsets = enclosed(x.nbytes)
            for offset in offsets:
                view = torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=offset).view(sizes)
                view.copy_(x)
                assert_same_bits(torch_reduce.sum(view, dims), wanted, (name, sizes, dims, offset))
    print("nothing outside was read")


if __name__ == "__main__":
    main()
