"""Sums views, and takes functions of rows, whose first or last byte is next to a page that nothing may read: a read
outside them ends the process.

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


ROWS = (1, 3, 17, 100, 513, 1301, 4097, 9001)  # lengths


def enclosed(size):
    """Memory between two pages that cannot be read, and the offsets of so many bytes at its start and at its end."""
    pages = -(-size // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (0, pages + 1):
        if mprotect(ctypes.c_void_p(address + page * PAGE), ctypes.c_size_t(PAGE), PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    return memory, (PAGE, (pages + 1) * PAGE - size)


def enclosed_copies(x):
    """A copy of a tensor at the start of such memory, and one at its end."""
    memory, offsets = enclosed(x.nbytes)
    for offset in offsets:
        yield torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=offset).view(x.shape).copy_(x)


def functions_of_rows(x, w, grad):
    """Results and gradients of softmaxes, norms and log_prob."""
    x, w, n = x.detach().requires_grad_(), w.detach().requires_grad_(), x.shape[1:]
    results = [torch_reduce.softmax(x, 1), torch_reduce.log_softmax(x, 1), torch_reduce.rms_norm(x, n, w)]
    results += [torch_reduce.layer_norm(x, n, w, w), torch_reduce.log_prob(x, torch.arange(len(x)) % n[0])]
    grads = [grad.to(y.dtype) if y.dim() == 2 else torch.ones_like(y) for y in results]
    return *results, *torch.autograd.grad(results, (x, w), grads)


def main():
    torch.set_num_threads(1)
    for name in ("float32", "float64", "float16", "bfloat16"):
        for n in ROWS:
            given = data((5, n), name, seed=7), data((n,), name, seed=8), data((5, n), name, seed=9)
            wanted = functions_of_rows(*given)
            for inputs in zip(*map(enclosed_copies, given), strict=True):
                assert_same_bits(functions_of_rows(*inputs), wanted, (name, n))
    for name in DTYPES:
        for sizes, dims in VIEWS:
            x = data(sizes, name, seed=7)
            wanted = torch_reduce.sum(x, dims)
            for view in enclosed_copies(x):
                assert_same_bits(torch_reduce.sum(view, dims), wanted, (name, sizes, dims))
    print("nothing outside was read")


if __name__ == "__main__":
    main()
